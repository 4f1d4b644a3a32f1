"""The history page on a real store: runs opened, compared, saved again and deleted; images whose files are missing."""

from __future__ import annotations

import datetime
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from desk import Desk, all_widget_texts, dialogs, press, texts
from fake_rooms import SPEC, FakeRooms, failed, screened
from PySide6.QtWidgets import QFileDialog, QInputDialog, QLineEdit, QMessageBox, QTableWidget, QWidget

from fieldray.desktop.current_image import enlarge_preview
from fieldray.desktop.history_page import HistoryPage
from fieldray.domain.run import Verdict
from fieldray.pipeline.history import History
from fieldray.reasons import reason
from fieldray.store.deletion import delete_patient, delete_runs
from fieldray.store.results import ResultStore
from outcomes import run_spec
from stores import keep

OLDER = replace(SPEC, packs=(replace(SPEC.packs[0], pack_name="made-up-1.1.0", model_sha256="a" * 64),))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Run 1 of an older pack: images 1 to 3. Run 2 of the pack in use: images 1, 2, 4 and a file that failed."""
    path = tmp_path / "store" / "results.sqlite"
    keep(path, [screened(1, 0.2, with_thumbnail=True), screened(2, 0.1), screened(3, 0.9)], spec=OLDER)
    keep(path, [screened(1, 0.9, with_thumbnail=True), screened(2, 0.12), screened(4, 0.7), failed(9)], spec=SPEC)
    with ResultStore(path) as opened:
        opened.set_verdict(4, Verdict(choice="disagree", note="rib"), judged=screened(1, 0.9))
    return path


@pytest.fixture
def rooms(store: Path) -> FakeRooms:
    made = FakeRooms()
    made.outcomes = [screened(1, 0.9), screened(2, 0.1)]
    made.database = store
    return made


@pytest.fixture
def page(desk: Desk) -> HistoryPage:
    desk.until(lambda: desk.bench.background.services is not None)
    desk.window.actions_by_name["history"].trigger()
    shown = desk.window.history_page
    desk.until(lambda: shown.table.rowCount() == 2 and desk.bench.past_runs.can_begin)
    return shown


def question(desk: Desk) -> str:
    return " ".join(f"{box.text()} {box.informativeText()}" for box in dialogs(desk.window, QMessageBox))


def select_runs(page: HistoryPage, *run_ids: int) -> None:
    """Select runs in the table."""
    page.table.clearSelection()
    page.table.setSelectionMode(page.table.SelectionMode.MultiSelection)
    for row, found in enumerate(page._listed):
        if found.run.run_id in run_ids:
            page.table.selectRow(row)
    assert sorted(page.selected_run_ids()) == sorted(run_ids)


def open_run(desk: Desk, page: HistoryPage, run_id: int) -> None:
    select_runs(page, run_id)
    page.open_button.click()
    desk.until(lambda: desk.bench.screening.run_id == run_id)
    desk.until(lambda: desk.window.pages.currentWidget() is desk.window.images)
    desk.until_listed({1: 3, 2: 4}[run_id])


def test_runs_are_listed_and_filtered(desk: Desk, page: HistoryPage) -> None:
    cells = [[page.table.item(row, column).text() for column in range(13)] for row in range(2)]
    assert [row[1:] for row in cells] == [
        ["made-up-1.2.0", "4", "0", "2", "0", "0", "1", "0", "1", "0", "1", "/images"],
        ["made-up-1.1.0", "3", "0", "1", "0", "0", "2", "0", "0", "0", "0", "/images"],
    ]
    assert "2 runs, 7 images" in texts(page)
    page.search.setText("1.1")
    assert page.table.rowCount() == 1 and "1 run, 3 images" in texts(page)
    page.search.clear()
    page.dates.setCurrentIndex(page.dates.findData(6))
    page.dates.activated.emit(0)
    desk.application.change_settings({"language": "uk"})
    page = desk.window.history_page
    desk.window.actions_by_name["history"].trigger()
    assert page.dates.currentData() == 6 and page.table.rowCount() == 2
    page.verdicts.setCurrentIndex(page.verdicts.findData("disagreed"))
    page.verdicts.activated.emit(0)
    assert [found.run.run_id for found in page._listed] == [2]
    page.devices.setCurrentIndex(page.devices.findData("edgetpu"))
    page.devices.activated.emit(0)
    assert page.table.rowCount() == 0
    assert not page.open_button.isEnabled() and not page.delete_button.isEnabled()


def test_the_history_says_that_it_is_loading_until_all_runs_are_listed(desk: Desk, page: HistoryPage) -> None:
    runs, seen = desk.bench.past_runs, list[bool]()
    runs.changed.connect(lambda: seen.append(runs.is_busy))
    runs.refresh()
    desk.until(lambda: not runs.is_busy)
    assert seen.index(False) == len(seen) - 1


def test_a_run_is_opened_with_its_verdicts_and_can_be_saved_and_audited(desk: Desk, page: HistoryPage) -> None:
    open_run(desk, page, 2)
    controller = desk.bench
    assert controller.rows.total_image_count() == 4
    assert controller.rows.row_at(controller.rows.index_of(4)).verdict == Verdict(choice="disagree", note="rib")
    assert "From the history: run 2" in desk.window.toolbar.progress_text.text()
    assert controller.screening.can_start and controller.auditing.can_audit
    controller.start_export(Path("/out"))
    desk.until(lambda: bool(desk.rooms.exported))
    assert desk.rooms.exported[0][0] == 2


def test_a_past_run_of_another_pack_is_labelled_and_has_no_pack_texts(desk: Desk, page: HistoryPage) -> None:
    open_run(desk, page, 1)
    row = desk.bench.rows.row_at(desk.bench.rows.index_of(1))
    assert row.manifest is None and row.outcome.pack_name == "made-up-1.1.0"
    desk.open_row(1)
    assert desk.bench.image.pyramid is not None


def test_a_missing_file_is_shown_by_its_preview_with_a_note(desk: Desk, page: HistoryPage) -> None:
    content = f"{4:064x}"
    desk.rooms.session.replaced |= {content, f"{1:064x}", f"{2:064x}"}
    desk.rooms.session.previews[content] = np.tile(np.arange(0, 256, 2, dtype=np.uint8), (150, 1))
    open_run(desk, page, 2)
    image = desk.bench.image
    desk.open_row(6)
    assert (image.pyramid.rows, image.pyramid.columns) == (600, 512)
    assert "The file has changed" in desk.window.result_panel._kept.text()
    assert "The window shows the small preview" in desk.window.result_panel._kept.text()
    assert desk.window.viewer._heat_map is not None  # with the heat map over it
    desk.open_row(4)  # only a thumbnail is left
    assert image.pyramid is not None and image.preview_note == reason("preview_shown")
    desk.open_row(5)  # neither preview nor thumbnail
    assert image.pyramid is None and image.problem == reason("changed")
    assert image.preview_note == reason("preview_missing")
    assert "No preview of this image was kept." in desk.window.result_panel._kept.text()
    desk.rooms.session.previews[content] = np.zeros((0, 0), np.uint8)
    desk.open_row(6)
    assert "is damaged" in desk.window.result_panel._kept.text()
    desk.open_row(7)  # this file never was an image
    assert image.problem == reason("truncated") and desk.window.result_panel._kept.isHidden()


def test_no_past_run_is_opened_while_a_run_is_under_way(desk: Desk, page: HistoryPage) -> None:
    desk.screen()
    desk.window.actions_by_name["history"].trigger()
    select_runs(page, 1)
    assert not page.open_button.isEnabled()
    desk.bench.past_runs.open(1)
    assert "A run is under way in this window." in texts(page)
    desk.finish()
    desk.until(page.open_button.isEnabled)


def test_two_runs_are_compared_and_an_image_opens_the_run_of_its_side(desk: Desk, page: HistoryPage) -> None:
    select_runs(page, 1, 2)
    page.compare_button.click()
    desk.until(lambda: page.comparison is not None and page.comparison.isVisible())
    words = texts(page)
    assert "2 images are in both runs. Of the images in both runs, 1 has different classes in the two runs." in words
    assert "1 image is only in run 1." in words and "2 images are only in run 2." in words
    moves, table = page.comparison.findChildren(QTableWidget)
    assert [moves.item(0, column).text() for column in range(3)] == ["Not flagged", "Flagged", "1"]
    cells = [[table.item(row, column).text() for column in range(5)] for row in range(2)]
    assert cells == [
        ["Not flagged", "0.200 (0.410)", "Flagged", "0.900 (0.410)", "+0.700"],
        ["Not flagged", "0.100 (0.410)", "Not flagged", "0.120 (0.410)", "+0.020"],
    ]
    table.cellActivated.emit(0, 0)
    desk.until(lambda: desk.bench.screening.run_id == 1)
    image = desk.bench.image
    desk.until(lambda: image.row is not None and image.row.row_id == 1)
    desk.window.actions_by_name["history"].trigger()
    desk.window.work_list.filter_bar._buttons["abnormal"].click()
    table.cellActivated.emit(1, 3)  # a normal image
    desk.until(lambda: desk.bench.screening.run_id == 2)
    desk.until(lambda: image.row is not None and image.row.row_id == 5)


def test_patients_files_and_folders_have_no_names_while_these_are_hidden(desk: Desk, page: HistoryPage) -> None:
    desk.bench.update_recent_folders("/home/Remembered")
    desk.bench.screening.show_run_notes([reason("no_image_in", path="/home/Empty")])
    open_run(desk, page, 2)
    desk.window.audit_page.select_label_table(Path("/home/Reference-table.csv"))
    desk.window.audit_page.button.click()
    desk.until(lambda: desk.bench.auditing.report is not None)
    for name in ("audit", "history"):  # a page that is not visible is not updated
        desk.window.actions_by_name[name].trigger()
    desk.bench.past_runs.compare(1, 2)
    desk.until(lambda: page.comparison is not None)
    names = "Remembered", "Empty", "Reference-table", "图", "DOE", "image-00001", "scan-00009", "/images"
    for shows in (True, False, True):
        desk.window.toolbar.folders_menu.aboutToShow.emit()
        desk.until(
            lambda shows=shows: {any(name in said for _, said in all_widget_texts()) for name in names} == {shows}
        )
        desk.window.actions_by_name["hide_patient"].trigger()


def test_deleting_asks_twice_and_takes_the_run_out_of_sight(desk: Desk, page: HistoryPage, store: Path) -> None:
    open_run(desk, page, 2)
    desk.window.actions_by_name["history"].trigger()
    desk.until(lambda: not page._runs.is_busy)
    select_runs(page, 2)
    for answer in ("Do not delete", "Delete for good"):
        assert len(History(store).runs()) == 2
        page.delete_button.click()
        desk.until(lambda: "Delete 1 run?" in question(desk))
        assert "1 verdict on these results will be deleted too" in question(
            desk
        ) and "image files are neither changed nor deleted" in question(desk)
        press(desk.dialog(QMessageBox), "Delete…")
        desk.until(lambda: "The deletion cannot be undone" in question(desk))
        press(desk.dialog(QMessageBox), answer)
    desk.until(lambda: page.table.rowCount() == 1)
    assert "1 run was deleted." in desk.notices
    assert desk.bench.rows.total_image_count() == 0
    assert desk.bench.screening.run_id is None
    assert [found.run.run_id for found in History(store).runs()] == [1]


def test_a_run_deleted_by_another_program_is_reported_as_deleted(desk: Desk, page: HistoryPage, store: Path) -> None:
    delete_runs(store, [1])
    select_runs(page, 1)
    page.open_button.click()
    desk.until(lambda: page.table.rowCount() == 1)
    assert "Run 1 was not found in the history." in texts(page)


def test_an_activated_window_says_that_its_run_was_deleted(desk: Desk, store: Path) -> None:
    desk.bench.past_runs.open(1)
    desk.until(lambda: desk.bench.rows.total_image_count() > 0)
    turn_away(desk)
    delete_runs(store, [1])
    desk.window.activateWindow()
    desk.until_shown(reason("images_deleted", run=1).text)
    assert desk.bench.screening.state == "empty" and desk.bench.image.row is None
    assert desk.window.work_list.table.model().rowCount() == 0


def turn_away(desk: Desk) -> None:
    """Activate another window."""
    other = QWidget()
    desk.qtbot.addWidget(other)
    other.show()
    other.activateWindow()
    desk.until(other.isActiveWindow)


def test_an_activated_window_closes_the_image_of_a_deleted_patient(desk: Desk, store: Path) -> None:
    """The run's other images stay, and the deleted image takes no verdict."""
    desk.bench.past_runs.open(2)
    desk.until_listed(4)
    desk.open_row(4)
    turn_away(desk)
    delete_patient(store, "PX-1001")
    desk.activate()
    desk.until_shown(reason("image_deleted").text)
    assert desk.bench.image.row is None and desk.bench.screening.run_id == 2
    desk.until_listed(3)
    desk.bench.judging.give_verdict("agree")
    desk.until_shown(reason("not_judged_none").text)
    desk.open_row(5)
    assert "PX-1002" in desk.bench.image.row.header.patient_id


