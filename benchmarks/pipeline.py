"""Measure the speed of this program from files to scores, compared with the usual script and the limit."""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.archive import USUAL_KINDS, Archive, ArchivePlan, make_archive
from benchmarks.contestants import LIMIT, MIXED, PROGRAM, SCRIPT, SERVICES, SpeedResults, compare_runs, open_contestant
from benchmarks.image_files import IMAGE_KINDS
from benchmarks.processes import cpu_s
from benchmarks.reports import Goal, max_goal
from benchmarks.screening import fill_folder, screen_once
from fieldray.bench.benchmark_case import BenchmarkReport, BulletList, ReportBlock, Table
from fieldray.commands.console import Console
from fieldray.commands.options import load_pack, name_of_pack_to_measure, pack_library
from fieldray.domain.model import Model
from fieldray.process_environment import usable_cores
from fieldray.processes.wire import Message

_STARTING_IMAGES: Final = 12


def run_benchmark(options: argparse.Namespace, console: Console) -> BenchmarkReport:
    """Measure the speed from files to scores of all contestants, and return the report.

    Raises PackProblem, UsageProblem, ScreeningFailed.
    """
    library = pack_library()
    options.pack = str(library.find(options.pack or name_of_pack_to_measure(library)).folder)
    model = load_pack(library, options.pack, options)
    with tempfile.TemporaryDirectory(prefix="fieldray-bench-") as folder:
        archive = _archive(options, model, Path(folder), console)
        opening = _opening(model, options, archive)
        results = compare_runs(
            opening,
            archive,
            repeats=options.repeats,
            notify=console.show_progress_bar,
            max_seconds=60 * options.minutes,
        )
        rules = _rules(model, options)
        for number in range(options.repeats):
            console.show_progress_bar(f"whole processes, {number + 1} of {options.repeats}")
            for name, spent_s in _whole_cpu_s(archive, opening, rules).items():
                results.whole_cpu_s.setdefault(name, []).append(spent_s / len(archive.mixed_files))
        results.first_result_s = tuple(_starts(archive, rules, options, Path(folder), console))
    images = f"images of {options.folder}, enlarged" if options.folder else "images drawn by the program"
    return pipeline_report(results, images=images)


def _archive(options: argparse.Namespace, model: Model, folder: Path, console: Console) -> Archive:
    ages = model.manifest.accepted.ages_years
    wanted = ArchivePlan(
        files=options.files,
        files_per_other_kind=options.others,
        megapixels=options.megapixels,
        kinds=options.kinds,
        age_years=sum(ages) // 2 if ages else None,
    )
    archive = make_archive(folder / "archive", wanted, source=options.folder, notify=console.show_progress_bar)
    for kind in IMAGE_KINDS.values():
        if wanted.count(kind.name) and kind.name not in archive.files:
            console.print_line(f"{kind.name} is left out: without python-gdcm the usual script cannot read it here")
    return archive


def _opening(model: Model, options: argparse.Namespace, archive: Archive) -> Message:
    """Return the first message to all contestants: files for the warm-up, options of the pack, and networks."""
    first = {"ask": "open", "first": [str(path) for path in sorted(archive.warm_up_folder.iterdir())]}
    rules = {"pack": options.pack, "allow_older": options.allow_older, "allow_legacy": options.allow_legacy}
    networks = {"model": model, "lungs": model.lungs}
    arrays = {name: np.frombuffer(one.files["litert"], np.uint8) for name, one in networks.items() if one}
    return Message({**first, **rules}, arrays)


def _rules(model: Model, options: argparse.Namespace) -> list[str]:
    """Return the options of `fieldray screen` that select the pack of `model`."""
    rules = ["--pack", options.pack]
    rules += ["--trust", model.fingerprint] if model.trust == "signed" else []
    rules += ["--allow-older"] if options.allow_older else []
    return rules + (["--allow-legacy"] if model.trust == "legacy" else [])


