"""Reads inputs that are led by what code they reach: the second part of `make fuzz`, or

    python tests/fuzz/run_guided.py [--minutes N] [--seed N] [--only TARGET] [--keep] [--page [SUBJECT]]

One line per target; figures in build/fuzz-guided.json and, with --page, as a page in build/benchmarks; ends with 1
if anything was found. What was found is kept beside the figures, as small as it could be made, to become a case of
`corpus.py`. It begins with the kept inputs, and with what earlier runs left in build/fuzz-guided/corpus; --keep adds to
the kept ones what reached more.

The kept inputs are a zip for each target, in `tests/fuzz/kept`. They were made by this run out of nothing but
structures that targets make; no image of a person is among them.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fieldray.bench.benchmark_case import Points, Report
from fuzz.corpus import CASES
from fuzz.run_structures import COLUMNS, MEASURED, found, said
from fuzz.run_structures import keep as save
from fuzz.structures.reading import Reader
from fuzz.structures.running import run_guided
from fuzz.structures.target import Target
from fuzz.structures.targets import TARGETS
from harness.runner import Found, Page, long_run, say, table

GUIDED: Final = ("dicom-header", "dicomdir", "zip", "manifest", "wire", "answers", "channel", "chunks")
"""What others wrote and anybody may hand over; any target can be asked for."""
KEPT: Final = Path(__file__).with_name("kept")
LARGEST: Final = 2**14
_CODE: Final = "/app/fieldray/"
_LONGEST_S: Final = 60.0  # watching each line is slow


# ---- the corpus that is kept: small inputs of each target that together reach what was ever reached of the program


def inputs_of(target: str) -> list[bytes]:
    """The kept inputs of a target, none where none were kept yet."""
    path = KEPT / f"{target}.zip"
    if not path.is_file():
        return []
    with zipfile.ZipFile(path) as packed:
        return [packed.read(name) for name in packed.namelist()]


def keep_needed(target: Target, pool: Iterable[bytes]) -> None:
    """Keep those of these inputs, and of the kept ones, that `needed` gives."""
    chosen = {_name(data): data for data in needed(target, {*pool, *inputs_of(target.name)})}
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, data in sorted(chosen.items()):
            packed.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    KEPT.mkdir(exist_ok=True)
    (KEPT / f"{target.name}.zip").write_bytes(stream.getvalue())


def needed(target: Target, pool: Iterable[bytes]) -> Iterator[bytes]:
    """The smallest inputs that reach a step from line to line, or an outcome, that no smaller one reaches.

    What is found something about, and what is longer than `LARGEST`, is left out.
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
    """Add each step from line to line in the program's code."""
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


def add_options(parser: argparse.ArgumentParser) -> None:
    """How long, which targets, and whether what reached more is kept."""
    parser.add_argument("--minutes", type=float, default=5.0, help="over all targets (default: 5)")
    parser.add_argument(
        "--only", action="append", choices=list(TARGETS), help="only this target; can be given more than once"
    )
    parser.add_argument("--keep", action="store_true", help="keep what reached more, in tests/fuzz/kept")


def run(options: argparse.Namespace) -> Found:
    """Every target for its share of the time, a line each."""
    names = tuple(options.only or GUIDED)
    say(f"{options.minutes:g} minutes over {len(names)} targets, seed {options.seed}")
    seconds = 60 * options.minutes / len(names)
    guide = partial(guided, seconds=seconds, seed=options.seed, out=options.out, keep=options.keep)
    return found([guide(name) for name in names], seed=options.seed)


def guided(name: str, *, seconds: float, seed: int, out: Path, keep: bool) -> dict[str, Any]:
    """Read inputs of a target for so long."""
    corpus = out.parent / out.stem / "corpus" / name
    corpus.mkdir(parents=True, exist_ok=True)
    begin = [*inputs_of(name), *(case.data() for case in CASES.values() if case.target == name)]
    for number, data in enumerate(begin):
        (corpus / f"begin-{number:03}").write_bytes(data)
    tally, findings, reached = run_guided(name, seconds=seconds, seed=seed, corpus=corpus.resolve())
    save(findings, out.parent / out.stem)
    if keep:
        keep_needed(TARGETS[name], [path.read_bytes() for path in corpus.iterdir()])
    return said(name, tally, findings, (*reached, len(inputs_of(name))))


def report(facts: Mapping[str, Any]) -> Report:
    """The figures as a table, and what its columns mean."""
    targets = facts["targets"]
    came = ("target", "inputs", "accepted", "places reached", "by inputs", "kept", "findings", "inputs/s", "most, ms")
    run_facts = (
        f"Read in {facts['seconds']:.0f} s: {sum(each['inputs'] for each in targets):,} inputs of "
        f"{len(targets)} parts of the program (seed {facts['seed']}), each a change of one that had reached code "
        "which no other had.",
        "A finding is what it is of `make fuzz-structures`, but for the time: 10 s of CPU time, since watched code is "
        "slower.",
        "Places: branches of the program, pydicom and zipfile, and comparisons, as libFuzzer counts them; those that "
        "are passed while modules are imported are not among them. Kept: the inputs in tests/fuzz/kept.",
    )
    blocks = (
        Points("What was run", run_facts),
        table("What came of it", targets, {name: COLUMNS[name] for name in came}),
    )
    return Report(kind="fuzz-guided", title="Fieldray: guided fuzzing", blocks=blocks, data=facts)


if __name__ == "__main__":
    needs = ("Linux", "Atheris (the extra robustness)")
    page = Page(subject="guided-fuzzing", measured=MEASURED, report=report)
    sys.exit(long_run(run, add_options, usage=__doc__, figures="build/fuzz-guided.json", needs=needs, page=page))