def test_a_run_whose_only_patient_was_deleted_is_closed_and_the_start_page_shown(desk: Desk, store: Path) -> None:
    """The run stays in the history, without images."""
    keep(store, [screened(3, 0.9)], spec=SPEC)
    desk.bench.past_runs.open(3)
    desk.until_listed(1)
    desk.open_row(8)
    turn_away(desk)
    delete_patient(store, "PX-1003")
    desk.activate()
    desk.until_shown(reason("images_deleted", run=3).text)
    assert desk.window.pages.currentWidget() is desk.window.welcome
    assert desk.bench.screening.state == "empty" and desk.bench.screening.run_id is None
    assert desk.bench.image.row is None and desk.bench.rows.total_image_count() == 0
    desk.screen()  # the window shows the start page
    assert desk.window.pages.currentWidget() is desk.window.images
    assert [found.image_count for found in History(store).runs() if found.run.run_id == 3] == [0]


def test_a_kept_image_of_a_deleted_patient_is_closed(desk: Desk, store: Path) -> None:
    desk.bench.past_runs.open(2)
    desk.until_listed(4)
    desk.open_row(4)
    desk.window.area.pin_or_close_image()
    desk.open_row(5)
    turn_away(desk)
    delete_patient(store, "PX-1001")
    desk.activate()
    desk.until(lambda: desk.bench.second_image.row is None)
    assert desk.bench.image.row is not None and desk.bench.image.row.row_id == 5


