"""Painting of the cells in the work list: thumbnail, up to three lines about the patient, class as icon and name.

The first line has the name, and the second line has Patient ID and date; both are always shown. The third line has the
reason why an image has no score or must be read first.

During a run the list is painted eight times per second, mostly unchanged. Each call to Qt lets other threads run first,
and a cell takes twenty calls. So painted cells are cached as pixmaps, and painted again with one call.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Final

from PySide6.QtCore import QLine, QRect, QRectF, QSize, Qt
from PySide6.QtGui import QFont, QFontMetrics, QPainter, QPen, QPixmap
from PySide6.QtWidgets import QStyle, QStyledItemDelegate, QStyleOptionViewItem, QWidget

from fieldray.desktop.image_painting import draw_thumbnail
from fieldray.desktop.style import Theme, VerdictMark, colour, draw_category_icon, draw_verdict_mark, scaled_font
from fieldray.desktop.verdicts import SavingState
from fieldray.desktop.widgets import without_markup
from fieldray.desktop.worklist_model import IS_EARLIER_IMAGE_ROLE, PATIENT_GROUP_ROLE, ROW_ROLE, VERDICT_ROLE, Index
from fieldray.desktop.worklist_rows import COLUMN_KEYS, WorkListRow, image_title, score_cell_text
from fieldray.domain.finding import override_notes
from fieldray.domain.history import NEW_PATIENT, SAME_STUDY, RowInPatientGroup
from fieldray.domain.image import ImageHeader, parse_dicom_date
from fieldray.formatting import (
    earlier_image_text,
    file_name,
    format_dicom_date,
    format_person_name,
    sex_label,
    short_category_label,
    unsigned_notice,
)
from fieldray.translation import Translator

ROW_HEIGHT: Final = 54
_RAIL: Final = 10  # width in pixels of the line that groups a patient's images
_GAP: Final = 8
_SHAPE: Final = 14
_BETWEEN: Final = " · "
_MIN_PATIENT_ID_CHARACTERS: Final = 5  # minimum number of characters of a cut Patient ID
CLASS_COLUMN_PADDING: Final = 2 * _GAP + _SHAPE + 6 + 4
SMALL_CLASS_COLUMN_PADDING: Final = 2 * _GAP + 2
ICON_COLUMN_WIDTH: Final = 48
_SYNTHETIC: Final = frozenset({"image", "patient", "class"})
_MAX_CACHED: Final = 400
_SELECTED: Final = QStyle.StateFlag.State_Selected


@dataclass(frozen=True, eq=False, slots=True)
class _Cell:
    """The content of a cell to paint.

    key          name of the cell's column
    text         text of a cell without icons
    is_selected  whether the row is selected
    verdict      state of the verdict, or None
    group        position of the row among the patient's rows; None without grouping
    is_earlier   whether the image is of an earlier day than its patient's newest image
    """

    row: WorkListRow
    key: str
    text: str
    font: QFont
    is_selected: bool
    verdict: SavingState | None
    group: RowInPatientGroup | None
    is_earlier: bool

    @property
    def mark(self) -> VerdictMark | None:
        """The mark next to the patient's name: the reader's verdict, an unsaved verdict, or unread; or None."""
        if self.verdict == "saved":
            return self.row.verdict.choice if self.row.verdict else None
        return self.verdict or (None if self.row.is_read else "unread")

    @property
    def appearance(self) -> tuple[Hashable, ...]:
        states = tuple(row.row_object_number for row in self.row.result_rows)
        return states, self.key, self.text, self.font.key(), self.is_selected, self.mark, self.group, self.is_earlier


class WorkListDelegate(QStyledItemDelegate):
    """The delegate that paints all cells of the work list."""

    def __init__(self, translator: Translator, theme: Theme, parent: QWidget) -> None:
        super().__init__(parent)
        self._translator, self._theme = translator, theme
        self._kept: OrderedDict[Hashable, QPixmap] = OrderedDict()  # painted cells, the most recently used last
        self.date_below = self.score_below = False  # whether date and score have no column
        self.class_below = False  # whether the name of a class is below its icon

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        row = index.data(ROW_ROLE)
        if row is None:  # the row is being read
            self._paint_ground(painter, option.rect, None, is_selected=bool(option.state & _SELECTED))
            return
        column, rect, ratio = index.column(), option.rect, painter.device().devicePixelRatioF()
        key = COLUMN_KEYS[column] if column < len(COLUMN_KEYS) else str(column - len(COLUMN_KEYS) + 1)  # pack number
        text = "" if key in _SYNTHETIC else str(index.data() or "")
        is_selected = bool(option.state & _SELECTED)
        verdict, group, is_earlier = map(index.data, (VERDICT_ROLE, PATIENT_GROUP_ROLE, IS_EARLIER_IMAGE_ROLE))
        cell = _Cell(row, key, text, option.font, is_selected, verdict, group, is_earlier)
        arranged = self._translator.hides_names(), self.date_below, self.score_below, self.class_below
        look = (*cell.appearance, rect.width(), rect.height(), ratio, *arranged)
        known = self._kept.get(look)
        if known is None:
            known = QPixmap(math.ceil(rect.width() * ratio), math.ceil(rect.height() * ratio))
            known.setDevicePixelRatio(ratio)
            known.fill(colour(self._theme, "surface"))  # the cell may end within the last pixel
            onto = QPainter(known)
            self._paint_cell(onto, QRect(0, 0, rect.width(), rect.height()), cell)
            onto.end()
            self._kept[look] = known
            if len(self._kept) > _MAX_CACHED:
                self._kept.popitem(last=False)
        self._kept.move_to_end(look)
        painter.drawPixmap(rect.topLeft(), known)

    def _paint_cell(self, painter: QPainter, rect: QRect, cell: _Cell) -> None:
        self._paint_ground(painter, rect, cell.group, is_selected=cell.is_selected)
        box = rect.adjusted(_GAP, 0, -_GAP, 0)
        if cell.key == "image":
            self._paint_thumbnail(painter, rect, cell.row)
        elif cell.key == "patient":
            if cell.mark is not None:
                mark = QRectF(box.right() - _SHAPE, box.y() + _GAP, _SHAPE, _SHAPE)
                draw_verdict_mark(painter, cell.mark, mark, self._theme)
            self._paint_patient(painter, self._right_of_rail(painter, box, cell.group), cell)
        elif cell.key == "class":
            paint = self._paint_class_below if self.class_below else self._paint_answer
            paint(painter, box, cell.row, cell.font, has_score=self.score_below)
        elif cell.key.isdigit():
            self._paint_answer(painter, box, cell.row.row_of_pack(int(cell.key)), cell.font)
        else:
            self._line(painter, box, cell.text, "text", cell.font, right=cell.key in ("score", "ms"))

    def sizeHint(self, option: QStyleOptionViewItem, index: Index) -> QSize:
        return QSize(60, ROW_HEIGHT)

    def _paint_ground(
        self, painter: QPainter, rect: QRect, group: RowInPatientGroup | None, *, is_selected: bool
    ) -> None:
        """Paint the background of a cell, and a line at its lower edge.

        Between images of one study there is no line.
        """
        painter.fillRect(rect, colour(self._theme, "selection" if is_selected else "surface"))
        if group is None or group.next_row_group_start_kind != SAME_STUDY:
            is_study = group is not None and group.next_row_group_start_kind != NEW_PATIENT
            painter.setPen(
                QPen(colour(self._theme, "line"), 1, Qt.PenStyle.DotLine if is_study else Qt.PenStyle.SolidLine)
            )
            painter.drawLine(rect.bottomLeft(), rect.bottomRight())

    def _right_of_rail(self, painter: QPainter, box: QRect, group: RowInPatientGroup | None) -> QRect:
        """Paint the vertical line that connects the images of a patient.

        Returns the part of the box to the right of the line.
        """
        if group is None or group.group_start_kind == group.next_row_group_start_kind == NEW_PATIENT:
            return box
        top, bottom, middle = box.top(), box.bottom() + 1, box.center().y()
        painter.setPen(QPen(colour(self._theme, "muted"), 2))
        first, last = group.group_start_kind == NEW_PATIENT, group.next_row_group_start_kind == NEW_PATIENT
        painter.drawLine(QLine(box.x(), middle if first else top, box.x(), middle if last else bottom))
        if first or last:
            painter.drawLine(QLine(box.x(), middle, box.x() + _RAIL // 2, middle))
        return box.adjusted(_RAIL, 0, 0, 0)

    def _paint_thumbnail(self, painter: QPainter, rect: QRect, row: WorkListRow) -> None:
        side = ROW_HEIGHT - 8
        frame = QRect(rect.x() + 5, rect.y() + 3, side, side)
        painter.fillRect(frame, colour(self._theme, "image"))
        grey = row.outcome.facts.thumbnail
        if grey is None:
            box = QRectF(frame).adjusted(15, 15, -15, -15)
            draw_category_icon(painter, row.category, box, "dark")
            return
        draw_thumbnail(painter, grey, frame)

    def _paint_patient(self, painter: QPainter, box: QRect, cell: _Cell) -> None:
        """Paint the name of patient or file, bold while unread, and below it Patient ID, date and further marks."""
        row, name_room = cell.row, _SHAPE + 4 if cell.mark else 0
        font, small = demibold_font(cell.font) if cell.mark == "unread" else cell.font, scaled_font(cell.font, 0.87)
        measure, thin = QFontMetrics(font), QFontMetrics(small)
        room = box.width() - name_room
        name, number = without_markup(image_title(self._translator, row.row_id, row.outcome)), self._number(row)
        if not format_person_name(row.header.patient_name):  # file names often begin alike, so their ends are shown
            middle = Qt.TextElideMode.ElideMiddle
            if not number:
                fits = sum(measure.horizontalAdvance(name[:n]) <= room for n in range(1, len(name) + 1))
                part = max(name.rfind(sign, 0, fits) for sign in "-_ ") + 1  # cut between words
                fits = part if fits // 2 < part and fits < len(name) else fits
                name, number = name[:fits], name[fits:]
            name = measure.elidedText(name, middle, room)
        lines = [(second, "muted")] if (second := self._second_line(cell, number, thin, box.width())) else []
        said = (*([row.reason] if row.reason else []), *override_notes(row.outcome))
        if why := " ".join(map(self._translator.reason, said)):
            lines += [(line, row.category) for line in wrap_text(why, small, box.width(), max_lines=2 - len(lines))]
        top, step = 6 if len(lines) < 2 else 2, thin.lineSpacing()
        upper = QRect(box.x(), box.y() + (top if lines else 0), room, box.height() // 2 - 6 if lines else box.height())
        self._line(painter, upper, name, "text", font)
        lower = QRect(box.x(), box.bottom() - 4 - top - step * len(lines), box.width(), step)
        for place, (line, shade) in enumerate(lines):
            self._line(painter, lower.translated(0, place * step), line, shade, small)

    def _number(self, row: WorkListRow) -> str:
        """Return the Patient ID of a row's image; without a Patient ID, the name of the file."""
        if self._translator.hides_names():
            return ""
        return without_markup(
            row.header.patient_id or (file_name(row.outcome.ref) if format_person_name(row.header.patient_name) else "")
        )

    def _second_line(self, cell: _Cell, number: str, measure: QFontMetrics, width: int) -> str:
        """Return the second line of a cell: Patient ID, date, and further facts if there is space.

        In a narrow cell the Patient ID is cut, not the date. In a wide list the date has a column of its own. An image
        of an earlier day is marked as earlier in any list.

        number   the Patient ID or file name
        measure  measures the width of a text
        width    width of the line in pixels
        """
        header, group = cell.row.header, cell.group
        day = format_dicom_date(self._translator, header.study_date) if self.date_below else ""
        day = without_markup(earlier_image_text(self._translator, header) if cell.is_earlier else day)
        is_first_of_some = group is not None and group.group_start_kind == NEW_PATIENT and group.remaining_row_count > 1
        images = self._translator.plural("{count} image", "{count} images", group.remaining_row_count if group else 0)
        born = "" if self._translator.hides_names() else _born(self._translator, header)
        parts = [number, day]
        for more in (born, images if is_first_of_some else ""):
            longer = [*parts, more]
            if more and measure.horizontalAdvance(_joined(longer)) <= width:
                parts = longer
        room = width - measure.horizontalAdvance(_joined(["", *parts[1:]]) + _BETWEEN)
        shown = measure.elidedText(number, Qt.TextElideMode.ElideMiddle, room)
        return _joined([shown if shown == number or len(shown) >= _MIN_PATIENT_ID_CHARACTERS else "", *parts[1:]])

    def _paint_class(self, painter: QPainter, box: QRect, row: WorkListRow, font: QFont) -> None:
        mark = QRectF(box.x(), box.center().y() - _SHAPE / 2, _SHAPE, _SHAPE)
        draw_category_icon(painter, row.category, mark, self._theme)
        if box.width() + 2 * _GAP <= ICON_COLUMN_WIDTH:
            return
        label = short_category_label(self._translator, row.category, row.manifest)
        line = box.adjusted(_SHAPE + 6, 0, 0, 0)
        if row.finding is not None and row.finding.is_decided_by_larger_output:
            below = line.adjusted(0, ROW_HEIGHT // 2, 0, 0)
            self._line(painter, below, unsigned_notice(self._translator), "muted", scaled_font(font, 0.87))
        self._line(painter, line, label, row.category, demibold_font(font))

    def _paint_answer(
        self, painter: QPainter, box: QRect, row: WorkListRow | None, font: QFont, *, has_score: bool = True
    ) -> None:
        """Paint the result of a pack: the class, and below it the score."""
        if row is None:
            self._line(painter, box, "–", "muted", font)
            return
        is_by_larger_output = row.finding is not None and row.finding.is_decided_by_larger_output
        has_score = has_score and row.finding is not None and not is_by_larger_output
        has_label = box.width() + 2 * _GAP > ICON_COLUMN_WIDTH
        below = box.adjusted(_SHAPE + 6 if has_label else 0, ROW_HEIGHT // 2, _GAP, -4)
        self._paint_class(painter, box.adjusted(0, 0, 0, -ROW_HEIGHT // 3) if has_score else box, row, font)
        if has_score:
            self._line(painter, below, score_cell_text(self._translator, row), "text", scaled_font(font, 0.87))

    def _paint_class_below(
        self, painter: QPainter, box: QRect, row: WorkListRow, font: QFont, *, has_score: bool = True
    ) -> None:
        """Paint icon and score of a pack's result, and below them the short name of the class."""
        middle, small = ROW_HEIGHT // 2, scaled_font(font, 0.87)
        upper, lower = box.adjusted(0, 6, 0, -middle), box.adjusted(0, middle, _GAP, -6)
        draw_category_icon(
            painter, row.category, QRectF(upper.x(), upper.center().y() - _SHAPE / 2, _SHAPE, _SHAPE), self._theme
        )
        if has_score and row.finding is not None:
            self._line(
                painter, upper.adjusted(_SHAPE + 6, 0, _GAP, 0), score_cell_text(self._translator, row), "text", small
            )
        word = short_category_label(self._translator, row.category, row.manifest)
        self._line(painter, lower, word, row.category, demibold_font(small))

    def _line(self, painter: QPainter, box: QRect, text: str, shade: str, font: QFont, *, right: bool = False) -> None:
        painter.setFont(font)
        painter.setPen(colour(self._theme, shade))
        side = Qt.AlignmentFlag.AlignRight if right else Qt.AlignmentFlag.AlignLeft
        shown = QFontMetrics(font).elidedText(without_markup(text), Qt.TextElideMode.ElideRight, box.width())
        painter.drawText(box, side | Qt.AlignmentFlag.AlignVCenter, shown)


def _joined(parts: Sequence[str]) -> str:
    return _BETWEEN.join(part for part in parts if part)


def _born(translator: Translator, header: ImageHeader) -> str:
    """Return year of birth and sex of a patient, which distinguish two patients of one name."""
    day = parse_dicom_date(header.patient_birth_date)
    return " ".join(part for part in (str(day.year) if day else "", sex_label(translator, header)) if part)


def demibold_font(font: QFont) -> QFont:
    """Return a copy of a font with the weight demibold."""
    made = QFont(font)
    made.setWeight(QFont.Weight.DemiBold)
    return made


def wrap_text(text: str, font: QFont, width: int, *, max_lines: int) -> list[str]:
    """Break a text into lines of `width` pixels. The last line contains the rest of the text and may be too long.

    max_lines  maximum number of lines
    """
    lines: list[str] = []
    rest = " ".join(without_markup(text).split())
    metrics = QFontMetrics(font)
    while rest:
        words = rest.split(" ")
        fits = next((n for n in range(len(words), 1, -1) if metrics.horizontalAdvance(" ".join(words[:n])) <= width), 1)
        count = len(words) if len(lines) == max_lines - 1 else fits
        lines.append(" ".join(words[:count]))
        rest = " ".join(words[count:])
    return lines
