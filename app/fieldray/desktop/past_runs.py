"""Background operations on stored runs: listing, opening, comparing, deleting and exporting.

The module also controls three other tasks: the audit of the visible run, the constancy test of the pack in use, and the
measurement of the computer's load. The module contains no widgets.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from PySide6.QtCore import QObject, QUrl, Signal
from PySide6.QtGui import QDesktopServices

from fieldray.audit.report import AuditReport
from fieldray.desktop.background import BackgroundTasks, Services, StoppableTask
from fieldray.desktop.notices import NoticeAction, NoticeBoard
from fieldray.desktop.screening import ScreeningController
from fieldray.domain.history import DeletionPlan, DeletionResult, RunComparison, RunFilter, RunSummary
from fieldray.domain.model import Model
from fieldray.domain.run import PackOfRun, Run, Speed
from fieldray.errors import FieldrayError, UsageProblem
from fieldray.pipeline.auditing import AuditRequest
from fieldray.pipeline.history import RunWithPacks, deletion_sentences
from fieldray.reasons import Reason, reason
from fieldray.reports.exporter import ReportOptions
from fieldray.translation import Translator

if TYPE_CHECKING:
    from fieldray.bench.load import StoredLoadStudy
    from fieldray.pipeline.history import History

T = TypeVar("T")


class RunOperations(QObject):
    """The base class of background operations on stored runs. One operation runs at a time.

    problem  the reason why the last operation failed, or None
    """

    changed = Signal()
    problem: Reason | None = None
    _under_way = 0

    def __init__(self, screening: ScreeningController) -> None:
        super().__init__()
        self._background, self._board = screening.background, screening.background.notice_board
        self._screening, self._packs = screening, screening.packs
        screening.changed.connect(self.changed)

    @property
    def is_busy(self) -> bool:
        """Whether an operation on stored runs is in progress."""
        return self._under_way > 0

    @property
    def can_begin(self) -> bool:
        """Whether an operation can begin: no other operation of this object is in progress, and no run is active."""
        return not self.is_busy and not self._screening.is_busy

    def _run(self, work: Callable[[Services], T], done: Callable[[T], None], *, channel: str) -> None:
        self._under_way, self.problem = self._under_way + 1, None
        self.changed.emit()

        def ended(take: Callable[[Any], None], answer: object) -> None:
            self._under_way -= 1
            take(answer)
            self.changed.emit()

        self._background.run_with_services(
            work, channel=channel, done=partial(ended, done), failed=partial(ended, self._failed)
        )

    def _failed(self, error: FieldrayError) -> None:
        self.problem = error.reason
        self.changed.emit()


class PastRuns(RunOperations):
    """The past runs as last read from the database, the filter of their list, and the last comparison of two runs.

    summaries                   all past runs with their counts
    comparison                  the last comparison of two runs, or None
    quality_note_counts_by_day  number of images with each note on image quality, by day
    """

    opened = Signal(int, object)  # row id of the image to open (0 for none), and the RunWithPacks
    deletion_planned = Signal(object)  # a DeletionPlan that a person must confirm
    deleted = Signal(object)  # a DeletionResult
    summaries: tuple[RunSummary, ...] = ()
    run_filter = RunFilter()
    comparison: RunComparison | None = None
    quality_note_counts_by_day: Mapping[str, Mapping[str, int]] = MappingProxyType({})

    @property
    def filtered_runs(self) -> tuple[RunSummary, ...]:
        """The runs that match the filter, the newest run first."""
        return tuple(found for found in self.summaries if self.run_filter.accepts(found))

    # ---- commands of a person

    def change_filter(self, wanted: RunFilter) -> None:
        """Change the filter. The list then shows only runs that match the filter."""
        self.run_filter = wanted
        self.changed.emit()

    def refresh(self) -> None:
        """Read the list of past runs from the results database again."""
        self._ask(lambda history: history.runs(), self._listed)
        self._ask(lambda history: history.image_quality_by_day(), partial(setattr, self, "quality_note_counts_by_day"))

    def open(self, run_id: int, *, row_id: int = 0) -> None:
        """Show a stored run in the window.

        row_id  row id of the image to open; 0 for no image
        """
        models = self._packs.loaded_models
        if self._screening.is_busy:
            self._failed(UsageProblem(reason("history_is_open")))
        else:
            self._ask(lambda history: history.open(run_id, models=models), lambda past: self._opened(past, row_id))

    def compare(self, first: int, second: int) -> None:
        """Compare the results of the first packs of two runs. The first run must be the older run."""
        sides = map(PackOfRun, sorted((first, second)))
        self._ask(lambda history: history.compare(*sides), partial(setattr, self, "comparison"))

    def plan_deletion(self, run_ids: Sequence[int]) -> None:
        """Find out what a deletion of these runs would delete, and emit `deletion_planned` with the plan."""
        if run_ids:
            self._ask(lambda history: history.plan_deletion(run_ids), self.deletion_planned.emit)

    def plan_patient_deletion(self, patient_id: str) -> None:
        """Find out what the deletion of a patient's images would delete, and emit `deletion_planned` with the plan."""
        self._ask(lambda history: history.plan_patient_deletion(patient_id), self.deletion_planned.emit)

    def delete(self, plan: DeletionPlan) -> None:
        """Delete permanently everything in a plan, which a person has confirmed twice."""
        self._ask(lambda history: history.delete(plan), self._deleted)

    def save_monthly_report(self, folder: Path, first_day: datetime.date, translator: Translator) -> None:
        """Write the report on a month into a folder.

        first_day  the first day of the month
        """

        def save(services: Services) -> None:
            month = services.history.monthly_counts(first_day, services.constancy)
            services.history.save_month_report(folder / f"fieldray-{first_day:%Y-%m}.pdf", month, translator)

        self._run(save, lambda _: _post_saved(self._board, folder, 1), channel="history")

    # ---- inside

    def _ask(self, work: Callable[[History], T], done: Callable[[T], None]) -> None:
        self._run(lambda services: work(services.history), done, channel="history")

    def _failed(self, error: FieldrayError) -> None:
        super()._failed(error)
        if error.reason.code == "history_no_run":  # another program deleted the run
            self._background.run_with_services(  # the message stays in sight
                lambda services: services.history.runs(), channel="history", done=self._listed, failed=self._failed
            )

    def _listed(self, summaries: tuple[RunSummary, ...]) -> None:
        self.summaries = summaries
        known = {found.run.run_id for found in summaries}
        comparison = self.comparison
        if comparison and not {comparison.first.run_id, comparison.second.run_id} <= known:
            self.comparison = None
        self.changed.emit()

    def _opened(self, past: RunWithPacks, row_id: int) -> None:
        if self._screening.is_busy:  # a run began meanwhile
            self._failed(UsageProblem(reason("history_is_open")))
        else:
            self.opened.emit(row_id, past)

    def _deleted(self, done: DeletionResult) -> None:
        said = deletion_sentences(done)
        self._board.post(
            "history",
            lambda t: " ".join(map(t.reason, said)),
            level="info" if done.is_deleted_data_overwritten else "warning",
        )
        self.deleted.emit(done)
        self.refresh()