def _whole_cpu_s(archive: Archive, opening: Message, rules: Sequence[str]) -> dict[str, float]:
    """Return the CPU seconds of new processes that process the mixed archive, from start to end, by contestant.

    Empty if the operating system does not report CPU times.
    """
    before_s = cpu_s(os.getpid())
    screen_once(archive.mixed_folder, rules)
    between_s = cpu_s(os.getpid())
    with open_contestant(SCRIPT, SERVICES[SCRIPT], Message({**opening.body, "first": []}, opening.arrays)) as script:
        script.run([file.path for file in archive.mixed_files], folder=archive.mixed_folder)
    after_s = cpu_s(os.getpid())
    if before_s is None or between_s is None or after_s is None:
        return {}
    return {PROGRAM: between_s - before_s, SCRIPT: after_s - between_s}


def _starts(
    archive: Archive, rules: Sequence[str], options: argparse.Namespace, folder: Path, console: Console
) -> Iterator[float]:
    """Start the program a few times, and yield the seconds from each start to the first result."""
    paths = list(itertools.islice(sorted(archive.mixed_folder.iterdir()), _STARTING_IMAGES))
    few = fill_folder(folder / "start", paths, len(paths))
    for number in range(options.repeats):
        console.show_progress_bar(f"start {number + 1} of {options.repeats}")
        yield screen_once(few, rules).first_s


# ---- the report

