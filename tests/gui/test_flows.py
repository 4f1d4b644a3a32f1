"""The reading task in the window, from the first folder to the last verdict."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from desk import Begin, Desk, press, texts
from fake_rooms import FakeRooms, candidate, done, failed, refused, screened
from PySide6.QtCore import QEvent, QObject, QPoint, Qt, QUrl, Slot
from PySide6.QtGui import QDesktopServices
from PySide6.QtWidgets import QApplication, QFileDialog, QPushButton

from fieldray.desktop.dialogs import ExportDialog
from fieldray.desktop.worklist_rows import COLUMN_KEYS
from fieldray.domain.finding import ImageFacts
from fieldray.domain.image import Correction
from fieldray.domain.run import (
    BackendChanged,
    DeviceChanged,
    DeviceState,
    Progress,
    ProgressHandler,
    RefusalOverrides,
    RunChanged,
    Speed,
    StoreUnwritable,
    Verdict,
)
from fieldray.errors import StorageProblem, UsageProblem
from fieldray.reasons import reason
from fieldray.reports.exporter import DEFAULT_REPORT_OPTIONS, Exporter, ReportOptions, exporters


def test_the_empty_window_says_what_to_do_next(desk: Desk) -> None:
    assert desk.window.pages.currentWidget() is desk.window.welcome
    words = texts(desk.window.welcome)
    assert "drop a folder" in words
    assert "Ready: Made-up lungs 1.2.0" in words
    assert not desk.window.toolbar.start_button.isEnabled()


def test_research_use_only_is_always_in_sight(desk: Desk) -> None:
    for page in (desk.window.welcome, desk.window.images, desk.window.packs_page):
        desk.window.pages.setCurrentWidget(page)
        assert "Research use only. Not for diagnostic use." in texts(desk.window.statusBar())


def test_a_folder_becomes_rows_abnormal_first(desk: Desk) -> None:
    desk.screen("/images")
    assert desk.rooms.session.started_with == [((Path("/images"),), None, False)]
    assert desk.window.pages.currentWidget() is desk.window.images
    # Scores .9 .1 .42 .7 at the threshold .41, uncertain from .34 to .5: 1 and 4 abnormal, 3 uncertain, 2 normal.
    assert desk.listed == [1, 4, 3, 2]


def test_a_chosen_row_fills_the_panel(desk: Desk) -> None:
    desk.screen()
    desk.open_row(1)
    words = texts(desk.window.result_panel)
    for part in ("Flagged", "The pack flags this image.", "Score 0.90", "0.41", "95.1 % (93.0–96.7)", "lung opacity"):
        assert part in words
    assert "Limits of this pack" in words
    assert "Score computed on CPU in 8.4 ms" in words
    assert "patient has" not in words


def test_refused_and_failed_rows_give_their_plain_reason(desk: Desk, rooms: FakeRooms) -> None:
    rooms.outcomes += [refused(5), failed(6)]
    desk.screen()
    assert desk.listed[-2:] == [5, 6]
    rows = desk.bench.rows
    shown = rows.data(rows.index_of(5).siblingAtColumn(COLUMN_KEYS.index("status")))
    assert shown == "Not a frontal view: the file says LL."
    desk.open_row(6)
    desk.until(lambda: "The file is incomplete" in texts(desk.window.result_panel))
    assert desk.bench.image.problem == reason("truncated")


def test_pause_go_on_and_stop(desk: Desk) -> None:
    desk.screen()
    toolbar, batch = desk.window.toolbar, desk.rooms.session.batches[0]
    desk.until(toolbar.stop_button.isEnabled)
    toolbar.pause_button.click()
    desk.until(lambda: desk.bench.screening.state == "paused")
    assert toolbar.pause_button.text() == "Resume"
    toolbar.pause_button.click()
    desk.until(lambda: desk.bench.screening.state == "running")
    toolbar.stop_button.click()
    desk.until(lambda: desk.bench.screening.state == "cancelled")
    assert batch.calls == ["pause", "resume", "cancel"]
    assert toolbar.start_button.isEnabled()


def test_progress_speed_and_load_are_shown(desk: Desk) -> None:
    desk.screen()
    desk.rooms.publish(Progress(done=412, total=1000, total_is_final=True, images_per_s=18.34, remaining_s=32.0))
    desk.rooms.publish(Speed(fps_now=18.0, fps_min=16.1, fps_avg=18.3, fps_max=19.0, cpu_percent=41, memory_mb=380))
    desk.until(lambda: "412" in desk.window.toolbar.progress_text.text())
    assert desk.window.toolbar.progress_text.text() == "412 / 1000   18.3 images/s   0:32 left"
    desk.until(lambda: "380" in texts(desk.window.statusBar()))
    assert "min 16.1 / avg 18.3 / max 19.0" in texts(desk.window.statusBar())
    assert "CPU 41 %" in texts(desk.window.statusBar())


def test_a_failure_stays_until_it_is_dismissed(desk: Desk) -> None:
    """It stays although the run of another, waiting folder starts at once."""
    desk.screen("/first")
    screening = desk.bench.screening
    screening.screen_paths([Path("/second")])
    why, gone = reason("disk_full", path="/data"), reason("no_image_in", path="/media/drive")
    desk.rooms.publish(RunChanged(run_id=1, state="failed", reason=why, notes=(gone,)))
    desk.until(lambda: len(desk.rooms.session.started_with) == 2 and screening.state == "running")
    desk.rooms.publish(RunChanged(run_id=2, state="finished", notes=(reason("no_image_in", path="/second"),)))
    desk.until_shown("There is no image file in /second")
    shown = desk.notices
    assert "/first" in shown and "The disk is full" in shown and "There is no image file in /media/drive" in shown
    (failure,) = [notice for notice in desk.bench.notice_board.notices if notice.level == "error"]
    desk.bench.notice_board.withdraw(failure.key)
    desk.until(lambda: "The disk is full" not in desk.notices)


def test_a_failure_is_dismissed_when_the_same_folder_is_screened_again(desk: Desk) -> None:
    desk.rooms.publish(StoreUnwritable(reason=reason("not_writable", path="/home/me", detail="Read-only file system")))
    desk.until_shown("Read-only file system")  # cannot be dismissed before anything is screened
    desk.screen("/first")
    desk.rooms.publish(RunChanged(run_id=1, state="failed", reason=reason("disk_full", path="/data")))
    desk.until_shown("The disk is full")
    assert "The run failed" in desk.window.toolbar.progress_text.text()
    desk.bench.start_run()
    desk.until(lambda: len(desk.rooms.session.started_with) == 2 and "The disk is full" not in desk.notices)


def test_notices_about_a_run_disappear_with_the_next_run(desk: Desk) -> None:
    desk.screen("/first")
    notes = [reason("taken_over", count=9, sampled=4, whole=5), reason("instances_shared", count=2)]
    notes += [reason("run_elsewhere", process=7), reason("not_present", count=2)]
    said = (
        "9 results were reused",
        "2 files share a SOP Instance UID",
        "process 7",
        "2 image files of this run no longer exist",
    )
    desk.rooms.publish(RunChanged(run_id=1, state="finished", notes=tuple(notes)))
    desk.until_shown(*said)
    desk.screen("/second")
    desk.until(lambda: not any(words in desk.notices for words in said))


def test_files_lost_with_their_drive_are_reported_until_they_are_screened(desk: Desk) -> None:
    desk.screen()
    for row_id, code in ((71, "missing"), (72, "drive_error"), (73, "no_permission")):
        lost = replace(failed(row_id), reason=reason(code))
        desk.rooms.publish(done(row_id, lost))
    desk.finish()
    desk.until_shown("Files that could not be read: 2. If the files are on a drive, connect the drive and press Start")
    desk.bench.start_run()
    desk.until(lambda: "could not be read" not in desk.notices)


def test_the_next_folder_waits_without_the_progress_of_the_one_before(desk: Desk) -> None:
    desk.screen()
    desk.rooms.publish(Progress(done=4, total=4, total_is_final=True, images_per_s=1.0, remaining_s=None))
    desk.finish()
    assert "4 / 4" in desk.window.toolbar.progress_text.text()
    desk.bench.set_default_pack("")
    desk.choose("/other")
    desk.until(lambda: desk.asks == "pack")
    assert desk.window.toolbar.progress_text.text() == "Waiting: choose a pack"
    assert desk.window.toolbar.bar.value() == 0


def test_a_run_that_cannot_start_says_why(desk: Desk) -> None:
    desk.rooms.session.start_problem = UsageProblem(reason("nothing_to_screen", path="/gone"))
    desk.bench.screening.screen_paths([Path("/gone")])
    desk.until(lambda: desk.bench.screening.state == "failed")
    assert "/gone does not exist" in desk.notices
    assert desk.window.toolbar.start_button.isEnabled()


def test_a_fall_back_is_never_silent(desk: Desk) -> None:
    desk.until(lambda: desk.bench.backends)  # the pack in use reported its device
    for state, why in (("ready", None), ("unavailable", reason("coral_unplugged"))):
        desk.rooms.publish(BackendChanged(backend="edgetpu", state=state, is_in_use=state == "ready", reason=why))
    desk.rooms.publish(after := BackendChanged(backend="cpu", state="ready", is_in_use=True, detail="2 x 2"))
    desk.until(lambda: desk.bench.backends.get("cpu") == after)
    desk.until_shown("The Edge TPU was unplugged.")
    assert "No image is lost" in desk.notices
    press(desk.window.banners, "Try again")
    desk.until(lambda: desk.rooms.session.reconsidered == ["edgetpu"])
    desk.until(lambda: not desk.window.banners.isVisible())


def test_a_notice_says_that_a_pack_has_no_edge_tpu_file(desk: Desk) -> None:
    why = reason("coral_not_compiled", pack="lungs-2.0.0")

    def change(state: DeviceState) -> None:
        desk.rooms.publish(DeviceChanged(backend="edgetpu", state=state))

    desk.rooms.publish(BackendChanged(backend="edgetpu", state="unavailable", is_in_use=False, reason=why))
    desk.until_shown("lungs-2.0.0 has no file compiled for the Edge TPU, so the pack runs on the CPU only")
    change("absent")
    desk.until(lambda: not desk.window.banners.isVisible())
    change("ready")
    desk.rooms.publish(BackendChanged(backend="edgetpu", state="ready", is_in_use=True))  # an Edge TPU pack
    desk.rooms.publish(BackendChanged(backend="edgetpu", state="unavailable", is_in_use=False, reason=why))
    desk.until_shown("so the pack runs on the CPU only")
    assert "No image is lost" not in desk.notices
    desk.rooms.publish(BackendChanged(backend="edgetpu", state="starting", is_in_use=False))
    desk.until(lambda: not desk.window.banners.isVisible())


def test_refused_and_failed_images_can_be_judged_if_their_content_is_known(desk: Desk, rooms: FakeRooms) -> None:
    facts = ImageFacts(content_sha256="5" * 64)
    rooms.outcomes += [replace(refused(5), facts=facts), replace(failed(6), facts=facts), failed(7)]
    desk.screen()
    bar, session = desk.window.result_panel.verdict, desk.rooms.session
    for row_id, meaning in ((5, "Agree: the image is not suitable"), (6, "Agree: this file cannot be used")):
        desk.open_row(row_id)
        assert bar.isVisible() and meaning in texts(bar)
        bar.buttons["agree"].click()
    desk.until(lambda: session.verdicts == {5: Verdict(choice="agree"), 6: Verdict(choice="agree")})
    desk.open_row(7)
    assert not bar.isVisible()
    desk.window.actions_by_name["disagree"].trigger()
    desk.open_row(1)
    assert bar.isVisible() and "Agree:" not in texts(bar)
    bar.buttons["unsure"].click()
    desk.until(lambda: session.verdicts.get(1) is not None)
    assert 7 not in session.verdicts


def test_a_refused_image_is_screened_on_request_with_a_note(desk: Desk, rooms: FakeRooms) -> None:
    rooms.outcomes += [
        refused(5),
        refused(6, reason("age", age=3, youngest=18, oldest=120)),
        refused(7, reason("inverted")),
    ]
    desk.screen()
    panel, session = desk.window.result_panel, desk.rooms.session
    for row_id, overrides in ((6, []), (7, ["Swap black and white, and screen", "Screen this image anyway"])):
        desk.open_row(row_id)
        assert [wish.text() for wish in panel.override_buttons] == overrides
    desk.open_row(5)
    (anyway,) = panel.override_buttons
    session.again = UsageProblem(reason("again_busy"))
    anyway.click()
    desk.until_shown("A run is under way. Wait")
    session.again = replace(screened(5, 0.9), notes=(reason("screened_anyway"), reason("view", view="LL")))
    session.may_screen.clear()
    anyway.click()
    desk.until(lambda: not anyway.isEnabled())
    desk.open_row(1)
    desk.open_row(5)
    assert not panel.override_buttons[0].isEnabled()
    session.may_screen.set()
    desk.until(lambda: "but a user chose to screen the image" in texts(panel))
    assert session.overrides == [(5, RefusalOverrides(overrules=True))] * 2
    assert "Score 0.90" in texts(panel) and "the file says LL" in texts(panel)
    assert "A run is under way" not in desk.notices
    desk.until(lambda: desk.listed[0] in (1, 5) and desk.listed[-1] == 7)
    rows = desk.bench.rows
    assert "but a user chose to screen the image" in rows.data(
        rows.index_of(5).siblingAtColumn(COLUMN_KEYS.index("status"))
    )
    (back,) = panel.override_buttons
    session.again = refused(5, reason("view", view="LL"))
    back.click()
    desk.until(lambda: "but a user chose to screen the image" not in texts(panel))
    desk.until(lambda: "Read the image yourself" in texts(panel))
    assert session.overrides[-1] == (5, RefusalOverrides())
    assert [wish.text() for wish in panel.override_buttons] == ["Screen this image anyway"]


def test_a_wrongly_turned_image_is_turned_on_request_and_shown_upright(desk: Desk, rooms: FakeRooms) -> None:
    rooms.outcomes += [refused(5, reason("rotated"))]
    desk.screen()
    desk.open_row(5)
    panel, session = desk.window.result_panel, desk.rooms.session
    turn, anyway = panel.override_buttons
    assert (turn.text(), anyway.text()) == ("Turn the image and screen", "Screen this image anyway")
    session.again = rooms.outcomes[-1]
    turn.click()
    desk.until_shown("The image was turned, but is still not suitable")
    made = screened(5, 0.9)
    session.again = replace(made, ref=replace(made.ref, correction=Correction(90)), notes=(reason("turned_back"),))
    turn.click()
    desk.until(lambda: "turned 90 degrees anticlockwise" in texts(panel))
    image = desk.bench.image
    desk.until(lambda: not image.is_loading and image.pyramid is not None)
    assert session.read[-1].correction == Correction(90)
    assert [overrides for _, overrides in session.overrides] == [RefusalOverrides(turns=True)] * 2


def test_a_file_without_an_image_does_not_count_as_unread(desk: Desk, rooms: FakeRooms) -> None:
    rooms.outcomes += [refused(5, reason("not_an_image")), refused(6, reason("blank"))]
    desk.screen()
    desk.open_row(6)
    assert "Read the image yourself" in texts(desk.window.result_panel)
    desk.open_row(5)
    assert "Read the image yourself" not in texts(desk.window.result_panel)
    buttons = desk.window.work_list.filter_bar.findChildren(QPushButton)
    assert "Not an image" in [button.toolTip() for button in buttons if button.isVisible()]


def test_a_replaced_file_is_not_shown_under_the_old_score(desk: Desk) -> None:
    desk.screen()
    desk.rooms.session.replaced.add(desk.rooms.outcomes[0].facts.content_sha256)
    desk.open_row(1)
    image = desk.bench.image
    desk.until(lambda: image.problem == reason("changed"))
    assert image.pyramid is None


def test_a_banner_that_comes_moves_no_row_under_the_pointer(desk: Desk) -> None:
    desk.screen()
    desk.bench.notice_board.post("first", lambda _: "One")
    desk.until_shown("One")
    (button,) = (one for one in desk.window.banners.findChildren(QPushButton) if one.isVisible())
    places = [widget.mapToGlobal(QPoint()) for widget in (desk.window.work_list.table, button)]
    desk.window.banners.setAttribute(Qt.WidgetAttribute.WA_UnderMouse)
    desk.bench.notice_board.post("second", lambda _: "Two")
    desk.until(desk.window.banners.more_button.isVisible)
    assert [widget.mapToGlobal(QPoint()) for widget in (desk.window.work_list.table, button)] == places
    assert button.isVisible()
    desk.window.banners.setAttribute(Qt.WidgetAttribute.WA_UnderMouse, on=False)
    QApplication.sendEvent(desk.window.banners, QEvent(QEvent.Type.Leave))
    assert "Two" in desk.notices


def test_saving_shows_progress_and_can_be_stopped(desk: Desk, tmp_path: Path) -> None:

    def slow(progress: ProgressHandler) -> None:
        """An export that runs until somebody stops it."""
        while True:
            progress(410, 1000)

    desk.rooms.while_exporting = slow
    desk.screen()
    desk.bench.start_export(tmp_path)
    desk.until_shown("Saving: 410 of 1000")
    press(desk.window.banners, "Stop")
    desk.until_shown("Saving was stopped")
    assert desk.rooms.exported == []


def test_stop_ends_the_export_that_runs_and_not_the_one_that_waits(desk: Desk, tmp_path: Path) -> None:
    turns = iter((True, False))

    def slow_at_first(progress: ProgressHandler) -> None:
        """An export whose first call runs until somebody stops it."""
        is_first = next(turns)
        while is_first:
            progress(410, 1000)

    desk.rooms.while_exporting = slow_at_first
    desk.screen()
    desk.bench.start_export(tmp_path / "first")
    desk.until_shown("Saving: 410 of 1000")
    desk.bench.start_export(tmp_path / "second")
    desk.until_shown("Saving: 410 of 1000")
    press(desk.window.banners, "Stop")
    desk.until(lambda: desk.rooms.exported == [(1, tmp_path / "second", (), DEFAULT_REPORT_OPTIONS)])
    desk.until_shown("2 files or folders were saved")


@pytest.fixture
def more_formats() -> Iterator[None]:
    """Registers one more export format."""
    count = Exporter(
        name="count", suffix=".count", title="Count", write=lambda path, stored: None, is_own_output=lambda head: False
    )
    exporters()["count"] = count
    yield
    del exporters()["count"]


def test_the_run_in_sight_when_saving_began_is_the_one_that_is_saved(desk: Desk) -> None:
    assert not desk.window.actions_by_name["export"].isEnabled()  # there is no run yet
    desk.screen()
    desk.choose("/second")
    desk.window.actions_by_name["export"].trigger()
    desk.dialog(ExportDialog).accept()
    dialog = desk.dialog(QFileDialog)
    desk.rooms.publish(RunChanged(run_id=1, state="finished"))
    desk.until(lambda: desk.bench.screening.run_id == 2)
    dialog.filesSelected.emit(["/out"])
    desk.until(lambda: [run_id for run_id, *_ in desk.rooms.exported] == [1])
    dialog.close()


class _FileManager(QObject):
    """Records the folders that the program asks the file manager to show."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: list[str] = []

    @Slot(QUrl)
    def show(self, address: QUrl) -> None:
        self.shown.append(address.toLocalFile())


