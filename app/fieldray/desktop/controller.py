"""The state and the commands of the window, without widgets.

After a change of language or theme, a new window is made. The new window uses the existing controller.
"""

from __future__ import annotations

import contextlib
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from PySide6.QtCore import QObject, QTimer, Signal

from fieldray.backends import EDGE_TPU
from fieldray.desktop.background import BackgroundTasks, EventBridge, OpenServices, Services
from fieldray.desktop.comparison_controller import ComparisonController
from fieldray.desktop.current_image import CurrentImage
from fieldray.desktop.image_painting import DisplaySwitches
from fieldray.desktop.notices import NoticeAction, NoticeBoard
from fieldray.desktop.pack_choice import PackController
from fieldray.desktop.past_runs import (
    AuditController,
    ComputerLoad,
    ConstancyTestController,
    ExportController,
    PastRuns,
)
from fieldray.desktop.screening import RUN_NOTICE_PREFIX, ScreeningController, notice_level
from fieldray.desktop.verdict_controller import ReadMarks, VerdictController
from fieldray.desktop.verdicts import VerdictSubject
from fieldray.desktop.worklist_model import WorkListModel
from fieldray.desktop.worklist_rows import WorkListRow, pack_title
from fieldray.domain.finding import FailedOutcome, Outcome, result_count_of_outcome
from fieldray.domain.history import DeletionResult
from fieldray.domain.intended_use import PatientNoteCounts, intended_patients_sentence
from fieldray.domain.model import BackendName, Manifest
from fieldray.domain.run import (
    BackendChanged,
    DeviceChanged,
    DrivesChanged,
    Event,
    ImageDone,
    Progress,
    RunChanged,
    Speed,
    StoreRepaired,
    StoreUnwritable,
    StoreUpdating,
)
from fieldray.errors import FieldrayError
from fieldray.pipeline.history import RunWithPacks
from fieldray.reasons import Reason, reason
from fieldray.reports.exporter import DEFAULT_REPORT_OPTIONS, ReportOptions
from fieldray.settings import ROW_BY_KEY, Settings
from fieldray.translation import Translator

log = logging.getLogger(__name__)

_EXPORT_ENDS_S: Final = 10.0
_PATIENCE_MS, _CLOSING_ENDS_MS = 1000, 30_000
_NOT_COMPILED: Final = "coral_not_compiled"
_SWITCHED: Final = ("hide_patient", "by_patient", "folded")  # settings that a person switches in the window
_LOST_FILES: Final = ("missing", "drive_error")  # reasons of failures after a drive was disconnected


