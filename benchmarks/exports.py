"""Saving a run while somebody reads: how long every format takes, and how long the window pauses meanwhile.

The window is the real one, without a screen. Its list holds as many results as asked for; the images are files that are
read again where a format shows them. While a format is written, the next image is opened again and again, as by a
person who goes on reading. The same without saving is the row that the others are compared with.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from benchmarks.drawn_run import make_run
from benchmarks.own_home import own_home
from benchmarks.processes import cpu_s, load_average
from benchmarks.real_window import BEAT_MS, NOTED_MS, STEP_MS, Heart, real_window
from benchmarks.reports import Mark
from fieldray.bench.report import Points, Report, Table
from fieldray.desktop.application import Application
from fieldray.desktop.services import Services, open_services
from fieldray.domain.events import OutcomeReady, Publish, RunChanged
from fieldray.domain.model import Model
from fieldray.domain.run import StoredResult
from fieldray.paths import results_path
from fieldray.reports.dicom.images import SIDE
from fieldray.reports.exporter import ReportOptions, available_exporters
from fieldray.settings import Settings
from fieldray.store.results import ResultQuery
from fieldray.workers.pool import number_of_workers, open_workers

Notify = Callable[[str], None]
IDLE: Final = "nothing saved"
MOST_PAUSE_MS: Final = 100.0
MOST_SECONDS: Final = 60.0
_IDLE_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """One format, or `IDLE`.

    Attributes
    ----------
    seconds
        From the command to the last file.
    pauses_ms
        How much later than due the window came to each beat of a timer, the longest first, those above `NOTED_MS`.
    cpu_s
        CPU seconds of the program with all its processes meanwhile, which other programs lengthen less; None where the
        system does not tell.
    files, megabytes
        What was written.
    opened
        Images that were opened meanwhile.
    """

    name: str
    seconds: float
    pauses_ms: tuple[float, ...]
    cpu_s: float | None = None
    files: int = 0
    megabytes: float = 0.0
    opened: int = 0

    @property
    def longest_ms(self) -> float:
        """The longest pause, `NOTED_MS` where none was noted."""
        return self.pauses_ms[0] if self.pauses_ms else NOTED_MS


class _Exports:
    """The program's own way of saving, with the time that each takes."""

    def __init__(self) -> None:
        self.seconds: float | None = None
        self.problem: Exception | None = None

    def open(self, settings: Settings, publish: Publish) -> Services:
        """The program's services, with the export watched."""
        services = open_services(settings, publish)

        def export(
            run_id: int, folder: Path, formats: Sequence[str], options: ReportOptions, *hears: Any
        ) -> tuple[Path, ...]:
            began_s = time.perf_counter()
            try:
                return services.export(run_id, folder, formats, options, *hears)
            except Exception as problem:
                self.problem = problem
                raise
            finally:
                self.seconds = time.perf_counter() - began_s

        return replace(services, export=export)


def measure(
    model: Model, *, count: int, formats: Sequence[str], notify: Notify, idle_s: float
) -> tuple[list[Saving], float]:
    """Save a run of `count` results in each format, the window at work; and the seconds that reading alone takes.

    For `idle_s` seconds nothing is saved.

    Raises OSError, StorageProblem, and what an export raises.
    """
    with own_home() as root:
        notify(f"drawing {count} images")
        run_id = make_run(root / "images", model, count)
        with ResultQuery(results_path()) as query:
            results = list(query.work_list(run_id))
        notify("reading alone")
        reading_s, found = _reading_s(results), []
        exports = _Exports()
        with _window(model, results, exports) as application:
            assert application.window is not None
            heart, work_list = Heart(lambda: work_list.step(1)), application.window.work_list
            end_s = time.perf_counter() + idle_s
            pauses, opened = heart.run_until(lambda: time.perf_counter() > end_s)
            found.append(Saving(name=IDLE, seconds=idle_s, pauses_ms=pauses, opened=opened))
            for name in formats:
                notify(name)
                found.append(_save(application, heart, exports, root / name))
        return found, reading_s


def _save(application: Application, heart: Heart, exports: _Exports, folder: Path) -> Saving:
    """Save the run in the format that the folder is named after."""
    exports.seconds, before_s = None, cpu_s(os.getpid())
    application.controller.export(folder, [folder.name])
    pauses, opened = heart.run_until(lambda: exports.seconds is not None)
    if exports.problem is not None:
        raise exports.problem
    after_s = cpu_s(os.getpid())
    written = [path for path in folder.rglob("*") if path.is_file()]
    return Saving(
        name=folder.name,
        seconds=exports.seconds or 0.0,
        pauses_ms=pauses,
        cpu_s=None if before_s is None or after_s is None else after_s - before_s,
        files=len(written),
        megabytes=sum(path.stat().st_size for path in written) / 2**20,
        opened=opened,
    )


