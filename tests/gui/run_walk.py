"""Random walks through the whole window: `make walk`, or `python tests/gui/run_walk.py --walks 100 --seed 1`.

Prints the seed of each walk that went wrong, with the shortest walk that still does, and ends with 1 if there was one.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from PySide6.QtWidgets import QApplication
from window_walk import Act, WindowWalk, acts, shortest


def main() -> int:
    """Walk as the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--walks", type=int, default=10_000)
    parser.add_argument("--events", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1, help="of the first walk")
    options = parser.parse_args()
    qt = QApplication(["fieldray"])
    qt.setQuitOnLastWindowClosed(False)
    thrown: list[str] = []
    sys.excepthook = lambda kind, error, trace: thrown.append(f"{kind.__name__}: {error}")

    def fails(walk: Sequence[Act]) -> str:
        thrown.clear()
        with tempfile.TemporaryDirectory() as folder:
            going = WindowWalk(qt, Path(folder))
            try:
                return going.go(walk) or ", ".join(thrown)
            finally:
                going.end()

    wrong, began_s = 0, time.monotonic()
    for number in range(options.walks):
        walk = acts(options.seed + number, options.events)
        if why := fails(walk):
            wrong += 1
            least = "\n  ".join(map(str, shortest(walk, fails)))
            sys.stdout.write(f"seed {options.seed + number}: {why}\n  {least}\n")
        if number % 10 == 9:
            sys.stderr.write(f"{number + 1} walks, {wrong} wrong, {time.monotonic() - began_s:.0f} s\n")
    sys.stdout.write(f"{options.walks} walks of {options.events} events: {wrong} went wrong.\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