def test_the_folder_of_what_was_saved_is_one_click_away(desk: Desk, tmp_path: Path) -> None:
    desk.screen()
    manager = _FileManager()
    QDesktopServices.setUrlHandler("file", manager, "show")  # type: ignore[call-overload]  # its stub says bytes
    desk.bench.start_export(tmp_path)
    desk.until_shown("saved in")
    press(desk.window.banners, "Open the folder")
    QDesktopServices.unsetUrlHandler("file")
    assert manager.shown == [str(tmp_path)]


def test_saving_asks_for_formats_and_names_patients_only_on_request(more_formats: None, desk: Desk) -> None:
    desk.screen()
    desk.window.actions_by_name["export"].trigger()
    dialog = desk.window.findChild(ExportDialog)
    assert list(dialog.boxes)[:2] == ["csv", "json"]
    assert {"PDF, one document for the whole run", "DICOM SR, structured reports", "Count"} <= {
        box.text() for box in dialog.boxes.values()
    }
    assert dialog.ticked_formats() == ("csv", "json", "pdf", "count")
    assert dialog.export_options() == ReportOptions(language="en", names_people=False)
    dialog.comma_box.setChecked(True)
    assert dialog.export_options().uses_decimal_comma
    for box in dialog.boxes.values():
        box.setChecked(False)
    assert not dialog.save.isEnabled()
    dialog.boxes["pdf"].setChecked(True)
    assert dialog.save.isEnabled()
    assert dialog.ticked_formats() == ("pdf",)
    assert not dialog.comma_box.isEnabled()  # no table format is chosen
    dialog.names_box.setChecked(True)
    dialog.accept()
    chosen = desk.window.findChild(QFileDialog)
    chosen.filesSelected.emit(["/out"])
    named = ReportOptions(language="en", names_people=True, uses_decimal_comma=True)
    desk.until(lambda: desk.rooms.exported == [(1, Path("/out"), ("pdf",), named)])
    chosen.close()


