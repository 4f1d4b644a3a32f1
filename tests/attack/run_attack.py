"""Runs the collected attacks against the program: `make attack`, or

    python tests/attack/run_attack.py [--only PART] [--program PATH] [--list]

Prints one line for each case and writes figures to build/attack.json. The exit code is 1 if a case failed. See
docs/contributing.md.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the benchmarks write files of every kind

from harness.runner import add_case_options, add_program_options, long_run, run_selected
from harness.table import ATTACKS


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that select cases and the program."""
    add_case_options(parser)
    add_program_options(parser)


if __name__ == "__main__":
    sys.exit(
        long_run(lambda asked: run_selected(ATTACKS, asked), add_options, usage=__doc__, figures="build/attack.json")
    )
