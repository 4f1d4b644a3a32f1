"""The work list of a run in a store: order, filter, search, changes during a run, and painting.

Painted cells that are kept for reuse never show outdated content.
"""

from __future__ import annotations

import gc
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_rooms import SPEC, failed, image_ref, refused, save, screened
from PySide6.QtCore import QPersistentModelIndex, QRect, Qt
from PySide6.QtGui import QFont, QFontMetrics, QImage, QPainter
from PySide6.QtTest import QAbstractItemModelTester
from PySide6.QtWidgets import QStyle, QStyleOptionViewItem, QWidget
from pytestqt.qtbot import QtBot

from fieldray.desktop.background import BackgroundTasks
from fieldray.desktop.image_painting import DisplaySwitches
from fieldray.desktop.notices import NoticeBoard
from fieldray.desktop.verdicts import Verdicts, VerdictSubject
from fieldray.desktop.worklist_delegate import WorkListDelegate, wrap_text
from fieldray.desktop.worklist_model import IS_EARLIER_IMAGE_ROLE, PATIENT_GROUP_ROLE, VERDICT_ROLE, WorkListModel
from fieldray.desktop.worklist_rows import COLUMN_KEYS, RowCache, WorkListRow
from fieldray.domain.finding import Outcome, RefusedOutcome
from fieldray.domain.run import ImageDone, Verdict
from fieldray.errors import StorageProblem
from fieldray.pipeline.history import History
from fieldray.plain_text import escape_invisible_characters
from fieldray.reasons import Reason, reason
from fieldray.store.results import ResultStore
from fieldray.store.work_list import HistoryQuery
from fieldray.translation import Translator
from hostile import BREAKS, FORGED_LINE, REORDERS, STEERS

Ascending, Descending = Qt.SortOrder.AscendingOrder, Qt.SortOrder.DescendingOrder
WAIT_MS = 20_000


class StoredList:
    """The model of the work list over a run whose results the test saves."""

    def __init__(self, path: Path, qtbot: QtBot) -> None:
        self.path, self._qtbot = path, qtbot
        self.notice_board = NoticeBoard()
        self.background = BackgroundTasks(self.notice_board)
        self.verdicts, self.switches = Verdicts(), DisplaySwitches()
        self.switches.by_patient = False
        self.words = Translator("en", lambda: self.switches.hide_patient)
        self.model = WorkListModel(self.words, self.background, self.verdicts, self.switches)
        self.background.set_services(SimpleNamespace(history=History(path)))  # type: ignore[arg-type]
        self.store = ResultStore(path)
        self.run_id = 0
        self.begin()

    def begin(self) -> None:
        """Begin another run, and list it."""
        self.run_id = self.store.open_run(SPEC, as_new_run=True)
        self.model.show_run(self.run_id, None)
        self.until(lambda: self.model.is_fully_read)

    def add(self, *outcomes: Outcome) -> None:
        """Save results, and wait until they are listed and the visible rows are read."""
        save(self.store, self.run_id, outcomes, self.take)
        self.settle()

    def take(self, event: ImageDone) -> None:
        """Pass an event about an image to the model, as the window does."""
        self.model.show_saved_image(event.image)

    def judge(self, row_id: int, choice: str) -> None:
        """Give a verdict on a row, in the model and in the store."""
        verdict = Verdict(choice=choice)  # type: ignore[arg-type]
        judged = VerdictSubject(row_id, self.store.result(row_id).outcome)
        self.verdicts.set_current_image(judged)
        self.verdicts.give_verdict(verdict.choice)
        self.model.handle_verdict_change(judged)
        self.verdicts.handle_verdict_written(judged, self.store.set_verdict(row_id, verdict, judged=judged.outcome))
        self.model.handle_verdict_change(judged)

    def settle(self) -> None:
        """Wait until the list has the wanted order and filter, and its first rows are read."""
        with self._qtbot.waitSignal(self.model.list_changed, timeout=WAIT_MS):
            pass
        self.rows(40)

    def rows(self, most: int = 10**9) -> list[WorkListRow]:
        """The first rows as they are shown, after they were read."""
        places = range(min(self.model.rowCount(), most))
        self.until(lambda: all(self.model.row_at(self.model.index(place, 0)) for place in places))
        found = [self.model.row_at(self.model.index(place, 0)) for place in places]
        return [row for row in found if row is not None]

    def shown(self) -> list[int]:
        """The numbers of all rows in the order shown."""
        found = [self.model.row_id_at(self.model.index(place, 0)) for place in range(self.model.rowCount())]
        return [row_id for row_id in found if row_id is not None]

    def until(self, is_so: object) -> None:
        """Let the window work until `is_so()` is true."""
        self._qtbot.waitUntil(is_so, timeout=WAIT_MS)

    def close(self) -> None:
        """End all background work."""
        self.model.show_run(None)
        self.background.close(wait_s=5)
        self.store.close()


