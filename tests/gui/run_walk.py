"""Random walks through the whole window: `make walk`, or `python tests/gui/run_walk.py --walks 100 --seed 1`.

One window takes many walks, each from where a window begins. Prints the seed of each walk that went wrong, with the
shortest walk that still does, and ends with 1 if there was one. What is done is kept in `--done`: the same command
again goes on from there.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
os.environ.setdefault("QT_LOGGING_RULES", "*.warning=false")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from PySide6.QtWidgets import QApplication
from window_walk import Act, WindowWalk, acts, shortest

MEMORY: Final = Path("/dev/shm")
WALKS_A_WINDOW: Final = 50
EVERYTHING_ANEW: Final = 5
SHORTENED_S: Final = 120.0


class Walks:
    """Walks of a window, and another window after many, or after one that went wrong."""

    def __init__(self, qt: QApplication) -> None:
        self._qt = qt
        self._thrown: list[str] = []
        sys.excepthook = lambda kind, error, trace: self._thrown.append(f"{kind.__name__}: {error}")

    @contextmanager
    def window(self) -> Iterator[WindowWalk]:
        """A window of its own, over a store in memory where the system has room for files there."""
        with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
            going = WindowWalk(self._qt, Path(folder))
            gc.freeze()  # as the program does
            try:
                yield going
            finally:
                going.end()

    def go(self, going: WindowWalk, walk: Sequence[Act]) -> str:
        """What went wrong, "" for nothing."""
        self._thrown.clear()
        try:
            return going.go(walk) or ", ".join(self._thrown)
        except Exception as error:
            return "".join(traceback.format_exception(error))

    def fails(self, walk: Sequence[Act]) -> str:
        """What goes wrong with this walk alone."""
        with self.window() as going:
            return self.go(going, walk)

    def least(self, walk: Sequence[Act]) -> Sequence[Act]:
        """The shortest walk that was found in some time to go wrong, too."""
        end_s = time.monotonic() + SHORTENED_S
        return shortest(walk, lambda less: self.fails(less) if time.monotonic() < end_s else "")

    def wrong(self, seeds: Sequence[int], events: int) -> Iterator[tuple[int, str]]:
        """By the seed, what went wrong, with the shortest walk that does."""
        left = list(seeds)
        while left:
            with self.window() as going:
                why, before = "", list[Act]()
                while left and not why and len(before) < WALKS_A_WINDOW * (events + 1):
                    seed = left.pop(0)
                    walk = (*acts(seed, events), Act("home", int(seed % EVERYTHING_ANEW > 0)))
                    why = self.go(going, walk)
                    before += walk
                    if not why:
                        yield seed, ""
            if why:
                walk = walk if self.fails(walk) else before
                yield seed, "\n  ".join([why, *map(str, self.least(walk))])


def main() -> int:
    """Walk as the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--walks", type=int, default=10_000)
    parser.add_argument("--events", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1, help="of the first walk")
    parser.add_argument("--every", type=int, default=1, help="of so many walks, one")
    parser.add_argument("--processes", type=int, default=1, help="side by side")
    parser.add_argument("--done", type=Path, help="a file that keeps which walks were gone, to go on from there")
    options = parser.parse_args()
    if options.processes > 1:
        return _side_by_side(options)
    logging.disable()
    gc.set_threshold(700, 10, 100)
    qt = QApplication(["fieldray"])
    qt.setQuitOnLastWindowClosed(False)
    known = options.done.read_text().split() if options.done and options.done.exists() else []
    every = range(options.seed, options.seed + options.walks, options.every)
    seeds = [seed for seed in every if str(seed) not in set(known)]
    wrong, began_s = 0, time.monotonic()
    for count, (seed, why) in enumerate(Walks(qt).wrong(seeds, options.events), 1):
        if why:
            wrong += 1
            sys.stdout.write(f"seed {seed}: {why}\n")
            sys.stdout.flush()
        elif options.done:
            with options.done.open("a") as done:
                done.write(f"{seed}\n")
        if count % 10 == 0:
            sys.stderr.write(f"{count} walks, {wrong} wrong, {time.monotonic() - began_s:.0f} s\n")
    sys.stdout.write(f"{len(every)} walks of {options.events} events: {wrong} went wrong.\n")
    return 1 if wrong else 0


def _side_by_side(options: argparse.Namespace) -> int:
    """Each process takes every so manieth walk."""
    count = options.processes
    going = [
        subprocess.Popen(
            [
                *(sys.executable, __file__, "--walks", str(options.walks - place), "--seed", str(options.seed + place)),
                *("--events", str(options.events), "--every", str(count)),
                *(("--done", str(options.done)) if options.done else ()),
            ]
        )
        for place in range(count)
    ]
    return max([process.wait() for process in going])


if __name__ == "__main__":
    sys.exit(main())
