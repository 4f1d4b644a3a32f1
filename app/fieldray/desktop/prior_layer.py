"""What is painted over the open image while it is compared: half of the prior, all of it, or the difference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from PySide6.QtCore import QPointF, QRect, QRectF, Qt
from PySide6.QtGui import QColor, QFont, QFontMetrics, QPainter, QPen

from fieldray.desktop.image_painting import Picture, draw_heat_map, transform
from fieldray.desktop.overlay import edged_text
from fieldray.desktop.prior_painting import LaidOver, difference_legend, draw_mesh, draw_prior
from fieldray.desktop.view_state import Size, ViewState
from fieldray.desktop.widgets import plain
from fieldray.domain.comparison import CHANGE_SHOWN
from fieldray.translation import Translator

Mode = Literal["beside", "swipe", "blink", "difference"]

_MARGIN: Final = 12
_SQUARE: Final = 12
_HANDLE: Final = 14
_SHADE: Final = QColor(0, 0, 0, 150)
_LINE: Final = QColor(255, 255, 255, 220)


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class PriorLayer:
    """See the module.

    divider               where the prior ends in the mode "swipe", 0 at the left edge of the view to 1
    shows_prior           whether the mode "blink" shows the prior now
    opacity               of the difference
    prior_name, own_name  which image it is, and of which day
    """

    laid: LaidOver
    mode: Mode
    divider: float
    shows_prior: bool
    shows_mesh: bool
    opacity: float
    prior_name: str
    own_name: str
    translator: Translator

    def draw(self, painter: QPainter, picture: Picture, state: ViewState, view: Size) -> None:
        """Draw over the open image."""
        size = Size(picture.columns, picture.rows)
        if self.mode == "swipe":
            painter.save()
            painter.setClipRect(QRectF(0, 0, self.divider * view.width, view.height), Qt.ClipOperation.IntersectClip)
            self._draw_prior(painter, picture, state, view)
            painter.restore()
        elif self.mode == "blink" and self.shows_prior:
            self._draw_prior(painter, picture, state, view)
        elif self.mode == "difference":
            draw_heat_map(painter, self.laid.difference, state, image=size, view=view, opacity=self.opacity)
            self._draw_numbers(painter, state, size, view)
        if self.shows_mesh:
            draw_mesh(painter, self.laid, state, image=size, view=view)

    def draw_words(self, painter: QPainter, area: QRect, font: QFont) -> QRect:
        """Say which image is where, and what colours mean; the rest of the area is free for other words."""
        painter.setFont(font)
        if self.mode == "swipe":
            self._draw_divider(painter, area)
        elif self.mode == "blink":
            _tag(painter, area, self.prior_name if self.shows_prior else self.own_name, Qt.AlignmentFlag.AlignHCenter)
        elif self.mode == "difference":
            between = self.translator.text("Difference: {open} – {prior}", open=self.own_name, prior=self.prior_name)
            _tag(painter, area, between, Qt.AlignmentFlag.AlignHCenter)
            return self._draw_legend(painter, area)
        return area

    def _draw_prior(self, painter: QPainter, picture: Picture, state: ViewState, view: Size) -> None:
        """Outside the bent prior is nothing: the open image must not look out from under it."""
        painter.save()
        painter.setTransform(transform(state, Size(picture.columns, picture.rows), view), combine=True)
        painter.fillRect(QRectF(0, 0, picture.columns, picture.rows), QColor(0, 0, 0))
        painter.restore()
        draw_prior(painter, self.laid, picture, state, view)

    def _draw_numbers(self, painter: QPainter, state: ViewState, size: Size, view: Size) -> None:
        """The number of each region, as the side panel lists them."""
        way = transform(state, size, view)
        for number, middle in enumerate(self.laid.middles, 1):
            at = way.map(middle)
            box = QRect(round(at.x()) - 30, round(at.y()) - 30, 60, 60)
            edged_text(painter, box, Qt.AlignmentFlag.AlignCenter, str(number))

    def _draw_divider(self, painter: QPainter, area: QRect) -> None:
        x = area.left() + self.divider * area.width()
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        for shade, width in ((QColor(0, 0, 0, 160), 4.0), (_LINE, 2.0)):
            painter.setPen(QPen(shade, width))
            painter.drawLine(QPointF(x, area.top()), QPointF(x, area.bottom()))
        painter.setPen(QPen(QColor(0, 0, 0, 160), 1))
        painter.setBrush(_LINE)
        painter.drawEllipse(QPointF(x, area.center().y()), _HANDLE, _HANDLE)
        painter.setPen(QPen(QColor(30, 36, 42), 2))
        for side in (-1, 1):
            tip = QPointF(x + side * 9, area.center().y())
            for down in (-4, 4):
                painter.drawLine(tip, QPointF(tip.x() - side * 4, tip.y() + down))
        painter.restore()
        left = QRect(area.left(), area.top(), round(x) - area.left(), area.height())
        right = QRect(round(x), area.top(), area.right() - round(x), area.height())
        for part, side, words in (
            (left, Qt.AlignmentFlag.AlignRight, self.prior_name),
            (right, Qt.AlignmentFlag.AlignLeft, self.own_name),
        ):
            _tag(painter, part, words, side)

    def _draw_legend(self, painter: QPainter, area: QRect) -> QRect:
        metrics, room = painter.fontMetrics(), area.width() - 2 * _MARGIN
        is_blank = self.laid.difference.is_blank
        colours = difference_legend(self.translator, is_blank=is_blank)
        rest = (
            self.translator.text("No difference beyond the noise inside the lungs")
            if is_blank
            else self.translator.text(
                "Inside the lungs, beyond {times} times the noise; each region has a number",
                times=f"{CHANGE_SHOWN:g}",
            )
        )
        lines = [*((shade, words, _SQUARE + 8) for shade, words in colours), (None, rest, 0)]
        heights = [_height(metrics, words, room - indent) for _, words, indent in lines]
        strip = QRect(area.left(), area.bottom() + 1 - sum(heights) - _MARGIN, area.width(), sum(heights) + _MARGIN)
        painter.fillRect(strip, _SHADE)
        top, left = strip.top() + _MARGIN // 2, strip.left() + _MARGIN
        for height, (shade, words, indent) in zip(heights, lines, strict=True):
            if shade is not None:
                painter.fillRect(left, top + (metrics.height() - _SQUARE) // 2, _SQUARE, _SQUARE, QColor(*shade))
            edged_text(painter, QRect(left + indent, top, room - indent, height), Qt.AlignmentFlag.AlignLeft, words)
            top += height
        return area.adjusted(0, 0, 0, -strip.height())


def _tag(painter: QPainter, area: QRect, words: str, side: Qt.AlignmentFlag) -> None:
    """Words on a dark ground at the upper edge; left out where there is no room for them."""
    metrics, room = painter.fontMetrics(), area.width() - 2 * _MARGIN
    words = plain(words)
    width = min(metrics.horizontalAdvance(words), room)
    if room < min(metrics.horizontalAdvance(words), 40 * metrics.averageCharWidth()):
        return
    height = _height(metrics, words, width + 1)
    left = {
        Qt.AlignmentFlag.AlignLeft: area.left() + _MARGIN,
        Qt.AlignmentFlag.AlignRight: area.right() - _MARGIN - width,
    }.get(side, area.center().x() - width // 2)
    box = QRect(left, area.top() + _MARGIN, width + 1, height)
    painter.fillRect(box.adjusted(-6, -3, 6, 3), _SHADE)
    edged_text(painter, box, Qt.AlignmentFlag.AlignHCenter, words)


def _height(metrics: QFontMetrics, words: str, width: int) -> int:
    return metrics.boundingRect(QRect(0, 0, max(width, 1), 1000), Qt.TextFlag.TextWordWrap, words).height()
