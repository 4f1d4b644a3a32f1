"""Measure `fieldray screen` as a user runs it: time to the first result, images per second, CPU time and memory."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Final

from benchmarks.processes import MemoryWatch, cpu_s
from fieldray.bench.benchmark_case import BenchmarkReport, BulletList, Table
from fieldray.imaging.synthetic import write_studies
from fieldray.paths import python_command

_STARTING_IMAGES: Final = 10
_EXIT_CODES_WITH_RESULTS: Final = (0, 1)  # 0: all images have results; 1: some images failed

Notify = Callable[[str], None]


class ScreeningFailed(Exception):
    """The error if the program ended with an unexpected exit code. The message is the output of the program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScreeningFigures:
    """The figures of one run of `fieldray screen`.

    Attributes
    ----------
    images
        Number of results.
    first_s, total_s
        Seconds from the start of the program to the first result, and seconds from the start to the end.
    cpu_s
        CPU seconds of all processes of the program; None if unknown.
    pss_mb, rss_mb, processes
        Peak memory in megabytes (see `MemoryWatch`), and largest number of processes; 0 if not measured.
    """

    images: int
    first_s: float
    total_s: float
    cpu_s: float | None
    pss_mb: float
    rss_mb: float
    processes: int


def screen_once(folder: Path, options: Sequence[str] = (), *, is_watched: bool = False) -> ScreeningFigures:
    """Run `fieldray screen` on a folder, on the CPU, with a new and temporary user data folder. Returns the figures.

    Parameters
    ----------
    options
        Further options of `fieldray screen`.
    is_watched
        Whether memory is measured, which slows the run down.

    Raises
    ------
    ScreeningFailed
        If the exit code is not that of a screening with results.
    """
    arguments = ["screen", str(folder), "--json", "-", "--fresh", "--device", "cpu", *options]
    with tempfile.TemporaryFile("w+") as said:
        before_s, began_s = cpu_s(os.getpid()), time.perf_counter()
        code, lines, watch = _run(arguments, said, is_watched=is_watched)
        total_s, after_s = time.perf_counter() - began_s, cpu_s(os.getpid())
        said.seek(0)
        if code not in _EXIT_CODES_WITH_RESULTS or not lines:
            raise ScreeningFailed(f"fieldray screen ended with {code}: {said.read().strip()}")
    return ScreeningFigures(
        images=len(lines),
        first_s=lines[0][0] - began_s,
        total_s=total_s,
        cpu_s=None if before_s is None or after_s is None else after_s - before_s,
        pss_mb=watch.pss_mb,
        rss_mb=watch.rss_mb,
        processes=watch.processes,
    )


def _run(
    arguments: Sequence[str], said: IO[str], *, is_watched: bool
) -> tuple[int, list[tuple[float, bytes]], MemoryWatch]:
    """Run the program. Returns the exit code, the output lines with their times, and the measured memory.

    `said` is the file for standard error.
    """
    command = python_command("fieldray.__main__", *arguments)
    with tempfile.TemporaryDirectory(prefix="fieldray-bench-") as home:
        environment = {**os.environ, "FIELDRAY_HOME": home}
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, env=environment) as process:
            watch = MemoryWatch(process.pid)
            if is_watched:
                watch.start()
            assert process.stdout
            lines = [(time.perf_counter(), line) for line in process.stdout]
        if is_watched:
            watch.stop()
    return process.returncode, lines, watch


def fill_folder(folder: Path, sources: Sequence[Path], count: int) -> Path:
    """Fill a folder with `count` image files: a copy of each source, then hard links to these copies.

    Returns the folder. Raises OSError.
    """
    folder.mkdir(parents=True)
    for number in range(count):
        source = sources[number % len(sources)]
        target = folder / f"{number:05}-{source.name}"
        first = folder / f"{number % len(sources):05}-{source.name}"
        if number < len(sources):
            shutil.copyfile(source, target)
            continue
        try:
            os.link(first, target)
        except OSError:  # the file system has no hard links
            shutil.copyfile(source, target)
    return folder


def run_benchmark(
    source: Path | None, options: Sequence[str], *, counts: Sequence[int], starts: int, notify: Notify
) -> BenchmarkReport:
    """Measure the start of `fieldray screen`, and long runs, and return the report.

    Parameters
    ----------
    source
        Image files that are screened under many names. None for synthetic studies.
    options
        Further options of `fieldray screen`.
    counts
        The numbers of images of the long runs.
    starts
        Number of measurements of the time to the first result.
    notify
        A function that is called with messages about the progress.

    Raises
    ------
    ScreeningFailed, OSError
    """
    with tempfile.TemporaryDirectory(prefix="fieldray-bench-") as folder:
        root = Path(folder)
        sources = sorted(_files(source or _synthetic(root / "studies")))
        if not sources:
            raise ScreeningFailed(f"{source} holds no files")
        few = fill_folder(root / "few", sources, _STARTING_IMAGES)
        first_s = []
        for number in range(starts):
            notify(f"start {number + 1} of {starts}")
            first_s.append(screen_once(few, options).first_s)
        runs = []
        for count in counts:
            notify(f"{count} images")
            runs.append(screen_once(fill_folder(root / str(count), sources, count), options, is_watched=True))
    whose = f"{len(sources)} files of {source}" if source else f"{len(sources)} synthetic studies"
    return _report(runs, first_s, whose)


def _report(runs: Sequence[ScreeningFigures], first_s: Sequence[float], whose: str) -> BenchmarkReport:
    rows = tuple(
        (
            str(run.images),
            f"{run.total_s:.1f}",
            f"{run.images / run.total_s:.1f}",
            f"{run.pss_mb:.0f}",
            f"{run.rss_mb:.0f}",
            str(run.processes),
        )
        for run in runs
    )
    columns = ("images", "seconds", "images / s", "peak PSS, MB", "peak RSS, MB", "processes")
    start = f"Time from start to first result: median {statistics.median(first_s):.2f} s, worst {max(first_s):.2f} s."
    note = f"Run on {whose}; copies under other names fill the larger runs. Memory was sampled during the long runs."
    return BenchmarkReport(
        file_stem="screening",
        title="Fieldray: screening as a user starts it",
        blocks=(
            Table("Long runs", columns, rows),
            BulletList("Starts", (start,)),
            BulletList("How it was measured", (note,)),
        ),
        json_values={"first_result_s": list(first_s), "runs": [asdict(run) for run in runs]},
    )


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


def _synthetic(folder: Path) -> Path:
    write_studies(folder)
    return folder
