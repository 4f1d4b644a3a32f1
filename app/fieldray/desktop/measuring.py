"""What a line on an image measures: millimetres and what they are measured in, or pixels."""

from __future__ import annotations

import math
from typing import Final

from PySide6.QtCore import QPointF, QRect, Qt
from PySide6.QtGui import QColor, QFont, QPainter, QPen

from fieldray.desktop.image_painting import transform
from fieldray.desktop.overlay import edged_text
from fieldray.desktop.view_state import Line, Size, ViewState
from fieldray.domain.image import Image, SpacingPlane
from fieldray.formatting import number
from fieldray.translation import Translator

_LINE: Final = (255, 214, 64)
_END: Final = 4.0
_CROSS: Final = 14.0
_BESIDE: Final = 8


def length(line: Line, image: Image) -> float:
    """How long a line is: in millimetres where the image states its spacing, else in its pixels."""
    across, down = line.end[0] - line.start[0], line.end[1] - line.start[1]
    if image.spacing_mm is None:
        return math.hypot(across, down)
    row_mm, column_mm = image.spacing_mm
    return math.hypot(across * column_mm, down * row_mm)


def length_words(translator: Translator, line: Line, image: Image) -> str:
    """The length with its unit, and for millimetres what they are measured in."""
    figure = number(translator, length(line, image), digits=1)
    if image.spacing_mm is None:
        return translator.text("{length} px", length=figure)
    measured_in = plane_words(translator, image.spacing_plane)
    return translator.text("{length} mm ({plane})", length=figure, plane=measured_in)


def plane_words(translator: Translator, plane: SpacingPlane) -> str:
    """What the millimetres of an image are measured in."""
    return {
        "detector": translator.text("in the detector plane"),
        "calibrated": translator.text("calibrated"),
    }.get(plane, translator.text("plane not stated"))


def draw_lines(
    painter: QPainter, state: ViewState, shown: Image, translator: Translator, font: QFont, *, image: Size, view: Size
) -> None:
    """Draw what was measured, each line with its length beside its end."""
    way = transform(state, image, view)
    painter.save()
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.setFont(font)
    for line in state.lines:
        start, end = way.map(QPointF(*line.start)), way.map(QPointF(*line.end))
        for shade, width in ((QColor(0, 0, 0, 150), 4.0), (QColor(*_LINE), 1.8)):
            painter.setPen(QPen(shade, width))
            painter.drawLine(start, end)
            for point in (start, end):
                painter.drawEllipse(point, _END, _END)
        _draw_words(painter, length_words(translator, line, shown), end, view)
    painter.restore()


def draw_cross(painter: QPainter, at: QPointF) -> None:
    """A cross where the keys set a point."""
    painter.save()
    for shade, width in ((QColor(0, 0, 0, 150), 3.0), (QColor(*_LINE), 1.2)):
        painter.setPen(QPen(shade, width))
        painter.drawLine(at - QPointF(_CROSS, 0), at + QPointF(_CROSS, 0))
        painter.drawLine(at - QPointF(0, _CROSS), at + QPointF(0, _CROSS))
    painter.restore()


def _draw_words(painter: QPainter, words: str, end: QPointF, view: Size) -> None:
    """Beside the end of the line, inside the view."""
    room = painter.fontMetrics().boundingRect(QRect(0, 0, round(view.width), 1000), Qt.TextFlag.TextWordWrap, words)
    left = min(max(end.x() + _BESIDE, 0), view.width - room.width() - 2)
    top = min(max(end.y() + _BESIDE, 0), view.height - room.height() - 2)
    box = QRect(round(left), round(top), room.width() + 2, room.height())
    edged_text(painter, box, Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignTop, words)
