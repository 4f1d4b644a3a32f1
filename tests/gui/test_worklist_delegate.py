"""Cells that are kept as they were painted never show what is no longer so."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fake_rooms import image_ref, refused, screened
from PySide6.QtCore import QRect
from PySide6.QtGui import QFont, QFontMetrics, QImage, QPainter
from PySide6.QtWidgets import QStyle, QStyleOptionViewItem, QWidget
from pytestqt.qtbot import QtBot
from stored_list import StoredList

from fieldray.desktop.list_reader import KEYS
from fieldray.desktop.worklist_delegate import WorkListDelegate, wrapped
from fieldray.domain.finding import Outcome, Refused
from fieldray.plain_text import visible
from fieldray.reasons import Reason, reason
from fieldray.translation import Translator
from hostile import BREAKS, FORGED_LINE, REORDERS, STEERS


class Table:
    """A delegate with a model behind it, painted on a sheet."""

    def __init__(self, path: Path, qtbot: QtBot) -> None:
        self.parent = QWidget()
        qtbot.addWidget(self.parent)
        self.listed = StoredList(path, qtbot)
        self.model = self.listed.model
        self.delegate = WorkListDelegate(Translator("en"), "light", self.parent)

    def add(self, *outcomes: Outcome) -> None:
        self.listed.add(*outcomes)

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
        self.delegate.paint(painter, option, self.model.index(place, KEYS.index(key)))
        painter.end()
        return sheet


@pytest.fixture
def table(qtbot: QtBot, tmp_path: Path) -> Iterator[Table]:
    made = Table(tmp_path / "results.sqlite", qtbot)
    yield made
    made.listed.close()


@pytest.mark.parametrize("key", KEYS)
def test_a_cell_looks_the_same_again(table: Table, key: str) -> None:
    table.add(screened(1, 0.9))
    first = table.painted(key)
    assert first == table.painted(key)
    assert first != table.painted(key, is_selected=True)
    assert first != table.painted(key, width=120)
    assert first == table.painted(key)


@pytest.mark.parametrize("key", ["patient", "date", "view", "status"])
@pytest.mark.parametrize("text", [FORGED_LINE, STEERS, REORDERS, BREAKS])
def test_what_is_painted_is_one_line_in_its_own_order(table: Table, key: str, text: str) -> None:
    def refused_with(said: str) -> Refused:
        header = replace(image_ref(1).header, patient_name=said, patient_id=said, study_date=said, view_position=said)
        return Refused(ref=image_ref(1, header=header), reason=Reason("modality", (("modality", said),)))

    second = replace(refused_with(visible(text)), ref=replace(refused_with(visible(text)).ref, path=Path("/images/2")))
    table.add(refused_with(text), second)
    assert table.painted(key, place=0) == table.painted(key, place=1)


@pytest.mark.parametrize("key", ["class", "score", "patient"])
def test_an_image_done_again_shows_its_new_result(table: Table, key: str) -> None:
    table.add(screened(1, 0.9))
    before = table.painted(key)
    table.add(refused(1))
    assert table.painted(key) != before


def test_a_new_list_shows_nothing_of_the_one_before(table: Table) -> None:
    table.add(screened(1, 0.9))
    before = table.painted("class")
    table.listed.begin()
    table.add(screened(1, 0.1))
    assert table.painted("class") != before


def test_hiding_patients_hides_them_at_once(table: Table) -> None:
    table.add(screened(1, 0.9))
    before = table.painted("patient")
    table.delegate.hide_patient = True
    assert table.painted("patient") != before


@pytest.mark.parametrize("ratio", [1.25, 1.5, 1.75])
def test_a_cell_is_painted_to_its_edge_at_any_scale(table: Table, ratio: float) -> None:
    table.add(screened(1, 0.1))
    sheets = []
    for _ in range(2):  # a picture that is not filled holds whatever memory held
        kept = table.painted("score", width=101, ratio=ratio)
        sheets.append(kept)
        table.delegate._kept.clear()
    assert sheets[0] == sheets[1]
    column = [sheets[0].pixelColor(int((3 + 101) * ratio) - 1, int((2 + row) * ratio)) for row in range(4, 50)]
    assert all(colour.lightness() > 200 for colour in column)


def test_thousands_of_cells_are_not_all_kept(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fieldray.desktop.worklist_delegate._MOST_KEPT", 30)
    table.add(*(screened(number, 0.9) for number in range(1, 40)))
    for place in range(39):
        table.painted("score", place=place)
    assert len(table.delegate._kept) == 30
    assert table.painted("score") == table.painted("score")


def test_a_row_that_is_being_read_is_blank_and_then_painted(table: Table) -> None:
    table.add(screened(1, 0.9))
    there = table.painted("class")
    table.model._rows.clear({})
    assert table.painted("class") not in (there, table.painted("class", is_selected=True))
    table.listed.rows()
    assert table.painted("class") == there


def test_a_reason_has_two_lines_of_the_list(qapp: object) -> None:
    font = QFont()
    words = QFontMetrics(font)
    text = reason("unlike_training").text
    for width in (words.horizontalAdvance("The image is unlike"), words.horizontalAdvance(text) + 1, 1):
        lines = wrapped(text, font, width, most=2)
        assert " ".join(lines) == text
        assert len(lines) == (1 if width > words.horizontalAdvance(text) else 2)
        assert width == 1 or words.horizontalAdvance(lines[0]) <= width
    assert wrapped("", font, 100, most=2) == []
