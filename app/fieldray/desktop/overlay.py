"""The layers over an image: texts in the four corners, outline of the lungs, legend of the heat map, measurements."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from typing import Final

import numpy as np
from PySide6.QtCore import QPointF, QRect, QRectF, Qt
from PySide6.QtGui import QColor, QFont, QFontMetrics, QImage, QPainter, QPainterPath, QPen, QPolygonF, QTransform

from fieldray.desktop.image_painting import ImagePyramid, MeasurementLine, Point, Size, ViewState
from fieldray.desktop.style import preserve_painter_state
from fieldray.desktop.widgets import without_markup
from fieldray.domain import heat_map
from fieldray.domain.image import Image, ImageHeader, ImageRef, SpacingPlane
from fieldray.domain.lungs import LungFields
from fieldray.formatting import (
    file_name,
    format_dicom_date,
    format_number,
    format_person_name,
    sex_label,
    view_and_laterality_label,
)
from fieldray.translation import Translator

_MARGIN: Final = 12
_MIN_HALF_WIDTH: Final = 100  # width in points that each of two texts side by side needs
_LEGEND: Final = (120, 8)
_FILE_NAME: Final = 30  # maximum number of letters in a line


TOP_LEFT: Final = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignTop
TOP_RIGHT: Final = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignTop
BOTTOM_LEFT: Final = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignBottom
BOTTOM_RIGHT: Final = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignBottom
CornerTexts = Mapping[Qt.AlignmentFlag, tuple[str, ...]]


def corner_texts(
    translator: Translator, ref: ImageRef, pyramid: ImagePyramid, state: ViewState, *, percent: float
) -> CornerTexts:
    """Return the lines of text for each of the four corners of an image.

    percent  the zoom: at 100, one image pixel covers one pixel of the screen
    """
    header, hides_names = ref.header, translator.hides_names()
    window = state.display_window or pyramid.initial_display_window
    level = window.center * pyramid.image.value_scale + pyramid.image.value_offset
    width = window.width * abs(pyramid.image.value_scale)
    # A file name is cut into lines, because it has no spaces at which lines could break.
    named = () if format_person_name(header.patient_name) else textwrap.wrap(file_name(ref), _FILE_NAME)
    return {
        TOP_LEFT: () if hides_names else (*named, *patient_text_lines(translator, header)),
        TOP_RIGHT: _without_empty(
            (
                format_dicom_date(translator, header.study_date),
                "" if hides_names else header.study_description,
                header.modality,
            )
        ),
        BOTTOM_LEFT: _without_empty((view_and_laterality_label(header), _size_line(translator, pyramid))),
        BOTTOM_RIGHT: _without_empty(
            (
                translator.text("The display is not calibrated for diagnosis"),
                translator.text("Image file without DICOM data") if ref.kind in ("png", "jpeg") else "",
                translator.text("W {width}  L {level}", width=round(width), level=round(level)),
                translator.text("Zoom {percent} %", percent=round(percent)),
            )
        ),
    }


def draw_corner_texts(painter: QPainter, area: QRect, corners: CornerTexts, font: QFont) -> None:
    """Draw texts in the four corners of an image. White letters with a dark edge are readable on every image.

    In a narrow view, the text at the bottom left (view position and size) is left out first.
    """
    painter.setFont(font)
    box = area.adjusted(_MARGIN, _MARGIN, -_MARGIN, -_MARGIN)
    half = box.width() // 2 - _MARGIN
    for corner, lines in corners.items():
        is_narrow = half < _MIN_HALF_WIDTH and corner in (BOTTOM_LEFT, BOTTOM_RIGHT)
        if is_narrow and corner == BOTTOM_LEFT:
            continue
        width = box.width() if is_narrow else half
        left = box.x() if corner in (TOP_LEFT, BOTTOM_LEFT) else box.right() - width
        draw_outlined_text(painter, QRect(left, box.y(), width, box.height()), corner, without_markup(*lines))


def heat_map_legend_box(view: QRect, translator: Translator, font: QFont, *, is_blank: bool) -> QRect:
    """Return the rectangle for the legend of the heat map below the image. Its height depends on the legend's text.

    view      rectangle of the view
    is_blank  whether the heat map has no colours
    """
    room, caption = view.width() - 2 * _MARGIN, _legend_label(translator, is_blank=is_blank)
    metrics = QFontMetrics(font)
    height = metrics.boundingRect(QRect(0, 0, room, 1000), Qt.TextFlag.TextWordWrap, caption).height()
    if not is_blank and metrics.horizontalAdvance(caption) + _scale_width(translator, metrics) > room:
        height += metrics.height()
    height += _MARGIN
    return QRect(view.x(), view.bottom() + 1 - height, view.width(), height)


def draw_heat_map_legend(
    painter: QPainter, strip: QRect, translator: Translator, font: QFont, *, is_blank: bool
) -> None:
    """Draw the legend of the heat map in a rectangle: the meaning of the colours, their limits, and the scale.

    strip     the rectangle
    is_blank  whether the heat map has no colours; a sentence then replaces the scale
    """
    painter.setFont(font)
    painter.fillRect(strip, QColor(0, 0, 0, 150))
    box = strip.adjusted(_MARGIN, _MARGIN // 2, -_MARGIN, -_MARGIN // 2)
    caption = _legend_label(translator, is_blank=is_blank)
    if not is_blank:
        line = painter.fontMetrics().height()
        _draw_scale(painter, QRect(box.x(), box.bottom() + 1 - line, box.width(), line), translator)
    draw_outlined_text(painter, box, Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignTop, caption)


def _legend_label(translator: Translator, *, is_blank: bool) -> str:
    if is_blank:
        return translator.text("No part of the image raised the score")
    return translator.text("The colours show the influence on the score, not the outline of a lesion")


def _scale_width(translator: Translator, metrics: QFontMetrics) -> int:
    ends = (translator.text("weak"), translator.text("strong"))
    return sum(map(metrics.horizontalAdvance, ends)) + _LEGEND[0] + 16 + 2 * _MARGIN


def _draw_scale(painter: QPainter, box: QRect, translator: Translator) -> None:
    """Draw the scale of the heat map, "weak [colours] strong", at the right end of a box.

    In a narrow box the scale shrinks.
    """
    weak, strong = translator.text("weak"), translator.text("strong")
    measure = painter.fontMetrics().horizontalAdvance
    right = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
    draw_outlined_text(painter, box, right, strong)
    width, height = min(_LEGEND[0], box.width() - measure(weak) - measure(strong) - 20), _LEGEND[1]
    bar = QRectF(box.right() - measure(strong) - 8 - width, box.center().y() - height / 2 + 1, width, height)
    ramp = heat_map.colours(np.linspace(0, 1, 128, dtype=np.float32)[None, :])
    painter.drawImage(bar, QImage(ramp.tobytes(), 128, 1, QImage.Format.Format_RGBA8888).copy())
    draw_outlined_text(painter, QRect(box.x(), box.y(), round(bar.x()) - 8 - box.x(), box.height()), right, weak)


def patient_text_lines(translator: Translator, header: ImageHeader) -> tuple[str, ...]:
    """Return lines of text with name, Patient ID, sex and age of the patient.

    The age is in completed years, as in a pack's check of ages.
    """
    sex = sex_label(translator, header)
    years = header.patient_age_years
    age = "" if years is None else translator.plural("{count} y", "{count} y", int(years))
    sex_and_age = "  ".join(_without_empty((sex, age)))
    return _without_empty((format_person_name(header.patient_name), header.patient_id, sex_and_age))


def _size_line(translator: Translator, pyramid: ImagePyramid) -> str:
    size = translator.text("{columns} × {rows} px", columns=pyramid.columns, rows=pyramid.rows)
    spacing = pyramid.image.spacing_mm
    if spacing is None:
        return size
    step = format_number(translator, spacing[0], digits=3)
    return f"{size}  " + translator.text("{spacing} mm/px", spacing=step)


def _without_empty(lines: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(line for line in lines if line)


def draw_outlined_text(painter: QPainter, box: QRect, flags: Qt.AlignmentFlag, text: str) -> None:
    """Draw white text with a thin dark edge, which is readable on every image."""
    painter.setPen(QColor(0, 0, 0, 200))
    for x, y in ((-1, 0), (1, 0), (0, -1), (0, 1)):
        painter.drawText(box.translated(x, y), flags | Qt.TextFlag.TextWordWrap, text)
    painter.setPen(QColor(240, 243, 245))
    painter.drawText(box, flags | Qt.TextFlag.TextWordWrap, text)


# ---- measurements by lines, in millimetres with the plane, or in pixels

_LINE_COLOUR: Final = (255, 214, 64)
_END: Final = 4.0
_CROSS: Final = 14.0
_BESIDE: Final = 8


def line_length(line: MeasurementLine, image: Image) -> float:
    """Return the length of a line in millimetres if the image states its pixel spacing, else in pixels."""
    return math.hypot(*_reach(line, image))


def _reach(line: MeasurementLine, image: Image) -> Point:
    """Return the horizontal and the vertical extent of a line, in millimetres or pixels as in `line_length`."""
    row_mm, column_mm = image.spacing_mm or (1.0, 1.0)
    return (line.end[0] - line.start[0]) * column_mm, (line.end[1] - line.start[1]) * row_mm


def angle_degrees(first: MeasurementLine, second: MeasurementLine, image: Image) -> float:
    """Return the smaller angle between two lines in degrees, 0..90. The direction of the lines has no effect."""
    (across, down), (other_across, other_down) = _reach(first, image), _reach(second, image)
    cross, dot = across * other_down - down * other_across, across * other_across + down * other_down
    return math.degrees(math.atan2(abs(cross), abs(dot)))


def region_mean_deviation_and_area(line: MeasurementLine, image: Image) -> tuple[float, float, float] | None:
    """Return (mean, standard deviation, area) of a rectangle of the image; None if the rectangle contains no pixel.

    line  a diagonal of the rectangle

    Mean and deviation are those of the DICOM modality values (stored values after slope and intercept). The area is in
    mm² if the image states its pixel spacing, else in pixels.
    """
    (left, right), (top, bottom) = (sorted(map(round, ends)) for ends in zip(line.start, line.end, strict=True))
    pixels = image.pixels[top:bottom, left:right]
    if not pixels.size:
        return None
    mean = float(pixels.mean(dtype=np.float64))
    of_squares = float(np.einsum("ij,ij->", pixels, pixels, dtype=np.float64)) / pixels.size  # makes no copy
    deviation = math.sqrt(max(of_squares - mean * mean, 0.0)) * abs(image.value_scale)
    row_mm, column_mm = image.spacing_mm or (1.0, 1.0)
    return mean * image.value_scale + image.value_offset, deviation, pixels.size * row_mm * column_mm


def measurement_text(translator: Translator, state: ViewState, index: int, image: Image) -> str:
    """Return the text next to a line of measurement.

    If a measurement needs two lines, the second line has the result. The text of the first line asks for the second
    line.

    index  index of the line in `state.lines`
    """
    pair, line = state.lines_of_measurement(index), state.measurement_lines[index]
    if line.kind == "measure":
        return length_text(translator, line, image)
    if line.kind == "region":
        return _region_text(translator, line, image)
    if len(pair) == 1:
        is_last = not any(other.kind == line.kind for other in state.measurement_lines[index + 1 :])
        return translator.text("Draw the second measuring line") if is_last else ""
    if line.kind == "angle":
        angle = angle_degrees(pair[0], line, image)
        figures = [format_number(translator, degrees, digits=1) for degrees in (angle, 180 - angle)]
        return translator.text("{angle}° ({other}°)", angle=figures[0], other=figures[1])
    short, long = sorted(line_length(each, image) for each in pair)
    ratio = format_number(translator, short / long if long else 0.0, digits=2)
    return translator.text("Cardiothoracic ratio {ratio}", ratio=ratio)


def _region_text(translator: Translator, line: MeasurementLine, image: Image) -> str:
    figures = region_mean_deviation_and_area(line, image)
    if figures is None:
        return ""
    mean, deviation, area = (format_number(translator, figure, digits=1) for figure in figures)
    if image.spacing_mm is None:
        covered = translator.text("{area} px²", area=area)
    else:
        measured_in = spacing_plane_text(translator, image.spacing_plane)
        covered = translator.text("{area} mm² ({plane})", area=area, plane=measured_in)
    if image.has_approximate_pixels:  # a preview has displayed grey levels, not values of the file
        return covered
    return translator.text("Mean {mean}, SD {deviation}, {area}", mean=mean, deviation=deviation, area=covered)


def length_text(translator: Translator, line: MeasurementLine, image: Image) -> str:
    """Format the length of a line with its unit. Millimetres are followed by the plane in which they are measured."""
    figure = format_number(translator, line_length(line, image), digits=1)
    if image.spacing_mm is None:
        return translator.text("{length} px", length=figure)
    measured_in = spacing_plane_text(translator, image.spacing_plane)
    return translator.text("{length} mm ({plane})", length=figure, plane=measured_in)


def spacing_plane_text(translator: Translator, plane: SpacingPlane) -> str:
    """Return the name of the plane in which an image's millimetres are measured, such as the detector."""
    return {
        "detector": translator.text("in the detector plane"),
        "calibrated": translator.text("calibrated"),
    }.get(plane, translator.text("plane not stated"))


