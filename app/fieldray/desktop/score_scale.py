"""The score on a scale whose middle is the operating point, with the zone where the pack is not sure."""

from __future__ import annotations

from typing import Final

from PySide6.QtCore import QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFont, QPainter, QPaintEvent, QPen, QPolygonF
from PySide6.QtWidgets import QSizePolicy, QWidget

from fieldray.desktop.style import Theme, colour
from fieldray.domain.finding import Finding, place_on_scale
from fieldray.domain.model import OperatingPoint
from fieldray.formatting import number, score_digits
from fieldray.translation import Translator

_BAR_HEIGHT: Final = 12
_SIDE: Final = 10


class ScoreScale(QWidget):
    """below | not sure | above, with a mark at the score. Without an operating point: a plain 0 to 1."""

    def __init__(self, finding: Finding, translator: Translator, theme: Theme) -> None:
        super().__init__()
        self._finding, self._translator = finding, translator
        self._theme: Theme = theme
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.setMinimumWidth(180)

    def sizeHint(self) -> QSize:
        return QSize(240, self._line_height() * 2 + _BAR_HEIGHT + 22)

    def minimumSizeHint(self) -> QSize:
        return QSize(180, self.sizeHint().height())

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setFont(self._small())
        bar = QRectF(_SIDE, self._line_height() + 12, self.width() - 2 * _SIDE, _BAR_HEIGHT)
        point = self._finding.point
        if point is None:
            self._draw_plain(painter, bar)
        else:
            self._draw_zones(painter, bar, point)
        self._draw_mark(painter, bar, self._place(self._finding.score))
        painter.end()

    def _draw_zones(self, painter: QPainter, bar: QRectF, point: OperatingPoint) -> None:
        low, high = self._place(point.unsure_low), self._place(point.unsure_high)
        for start, end, name in ((0.0, low, "normal"), (low, high, "unsure"), (high, 1.0, "abnormal")):
            part = QRectF(bar.x() + start * bar.width(), bar.y(), (end - start) * bar.width(), bar.height())
            painter.fillRect(part, _softened(self._theme, name))
        middle = bar.center().x()
        painter.setPen(QPen(colour(self._theme, "text"), 2))
        painter.drawLine(QPointF(middle, bar.top() - 4), QPointF(middle, bar.bottom() + 4))
        below = QRectF(0, bar.bottom() + 6, self.width(), self._line_height())
        painter.setPen(colour(self._theme, "muted"))
        digits = score_digits(self._finding.score, point, least=2)
        written = number(self._translator, point.threshold, digits=digits)
        painter.drawText(below, Qt.AlignmentFlag.AlignHCenter | Qt.AlignmentFlag.AlignTop, written)
        painter.drawText(below, Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignTop, self._translator.text("below"))
        painter.drawText(below, Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignTop, self._translator.text("above"))
        if high > low:
            self._draw_zone_name(painter, bar, (low + high) / 2)

    def _draw_zone_name(self, painter: QPainter, bar: QRectF, position: float) -> None:
        words = self._translator.text("not sure")
        width = painter.fontMetrics().horizontalAdvance(words)
        left = min(max(bar.x() + position * bar.width() - width / 2, 0), self.width() - width)
        painter.drawText(QRectF(left, 0, width + 2, self._line_height()), Qt.AlignmentFlag.AlignLeft, words)

    def _draw_plain(self, painter: QPainter, bar: QRectF) -> None:
        painter.fillRect(bar, colour(self._theme, "pressed"))
        below = QRectF(0, bar.bottom() + 6, self.width(), self._line_height())
        painter.setPen(colour(self._theme, "muted"))
        painter.drawText(below, Qt.AlignmentFlag.AlignLeft, "0")
        painter.drawText(below, Qt.AlignmentFlag.AlignRight, "1")

    def _draw_mark(self, painter: QPainter, bar: QRectF, position: float) -> None:
        x = bar.x() + position * bar.width()
        mark = QPolygonF([QPointF(x, bar.bottom() - 1), QPointF(x - 7, bar.top() - 8), QPointF(x + 7, bar.top() - 8)])
        painter.setPen(QPen(colour(self._theme, "surface"), 1.5))
        painter.setBrush(colour(self._theme, "text"))
        painter.drawPolygon(mark)

    def _place(self, score: float) -> float:
        point = self._finding.point
        return place_on_scale(score, point.threshold) if point else score

    def _small(self) -> QFont:
        font = QFont(self.font())
        font.setPointSizeF(font.pointSizeF() * 0.9)
        return font

    def _line_height(self) -> int:
        return self.fontMetrics().height()


def _softened(theme: Theme, name: str) -> QColor:
    shade = colour(theme, name)
    shade.setAlpha(150)
    return shade