class AuditController(RunOperations):
    """Computes the audit of the visible run in the background, and saves report and operating point."""

    def __init__(self, screening: ScreeningController) -> None:
        super().__init__(screening)
        self._model: Model | None = None
        self.report: AuditReport | None = None
        self.comparable_runs: tuple[Run, ...] = ()
        screening.run_started.connect(self.forget_report)

    @property
    def can_audit(self) -> bool:
        """Whether an audit can begin: a run is visible and has ended."""
        return bool(self._screening.run_id) and self.can_begin

    @property
    def can_store_operating_point(self) -> bool:
        """Whether the operating point that the audit proposed can be stored as a local operating point."""
        model = self._model
        return self.report is not None and model is not None and model.trust != "legacy" and not self._screening.is_busy

    @property
    def audited_pack(self) -> PackOfRun | None:
        """The run and pack that an audit covers: the first pack of the visible run; None without a visible run."""
        return PackOfRun(self._screening.run_id) if self._screening.run_id else None

    def list_comparable_runs(self) -> None:
        """Find the other runs over the folders of the visible run, for comparison. Then emit `changed`."""
        own = self._screening.run_id

        def listed(found: Sequence[RunSummary]) -> None:
            paths = {path for each in found if each.run.run_id == own for path in each.run.spec.paths}
            others = (each.run for each in found if each.run.run_id != own or len(each.run.spec.packs) > 1)
            self.comparable_runs = tuple(run for run in others if paths & set(run.spec.paths))
            self.changed.emit()

        self._background.run_with_services(lambda services: services.history.runs(), channel="others", done=listed)

    def start_audit(self, request: AuditRequest) -> None:
        """Compute the audit of the visible run, in the background."""
        run_id, model = self._screening.run_id, next(iter(self._screening.run_models), None)
        if not self.can_audit or not run_id:
            return
        self._model = model
        self._run(
            lambda services: services.auditor.audit(PackOfRun(run_id), request, model=model),
            partial(setattr, self, "report"),
            channel="audit",
        )

    def save_report(self, report: AuditReport, folder: Path, *, language: str) -> None:
        """Write an audit report as PDF and JSON into a folder.

        language  code of the PDF's language, such as "en"
        """
        self._background.run_with_services(
            lambda services: services.auditor.save_report(folder, report, language=language),
            channel="export",
            done=lambda written: _post_saved(self._board, folder, len(written)),
        )

    def store_operating_point(self, name: str, person: str) -> None:
        """Store the operating point that the audit proposed, and offer it with the pack in use.

        name    name of the operating point
        person  name of the person who agreed
        """
        report, model = self.report, self._model
        if report is None or model is None:
            return
        self._background.run_with_services(
            lambda services: services.auditor.adopt_proposal(report, name=name, person=person, model=model),
            channel="audit",
            done=self._taken,
            failed=lambda error: self._board.post_error("site_points", error),
        )

    # ---- inside

    def _failed(self, error: FieldrayError) -> None:
        self.report = None
        super()._failed(error)

    def _taken(self, model: Model) -> None:
        point = model.manifest.operating_points[-1]
        self._packs.update_operating_points(model)
        self._board.post(
            "site_points",
            lambda t: t.text(
                "The local operating point “{name}” was saved. To use this operating point, choose “{name}” on the "
                "Packs page.",
                name=t.pack_text(point.titles),
            ),
        )

    def forget_report(self) -> None:
        """Forget the audit report, because another run is visible now."""
        self.report, self.problem, self._under_way = None, None, 0
        self._background.discard_channel_tasks("audit")
        self.changed.emit()


