"""What a command of `python -m benchmarks` is: its arguments, the code that its figures depend on, what measures."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Final

from fieldray.bench.report import Report
from fieldray.commands.console import Console

Measure = Callable[[argparse.Namespace, Console], Report]
Added = tuple[argparse.ArgumentParser, Sequence[str], Measure]
# The code that figures of screening depend on, as pages name it.
SCREENING: Final = tuple(
    f"app/fieldray/{room}" for room in ("imaging", "inference", "packs", "pipeline", "processes", "store")
)
