"""Comparison of `fieldray archive screen` with `fieldray screen` on equal images: time, decisions, memory, kills,
network.

The benchmark consists of parts. The figures of finished parts are stored in a folder, so that a benchmark that takes
hours can be resumed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.cluster_kills import run_sweep_with_kills, screen_archive_with_kills
from benchmarks.cluster_network import screen_on_three_computers
from benchmarks.cluster_runs import (
    ImageResults,
    RunFigures,
    count_differences,
    draw_sources,
    measure_run,
    read_newest_run,
    write_copies,
)
from benchmarks.namespaces import NotPermitted
from benchmarks.reports import Goal, commit_of, max_goal
from benchmarks.screening import ScreeningFailed
from fieldray.bench.benchmark_case import BenchmarkReport, BulletList, ReportBlock, Table
from fieldray.persistence import write_atomically

Notify = Callable[[str], None]

_MAX_OVERHEAD: Final = 1.10
_MAX_IMAGES_WITH_KILLS: Final = 6000  # enough that the screening still runs at the last kill, even on an idle computer
_MAX_IMAGES_OVER_NETWORK: Final = 2000
_NOTES: Final = (
    "The total is the time from start to end of a command. The rate leaves out the first tenth of the images. The "
    "start is the total without the time that all images take at this rate.",
    "The overhead is the time per image, divided by that of `fieldray screen` in the same round (median).",
    "Memory is the memory of the driver: early from 10 % to 40 % of the images, late from 70 % on (medians).",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementPlan:
    """The amount of measuring: numbers of images, workers, runs and kills.

    Attributes
    ----------
    count
        Number of images in each run.
    workers
        The numbers of workers with which an archive is screened.
    rounds
        Number of runs with each number of workers. Runs of `fieldray screen` are made in between.
    kills
        Number of processes to kill while an archive is screened; 0 to leave this part out.
    trials, trial_kills
        Number of trials of a sweep, and number of workers to kill during the sweep; 0 to leave this part out.
    has_network
        Whether the part with three computers in a network is measured.
    """

    count: int
    workers: tuple[int, ...]
    rounds: int
    kills: int
    trials: int
    trial_kills: int
    has_network: bool
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFigures:
    """The measured figures of all parts that were not left out. Each part has a list `sentences` for the report."""

    runs: tuple[tuple[int, RunFigures], ...]
    kills: Mapping[str, Any]
    network: Mapping[str, Any]
    sweep: Mapping[str, Any]


def run_benchmark(
    source: Path | None, options: Sequence[str], *, work: Path | None, notify: Notify, **asked: Any
) -> BenchmarkReport:
    """Measure all parts of the comparison, and return the report.

    Parameters
    ----------
    source
        A folder with image files to copy. Each copy has other bytes. None to draw synthetic images.
    options
        Further options for `fieldray screen` and `fieldray archive screen`, such as `--pack`.
    work
        The folder for images and figures of finished parts. None for a temporary folder.
    asked
        The fields of `MeasurementPlan`.

    Raises
    ------
    ScreeningFailed, OSError
    """
    effort = MeasurementPlan(**asked)
    with _folder(work) as root:
        if source is None:
            source = root / "drawn" if (root / "drawn").exists() else draw_sources(root / "drawn")
        files = sorted(path for path in source.rglob("*") if path.is_file())
        if not files:
            raise ScreeningFailed(f"{source} holds no files")
        request = {"commit": commit_of(), "source": str(source), "options": list(options), "count": effort.count}
        bench = _Bench(root, files, options, plan=effort, request=request, notify=notify)
        return make_report(bench.measure_all_parts(), image_count=effort.count)


@contextlib.contextmanager
def _folder(work: Path | None) -> Iterator[Path]:
    if work:
        work.mkdir(parents=True, exist_ok=True)
        yield work.absolute()
        return
    with tempfile.TemporaryDirectory(prefix="fieldray-bench-") as folder:
        yield Path(folder)


class _Bench:
    """Measures the parts of the comparison in order, and stores the figures of each finished part."""

    def __init__(
        self,
        root: Path,
        files: Sequence[Path],
        options: Sequence[str],
        *,
        plan: MeasurementPlan,
        request: Mapping[str, Any],
        notify: Notify,
    ) -> None:
        self._root, self._files, self._options = root, files, options
        self._plan, self._request, self._notify = plan, request, notify

    def measure_all_parts(self) -> ClusterFigures:
        """Measure all parts that are not stored, and return the figures of all parts."""
        effort = self._plan
        pairs = itertools.product(range(effort.rounds), (0, *effort.workers))
        runs = tuple((number, self._run(number, workers)) for number, workers in pairs)
        return ClusterFigures(
            runs=runs,
            kills=self._part("kills", self._kills) if effort.kills else {},
            network=self._part("network", self._network) if effort.has_network else {},
            sweep=self._part("sweep", self._sweep) if effort.trials else {},
        )

    def _part(self, name: str, measure: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """Return the figures of the part `name`: stored by an earlier start with equal arguments, or measured now."""
        path = self._root / "parts" / f"{name}.json"
        known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        if known.get("request") != self._request:
            self._notify(f"part {name}")
            known = {"request": self._request, "figures": dict(measure())}
            write_atomically(path, json.dumps(known).encode())
        return dict(known["figures"])

    def _run(self, number: int, workers: int) -> RunFigures:
        name = f"round {number + 1} of {self._plan.rounds}: {f'{workers} workers' if workers else 'screen'}"
        figures = self._part(f"run-{number}-{workers}", lambda: self._measured_run(name, number, workers))
        return RunFigures(**{**figures, "curve": tuple(map(tuple, figures["curve"]))})

    def _measured_run(self, name: str, number: int, workers: int) -> Mapping[str, Any]:
        self._notify(name)
        images, folder = self._images(self._plan.count), self._root / f"run-{number}-{workers}"
        figures = measure_run(
            images, folder, self._options, workers=workers, count=self._plan.count, notify=self._notify
        )
        said = read_newest_run(folder / "home")
        expected = read_newest_run(self._root / "run-0-0" / "home") if (number, workers) != (0, 0) else said
        return dataclasses.asdict(dataclasses.replace(figures, differing=count_differences(expected, said)))

    def _images(self, count: int) -> Path:
        """Return a folder with exactly `count` image files, because the commands screen whole folders."""
        return write_copies(self._root / f"images-{count}", self._files, count)

    def _expected(self, count: int) -> tuple[Path, ImageResults]:
        """Return a folder with `count` images, and the results of `fieldray screen` for these images."""
        images = self._images(count)
        folder = self._root / ("run-0-0" if count == self._plan.count else f"screen-{count}")
        if not (folder / "home" / "results.sqlite").exists():
            measure_run(images, folder, self._options, workers=0, count=count, notify=self._notify)
        return images, read_newest_run(folder / "home")

    def _kills(self) -> Mapping[str, Any]:
        images, expected = self._expected(min(self._plan.count, _MAX_IMAGES_WITH_KILLS))
        kills = {"kills": self._plan.kills, "seed": self._plan.seed}
        folder = self._root / "kills"
        return screen_archive_with_kills(images, folder, self._options, expected, **kills, notify=self._notify)

    def _network(self) -> Mapping[str, Any]:
        count = min(self._plan.count, _MAX_IMAGES_OVER_NETWORK)
        images, expected = self._expected(count)
        try:
            return screen_on_three_computers(
                images, self._root / "network", self._options, expected, count=count, notify=self._notify
            )
        except NotPermitted as why:
            return {"sentences": [f"Not measured: {why}."]}

    def _sweep(self) -> Mapping[str, Any]:
        effort = {"trials": self._plan.trials, "kills": self._plan.trial_kills, "seed": self._plan.seed}
        return run_sweep_with_kills(self._root / "sweep", **effort, notify=self._notify)


# ---- the report


def make_report(figures: ClusterFigures, *, image_count: int) -> BenchmarkReport:
    """Return the report with the measured figures. `image_count` is the number of images in each run."""
    blocks: list[ReportBlock] = [_table(figures.runs, image_count)]
    if mark := _mark(figures.runs):
        blocks.append(BulletList("Goals", (mark.sentence,)))
    for title, part in (
        ("Random kills", figures.kills),
        ("Three computers", figures.network),
        ("A sweep with killed workers", figures.sweep),
    ):
        if part:
            blocks.append(BulletList(title, tuple(part["sentences"])))
    return BenchmarkReport(
        file_stem="cluster",
        title="Fieldray: an archive screened by a cluster on one computer",
        blocks=(*blocks, BulletList("How it was measured", _NOTES)),
        json_values=dataclasses.asdict(figures),
    )


def _overheads(runs: Sequence[tuple[int, RunFigures]], workers: int) -> list[float]:
    """Return for each round: time per image with `workers` workers, divided by the time of `fieldray screen`."""
    alone = {number: run.images_per_s for number, run in runs if not run.workers}
    return [alone[number] / run.images_per_s for number, run in runs if run.workers == workers and number in alone]


def _mark(runs: Sequence[tuple[int, RunFigures]]) -> Goal | None:
    known = [statistics.median(_overheads(runs, workers)) for workers in {run.workers for _, run in runs} - {0}]
    name = "time per image, divided by that of `fieldray screen`, with the best number of workers"
    return max_goal(name, min(known), _MAX_OVERHEAD, unit="x") if known else None


def _table(found: Sequence[tuple[int, RunFigures]], count: int) -> Table:
    rows = []
    for workers in dict.fromkeys(run.workers for _, run in found):
        runs = [run for _, run in found if run.workers == workers]
        rates = [run.images_per_s for run in runs]
        rows.append(
            (
                f"archive screen, {workers} workers" if workers else "screen",
                f"{statistics.median(run.total_s for run in runs):.1f}",
                f"{statistics.median(run.start_s for run in runs):.1f}",
                f"{statistics.median(rates):.1f} ({min(rates):.1f} to {max(rates):.1f})",
                f"{statistics.median(_overheads(found, workers)):.3f}",
                str(max(run.differing for run in runs)),
                f"{statistics.median(run.median_memory_mb(0.1, 0.4) for run in runs):.0f}",
                f"{statistics.median(run.median_memory_mb(0.7, 1.0) for run in runs):.0f}",
            )
        )
    columns = ("command", "total s", "start s", "images / s", "overhead", "different results", "MB early", "MB late")
    return Table(f"{count} images", columns, tuple(rows))