def test_a_patient_is_deleted_by_the_number_and_the_runs_stay(desk: Desk, page: HistoryPage, store: Path) -> None:
    """The question comes twice. An unknown number and the answer *Keep* delete nothing."""
    open_run(desk, page, 2)
    desk.open_row(4)
    desk.window.actions_by_name["history"].trigger()
    desk.until(lambda: not page._runs.is_busy)

    def ask(number: str) -> None:
        page.patient_button.click()
        asked = desk.dialog(QInputDialog)
        asked.setTextValue(number)
        asked.accept()

    ask("PX-9999")
    desk.until(lambda: reason("history_no_patient", patient="PX-9999").text in texts(page))
    for answer in ("Do not delete", "Delete for good"):
        assert sum(found.image_count for found in History(store).runs()) == 7
        ask("PX-1001")
        desk.until(lambda: "Delete all results of the patient with the ID PX-1001?" in question(desk))
        press(desk.dialog(QMessageBox), "Delete…")
        desk.until(lambda: "2 results will be deleted for good." in question(desk))
        press(desk.dialog(QMessageBox), answer)
    desk.until(lambda: sum(found.image_count for found in page._listed) == 5)
    assert len(History(store).runs()) == 2 and desk.bench.screening.run_id == 2
    desk.until(lambda: desk.bench.image.row is None and desk.bench.rows.total_image_count() == 3)