class Controller(QObject):
    """Handles the commands that a person gives in the window, and the events of the services, such as a saved image.

    Call all methods in the window's thread.
    """

    services_opened = Signal()
    speed_measured = Signal(object)
    recent_folders_changed = Signal()
    run_ended = Signal()  # a run ended that nobody stopped
    backends_changed = Signal()
    closed = Signal()

    def __init__(
        self,
        settings: Settings,
        translator: Translator,
        *,
        open_services: OpenServices,
        background: type[BackgroundTasks],
    ) -> None:
        super().__init__()
        self.settings = settings
        self._open_services = open_services
        self._is_opening = self._is_closing = self._is_ending = self._has_ended = False
        self._last_bug: Reason | None = None
        self.event_bridge, self.notice_board = EventBridge(), NoticeBoard()
        self.background = background(self.notice_board)
        self.packs = PackController(self.background, settings)
        self.screening = ScreeningController(self.background, self.packs)
        self.auditing = AuditController(self.screening)
        self.past_runs = PastRuns(self.screening)
        self.computer_load = ComputerLoad(self.screening)
        self.constancy_test = ConstancyTestController(self.screening)
        self.exporting = ExportController(self.background)
        self._patients: defaultdict[int, PatientNoteCounts] = defaultdict(
            PatientNoteCounts
        )  # by the position of the pack
        self._lost_files = 0
        self.switches = DisplaySwitches()
        self.apply_settings(ROW_BY_KEY)
        self.switches.changed.connect(self._keep_switched)
        self.image = CurrentImage(self.background)
        self.judging = VerdictController(self.background, self._why_not_judged)
        self.rows = WorkListModel(translator, self.background, self.judging.verdicts, self.switches, self)
        self.read_marks = ReadMarks(self.background, self.image, self._why_not_judged)
        self.second_image = CurrentImage(self.background, channel="second image")
        self.comparing = ComparisonController(
            self.background, self.rows, image=self.image, second_image=self.second_image
        )
        self.backends: dict[str, BackendChanged] = {}
        self.devices: dict[BackendName, DeviceChanged] = {}
        self.speed = Speed()
        self._connect()

    def _connect(self) -> None:
        self.event_bridge.published.connect(self.handle_event)
        self.screening.run_started.connect(self._run_started)
        self.screening.run_started.connect(self._remember_opened_folders)
        self.packs.model_changed.connect(self._note_other_pack)
        self.screening.became_idle.connect(self.packs.fall_back_to_default_pack)
        self.image.changed.connect(self._image_changed)
        self.image.result_replaced.connect(self._image_replaced)
        self.image.screened_again.connect(self._screened_again)
        self.rows.row_replaced.connect(self.image.mark_result_replaced)
        self.judging.changed.connect(self.rows.handle_verdict_change)
        self.judging.verdict_about_to_change.connect(self._note_read)
        self.read_marks.changed.connect(self.rows.handle_read_mark_change)
        self.judging.all_saved.connect(self._go_on_closing)
        self.past_runs.opened.connect(lambda _row_id, past: self._show_past_run(past))
        self.past_runs.deleted.connect(self._forget_deleted)
        self.rows.all_images_deleted.connect(self._forget_gone)

    # ---- opening and closing

    def open_services(self) -> None:
        """Open the services of the program in the background."""
        if self._is_opening or self._is_closing:
            return
        self.notice_board.withdraw("open")
        self._is_opening = True
        self.background.run(self._open_here, channel="open", done=self._opened, failed=self._not_opened)

    def _open_here(self) -> Services:
        """Open the services in a background thread. If the program is already closing, close the services at once."""
        services = self._open_services(self.settings, self.event_bridge.publish)
        if self._is_ending:
            _close(services)
        return services

    def _opened(self, services: Services) -> None:
        self.background.set_services(services)
        self._is_opening = False
        self._go_on_closing()
        if not self._is_closing:
            self.packs.find_packs()
            self.services_opened.emit()

    def _not_opened(self, error: FieldrayError) -> None:
        self._is_opening = False
        self._go_on_closing()
        self.notice_board.post_error(
            "open", error, action=NoticeAction(lambda t: t.text("Try again"), self.open_services)
        )

    def close(self) -> None:
        """Cancel running work, and close the services in the background as soon as they are completely open.

        The signal `closed` is emitted at the end.
        """
        if self._is_closing:
            return
        self._is_closing = True
        self.notice_board.post("closing", lambda t: t.text("Closing…"))
        for image in (self.image, self.second_image):
            image.discard_pending_results()
        self.rows.stop_reading_rows()
        self.computer_load.stop_load_study()
        self.judging.save_typed_note()
        QTimer.singleShot(_PATIENCE_MS, self, self._offer_to_go)
        QTimer.singleShot(_CLOSING_ENDS_MS, self, self._go)
        self._go_on_closing()

    def _offer_to_go(self) -> None:
        """Offer to close without waiting, because access to a network folder may block for minutes.

        Unsaved verdicts are kept.
        """
        if self.judging.is_saving:
            return
        self.notice_board.post(
            "closing",
            lambda t: t.text("Closing… A drive or network folder may not be answering. All results so far are saved."),
            action=NoticeAction(lambda t: t.text("Close now"), self._go),
        )

    def _go(self) -> None:
        """End the program, including operations that have not ended."""
        if not self._has_ended:
            self._close_services()
            self._finish_closing()

    def _go_on_closing(self) -> None:
        """Continue closing unless services are being opened or verdicts are being saved."""
        if self._is_closing and not (self._is_opening or self.judging.is_saving):
            self._close_services()

    def _close_services(self) -> None:
        if self._is_ending:
            return
        self._is_ending = True
        for judged, given in self.judging.verdicts.unsaved_verdicts():
            why = given.problem.code if given.problem else given.saving_state
            log.warning("closing without the verdict on answer %d: %s", judged.result_id, why)
        services, finish = self.background.services, self.screening.make_run_stopper()

        def work() -> None:
            try:
                _close(services, lambda: self.exporting.stop_and_wait(wait_s=_EXPORT_ENDS_S), finish)
            except Exception:
                log.exception("closing")

        self.background.run(work, channel="closing", done=self._finish_closing)

    def _finish_closing(self, _: None = None) -> None:
        self._has_ended = True
        self.event_bridge.close()
        self.background.close()
        self.closed.emit()

    # ---- the open image

    def _why_not_judged(self) -> Reason | None:
        """Return the reason why no verdict on the current image is possible now; None if a verdict is possible."""
        image = self.image
        if image.row is None:
            return reason("not_judged_none")
        if image.is_result_replaced or not self.rows.is_row_up_to_date(image.row):
            return reason("not_judged_replaced")
        if self.rows.is_selecting_another_image or not image.is_visible:
            return reason("not_judged_yet")
        if not self.rows.index_of(image.packs[0].row_id).isValid():
            return reason("not_judged_not_listed")
        return None

    def _image_changed(self) -> None:
        self.notice_board.withdraw("replaced")
        self.judging.set_current_image(self.image.row)

    def _image_replaced(self) -> None:
        """Handle a new result for the current image.

        The old result stays visible, and a typed note is saved with the old result only.
        """
        self.judging.set_current_image(None)
        again = NoticeAction(lambda t: t.text("Open the new image"), self.show_newer_result_of_image)
        self.notice_board.post_reason("replaced", reason("image_replaced"), level="warning", action=again)

    def show_newer_result_of_image(self) -> None:
        """Show the newer result of the current image. The work list already shows the newer result."""
        before = self.image.packs[0] if self.image.packs else None
        if before is not None:
            self.image.show(self.rows.row_in_memory(before.row_id))

    def _screened_again(self, row: WorkListRow, outcome: Outcome) -> None:
        """Handle the outcome of an image that was screened again.

        If the old result is still open, the new result is shown.

        row  the row with the old result
        """
        self.rows.show_new_result(row, outcome)
        if row is self.image.row:
            self.show_newer_result_of_image()

    def _note_read(self, judged: VerdictSubject) -> None:
        row = self.image.row
        if (
            row is not None
            and row.result_id == judged.result_id
            and self.judging.verdicts.state_for(judged).chosen_verdict is not None
        ):
            self.read_marks.mark_read()

    def refresh_all(self) -> None:
        """Read the work list again, because another window may have changed it. Images that were deleted are closed."""
        self.rows.refresh()
        rows = [image.row for image in (self.image, self.second_image) if image.row is not None]
        row_ids = [row.row_id for row in rows if row.result_id]  # images of no run have no result in the database
        if row_ids:
            self.background.run_with_services(
                lambda services: services.history.run_query(lambda query: query.images(row_ids)),
                channel="open images",
                newest_only=True,
                done=lambda found: self._close_deleted(rows, {image.row_id for image in found}),
                failed=lambda error: self.notice_board.post_error("list", error),
            )

    def _close_deleted(self, rows: Sequence[WorkListRow], present: Collection[int]) -> None:
        deleted = [row for row in rows if row.result_id and row.row_id not in present]
        closed = [image for image in (self.image, self.second_image) if image.row in deleted]
        for image in closed:
            image.show(None)
        if closed:
            self.comparing.forget_comparisons()
            self.notice_board.post_reason("deleted", reason("image_deleted"), level="warning")

    # ---- events

    def handle_event(self, event: Event) -> None:
        """Handle one event of the services, for example a saved image or the end of a run."""
        match event:
            case ImageDone():
                self.rows.show_saved_image(event.image)
                for answer in event.image.results:
                    self._count_patient(answer.outcome, answer.pack_position)
            case Progress():
                self.screening.handle_progress(event)
            case Speed():
                self.speed = event
                self.computer_load.add_load_sample(event)
                self.speed_measured.emit(event)
            case RunChanged():
                self._handle_run_changed(event)
            case BackendChanged():
                self._take_backend(event)
            case DrivesChanged():
                self.packs.handle_drives_changed(event)
            case DeviceChanged():
                self._take_device(event)
            case StoreRepaired() | StoreUnwritable() | StoreUpdating():
                self.notice_board.post_reason("store", event.reason, level="warning")

    def _handle_run_changed(self, event: RunChanged) -> None:
        self.screening.handle_run_changed(event)
        self._list_run(event)
        for position, notes in enumerate(event.pack_notes):
            self._note_pack(position, notes)
        if not self.screening.is_busy:
            self._note_patients()
            if self._lost_files:
                lost = reason("files_lost", count=self._lost_files)
                self.notice_board.post_reason(f"{RUN_NOTICE_PREFIX}files_lost", lost)
        if event.state in ("finished", "failed"):
            self.run_ended.emit()

    def _run_started(self) -> None:
        self.rows.show_run(None)
        self.second_image.show(None)
        self._patients.clear()
        self._lost_files = 0
        self.judging.verdicts.forget_last_change()
        for key in ("other_pack", "taken_back"):
            self.notice_board.withdraw(key)

    def _remember_opened_folders(self) -> None:
        """Add those opened paths that are folders to the recently opened folders, if the setting allows this.

        Names of opened files are never stored.
        """
        paths = self.screening.paths
        self.background.run(
            lambda: [str(path) for path in paths if path.is_dir()],
            channel="folders",
            done=lambda folders: self.update_recent_folders(*folders) if folders else None,
        )

    def update_recent_folders(self, *folders: str) -> None:
        """Add folders to the recently opened folders. Without arguments, forget all recently opened folders."""
        self.settings.remember_folders(folders)
        self.save_settings()
        self.recent_folders_changed.emit()

    def _list_run(self, event: RunChanged) -> None:
        """Show the list of the current run after an event of the run. A new run gets a new list."""
        if event.run_id and event.run_id != self.rows.run_id:
            others = (model.manifest if model else None for model in self.screening.run_models[1:])
            self.rows.show_run(event.run_id, self.screening.manifest, *others)
        else:
            self.rows.refresh()

    def _show_past_run(self, past: RunWithPacks) -> None:
        """Show the list of a past run."""
        self._run_started()
        self.auditing.forget_report()
        run, models = past
        self.screening.show_past_run(run, *models)
        self.rows.show_run(run.run_id, self.screening.manifest, *(one.manifest if one else None for one in models[1:]))
        self._note_other_pack()

        def noted(warnings: Sequence[Reason]) -> None:
            if self.screening.run_id == run.run_id:
                self.screening.show_run_notes(warnings)

        self.background.run_with_services(
            lambda services: services.history.warnings(run, 0, models[0]), channel="doubts", done=noted
        )

    def _forget_deleted(self, done: DeletionResult) -> None:
        """Hide results that were deleted: those of a patient, or of the visible run."""
        self.comparing.forget_comparisons()
        if done.plan.patient_id:  # images of a patient were deleted, not whole runs
            self.refresh_all()
        elif self.screening.run_id in done.plan.run_ids and not self.screening.is_busy:
            self._forget_run()

    def _forget_gone(self) -> None:
        """Close the visible run, because another program deleted the run or all its images."""
        if not self.screening.is_busy:
            self.notice_board.post_reason("deleted", reason("images_deleted", run=self.rows.run_id), level="warning")
            self._forget_run()

    def _forget_run(self) -> None:
        self._run_started()
        self.auditing.forget_report()
        self.screening.close_deleted_run()

    def _count_patient(self, outcome: Outcome, pack: int) -> None:
        """Count an image whose patient contradicts the pack, such as a child for adults.

        The first such image is reported at once, and the number of such images at the end of the run.

        pack  position of the pack in the run
        """
        before = self._patients[pack].unintended_patient_image_count
        self._patients[pack].add(result_count_of_outcome(outcome))
        self._lost_files += pack == 0 and isinstance(outcome, FailedOutcome) and outcome.reason.code in _LOST_FILES
        if before == 0 and self._patients[pack].unintended_patient_image_count:
            self._note_patients()

    def _note_patients(self) -> None:
        """Show a notice with the number of images whose patients contradict a pack."""
        for number, manifest in enumerate((self.screening.manifest, *self.rows.additional_manifests)):
            self._note_pack(number, self._patients[number].notes(manifest.accepted) if manifest else ())

    def _note_pack(self, number: int, notes: Sequence[Reason]) -> None:
        packs = self.screening.manifest, *self.rows.additional_manifests
        for note in notes:
            key = RUN_NOTICE_PREFIX + (f"{number} {note.code}" if number else note.code)
            text = partial(_note_of_pack, note, packs[number], is_named=len(packs) > 1)
            self.notice_board.post(key, text, level=notice_level(note))

    def _note_other_pack(self) -> None:
        """Show a notice if the list was made with other packs than those in use."""
        before, after = self.screening.run_models, self.packs.loaded_models
        was, now = ([(one.pack_name, one.model_sha256) if one else None for one in packs] for packs in (before, after))
        if self.screening.manifest is None or not after or was == now or self.rows.run_id is None:
            self.notice_board.withdraw("other_pack")
            return
        packs = self.screening.manifest, *self.rows.additional_manifests
        self.notice_board.post(
            "other_pack",
            lambda t: t.text(
                "These results were made with the pack “{before}”. To screen with the pack “{after}”, press Start.",
                before=" + ".join(pack_title(t, manifest) for manifest in packs),
                after=" + ".join(pack_title(t, model.manifest) for model in after),
            ),
            level="warning",
        )

    def _take_backend(self, event: BackendChanged) -> None:
        before = self.backends.get(event.backend)
        self.backends[event.backend] = event
        was_ready, why = before is not None and before.state == "ready", event.reason
        # A device without a file of the pack has run no image, so no image is affected.
        if event.state == "unavailable" and was_ready and why and why.code != _NOT_COMPILED:
            self.notice_board.post(
                _lost(event.backend),
                lambda t: t.text(
                    "{reason} The affected images are processed again. No image is lost.", reason=t.reason(why)
                ),
                level="warning",
                action=NoticeAction(lambda t: t.text("Try again"), lambda: self.screening.retry_backend(event.backend)),
            )
        elif event.state == "ready":
            self.notice_board.withdraw(_lost(event.backend))
        if event.backend == EDGE_TPU.name:
            self._note_not_compiled()
        self.backends_changed.emit()

    def _take_device(self, event: DeviceChanged) -> None:
        """Show the problem of a device that is stopped or slow. A disconnected device is no problem."""
        self.devices[event.backend] = event
        advice = (event.reason, *event.notes) if event.reason else event.notes
        self._note_not_compiled()
        if event.state == "absent" or not advice:
            self.notice_board.withdraw(event.backend)
        else:
            again = NoticeAction(lambda t: t.text("Try again"), lambda: self.screening.retry_backend(event.backend))
            action = again if event.reason else None
            self.notice_board.post_reason(event.backend, advice[0], level="warning", action=action)
        self.backends_changed.emit()

    def _note_not_compiled(self) -> None:
        """Show a notice if an Edge TPU is connected but the pack has no file for Edge TPUs."""
        device, backend = self.devices.get(EDGE_TPU.name), self.backends.get(EDGE_TPU.name)
        is_there = device is None or device.state != "absent"
        if is_there and backend and backend.reason and backend.reason.code == _NOT_COMPILED:
            self.notice_board.post_reason(_NOT_COMPILED, backend.reason, level="info")
        else:
            self.notice_board.withdraw(_NOT_COMPILED)

    # ---- commands

    def start_run(self) -> None:
        """Start a run over the chosen folders, or over the folders of the visible work list."""
        self.judging.save_typed_note()
        self.screening.start(listed_image_count=self.rows.total_image_count())

    def start_export(
        self,
        folder: Path,
        formats: Sequence[str] = (),
        options: ReportOptions = DEFAULT_REPORT_OPTIONS,
        *,
        run_id: int | None = None,
    ) -> None:
        """Export a run into a folder, in the background.

        formats  names of export formats; empty for the default formats
        options  options of the reports
        run_id   the run to export; None for the run that the window shows
        """
        run_id = run_id or self.screening.run_id
        if run_id:
            options = replace(options, prior_comparisons=self.comparing.comparison_records())
            self.exporting.start(run_id, folder, formats, options)

    def set_default_pack(self, pack: str, operating_point: str = "") -> None:
        """Make a pack the site's default, which is used for folders without a choice.

        pack             name of the pack as in `Settings.choose_pack`; "" for no default
        operating_point  name of the operating point; "" for the pack's first operating point
        """
        self.settings.choose_pack(pack, operating_point)
        self.save_settings()
        self.packs.packs_listed.emit()

    def apply_settings(self, changed: Collection[str]) -> None:
        """Set the switches of the window, such as the heat map, to the changed settings.

        changed  keys of the changed settings
        """
        self.switches.set(**{key: self.settings[key] for key in (*_SWITCHED, "heat_map_opacity") if key in changed})

    def _keep_switched(self, names: Collection[str]) -> None:
        kept = [key for key in _SWITCHED if key in names and getattr(self.switches, key) != self.settings[key]]
        for key in kept:
            self.settings.set(key, getattr(self.switches, key))
        if kept:
            self.save_settings()

    def save_settings(self) -> None:
        """Write the settings file in a background thread."""
        self.background.run(self.settings.save, channel="settings")

    def show_unexpected_error(self, error: BaseException) -> None:
        """Log an unexpected exception, and show a message about it in the window."""
        log.error("unexpected", exc_info=(type(error), error, error.__traceback__))
        why = reason("internal", detail=type(error).__name__)
        if why != self._last_bug:  # otherwise an error while painting a notice would repeat for ever
            self._last_bug = why
            self.notice_board.post_reason("bug", why)


def _note_of_pack(note: Reason, manifest: Manifest | None, translator: Translator, *, is_named: bool) -> str:
    """Return a note with the pack's intended patients as text.

    is_named  whether the text begins with the name of the pack, as is needed for several packs
    """
    accepted = translator.reason(intended_patients_sentence(manifest.accepted)) if manifest else ""
    said = translator.reason(reason(note.code, **{**dict(note.parameters), "patients": accepted}))
    return f"{pack_title(translator, manifest)}: {said}" if is_named else said


def _lost(backend: BackendName) -> str:
    """Return the key of the notice that a device was lost. Each device has a notice of its own."""
    return f"lost {backend}"


def _close(services: Services | None, *first: Callable[[], None]) -> None:
    """Call the functions `first`, then close the services.

    An error in a function does not prevent the other calls. The error is raised at the end.
    """
    with contextlib.ExitStack() as last_first:
        if services is not None:
            last_first.callback(services.session.close)
        for act in reversed(first):
            last_first.callback(act)
        if services is not None:
            last_first.callback(services.priors.close)
            last_first.callback(services.drives.close)
