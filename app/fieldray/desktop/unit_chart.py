"""A chart whose two axes go from 0 to 1: a line, or points with their intervals, over the diagonal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from PySide6.QtCore import QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QPainter, QPaintEvent, QPen, QPolygonF
from PySide6.QtWidgets import QSizePolicy, QWidget

from fieldray.desktop.style import Theme, colour
from fieldray.desktop.widgets import plain
from fieldray.formatting import number
from fieldray.translation import Translator

Mark = tuple[float, float, float, float]  # x, y, and the ends of y's interval
_SIDE: Final = 210
_TICKS: Final = (0.0, 0.5, 1.0)
_DOT: Final = 4.0


class UnitChart(QWidget):
    """`spoken` is what a screen reader says of it."""

    def __init__(self, titles: tuple[str, str, str], translator: Translator, theme: Theme) -> None:
        """`titles`: of the chart, the x axis and the y axis."""
        super().__init__()
        self._titles, self._translator = titles, translator
        self._theme: Theme = theme
        self._line: tuple[tuple[float, float], ...] = ()
        self._marks: tuple[Mark, ...] = ()
        self.setAccessibleName(plain(titles[0]))
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)

    def show_data(self, *, line: Sequence[tuple[float, float]] = (), marks: Sequence[Mark] = (), spoken: str) -> None:
        """Draw other data."""
        self._line, self._marks = tuple(line), tuple(marks)
        self.setAccessibleDescription(plain(spoken))
        self.update()

    def sizeHint(self) -> QSize:
        height = self.fontMetrics().height()
        return QSize(_SIDE + 4 * height, _SIDE + 4 * height)

    def minimumSizeHint(self) -> QSize:
        return self.sizeHint()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        height = self.fontMetrics().height()
        box = QRectF(3 * height, 1.5 * height, _SIDE, _SIDE)
        self._draw_axes(painter, box, height)
        painter.setPen(QPen(self._colour("accent"), 2))
        painter.drawPolyline(QPolygonF([_at(box, x, y) for x, y in self._line]))
        for x, y, low, high in self._marks:
            painter.drawLine(_at(box, x, low), _at(box, x, high))
            painter.setBrush(self._colour("accent"))
            painter.drawEllipse(_at(box, x, y), _DOT, _DOT)
        painter.end()

    def _draw_axes(self, painter: QPainter, box: QRectF, height: int) -> None:
        title, x_title, y_title = map(plain, self._titles)
        painter.setPen(self._colour("text"))
        painter.drawText(QRectF(0, 0, self.width(), 1.4 * height), Qt.AlignmentFlag.AlignLeft, title)
        painter.setPen(QPen(self._colour("line"), 1))
        painter.drawRect(box)
        painter.drawLine(_at(box, 0, 0), _at(box, 1, 1))
        painter.setPen(self._colour("muted"))
        for tick in _TICKS:
            text = number(self._translator, tick, digits=1)
            place = _at(box, tick, tick)
            below = QRectF(place.x() - 20, box.bottom() + 2, 40, height)
            painter.drawText(below, Qt.AlignmentFlag.AlignHCenter, text)
            beside = QRectF(box.left() - 44, place.y() - height / 2, 40, height)
            painter.drawText(beside, Qt.AlignmentFlag.AlignRight, text)
        under = QRectF(box.left(), box.bottom() + height, box.width(), 1.4 * height)
        painter.drawText(under, Qt.AlignmentFlag.AlignHCenter, x_title)
        painter.save()
        painter.translate(0, box.bottom())
        painter.rotate(-90)
        painter.drawText(QRectF(0, 0, box.height(), 1.4 * height), Qt.AlignmentFlag.AlignHCenter, y_title)
        painter.restore()

    def _colour(self, name: str) -> QColor:
        return QColor(colour(self._theme, name))


def _at(box: QRectF, x: float, y: float) -> QPointF:
    return QPointF(box.left() + x * box.width(), box.bottom() - y * box.height())