def test_a_run_in_use_by_another_program_stays(desk: Desk, page: HistoryPage, store: Path) -> None:
    with ResultStore(store) as other:
        run_id = other.open_run(run_spec())
        page._runs.refresh()
        desk.until(lambda: page.table.rowCount() == 3)
        page._runs.plan_deletion([run_id])
        desk.until(lambda: "Delete 1 run?" in question(desk))
        press(desk.dialog(QMessageBox), "Delete…")
        press(desk.dialog(QMessageBox), "Delete for good")
        desk.until(lambda: "in use by another program" in texts(page))
        assert len(other.runs()) == 3


def test_the_work_list_is_filtered_by_verdict_and_device(desk: Desk, page: HistoryPage) -> None:
    open_run(desk, page, 2)
    bar, rows = desk.window.work_list.filter_bar, desk.bench.rows
    for wanted, number in (("given", 1), ("disagreed", 1), ("none", 3), ("any", 4)):
        bar.verdicts.setCurrentIndex(bar.verdicts.findData(wanted))
        bar.verdicts.activated.emit(0)
        desk.until(lambda number=number: rows.rowCount() == number)
    bar.devices.setCurrentIndex(bar.devices.findData("cpu"))
    bar.devices.activated.emit(0)
    desk.until(lambda: rows.rowCount() == 3)  # the file that failed has no device


