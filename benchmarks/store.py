"""Measure the costs of the results database: bytes per image, time to check unchanged images, and maintenance.

Copies of images are screened once, and then again. A large database is made of synthetic results (`synthetic_run`).
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.cluster_runs import draw_sources, screening_command, start_command, wait_for_results, write_copies
from benchmarks.processes import load_average
from benchmarks.reports import Goal, max_goal
from benchmarks.synthetic_run import SyntheticRun
from fieldray.bench.benchmark_case import BenchmarkReport, BulletList, Table
from fieldray.domain.model import Model
from fieldray.domain.run import Verdict
from fieldray.paths import DATABASE_NAME
from fieldray.store.database import database_files, open_read_only, pictures_path
from fieldray.store.deletion import compact
from fieldray.store.maintenance import backup, check_database, restore
from fieldray.store.results import ResultQuery, ResultStore
from fieldray.store.rows import outcome_columns

Notify = Callable[[str], None]
MAX_BYTES_PER_IMAGE: Final = 4096.0
MIN_RESUMED_PER_S: Final = 5000.0
_ROUNDS: Final = 3
_SETTLING_S: Final = 11.0  # wait, because a just changed file is not recognised by its stamp
_COMPARED: Final = 997  # every 997th result is compared before and after maintenance
_KIB: Final = 1024


@dataclass(frozen=True, slots=True)
class TimedStep:
    """A measured step: name, duration in seconds, and result in words."""

    name: str
    seconds: float
    result_text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Runs:
    sizes: Mapping[str, int]  # bytes of each file after the first run
    first_s: float
    again_s: tuple[float, ...]
    verified_s: float
    taken: tuple[int, int]
    verified: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Upkeep:
    steps: tuple[TimedStep, ...]
    compared: int
    different: int


def run_benchmark(model: Model, source: Path | None, *, files: int, rows: int, notify: Notify) -> BenchmarkReport:
    """Measure all steps, and return the report.

    Parameters
    ----------
    model
        The pack.
    source
        A folder with images to copy. Each copy has different bytes. None for synthetic images.
    files, rows
        Number of copies to screen, and number of results in the large database.

    Raises
    ------
    ScreeningFailed, StorageProblem
    """
    with tempfile.TemporaryDirectory(prefix="fieldray-bench-") as folder:
        sources = sorted(path for path in (source or draw_sources(Path(folder) / "drawn")).iterdir() if path.is_file())
        images = write_copies(Path(folder) / "images", sources, files)
        time.sleep(_SETTLING_S)
        runs = _runs(images, Path(folder) / "home", ["--pack", model.pack_name], notify)
    with tempfile.TemporaryDirectory(prefix="fieldray-bench-") as folder:
        upkeep = _upkeep(Path(folder), model, rows, notify)
    per_image, rate = runs.sizes["results"] / files, files / statistics.median(runs.again_s)
    marks = (
        max_goal("results on disk per image", per_image, MAX_BYTES_PER_IMAGE, unit="bytes"),
        Goal(name="images checked per second", measured=rate, goal=MIN_RESUMED_PER_S, is_most=False, unit="images/s"),
    )
    taken, verified = runs.taken, runs.verified
    how = (
        f"{files} files: copies of {len(sources)} images with changed bytes. The operating system caches the files.",
        "Seconds are the time from start to end of the command `fieldray screen`.",
        f"In a repeated run, {taken[0]} results were reused by the file's stamp and {taken[1]} by the file's content; "
        f"with --verify {verified[0]} and {verified[1]}.",
        f"The large database has {rows} synthetic results with thumbnail, heat map and lungs. One in {_COMPARED} "
        f"results has a verdict. Of these {upkeep.compared} results, {upkeep.different} differed afterwards.",
        f"Load average at the end: {load_average()}, on {os.cpu_count()} threads.",
    )
    return BenchmarkReport(
        file_stem="store",
        title=f"Fieldray: results databases of {files} and {rows} images",
        blocks=(
            BulletList("Goals", tuple(mark.sentence for mark in marks)),
            *_tables(runs, upkeep, files=files, rows=rows),
            BulletList("How it was measured", how),
        ),
        json_values={"files": files, "rows": rows, **asdict(runs), **asdict(upkeep)},
    )


def _tables(runs: _Runs, upkeep: _Upkeep, *, files: int, rows: int) -> Sequence[Table]:
    lasted = (("first run", runs.first_s), *(("repeated run", each) for each in runs.again_s))
    lasted += (("repeated run with --verify", runs.verified_s),)
    return (
        Table(
            "On disk",
            ("file", "bytes", "bytes per image"),
            tuple((name, f"{size}", f"{size / files:.0f}") for name, size in runs.sizes.items()),
        ),
        Table(
            "Screening",
            ("run", "seconds", "images/s"),
            tuple((name, f"{seconds:.2f}", f"{files / seconds:.0f}") for name, seconds in lasted),
        ),
        Table(
            f"A database of {rows} results",
            ("step", "seconds", "result"),
            tuple((step.name, f"{step.seconds:.1f}", step.result_text) for step in upkeep.steps),
        ),
    )


# ---- screening, and screening of unchanged images


def _runs(images: Path, home: Path, options: Sequence[str], notify: Notify) -> _Runs:
    first_s = _screened(images, home, options, notify)
    sizes = {"results": _size(home / DATABASE_NAME), "pictures": _size(pictures_path(home / DATABASE_NAME))}
    again_s = tuple(_screened(images, home, options, notify) for _ in range(_ROUNDS))
    taken = _taken_over(home)
    verified_s = _screened(images, home, [*options, "--verify"], notify)
    return _Runs(
        sizes=sizes, first_s=first_s, again_s=again_s, verified_s=verified_s, taken=taken, verified=_taken_over(home)
    )


def _screened(images: Path, home: Path, options: Sequence[str], notify: Notify) -> float:
    notify(f"screening {images.name} {' '.join(options[2:])}")
    began_s = time.perf_counter()
    with start_command(screening_command(images, home, options, workers=0), home) as process:
        wait_for_results(process)
    return time.perf_counter() - began_s


def _taken_over(home: Path) -> tuple[int, int]:
    counted = "SELECT is_resumed, COUNT(*) FROM answers WHERE run_id = (SELECT MAX(id) FROM runs) GROUP BY 1"
    with closing(open_read_only(home / DATABASE_NAME)) as store:
        found = dict(store.execute(counted).fetchall())
    return found.get(2, 0), found.get(1, 0)


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in database_files(path) if file.exists())


# ---- maintenance of a large database


def _upkeep(folder: Path, model: Model, rows: int, notify: Notify) -> _Upkeep:
    path = folder / DATABASE_NAME
    SyntheticRun(model, chest_count=min(24, 1 + rows // 100)).save(
        path, rows, progress=lambda done: notify(f"{done} of {rows} saved")
    )
    _give_verdicts(path)
    before = _sample(path)
    steps: list[TimedStep] = []

    def show(share: float) -> None:
        notify(f"{share:.0%}")

    def timed(name: str, act: Callable[[], Any], what: Callable[[Any], str]) -> None:
        notify(name)
        began_s = time.perf_counter()
        came = act()
        steps.append(TimedStep(name, time.perf_counter() - began_s, what(came)))

    timed("check", lambda: check_database(path, progress=show), lambda found: f"{found['answers']} results, no damage")
    copy = folder / "copy"
    timed("backup", lambda: backup(path, copy, includes_pictures=True, progress=show), lambda new: f"{len(new)} files")
    timed("compaction", lambda: compact(path), lambda done: f"{done[0] / _KIB**2:.0f} MB less")
    timed("restoring the backup", lambda: restore(path, copy), lambda _: f"{_size(path) / _KIB**2:.0f} MB of results")
    after = _sample(path)
    different = sum(before[key] != after.get(key) for key in before)
    return _Upkeep(steps=tuple(steps), compared=len(before), different=different)


def _give_verdicts(path: Path) -> None:
    """Store a reader's verdict on one result in a thousand of a results database."""
    with ResultStore(path) as store:
        for row_id in _sampled(path):
            store.set_verdict(row_id, Verdict(choice="agree", note=f"{row_id}"), judged=store.result(row_id).outcome)


def _sampled(path: Path) -> Sequence[int]:
    with ResultQuery(path) as query:
        (run,) = query.runs()
        return range(1, sum(query.category_counts(run.run_id).values()) + 1, _COMPARED)


def _sample(path: Path) -> dict[str, dict[str, Any]]:
    """Return some results of a database with their verdicts, by image, to compare two databases."""
    with ResultQuery(path) as query:
        rows = map(query.result, _sampled(path))
        return {row.outcome.ref.key: {**outcome_columns(row.outcome), "verdict": row.verdict} for row in rows}
