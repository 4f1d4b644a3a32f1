"""The report of `pipeline`: how fast each contestant is on each kind of file, against limits and marks."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from benchmarks.archive import USUAL
from benchmarks.contestants import MIXED, PROGRAM, SCRIPT, Results
from benchmarks.reports import Mark
from fieldray.bench.benchmark_case import Block, Points, Report, Table

# What the program has to reach, as multiples of the script's rate in the same round
MARKS: Final[Mapping[str, float]] = {
    MIXED: 7.0,
    "JPEG 2000": 20.0,
    "JPEG 2000 lossy": 20.0,
    "HTJ2K": 20.0,
    "uncompressed": 8.0,
    "RLE": 5.0,
    "JPEG": 3.0,
    "JPEG in DICOM": 3.0,
    "PNG": 2.5,
    "JPEG-LS": 2.5,
    "lossless JPEG": 2.5,
}
MOST_MEMORY_MB: Final = 800.0
MOST_START_S: Final = 1.0


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class PipelineRun:
    """Everything that was measured.

    Attributes
    ----------
    results
        The contestants' rounds.
    first_result_s
        Seconds from starting the program to its first result, one entry per start.
    cores
        The cores this program may use.
    images
        What was run on, as a phrase.
    """

    results: Results
    first_result_s: Sequence[float]
    cores: int
    images: str

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of files; MIXED comes first."""
        return (MIXED, *self.results.archive.files)


def pipeline_report(measured: PipelineRun) -> Report:
    """Tables, marks and notes."""
    marks = tuple(_marks(measured))
    blocks: list[Block] = [_overall(measured), _by_kind(measured)]
    blocks += [Points("What had to be reached", tuple(mark.sentence for mark in marks))]
    blocks += [Points("How it was measured, and what was not", tuple(_notes(measured)))]
    return Report(
        kind="pipeline",
        title="Fieldray: from files to scores, compared with the usual script",
        blocks=tuple(blocks),
        data=_data(measured, marks),
    )


def _marks(measured: PipelineRun) -> Iterator[Mark]:
    results = measured.results
    for kind, goal in MARKS.items():
        yield Mark(name=f"{kind}, against the {SCRIPT}", measured=results.times_as_fast(kind), goal=goal)
    yield _at_most("Peak memory of all processes", results.peak_mb.get(PROGRAM), MOST_MEMORY_MB, unit="MB")
    first = statistics.median(measured.first_result_s) if measured.first_result_s else None
    yield _at_most("Start to first result", first, MOST_START_S, unit="s")


def _at_most(name: str, measured: float | None, goal: float, *, unit: str = "x") -> Mark:
    return Mark(name=name, measured=measured, goal=goal, is_most=True, unit=unit)


def _overall(measured: PipelineRun) -> Table:
    results = measured.results
    rows = []
    for name, times in ((PROGRAM, results.times_as_fast()), (SCRIPT, None)):
        if results.has(name):
            cells = (f"{results.images_per_s(name):.1f}", _number(times), _number(results.cpu_s(name), 4))
            rows.append((name, *cells, _number(results.peak_mb.get(name), 0)))
    columns = ("", "images / s", "times the script", "CPU s / image", "peak MB")
    count = len(results.archive.mixed)
    kinds = ", ".join(kind for kind in USUAL if kind in results.archive.files)
    return Table(f"{count} files in equal parts: {kinds}", columns, tuple(rows))


def _by_kind(measured: PipelineRun) -> Table:
    results = measured.results
    rows = []
    for kind in measured.kinds:
        if not results.has(PROGRAM, kind):
            continue
        rates = (_rate(results, name, kind) for name in (PROGRAM, SCRIPT))
        ratios = (_number(results.times_as_fast(kind), 1), _number(MARKS.get(kind), 1))
        rows.append((kind, _megapixels(results, kind), *rates, *ratios))
    columns = ("images / s", "Mpixel", PROGRAM, SCRIPT, "ratio", "to reach")
    return Table("By kind of file", columns, tuple(rows))


def _notes(measured: PipelineRun) -> Iterator[str]:
    results = measured.results
    yield f"Run on {measured.images}, {measured.cores} cores. The files are in the system's cache."
    yield (
        "Medians over rounds. Within a round both process the same kind of file in turn; ratios are taken within a "
        "round."
    )
    yield (
        "Before the time begins, both have processed one image of each kind, and the program's processes are started. "
        "The program's time runs from the search for files to the last result in its database."
    )
    yield (
        "The script's time for the mixed archive is the sum over its kinds; its memory is measured on the largest file "
        "of each kind."
    )
    for name, detail in results.details.items():
        yield f"{name}: {detail}."
    for kind in measured.kinds:
        if results.has(PROGRAM, kind):
            yield f"What {PROGRAM} said of {kind}: {results.runs[PROGRAM, kind][-1].detail}."
    failed = {key: runs[0].failed for key, runs in results.runs.items() if runs[0].failed}
    for (name, kind), count in failed.items():
        yield f"{name} failed on {count} of {results.runs[name, kind][0].files} files of {kind}."


def _rate(results: Results, name: str, kind: str) -> str:
    return f"{results.images_per_s(name, kind):.1f}" if results.has(name, kind) else ""


def _megapixels(results: Results, kind: str) -> str:
    files = results.archive.mixed if kind == MIXED else results.archive.files[kind]
    return f"{statistics.fmean(file.pixels for file in files) / 1e6:.1f}"


def _number(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _data(measured: PipelineRun, marks: Sequence[Mark]) -> dict[str, Any]:
    results = measured.results
    return {
        "images": measured.images,
        "cores": measured.cores,
        "files": {kind: [file.pixels for file in files] for kind, files in results.archive.files.items()},
        "runs": [
            {"contestant": name, "kind": kind, "rounds": [asdict(run) for run in runs]}
            for (name, kind), runs in results.runs.items()
        ],
        "peak_mb": results.peak_mb,
        "details": results.details,
        "first_result_s": list(measured.first_result_s),
        "marks": [{**asdict(mark), "is_met": mark.is_met} for mark in marks],
    }