class ConstancyTestController(RunOperations):
    """Controls the constancy test of the pack in use.

    state_sentences  sentences about the last test and the next test
    """

    state_sentences: tuple[Reason, ...] = ()

    def __init__(self, screening: ScreeningController) -> None:
        super().__init__(screening)
        self._packs.model_changed.connect(self.refresh)

    @property
    def can_start(self) -> bool:
        """Whether a constancy test can begin: a pack is in use, and no run uses the devices."""
        return self._packs.model is not None and self.can_begin

    def refresh(self) -> None:
        """Read when the pack in use was tested, and whether a test is due, from the stored constancy tests."""
        self.state_sentences, model = (), self._packs.model
        if model is not None:
            self._run(lambda services: services.constancy.state_sentences(model), self._stands, channel="constancy")

    def start(self) -> None:
        """Run the constancy test of the pack in use on each device, in the background."""
        if self.can_start:
            self._run(lambda services: services.run_constancy_test(), self._stands, channel="constancy")

    def _stands(self, standing: tuple[Reason, ...]) -> None:
        """Show a notice if a constancy test failed or is due.

        standing  sentences about the last test and the next test
        """
        self.state_sentences = standing
        self._board.withdraw("constancy")
        for why in standing:
            if why.code in ("constancy_failed", "constancy_due"):
                self._board.post_reason("constancy", why, level="warning")


class ExportController(QObject):
    """Exports runs in the background, one after another. A notice shows the progress and has a button to stop."""

    def __init__(self, background: BackgroundTasks) -> None:
        super().__init__()
        self._background, self._board = background, background.notice_board
        self._work: dict[StoppableTask, Future[Any] | None] = {}  # the running task first, then waiting tasks
        self._action = NoticeAction(lambda t: t.text("Stop"), self.cancel)

    def start(self, run_id: int, folder: Path, formats: Sequence[str], options: ReportOptions) -> None:
        """Export a run into a folder in the background.

        formats  names of the export formats
        """
        notes = list[Reason]()
        work = StoppableTask(
            lambda services, report: services.session.export(
                run_id, folder, formats, options=options, progress=report, note=notes.append, in_child=True
            )
        )
        work.progressed.connect(self._show)
        self._board.withdraw_by_prefix("export ")
        self._work[work] = self._background.run_with_services(
            work,
            channel="export",
            done=lambda written: self._saved(work, folder, written, notes),
            failed=lambda error: self._failed(work, error),
        )
        self._show(work, 0, 0)

    def cancel(self) -> None:
        """Stop the running export. Incomplete files are deleted."""
        for work in [*self._work][:1]:
            work.stop()

    def stop_and_wait(self, *, wait_s: float) -> None:
        """Stop all exports and wait for their end. May be called from any thread.

        wait_s  maximum time to wait in seconds
        """
        under_way = dict(self._work)
        for work in under_way:
            work.stop()
        wait([task for task in under_way.values() if task], wait_s)

    def _show(self, work: StoppableTask, done: int, total: int) -> None:
        if work not in [*self._work][:1] or work.is_stopped:
            return
        self._board.post(
            "export",
            lambda t: t.text("Saving: {done} of {total}", done=done, total=total) if total else t.text("Saving…"),
            action=self._action,
        )

    def _saved(
        self, work: StoppableTask, folder: Path, written: Sequence[Path] | None, notes: Sequence[Reason]
    ) -> None:
        del self._work[work]  # late progress must not replace the final notice
        if written is None:
            self._board.post("export", lambda t: t.text("Saving was stopped. Unfinished files were deleted."))
            return
        for note in notes:
            self._board.post_reason(f"export {dict(note.parameters)['file']}", note, level="warning")
        if written:
            _post_saved(self._board, folder, len(written))
        else:
            self._board.post_reason("export", reason("nothing_saved"), level="warning")

    def _failed(self, work: StoppableTask, error: FieldrayError) -> None:
        del self._work[work]
        self._board.post_error("export", error)