@pytest.fixture
def listed(qapp: object, qtbot: QtBot, tmp_path: Path) -> Iterator[StoredList]:
    made = StoredList(tmp_path / "results.sqlite", qtbot)
    tester = QAbstractItemModelTester(made.model, QAbstractItemModelTester.FailureReportingMode.Fatal)
    yield made
    made.close()
    tester.deleteLater()


@pytest.fixture
def model(listed: StoredList) -> WorkListModel:
    return listed.model


def test_order_and_filter_are_those_of_the_store_and_everything_is_counted(
    listed: StoredList, model: WorkListModel
) -> None:
    listed.add(screened(1, 0.2), failed(2), screened(3, 0.9), refused(4), screened(5, 0.45))
    assert listed.shown() == [row.row_id for row in listed.rows()] == [3, 5, 1, 4, 2]
    for change, shown in (
        (lambda: model.sort(COLUMN_KEYS.index("score"), Qt.SortOrder.DescendingOrder), [3, 5, 1, 4, 2]),
        (lambda: model.sort(COLUMN_KEYS.index("score"), Qt.SortOrder.AscendingOrder), [4, 2, 1, 5, 3]),
        (lambda: model.sort(-1), [3, 5, 1, 4, 2]),
        (lambda: model.change_filter(category="normal"), [1]),
        (lambda: model.change_filter(category=None, text="PX-1003"), [3]),
    ):
        change()
        listed.settle()
        assert listed.shown() == shown
    assert model.total_image_count() == 5
    found: list[int] = []
    model.searched_image_found.connect(found.append)
    model.change_filter(text="")
    listed.settle()
    model.find_neighbour_study(0, 1)
    listed.until(lambda: found == [5])


def test_rows_that_arrive_while_filtered_are_filtered_too(listed: StoredList, model: WorkListModel) -> None:
    model.change_filter(category="normal")
    listed.add(screened(1, 0.9), screened(2, 0.1))
    listed.until(lambda: listed.shown() == [2])


def test_the_selection_stays_on_its_row_while_others_arrive(listed: StoredList, model: WorkListModel) -> None:
    listed.add(screened(1, 0.6))
    held = QPersistentModelIndex(model.index(0, 0))
    listed.add(*(screened(number, 0.6 + number / 100) for number in range(2, 30)))
    listed.until(lambda: model.rowCount() == 29)
    assert held.row() == 28
    assert model.row_id_at(held) == 1


def test_an_image_screened_again_is_counted_once(listed: StoredList, model: WorkListModel) -> None:
    before = failed(1)
    listed.add(before, screened(2, 0.6))
    row, replaced = next(row for row in listed.rows() if row.row_id == 1), list[WorkListRow]()
    model.row_replaced.connect(replaced.append)
    listed.add(replace(screened(1, 0.95), ref=before.ref))
    listed.until(lambda: listed.shown() == [1, 2])
    assert model.class_counts()["failed"] == 0
    assert model.class_counts()["abnormal"] == 2
    assert replaced == [row] and row.category == "failed"  # an earlier row object keeps its values
    assert model.row_at(model.index_of(1)).category == "abnormal" and not model.is_row_up_to_date(row)


def test_a_verdict_is_noted_on_its_row(listed: StoredList, model: WorkListModel) -> None:
    listed.add(screened(1, 0.6))
    state = model.index_of(1).siblingAtColumn(COLUMN_KEYS.index("patient"))
    said = [model.data(state, Qt.ItemDataRole.AccessibleTextRole)]
    listed.judge(1, "agree")
    said.append(model.data(state, Qt.ItemDataRole.AccessibleTextRole))
    assert listed.rows()[0].verdict == Verdict(choice="agree")
    assert said == ["DOE PERSON 001, unread", "DOE PERSON 001, your verdict: Agree"]