@pytest.mark.parametrize(("rows", "columns"), [(0, 4), (-4, -4), (-1, 1), (2**14, 2**13)])
def test_a_preview_is_not_enlarged_to_an_impossible_image(rows: int, columns: int) -> None:
    assert enlarge_preview(np.zeros((2, 2), np.uint8), rows=rows, columns=columns) is None


def test_notes_on_image_quality_are_counted_by_day(desk: Desk, page: HistoryPage, store: Path) -> None:
    assert page.quality is None
    told = (("lungs_tilted", "lungs_cut_off_left"), ("lungs_tilted",), ())
    notes = [tuple(map(reason, codes)) for codes in told]
    keep(store, [replace(screened(number, 0.9), notes=of) for number, of in enumerate(notes, 1)], spec=SPEC)
    desk.bench.past_runs.refresh()
    desk.until(lambda: page.quality is not None)
    (table,) = page.quality.findChildren(QTableWidget)
    cells = [[table.item(row, column).text() for column in (1, 2)] for row in range(table.rowCount())]
    assert cells == [  # of all three runs
        ["The lungs are cut off at the left edge of the image.", "1 / 10"],
        ["The patient is tilted in the image by about 10 degrees or more.", "2 / 10"],
    ]


class _March(datetime.date):
    """A calendar date: the last day of a March in the future."""

    @classmethod
    def today(cls) -> datetime.date:
        return datetime.date(2031, 3, 31)


def test_months_and_days_follow_the_calendar_while_the_window_is_open(
    desk: Desk, page: HistoryPage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page.dates.setCurrentIndex(page.dates.findData(6))
    page.dates.activated.emit(0)
    march = SimpleNamespace(date=_March, timedelta=datetime.timedelta)
    monkeypatch.setattr("fieldray.desktop.history_page.datetime", march)
    desk.window.actions_by_name["history"].trigger()
    desk.window.actions_by_name["history"].trigger()
    assert desk.bench.past_runs.run_filter.since == datetime.date(2031, 3, 25)
    this_month, last_month = page.month_button.menu().actions()
    for month in (this_month, last_month):
        month.trigger()
        dialog = desk.dialog(QFileDialog)
        dialog.findChild(QLineEdit).setText(str(tmp_path))
        dialog.accept()
        desk.until_shown(f"1 file or folder was saved in {tmp_path}.")
        desk.bench.notice_board.withdraw("export")
    made = sorted(path for path in tmp_path.iterdir() if path.suffix == ".pdf")
    assert [path.name for path in made] == ["fieldray-2031-02.pdf", "fieldray-2031-03.pdf"]
    assert [path.read_bytes()[:4] for path in made] == [b"%PDF"] * 2


def test_a_hidden_page_is_refreshed_only_when_it_is_shown(desk: Desk, page: HistoryPage) -> None:
    desk.window.actions_by_name["history"].trigger()  # back to the images
    desk.bench.past_runs.compare(1, 2)
    desk.until(lambda: desk.bench.past_runs.comparison is not None and desk.bench.past_runs.can_begin)
    assert page.comparison is None
    desk.window.actions_by_name["history"].trigger()
    assert page.comparison is not None