def test_a_list_in_which_nothing_matches_says_so(desk: Desk) -> None:
    desk.screen()
    table, search = desk.window.work_list.table, desk.window.work_list.filter_bar.search
    search.setText("nobody is called so")
    desk.until(lambda: desk.listed == [] and table.accessibleDescription() != "")
    assert table.accessibleDescription() == "No image matches the search and the filters."
    pyramid = table.viewport().grab().toImage()
    assert len({pyramid.pixel(x, y) for x in range(pyramid.width()) for y in range(20, 50)}) > 2  # search text
    search.clear()
    desk.until(lambda: desk.listed != [] and table.accessibleDescription() == "")


def test_a_search_keeps_the_open_image_or_opens_the_first_match(desk: Desk, rooms: FakeRooms) -> None:
    rooms.outcomes[:] = [screened(number, 1 - number / 100) for number in range(1, 61)]
    desk.screen()
    desk.open_row(1)
    work_list, model = desk.window.work_list, desk.bench.rows
    work_list.table.verticalScrollBar().setValue(work_list.table.verticalScrollBar().maximum())
    with desk.qtbot.waitSignal(model.list_changed):
        work_list.filter_bar.search.setText("px-10")
    assert model.rowCount() == 60
    assert work_list.table.currentIndex().row() == 0  # the open image is among the matches
    work_list.filter_bar.search.setText("px-103")
    desk.until(lambda: desk.listed == list(range(30, 40)))
    assert work_list.table.rowAt(0) == 0
    desk.until(lambda: desk.bench.image.row is not None and desk.bench.image.row.row_id == 30)
    work_list.filter_bar.search.clear()
    desk.until(lambda: model.rowCount() == 60)
    assert work_list.table.currentIndex().row() == 29


