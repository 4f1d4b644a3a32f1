"""Screens thousands of damaged files and checks what the program guarantees for any file: `make fuzz`, or

    python tests/fuzz/run_fuzz.py [--files N] [--seed N] [--only KIND] [--data FOLDER] [--program PATH]

Prints one line for up to 250 files with one kind of damage, and writes figures to build/fuzz.json. The exit code is 1
if a check failed. The same seed damages the same files in the same way.

Checked are: one result for each file, no traceback, no process left behind, an end within the time limit, and memory
within the limits of the attack run. A decoder may crash or time out on a file; such files are counted.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fuzz.mutations import MUTATIONS, mutated
from harness.case import Case
from harness.runner import RunResult, add_case_options, add_program_options, long_run, run_selected, say
from harness.world import World
from phantoms import write_collection

LARGEST: Final = 4 * 2**20
_PER_RUN: Final = 250
_PER_SUFFIX: Final = 100
_START_S, _PER_FILE_S = 120.0, 2.0


def sources(folder: Path, data: Path | None, *, seed: int) -> list[Path]:
    """Return the files to damage: every kind of phantom, and up to 100 files of each suffix from `data`, below 4 MB."""
    chosen = write_collection(folder)
    by_suffix: dict[str, list[Path]] = defaultdict(list)
    for path in sorted(data.rglob("*")) if data else ():
        if path.is_file() and path.suffix.lower() in ("", ".dcm", ".png", ".jpg", ".jpeg"):
            by_suffix[path.suffix.lower()].append(path)
    for suffix, found in sorted(by_suffix.items()):
        paths = [path for path in found if 0 < path.stat().st_size <= LARGEST and "DICOMDIR" not in path.name]
        chosen += random.Random(f"{seed} {suffix}").sample(paths, min(_PER_SUFFIX, len(paths)))
    return chosen


def cases(originals: Sequence[Path], *, files: int, seed: int) -> Iterator[Case]:
    """Yield the cases. Together they have `files` files, equally many for each kind of damage."""
    for place, (kind, mutation) in enumerate(MUTATIONS.items()):
        share = files // len(MUTATIONS) + (place < files % len(MUTATIONS))
        for start in range(0, share, _PER_RUN):
            numbers = range(start, min(start + _PER_RUN, share))
            yield Case(
                name=f"{kind}/{start}",
                tried=f"{len(numbers)} files: {mutation.__doc__}",
                attempt=partial(_screen, kind=kind, numbers=numbers, originals=originals, seed=seed),
                limit_s=_START_S + _PER_FILE_S * len(numbers),
            )


def _screen(world: World, *, kind: str, numbers: range, originals: Sequence[Path], seed: int) -> None:
    """Damage the files with these numbers, and screen them in one run of the program."""
    names = []
    for number in numbers:
        original = random.Random(f"{seed} {kind} {number} original").choice(originals)
        names.append(f"{number:05}-{original.name}")
        data = mutated(original.read_bytes(), kind, seed=seed, number=number)
        (world.images / names[-1]).write_bytes(data)
    lines = world.screen(dict.fromkeys(names, "any")).lines
    world.counts.update(line["status"] for line in lines)
    world.counts.update(line["reason_code"] for line in lines if line["reason_code"])


# ---- the run


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this run."""
    add_case_options(parser)
    add_program_options(parser)
    parser.add_argument("--files", type=int, default=10_000, help="how many files, over all kinds (default: 10,000)")
    parser.add_argument("--data", type=Path, help="a folder of further images to damage (ignored if there is none)")


def run(options: argparse.Namespace) -> RunResult:
    """Run the selected cases."""
    data = options.data if options.data and options.data.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="fieldray-fuzz-") as folder:
        originals = sources(Path(folder), data, seed=options.seed)
        say(f"{options.files} files made of {len(originals)}, seed {options.seed}")
        return run_selected(cases(originals, files=options.files, seed=options.seed), options)


if __name__ == "__main__":
    sys.exit(long_run(run, add_options, usage=__doc__, figures="build/fuzz.json"))
