"""Coverage-guided fuzzing by Atheris: the second part of `make fuzz`, or

    python tests/fuzz/run_guided.py [--minutes N] [--seed N] [--only TARGET] [--keep]

Prints one line for each target and writes figures to build/fuzz-guided.json. The exit code is 1 if there was a finding.
The input of a finding is reduced and written next to the figures, to become a case of `corpus.py`. A run begins with
the kept inputs and with build/fuzz-guided/corpus from earlier runs. --keep adds inputs that reached more code.

Findings are those of `make fuzz-structures`, with a limit of 10 s of CPU time, because traced code is slower. Places
are branches and comparisons in the program, pydicom and zipfile, as libFuzzer counts them, without those that are
passed while modules are imported.

The kept inputs are in `tests/fuzz/kept`, a zip file for each target. This run derived them from generated structures
alone; no image of a person is among them.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fuzz.corpus import CASES
from fuzz.run_structures import asked_for, judge
from fuzz.structures.reading import Reader
from fuzz.structures.running import run_guided
from fuzz.structures.target import Target
from fuzz.structures.targets import TARGETS
from harness.case import Case
from harness.runner import add_case_options, long_run, run_selected
from harness.world import World

GUIDED: Final = ("dicom-header", "dicomdir", "zip", "manifest", "wire", "answers", "channel", "chunks")
"""What others wrote and anybody may hand over; any target can be asked for."""
KEPT: Final = Path(__file__).with_name("kept")
LARGEST: Final = 2**14
_CODE: Final = "/app/fieldray/"
_LONGEST_S: Final = 60.0  # tracing each line is slow


# ---- the kept inputs: a small set for each target that reaches all code that any input has reached


def inputs_of(target: str) -> list[bytes]:
    """Return the kept inputs of a target, an empty list if there are none yet."""
    path = KEPT / f"{target}.zip"
    if not path.is_file():
        return []
    with zipfile.ZipFile(path) as packed:
        return [packed.read(name) for name in packed.namelist()]


def keep_needed(target: Target, pool: Iterable[bytes]) -> None:
    """Add these inputs to the kept ones, and keep only those that `needed` chooses."""
    chosen = {_name(data): data for data in needed(target, {*pool, *inputs_of(target.name)})}
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, data in sorted(chosen.items()):
            packed.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    KEPT.mkdir(exist_ok=True)
    (KEPT / f"{target.name}.zip").write_bytes(stream.getvalue())


def needed(target: Target, pool: Iterable[bytes]) -> Iterator[bytes]:
    """Yield, by size, each input with a new step from line to line or a new outcome.

    Inputs with a finding, and those longer than `LARGEST`, are left out.
    """
    known: set[object] = set()
    with tempfile.TemporaryDirectory() as folder, Reader(target, Path(folder), longest_s=_LONGEST_S) as reader:
        reader.warm()
        for data in sorted((data for data in pool if len(data) <= LARGEST), key=lambda data: (len(data), data)):
            if reader.problem(data):
                continue
            reached: set[object] = set()
            with _watched(reached):
                reached.add(reader.read(data))
            if reached - known:
                known |= reached
                yield data


@contextmanager
def _watched(reached: set[object]) -> Iterator[None]:
    """Add each step from line to line in the program's code to `reached`."""
    last: dict[FrameType, int] = {}

    def of_call(frame: FrameType, _event: str, _argument: Any) -> Any:
        return of_line if _CODE in frame.f_code.co_filename else None

    def of_line(frame: FrameType, event: str, _argument: Any) -> Any:
        if event == "line":
            reached.add((frame.f_code, last.get(frame, 0), frame.f_lineno))
            last[frame] = frame.f_lineno
        elif event == "return":
            last.pop(frame, None)
        return of_line

    before = sys.gettrace()
    sys.settrace(of_call)
    try:
        yield
    finally:
        sys.settrace(before)


def _name(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


# ---- the run


def cases(options: argparse.Namespace) -> Iterator[Case]:
    """Yield a case for each target, with equal shares of the time. Targets outside `GUIDED` run only with --only."""
    names = asked_for(options, tuple(TARGETS) if options.only else GUIDED)
    seconds = 60 * options.minutes / max(1, len(names))
    for name in names:
        attempt = partial(_read, name=name, seconds=seconds, options=options)
        yield Case(name=name, tried=f"{seconds:.0f} s of {TARGETS[name].reads}", attempt=attempt)


def _read(world: World, *, name: str, seconds: float, options: argparse.Namespace) -> None:
    """Read inputs of a target for `seconds`."""
    corpus = options.out.parent / options.out.stem / "corpus" / name
    corpus.mkdir(parents=True, exist_ok=True)
    begin = [*inputs_of(name), *(case.data() for case in CASES.values() if case.target == name)]
    for number, data in enumerate(begin):
        (corpus / f"begin-{number:03}").write_bytes(data)
    tally, findings, (reached, by) = run_guided(name, seconds=seconds, seed=options.seed, corpus=corpus.resolve())
    if options.keep:
        keep_needed(TARGETS[name], [path.read_bytes() for path in corpus.iterdir()])
    world.counts.update({"places reached": reached, "by": by, "kept": len(inputs_of(name))})
    judge(world, tally, findings, out=options.out)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this run."""
    add_case_options(parser)
    parser.add_argument("--minutes", type=float, default=5.0, help="over all targets (default: 5)")
    parser.add_argument("--keep", action="store_true", help="keep what reached more, in tests/fuzz/kept")


if __name__ == "__main__":
    needs, figures = ("Linux", "Atheris (the extra robustness)"), "build/fuzz-guided.json"
    sys.exit(
        long_run(
            lambda asked: run_selected(cases(asked), asked), add_options, usage=__doc__, figures=figures, needs=needs
        )
    )