# ---- what cannot be opened, and no pack


def test_a_failed_start_shows_its_reason_and_a_button_to_retry(begin: Begin, rooms: FakeRooms) -> None:
    rooms.open_problem = StorageProblem(reason("database_too_old", path="results.sqlite"))
    with begin() as desk:
        desk.until_shown("before the first release")
        rooms.open_problem = None
        press(desk.window.banners, "Try again")
        desk.until(lambda: desk.bench.packs.model is not None)
        desk.screen()
        assert desk.listed == [1, 4, 3, 2]


def test_without_a_pack_the_window_asks_for_a_drive_and_uses_its_pack(begin: Begin, rooms: FakeRooms) -> None:
    rooms.library.always = []
    with begin() as desk:
        desk.until_shown("Plug in a drive with packs")
        desk.until(lambda: "No pack was found. Plug in a drive with packs." in texts(desk.window.welcome))
        desk.choose()
        assert desk.window.toolbar.progress_text.text() == "Waiting: choose a pack"
        assert rooms.session.started_with == []
        stick = Path("/media/stick")
        desk.plug_in(stick, candidate(f"{stick}/fieldray/made-up-1.2.0", origin="drive"))
        desk.until(lambda: rooms.session.started_with == [((Path("/images"),), None, False)])
        assert not desk.window.banners.isVisible()
