"""Two bars of 100 images that show the measured performance of a class, in the colours and shapes of the classes."""

from __future__ import annotations

from typing import Final

from PySide6.QtCore import QRectF, QSize, Qt
from PySide6.QtGui import QPainter, QPaintEvent
from PySide6.QtWidgets import QSizePolicy, QWidget

from fieldray.desktop.style import Theme, colour, draw_category_icon
from fieldray.desktop.widgets import column_layout, make_label, set_tooltip
from fieldray.reports.performance import MeasuredPerformance, PerformanceBar

_BAR: Final = 14
_SHAPE: Final = 11
_GAP: Final = 5
_BETWEEN: Final = 14
_MIN_WIDTH: Final = 220


class PerformanceBars(QWidget):
    """A widget with two bars of 100 images: one bar for images with the finding and one for images without it.

    A title above the bars names the hospital of the images.
    """

    def __init__(self, performance: MeasuredPerformance, theme: Theme) -> None:
        super().__init__()
        bars = [part for bar in performance.bars for part in (make_label(bar.title), PerformanceBarWidget(bar, theme))]
        column_layout(self, make_label(performance.title, role="heading"), *bars, spacing=3)
        set_tooltip(self, *performance.detailed_sentences)


class PerformanceBarWidget(QWidget):
    """A widget that draws one bar of 100 images.

    Below the bar are the icon of each class, its number of images and, if there is space, its name.
    """

    def __init__(self, bar: PerformanceBar, theme: Theme) -> None:
        super().__init__()
        self._bar, self._theme = bar, theme
        self.setAccessibleName(bar.alt_text)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.setMinimumWidth(_MIN_WIDTH)
        self.setMaximumWidth(3 * _MIN_WIDTH)

    def sizeHint(self) -> QSize:
        return QSize(_MIN_WIDTH, _BAR + _GAP + self.fontMetrics().height() + _GAP)

    def minimumSizeHint(self) -> QSize:
        return self.sizeHint()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        x = 0.0
        for part in self._bar.parts:
            width = self.width() * part.images_per_hundred / 100
            if width:
                painter.fillRect(QRectF(x, 0, max(width - 1, 1), _BAR), colour(self._theme, part.category))
            x += width
        self._paint_numbers(painter)
        painter.end()

    def _paint_numbers(self, painter: QPainter) -> None:
        """Draw icon and number of each class, from left to right."""
        measure, high = self.fontMetrics(), self.fontMetrics().height()
        captions = [f"{part.class_name} {part.images_per_hundred}" for part in self._bar.parts]
        room = sum(_SHAPE + _GAP + measure.horizontalAdvance(caption) + _BETWEEN for caption in captions)
        if room - _BETWEEN > self.width():
            captions = [str(part.images_per_hundred) for part in self._bar.parts]
        x, top = 0.0, _BAR + _GAP
        for part, caption in zip(self._bar.parts, captions, strict=True):
            draw_category_icon(
                painter, part.category, QRectF(x, top + (high - _SHAPE) / 2, _SHAPE, _SHAPE), self._theme
            )
            width = measure.horizontalAdvance(caption) + 2
            painter.setPen(colour(self._theme, "text"))
            painter.drawText(QRectF(x + _SHAPE + _GAP, top, width, high), Qt.AlignmentFlag.AlignLeft, caption)
            x += _SHAPE + _GAP + width + _BETWEEN