def _post_saved(board: NoticeBoard, folder: Path, count: int) -> None:
    """Show a notice that an export is finished, with a button that opens its folder.

    count  number of files
    """
    address = QUrl.fromLocalFile(str(folder))
    action = NoticeAction(lambda t: t.text("Open the folder"), lambda: QDesktopServices.openUrl(address))
    board.post_reason("export", reason("saved", count=count, folder=folder), level="info", action=action)


# ---- load of this computer during a run, and time per image next to other programs

_MAX_SAMPLES: Final = 600  # about one sample for each point of the screen


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputerLoadSample:
    """Speed and load at one moment of a run, for the plots of the status page.

    elapsed_s     seconds since the run began
    images_per_s  images per second of the network alone; None before the third image of a device
    cpu_percent   CPU load of the whole computer
    memory_mb     memory of all processes of this program
    """

    elapsed_s: float
    images_per_s: float | None
    cpu_percent: float
    memory_mb: float


class ComputerLoad(RunOperations):
    """Measures speed and load of the computer during the current run, and repeats the load study."""

    sample_added = Signal()

    def __init__(self, screening: ScreeningController, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(screening)
        self._clock, self._began_s, self._apart_s = clock, 0.0, 0.0
        self._measuring: StoppableTask | None = None
        self.samples: list[ComputerLoadSample] = []
        self.study: StoredLoadStudy | None = None
        self.progress = 0, 0
        self._packs.model_changed.connect(self.changed)
        screening.run_started.connect(self._begin)

    @property
    def can_start_load_study(self) -> bool:
        """Whether a load study can begin: a pack is in use, and no run or other work would disturb the measurement."""
        return self._packs.model is not None and self.can_begin

    def read_load_study(self) -> None:
        """Read the latest load study that is stored on this computer."""
        if not self.is_busy:
            self._background.run_with_services(
                lambda services: services.read_computer_load_study(), channel="load", done=self._known
            )

    def start_load_study(self) -> None:
        """Start the load study in a child process. Its result replaces that of the previous study."""
        source, model = self._packs.source, self._packs.model
        if not self.can_start_load_study or source is None or model is None:
            return
        folder, signer = source.folder, model.fingerprint
        work = StoppableTask(lambda services, report: services.run_computer_load_study(folder, signer, report))
        work.progressed.connect(self._show_progress)
        self._measuring, self.progress = work, (0, 0)
        self._run(work, self._known, channel="load")

    def stop_load_study(self) -> None:
        """Stop the running load study. The result of the previous study is kept."""
        if self._measuring:
            self._measuring.stop()

    def add_load_sample(self, speed: Speed) -> None:
        """Add the speed of the run and the load of the computer, as measured now, to the samples of the plots."""
        at_s = self._clock() - self._began_s
        last_s = self.samples[-1].elapsed_s if self.samples else -self._apart_s
        if speed.cpu_percent is None or speed.memory_mb is None or at_s - last_s < self._apart_s:
            return
        measured = ComputerLoadSample(
            elapsed_s=at_s, images_per_s=speed.fps_now, cpu_percent=speed.cpu_percent, memory_mb=speed.memory_mb
        )
        self.samples.append(measured)
        if len(self.samples) > _MAX_SAMPLES:
            del self.samples[1::2]
            self._apart_s = 2 * at_s / _MAX_SAMPLES
        self.sample_added.emit()

    # ---- inside

    def _begin(self) -> None:
        """Stop a running load study, which a run would disturb, and discard the samples of the previous run."""
        self.stop_load_study()
        self.samples, self._began_s, self._apart_s = [], self._clock(), 0.0
        self.sample_added.emit()

    def _show_progress(self, work: StoppableTask, done: int, total: int) -> None:
        if work is self._measuring and not work.is_stopped:
            self.progress = done, total
            self.changed.emit()

    def _known(self, study: StoredLoadStudy | None) -> None:
        self.study = study or self.study
        self.changed.emit()