def test_a_row_with_a_changed_verdict_stays_until_the_filter_is_set_again(
    listed: StoredList, model: WorkListModel
) -> None:
    listed.add(screened(1, 0.9), screened(2, 0.8), screened(3, 0.7))
    model.change_filter(verdict="none")
    listed.settle()
    listed.judge(2, "agree")
    listed.add(screened(4, 0.6))
    listed.until(lambda: listed.shown() == [1, 2, 3, 4])
    model.change_filter(verdict="none")
    listed.until(lambda: listed.shown() == [1, 3, 4])
    model.change_filter(verdict="given")
    listed.until(lambda: listed.shown() == [2])


# ---- a page at a time


def test_rows_are_read_a_page_at_a_time_and_only_those_seen_last_are_kept(
    listed: StoredList, model: WorkListModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    model._rows._kept = deque(maxlen=60)
    asked: list[int] = []
    read = HistoryQuery.images
    monkeypatch.setattr(HistoryQuery, "images", lambda query, ids: (asked.append(len(ids)), read(query, ids))[1])
    listed.add(*(screened(number, 0.9) for number in range(1, 201)))
    assert sum(asked) < 100
    for row in range(0, 200, 20):
        listed.until(lambda row=row: model.row_at(model.index(row, 0)) is not None)
    assert max(asked) <= 3 * 48
    gc.collect()
    assert len(model._rows._alive) <= 60
    assert listed.rows(1)[0].row_id == 1  # it was dropped, and is read again


def test_the_first_page_is_there_before_the_whole_list(listed: StoredList, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fieldray.desktop.worklist_model._FIRST_ROWS", 3)
    listed.add(*(screened(number, number / 10) for number in range(1, 8)))
    seen: list[tuple[int, bool, int]] = []
    model = listed.model
    model.list_changed.connect(lambda: seen.append((model.rowCount(), model.is_fully_read, model.total_image_count())))
    model.show_run(listed.run_id, None)
    listed.until(lambda: len(seen) == 2)
    assert seen == [(3, False, 7), (7, True, 7)]


def test_of_two_orders_the_last_chosen_is_shown(listed: StoredList, model: WorkListModel) -> None:
    listed.add(screened(1, 0.9), screened(2, 0.1))
    shown: list[list[int]] = []
    model.list_changed.connect(lambda: shown.append(listed.shown()))
    for category in ("abnormal", "normal", "abnormal", "normal"):
        model.change_filter(category=category)
    listed.until(lambda: bool(shown))
    assert shown == [[2]]
    assert listed.notice_board.notices == ()


def test_a_long_list_is_read_again_less_often(
    listed: StoredList, model: WorkListModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed.add(screened(1, 0.9))
    model._has_read(History(listed.path).list_rows(listed.run_id, model.wanted, model._order), 2.0, limit=None)
    model.refresh()
    # The interval that was asked for: what remains of a coarse timer may be up to a twentieth more.
    assert model._again.isActive()
    assert 15_000 < model._again.interval() <= 18_000
    model.change_filter(category=None)  # a person's choice is not delayed
    assert not model._again.isActive()
    listed.settle()


def test_a_list_that_cannot_be_read_gives_a_notice_and_is_read_again(
    listed: StoredList, model: WorkListModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> object:
        raise StorageProblem(reason("not_writable", path="/results.sqlite", detail="made up"))

    listed.add(screened(1, 0.9))
    with monkeypatch.context() as patch:
        patch.setattr(History, "list_rows", refuse)
        model.change_filter(text="px")
        listed.until(lambda: [notice.key for notice in listed.notice_board.notices] == ["list"])
    assert listed.shown() == [1]  # the visible rows stay
    model.change_filter(text="px-1")
    listed.settle()
    assert listed.notice_board.notices == ()
    with monkeypatch.context() as patch:
        patch.setattr(HistoryQuery, "images", refuse)
        rows: RowCache = model._rows
        rows.clear({})
        assert model.row_at(model.index(0, 0)) is None
        listed.until(lambda: [notice.key for notice in listed.notice_board.notices] == ["list"])
    assert listed.rows()[0].row_id == 1


def test_a_row_replaced_while_it_is_read_shows_the_new_result(
    listed: StoredList, model: WorkListModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = failed(1)
    listed.add(before)
    model._rows.clear(())
    gc.collect()
    is_read, may_arrive = threading.Event(), threading.Event()
    read = HistoryQuery.images

    def slowly(*what: Any) -> object:
        found = read(*what)
        is_read.set()
        may_arrive.wait(20.0)
        return found

    monkeypatch.setattr(HistoryQuery, "images", slowly)
    assert model.row_at(model.index(0, 0)) is None
    listed.until(is_read.is_set)
    save(listed.store, listed.run_id, [replace(screened(1, 0.9), ref=before.ref)], listed.take)
    may_arrive.set()
    assert [row.category for row in listed.rows()] == ["abnormal"]


def test_a_saved_verdict_is_not_shown_with_a_newer_result(listed: StoredList, model: WorkListModel) -> None:
    listed.add(screened(1, 0.9))
    (row,) = listed.rows()
    shown = VerdictSubject(1, row.outcome)
    listed.verdicts.set_current_image(shown)
    listed.verdicts.give_verdict("agree")
    listed.add(screened(1, 0.1))
    listed.verdicts.handle_verdict_written(shown, Verdict(choice="agree"))
    model.handle_verdict_change(shown)
    after = model.row_at(model.index(0, 0))
    assert (after.category, after.verdict, model.data(model.index(0, COLUMN_KEYS.index("patient")), VERDICT_ROLE)) == (
        "normal",
        None,
        None,
    )


def test_a_result_deleted_by_another_program_is_read_once(
    listed: StoredList, model: WorkListModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed.add(screened(1, 0.9))
    model._rows.clear(())
    gc.collect()
    asked: list[Sequence[int]] = []
    read = HistoryQuery.images
    monkeypatch.setattr(HistoryQuery, "images", lambda *what: (asked.append(what[1]), read(*what))[1])
    for table in ("work_list", "answers", "images"):
        listed.store._connection.execute(f"DELETE FROM {table}")
    shown = model.dataChanged.connect(lambda: model.row_at(model.index(0, 0)))  # as a painted list asks
    assert model.row_at(model.index(0, 0)) is None
    listed.until(lambda: model.rowCount() == 0)
    assert len(asked) == 1
    model.disconnect(shown)


def test_the_images_of_a_patient_are_listed_together_and_the_selection_stays(
    listed: StoredList, model: WorkListModel
) -> None:
    of_first = replace(screened(4, 0.1), ref=replace(screened(4, 0.1).ref, header=screened(1, 0.9).ref.header))
    listed.add(screened(1, 0.9), screened(2, 0.8), screened(3, 0.7), of_first)
    held = QPersistentModelIndex(model.index_of(4))
    assert model.data(model.index(0, 0), PATIENT_GROUP_ROLE) is None
    listed.switches.set(by_patient=True)
    listed.settle()
    assert listed.shown() == [1, 4, 2, 3] and held.row() == 1
    assert [model.data(model.index(row, 0), PATIENT_GROUP_ROLE).remaining_row_count for row in range(4)] == [2, 1, 1, 1]
    patients = [model.index(row, COLUMN_KEYS.index("patient")) for row in range(4)]
    said = [model.data(patient, Qt.ItemDataRole.AccessibleTextRole) for patient in patients]
    assert [words.endswith("same patient as above") for words in said] == [False, True, False, False]
    model.sort(COLUMN_KEYS.index("score"), Ascending)
    listed.settle()
    assert listed.shown() == [4, 1, 3, 2]
    listed.switches.set(by_patient=False)
    listed.settle()
    assert listed.shown() == [4, 3, 2, 1]


def test_a_row_now_read_stays_in_the_unread_filter_until_it_is_set_again(
    listed: StoredList, model: WorkListModel
) -> None:
    listed.add(screened(1, 0.9), screened(2, 0.8), screened(3, 0.7))
    model.change_filter(verdict="unread")
    listed.settle()
    row = listed.rows()[1]
    listed.store.set_read_state(2, judged=row.outcome, is_read=True)
    model.handle_read_mark_change(row)
    model.refresh()
    listed.settle()
    assert listed.shown() == [1, 2, 3]
    model.change_filter(verdict="unread")
    listed.settle()
    assert listed.shown() == [1, 3]
    found: list[int] = []
    model.searched_image_found.connect(found.append)
    model.find_unread_image(1)
    listed.until(lambda: found == [1])
    model.change_filter(verdict="any", text="PX-1002")
    listed.settle()
    model.find_unread_image(-1)
    listed.until(lambda: "This list has no other unread image." in notice(listed))


def notice(listed: StoredList) -> str:
    return " ".join(notice.text(Translator("en")) for notice in listed.notice_board.notices)


class Table(StoredList):
    """The list with its delegate, painted onto an image."""

    def __init__(self, path: Path, qtbot: QtBot) -> None:
        super().__init__(path, qtbot)
        self.parent = QWidget()
        qtbot.addWidget(self.parent)
        self.delegate = WorkListDelegate(self.words, "light", self.parent)

    def painted(
        self, key: str, *, place: int = 0, is_selected: bool = False, width: int = 160, ratio: float = 1.0
    ) -> QImage:
        sheet = QImage(round(200 * ratio), round(60 * ratio), QImage.Format.Format_RGB32)
        sheet.setDevicePixelRatio(ratio)
        sheet.fill(0)
        option = QStyleOptionViewItem()
        option.rect = QRect(3, 2, width, 54)
        if is_selected:
            option.state |= QStyle.StateFlag.State_Selected
        painter = QPainter(sheet)
        self.delegate.paint(painter, option, self.model.index(place, COLUMN_KEYS.index(key)))
        painter.end()
        return sheet


@pytest.fixture
def table(qtbot: QtBot, tmp_path: Path) -> Iterator[Table]:
    made = Table(tmp_path / "results.sqlite", qtbot)
    yield made
    made.close()


@pytest.mark.parametrize("key", COLUMN_KEYS)
def test_a_cell_is_painted_alike_each_time(table: Table, key: str) -> None:
    table.add(screened(1, 0.9))
    first = table.painted(key)
    assert first == table.painted(key)
    assert first != table.painted(key, is_selected=True)
    assert first != table.painted(key, width=120)
    assert first == table.painted(key)


@pytest.mark.parametrize("key", ["patient", "date", "view", "status"])
@pytest.mark.parametrize("text", [FORGED_LINE, STEERS, REORDERS, BREAKS])
def test_a_painted_text_is_one_line_without_reordering(table: Table, key: str, text: str) -> None:
    def refused_with(said: str) -> RefusedOutcome:
        header = replace(image_ref(1).header, patient_name=said, patient_id=said, study_date=said, view_position=said)
        return RefusedOutcome(ref=image_ref(1, header=header), reason=Reason("modality", (("modality", said),)))

    second = replace(
        refused_with(escape_invisible_characters(text)),
        ref=replace(refused_with(escape_invisible_characters(text)).ref, path=Path("/images/2")),
    )
    table.add(refused_with(text), second)
    assert table.painted(key, place=0) == table.painted(key, place=1)


@pytest.mark.parametrize("key", ["class", "score", "patient"])
def test_an_image_done_again_shows_its_new_result(table: Table, key: str) -> None:
    table.add(screened(1, 0.9))
    before = table.painted(key)
    table.add(refused(1))
    assert table.painted(key) != before


def test_files_with_nearly_the_same_name_are_painted_differently(table: Table) -> None:
    paths = [Path(f"/images/chest-of-a-person-{letter}-2026-03-04.png") for letter in "AB"]
    refs = [image_ref(number, path=path, header=failed(0).ref.header) for number, path in enumerate(paths)]
    table.add(*(replace(screened(1, 0.9), ref=ref) for ref in refs))
    assert table.painted("patient", place=0) != table.painted("patient", place=1)


def test_hidden_patient_names_disappear_at_once_from_painted_cells(table: Table) -> None:
    table.add(screened(1, 0.9))
    patient, found = table.painted("patient"), table.painted("class")
    table.switches.set(hide_patient=True)
    assert table.painted("patient") != patient
    table.begin()
    table.add(screened(1, 0.1))
    assert table.painted("class") != found


@pytest.mark.parametrize("ratio", [1.25, 1.5, 1.75])
def test_a_cell_is_painted_to_its_edge_at_every_pixel_ratio(table: Table, ratio: float) -> None:
    table.add(screened(1, 0.1))
    sheets = []
    for _ in range(2):  # an image that is not filled holds arbitrary memory
        kept = table.painted("score", width=101, ratio=ratio)
        sheets.append(kept)
        table.delegate._kept.clear()
    assert sheets[0] == sheets[1]
    column = [sheets[0].pixelColor(int((3 + 101) * ratio) - 1, int((2 + row) * ratio)) for row in range(4, 50)]
    assert all(colour.lightness() > 200 for colour in column)


def test_thousands_of_cells_are_not_all_kept(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fieldray.desktop.worklist_delegate._MAX_CACHED", 30)
    table.add(*(screened(number, 0.9) for number in range(1, 40)))
    for place in range(39):
        table.painted("score", place=place)
    assert len(table.delegate._kept) == 30
    assert table.painted("score") == table.painted("score")


def test_a_row_that_is_being_read_is_blank_and_then_painted(table: Table) -> None:
    table.add(screened(1, 0.9))
    there = table.painted("class")
    table.model._rows.clear(())
    assert table.painted("class") not in (there, table.painted("class", is_selected=True))
    table.rows()
    assert table.painted("class") == there


def test_a_reason_fits_two_lines_of_the_list(qapp: object) -> None:
    font = QFont()
    words = QFontMetrics(font)
    text = reason("unlike_training").text
    for width in (words.horizontalAdvance("The image is unlike"), words.horizontalAdvance(text) + 1, 1):
        lines = wrap_text(text, font, width, max_lines=2)
        assert " ".join(lines) == text
        assert len(lines) == (1 if width > words.horizontalAdvance(text) else 2)
        assert width == 1 or words.horizontalAdvance(lines[0]) <= width
    assert wrap_text("", font, 100, max_lines=2) == []


def test_a_list_not_sorted_by_urgency_names_its_sort_column(listed: StoredList, model: WorkListModel) -> None:
    listed.add(screened(1, 0.2), screened(2, 0.9))
    said = []
    for column, order in (("date", Ascending), ("class", Descending), ("class", Ascending)):
        model.sort(COLUMN_KEYS.index(column), order)
        said.append(model.sort_column_title)
    model.sort(-1)
    assert [*said, model.sort_column_title] == ["Date", "Class", "", ""]
    listed.settle()


def test_an_image_of_an_earlier_day_is_marked_and_listed_below_todays_image(
    listed: StoredList, model: WorkListModel
) -> None:
    header = replace(image_ref(1).header, patient_id="MRN-1", patient_birth_date="19570102")
    days = [replace(header, study_date=day) for day in ("20260615", "20261129")]
    outcomes = [
        replace(screened(number, score), ref=image_ref(number, header=of_day))
        for number, score, of_day in zip((1, 2), (0.95, 0.1), days, strict=True)
    ]
    listed.add(*outcomes)
    assert listed.shown() == [2, 1]
    marks = [model.data(model.index(place, COLUMN_KEYS.index("patient")), IS_EARLIER_IMAGE_ROLE) for place in range(2)]
    assert marks == [False, True]
    said = model.data(model.index(1, COLUMN_KEYS.index("patient")), Qt.ItemDataRole.AccessibleTextRole)
    assert "earlier image, 2026-06-15" in said


@pytest.mark.parametrize("choice", ["agree", "disagree", "unsure"])
def test_a_verdict_has_a_mark_of_its_own(table: Table, choice: str) -> None:
    table.add(screened(1, 0.9), screened(2, 0.9))
    table.judge(1, choice)
    table.judge(2, "agree" if choice != "agree" else "unsure")
    header = table.painted("patient", place=0)
    assert header != table.painted("patient", place=1)


def test_a_reason_hides_neither_patient_number_nor_date(table: Table) -> None:
    """Two refused patients with the same name and the same reason can still be told apart."""
    for number in (1, 2):
        header = replace(image_ref(1).header, patient_name="SMITH^JOHN", patient_id=f"MRN-{number}")
        why = reason("age", age=40, youngest=1, oldest=5)
        table.add(RefusedOutcome(ref=image_ref(number, header=header), reason=why))
    table.delegate.date_below = True
    assert table.painted("patient", place=0) != table.painted("patient", place=1)