# Goals by kind of file: images per second divided by those of the usual script.
SPEED_UP_GOALS: Final[Mapping[str, float]] = {
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
MAX_MEMORY_MB: Final = 800.0
MAX_START_S: Final = 1.0


def pipeline_report(results: SpeedResults, *, images: str) -> BenchmarkReport:
    """Return the report of a speed comparison. `images` is a phrase that describes the images."""
    marks = tuple(_marks(results))
    blocks: list[ReportBlock] = [_overall(results), _cpu_by_kind(results), _by_kind(results)]
    blocks += [BulletList("Goals", tuple(mark.sentence for mark in marks))]
    blocks += [BulletList("How it was measured", tuple(_notes(results, images)))]
    return BenchmarkReport(
        file_stem="pipeline",
        title="Fieldray: from files to scores, compared with a usual script",
        blocks=tuple(blocks),
        json_values=_data(results, marks, images),
    )


def _marks(results: SpeedResults) -> Iterator[Goal]:
    for kind, goal in SPEED_UP_GOALS.items():
        yield Goal(name=f"Speed-up over the {SCRIPT}, {kind}", measured=results.speed_up_over_script(kind), goal=goal)
    yield max_goal("Peak memory of all processes", results.peak_mb.get(PROGRAM), MAX_MEMORY_MB, unit="MB")
    first = statistics.median(results.first_result_s) if results.first_result_s else None
    yield max_goal("Time from start to first result", first, MAX_START_S, unit="s")


def _overall(results: SpeedResults) -> Table:
    rows = []
    for name, times in ((PROGRAM, results.speed_up_over_script()), (SCRIPT, None)):
        if results.is_complete(name):
            cells = (f"{results.images_per_s(name):.1f}", _number(times), _number(results.cpu_s(name), 4))
            rows.append((name, *cells, _number(results.peak_mb.get(name), 0)))
    columns = ("", "images / s", "speed-up over the script", "CPU s / image", "peak MB")
    count = len(results.archive.mixed_files)
    kinds = ", ".join(kind for kind in USUAL_KINDS if kind in results.archive.files)
    return Table(f"{count} files in equal parts: {kinds}", columns, tuple(rows))


def _cpu_by_kind(results: SpeedResults) -> Table:
    rows = []
    whole = {name: 1000 * statistics.median(spent) for name, spent in results.whole_cpu_s.items()}
    if whole:
        ratio = statistics.median(
            script / program
            for program, script in zip(results.whole_cpu_s[PROGRAM], results.whole_cpu_s[SCRIPT], strict=True)
        )
        rows.append(
            ("whole processes", *(_number(whole[name], 1) for name in (PROGRAM, SCRIPT)), "", _number(ratio), "")
        )
    for kind in (MIXED, *(kind for kind in USUAL_KINDS if kind in results.archive.files)):
        spent = [results.cpu_s(name, kind) for name in (PROGRAM, SCRIPT, LIMIT)]
        cells = (_number(None if one is None else 1000 * one, 1) for one in spent)
        ratios = results.cpu_ratio(SCRIPT, PROGRAM, kind), results.cpu_ratio(PROGRAM, LIMIT, kind)
        rows.append((kind, *cells, *map(_number, ratios)))
    columns = ("CPU ms / image", PROGRAM, SCRIPT, LIMIT, "script / program", "program / limit")
    return Table("CPU time, by kind of file", columns, tuple(rows))


def _by_kind(results: SpeedResults) -> Table:
    rows = []
    for kind in (MIXED, *results.archive.files):
        if not results.is_complete(PROGRAM, kind):
            continue
        rates = (_rate(results, name, kind) for name in (PROGRAM, SCRIPT))
        ratios = (_number(results.speed_up_over_script(kind), 1), _number(SPEED_UP_GOALS.get(kind), 1))
        rows.append((kind, _megapixels(results, kind), *rates, *ratios))
    columns = ("images / s", "Mpixel", PROGRAM, SCRIPT, "ratio", "goal")
    return Table("By kind of file", columns, tuple(rows))


def _notes(results: SpeedResults, images: str) -> Iterator[str]:
    yield f"Run on {images}, {usable_cores()} cores. The operating system has cached the files."
    yield (
        "All figures are medians over rounds. In a round, program and script process each kind of file in turn. Ratios "
        "are computed within a round."
    )
    yield (
        "Before the measurement, program and script process one image of each kind, and the program's processes start. "
        "The program's time runs from the search for files to the last result in its database."
    )
    yield (
        "The script's time for the mixed archive is the sum of the times for each kind. The script's memory is "
        "measured on the largest file of each kind."
    )
    yield (
        "CPU time is the sum over all processes of program or script. The row of whole processes includes start and "
        "imports; the rows by kind do not. The limit is the time to read the file once at a sufficient resolution with "
        "the fastest installed decoder, to hash the file, and to run both networks once."
    )
    for name, detail in results.details.items():
        yield f"{name}: {detail}."
    for kind in (MIXED, *results.archive.files):
        if results.is_complete(PROGRAM, kind):
            yield f"Message of {PROGRAM} on {kind}: {results.runs[PROGRAM, kind][-1].detail}."
    failed = {key: runs[0].failed for key, runs in results.runs.items() if runs[0].failed}
    for (name, kind), count in failed.items():
        yield f"{name} failed with {count} of {results.runs[name, kind][0].files} files of {kind}."


def _rate(results: SpeedResults, name: str, kind: str) -> str:
    return f"{results.images_per_s(name, kind):.1f}" if results.is_complete(name, kind) else ""


def _megapixels(results: SpeedResults, kind: str) -> str:
    files = results.archive.mixed_files if kind == MIXED else results.archive.files[kind]
    return f"{statistics.fmean(file.pixels for file in files) / 1e6:.1f}"


def _number(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _data(results: SpeedResults, marks: Sequence[Goal], images: str) -> dict[str, Any]:
    return {
        "images": images,
        "cores": usable_cores(),
        "files": {kind: [file.pixels for file in files] for kind, files in results.archive.files.items()},
        "runs": [
            {"contestant": name, "kind": kind, "rounds": [asdict(run) for run in runs]}
            for (name, kind), runs in results.runs.items()
        ],
        "peak_mb": results.peak_mb,
        "whole_cpu_s": results.whole_cpu_s,
        "details": results.details,
        "first_result_s": list(results.first_result_s),
        "marks": [{**asdict(mark), "is_met": mark.is_met} for mark in marks],
    }