def _reading_s(results: Sequence[StoredResult]) -> float:
    """What it takes to read every image as a report shows it, as many at a time as an export reads."""
    size = number_of_workers(Settings())
    readers = open_workers(Settings(), size)
    try:
        with ThreadPoolExecutor(size) as threads:
            began_s = time.perf_counter()

            def read(result: StoredResult) -> None:
                outcome = result.outcome
                readers.read_shown(outcome.ref, side=SIDE, content_sha256=outcome.facts.content_sha256)

            list(threads.map(read, results))
            return time.perf_counter() - began_s
    finally:
        readers.close()


@contextlib.contextmanager
def _window(model: Model, results: Sequence[StoredResult], exports: _Exports) -> Iterator[Application]:
    """The window with a finished run in its list."""
    interval_s, thresholds = sys.getswitchinterval(), gc.get_threshold()
    try:
        with real_window(model.manifest.pack_id, services=exports.open) as application:
            controller, run_id = application.controller, results[0].run_id
            controller.screening.manifest = model.manifest
            controller.bridge.publish(RunChanged(run_id=run_id, state="running"))
            for result in results:
                controller.bridge.publish(OutcomeReady(run_id=run_id, row_id=result.row_id, outcome=result.outcome))
            controller.bridge.publish(RunChanged(run_id=run_id, state="finished"))
            Heart().run_until(lambda: controller.rows.total() == len(results))
            yield application
    finally:
        sys.setswitchinterval(interval_s)
        gc.set_threshold(*thresholds)
        gc.unfreeze()


# ---- the report


def report(model: Model, *, count: int, formats: Sequence[str], notify: Notify, idle_s: float = _IDLE_S) -> Report:
    """Measure, and say what was reached. Without `formats` all that can be written here. Raises as `measure`."""
    names = formats or tuple(exporter.name for exporter in available_exporters())
    before = load_average()
    found, reading_s = measure(model, count=count, formats=names, notify=notify, idle_s=idle_s)
    saved = [saving for saving in found if saving.name != IDLE]
    marks = [
        *(
            Mark(name=f"{one.name}, time", measured=one.seconds, goal=MOST_SECONDS + reading_s, is_most=True, unit="s")
            for one in saved
        ),
        *(
            Mark(name=f"{one.name}, pause", measured=one.longest_ms, goal=MOST_PAUSE_MS, is_most=True, unit="ms")
            for one in saved
        ),
    ]
    how = (
        f"{count} results with a heat map and lungs, of images of a megapixel drawn by the program, in the real window "
        f"without a screen. Every {STEP_MS} ms the next image of the list was opened.",
        f"A pause is how much later than due the window came to a beat of {BEAT_MS} ms.",
        f"Reading all images, {number_of_workers(Settings())} at a time, takes {reading_s:.1f} s; a format may take "
        f"{MOST_SECONDS:.0f} s more. Only pdf-studies and sc show the images.",
        f"Load average before: {before}, after: {load_average()}, on {os.cpu_count()} threads. What other programs "
        "take lengthens the times and pauses, and the CPU seconds less.",
    )
    return Report(
        kind="exports",
        title="Fieldray: saving a run while somebody reads",
        blocks=(
            _table(f"Saving {count} results", found),
            Points("Marks", tuple(mark.sentence for mark in marks)),
            Points("How it was measured", how),
        ),
        data={"results": count, "reading_s": reading_s, "formats": [asdict(saving) for saving in found]},
    )


def _table(title: str, found: Sequence[Saving]) -> Table:
    columns = ("format", "seconds", "CPU s", "files", "MB", "longest pause, ms", "pauses above 100 ms", "images opened")
    rows = tuple(
        (
            saving.name,
            f"{saving.seconds:.1f}",
            "" if saving.cpu_s is None else f"{saving.cpu_s:.1f}",
            f"{saving.files}",
            f"{saving.megabytes:.1f}",
            f"{saving.longest_ms:.0f}" if saving.pauses_ms else f"under {NOTED_MS:.0f}",
            f"{sum(pause > MOST_PAUSE_MS for pause in saving.pauses_ms)}",
            f"{saving.opened}",
        )
        for saving in found
    )
    return Table(title, columns, rows)
