"""Paints the cells of the work list: thumbnail, patient in two lines, class as shape and word."""

from __future__ import annotations

from typing import Final

from PySide6.QtCore import QRect, QRectF, QSize, Qt
from PySide6.QtGui import QFont, QFontMetrics, QImage, QPainter
from PySide6.QtWidgets import QStyle, QStyledItemDelegate, QStyleOptionViewItem, QWidget

from fieldray.desktop.class_shape import draw_class
from fieldray.desktop.style import Theme, colour
from fieldray.desktop.words import category_word, date, file_name, person
from fieldray.desktop.work_row import WorkRow
from fieldray.desktop.worklist_model import KEYS, ROW_ROLE, Index
from fieldray.translation import Translator

ROW_HEIGHT: Final = 54
_GAP: Final = 8
_SHAPE: Final = 14
CLASS_ROOM: Final = 2 * _GAP + _SHAPE + 6 + 4


class WorkListDelegate(QStyledItemDelegate):
    """One delegate for the whole table; it reads the row itself and keeps nothing."""

    def __init__(self, translator: Translator, theme: Theme, parent: QWidget) -> None:
        super().__init__(parent)
        self._translator = translator
        self._theme: Theme = theme
        self.hide_patient = False
        self.date_below = False

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        row = index.data(ROW_ROLE)
        if row is None:
            return
        painter.save()
        self._paint_ground(painter, option)
        box, key = option.rect.adjusted(_GAP, 0, -_GAP, 0), KEYS[index.column()]
        if key == "film":
            self._paint_thumbnail(painter, option.rect, row)
        elif key == "patient":
            self._paint_patient(painter, box, row, option.font)
        elif key == "class":
            self._paint_class(painter, box, row, option.font)
        else:
            self._paint_text(painter, box, str(index.data() or ""), right=key in ("score", "ms"), font=option.font)
        painter.restore()

    def sizeHint(self, option: QStyleOptionViewItem, index: Index) -> QSize:
        return QSize(60, ROW_HEIGHT)

    def _paint_ground(self, painter: QPainter, option: QStyleOptionViewItem) -> None:
        selected = bool(option.state & QStyle.StateFlag.State_Selected)
        painter.fillRect(option.rect, colour(self._theme, "selection" if selected else "surface"))
        painter.setPen(colour(self._theme, "line"))
        painter.drawLine(option.rect.bottomLeft(), option.rect.bottomRight())

    def _paint_thumbnail(self, painter: QPainter, rect: QRect, row: WorkRow) -> None:
        side = ROW_HEIGHT - 8
        frame = QRect(rect.x() + 5, rect.y() + 3, side, side)
        painter.fillRect(frame, colour(self._theme, "film"))
        grey = row.outcome.facts.thumbnail
        if grey is None:
            box = QRectF(frame).adjusted(15, 15, -15, -15)
            draw_class(painter, row.category, box, colour("dark", row.category))
            return
        image = QImage(grey.tobytes(), grey.shape[1], grey.shape[0], grey.shape[1], QImage.Format.Format_Grayscale8)
        size = image.size().scaled(frame.size(), Qt.AspectRatioMode.KeepAspectRatio)
        target = QRect(0, 0, size.width(), size.height())
        target.moveCenter(frame.center())
        painter.setRenderHint(QPainter.RenderHint.SmoothPixmapTransform)
        painter.drawImage(target, image)

    def _paint_patient(self, painter: QPainter, box: QRect, row: WorkRow, font: QFont) -> None:
        """Who or which file; below it the number, or in plain words why there is no result."""
        name = person(row.header.patient_name) or file_name(row.outcome.ref)
        if self.hide_patient:
            name = self._translator.text("Film {number}", number=row.row_id)
        below, shade = self._second_line(row)
        if not below:
            self._line(painter, box, name, "text", font)
            return
        upper, lower = box.adjusted(0, 6, 0, -box.height() // 2), box.adjusted(0, box.height() // 2, 0, -6)
        self._line(painter, upper, name, "text", font)
        self._line(painter, lower, below, shade, _smaller(font))

    def _second_line(self, row: WorkRow) -> tuple[str, str]:
        if row.reason:
            return self._translator.reason(row.reason), row.category
        known = person(row.header.patient_name)
        number = row.header.patient_id or (file_name(row.outcome.ref) if known else "")
        parts = ("" if self.hide_patient else number, date(row.header.study_date) if self.date_below else "")
        return "   ".join(part for part in parts if part), "muted"

    def _paint_class(self, painter: QPainter, box: QRect, row: WorkRow, font: QFont) -> None:
        mark = QRectF(box.x(), box.center().y() - _SHAPE / 2, _SHAPE, _SHAPE)
        draw_class(painter, row.category, mark, colour(self._theme, row.category))
        strong = QFont(font)
        strong.setWeight(QFont.Weight.DemiBold)
        words = category_word(self._translator, row.category)
        self._line(painter, box.adjusted(_SHAPE + 6, 0, 0, 0), words, row.category, strong)

    def _paint_text(self, painter: QPainter, box: QRect, text: str, *, right: bool, font: QFont) -> None:
        self._line(painter, box, text, "text", font, right=right)

    def _line(self, painter: QPainter, box: QRect, text: str, shade: str, font: QFont, *, right: bool = False) -> None:
        painter.setFont(font)
        painter.setPen(colour(self._theme, shade))
        side = Qt.AlignmentFlag.AlignRight if right else Qt.AlignmentFlag.AlignLeft
        shown = QFontMetrics(font).elidedText(text, Qt.TextElideMode.ElideRight, box.width())
        painter.drawText(box, side | Qt.AlignmentFlag.AlignVCenter, shown)


def _smaller(font: QFont) -> QFont:
    small = QFont(font)
    small.setPointSizeF(font.pointSizeF() * 0.87)
    return small