def lung_outline_path(lungs: LungFields | None) -> QPainterPath | None:
    """Return the outline of the lungs as a path in image pixels; None without usable lung fields."""
    if lungs is None or lungs.refusal:
        return None
    path = QPainterPath()
    for polygon in lungs.outlines():
        path.addPolygon(QPolygonF([QPointF(x, y) for x, y in polygon]))
        path.closeSubpath()
    return path


def draw_lung_outline(painter: QPainter, outline: QPainterPath, transform: QTransform) -> None:
    """Draw the outline of the lungs as a bright line with a dark edge. The width is equal at every zoom.

    outline    the outline in pixels of the image
    transform  maps pixels of the image to points of the view
    """
    with preserve_painter_state(painter, QPainter.RenderHint.Antialiasing):
        shown = transform.map(outline)
        for shade, width in ((QColor(0, 0, 0, 150), 4.0), (QColor(*heat_map.OUTLINE_COLOUR), 1.8)):
            painter.strokePath(shown, QPen(shade, width))


def draw_measurement_lines(
    painter: QPainter, state: ViewState, pyramid: ImagePyramid, translator: Translator, *, view: Size, font: QFont
) -> None:
    """Draw the lines of measurement. The result of each line is drawn next to the line's end.

    view  size of the view in points
    """
    transform = state.transform(pyramid.size, view)
    with preserve_painter_state(painter, QPainter.RenderHint.Antialiasing):
        painter.setFont(font)
        for index, line in enumerate(state.measurement_lines):
            start, end = transform.map(QPointF(*line.start)), transform.map(QPointF(*line.end))
            for shade, width in ((QColor(0, 0, 0, 150), 4.0), (QColor(*_LINE_COLOUR), 1.8)):
                painter.setPen(QPen(shade, width))
                if line.kind == "region":
                    painter.drawRect(QRectF(start, end).normalized())
                    continue
                painter.drawLine(start, end)
                for point in (start, end):
                    painter.drawEllipse(point, _END, _END)
            _draw_label(painter, measurement_text(translator, state, index, pyramid.image), end, view)


def draw_keyboard_crosshair(painter: QPainter, at: QPointF) -> None:
    """Draw a cross at the point of the view that a person moves with keys."""
    with preserve_painter_state(painter):
        for shade, width in ((QColor(0, 0, 0, 150), 3.0), (QColor(*_LINE_COLOUR), 1.2)):
            painter.setPen(QPen(shade, width))
            painter.drawLine(at - QPointF(_CROSS, 0), at + QPointF(_CROSS, 0))
            painter.drawLine(at - QPointF(0, _CROSS), at + QPointF(0, _CROSS))


def _draw_label(painter: QPainter, caption: str, end: QPointF, view: Size) -> None:
    """Draw a caption next to the end of a line, inside the view."""
    room = painter.fontMetrics().boundingRect(QRect(0, 0, round(view.width), 1000), Qt.TextFlag.TextWordWrap, caption)
    left = min(max(end.x() + _BESIDE, 0), view.width - room.width() - 2)
    top = min(max(end.y() + _BESIDE, 0), view.height - room.height() - 2)
    box = QRect(round(left), round(top), room.width() + 2, room.height())
    draw_outlined_text(painter, box, Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignTop, caption)
