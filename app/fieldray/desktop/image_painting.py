"""Puts the image and its heat map on the screen. Only what is seen is windowed, at no more than the screen's size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PySide6.QtCore import QRectF
from PySide6.QtGui import QImage, QPainter, QTransform

from fieldray.desktop import heat_map
from fieldray.desktop.image_pyramid import Picture, cut
from fieldray.desktop.view_state import Size, ViewState
from fieldray.desktop.work_row import WorkRow
from fieldray.domain.finding import Screened

_CRISP_FROM: Final = 6.0


@dataclass(frozen=True, eq=False, slots=True)
class HeatMap:
    """Colours and the region of the image (pixels) that they cover; `is_blank` when nothing reaches the threshold."""

    image: QImage
    region: QRectF
    is_blank: bool


def heat_map_of(row: WorkRow) -> HeatMap | None:
    """The heat map of a row's deciding finding, None where there is none."""
    outcome, manifest, finding = row.outcome, row.manifest, row.finding
    if not isinstance(outcome, Screened) or manifest is None or finding is None:
        return None
    if outcome.class_maps is None or outcome.facts.pixel_map is None:
        return None
    logits = heat_map.label_logits(outcome.class_maps, finding.label, manifest)
    threshold = finding.point.threshold if finding.point else None
    shares = heat_map.strength(logits, heat_map.raw_threshold_logit(finding.label, threshold, manifest))
    region = heat_map.covered(outcome.facts.pixel_map, height=manifest.input.height, width=manifest.input.width)
    return HeatMap(_coloured(heat_map.colours(heat_map.smooth(shares))), QRectF(*region), not shares.any())


def transform(state: ViewState, image: Size, view: Size) -> QTransform:
    """From image pixels to points of the view."""
    m = state.matrix(image, view)
    return QTransform(m.m11, m.m12, m.m21, m.m22, m.dx, m.dy)


def draw_image(painter: QPainter, picture: Picture, state: ViewState, view: Size, *, pixel_ratio: float) -> None:
    """Draw the part of the image that is in the view, windowed."""
    image = Size(picture.columns, picture.rows)
    way = transform(state, image, view)
    scale = state.scale(image, view) * pixel_ratio
    number = picture.level_for(scale)
    level, step = picture.levels[number], 2**number
    seen = way.inverted()[0].mapRect(QRectF(0, 0, view.width, view.height))
    left, top = max(int(seen.left() / step) - 1, 0), max(int(seen.top() / step) - 1, 0)
    right, bottom = (
        min(int(seen.right() / step) + 2, level.shape[1]),
        min(int(seen.bottom() / step) + 2, level.shape[0]),
    )
    if right <= left or bottom <= top:
        return
    grey = cut(
        level, picture.table(state.window, inverted=state.inverted), top=top, bottom=bottom, left=left, right=right
    )
    painter.save()
    painter.setTransform(way, combine=True)
    painter.setRenderHint(QPainter.RenderHint.SmoothPixmapTransform, scale < _CRISP_FROM)
    painter.drawImage(QRectF(left * step, top * step, grey.shape[1] * step, grey.shape[0] * step), _grey_image(grey))
    painter.restore()


def draw_heat_map(
    painter: QPainter, heat: HeatMap, state: ViewState, *, image: Size, view: Size, opacity: float
) -> None:
    """Lay a heat map over the image; what lies outside the image is left out."""
    painter.save()
    painter.setTransform(transform(state, image, view), combine=True)
    painter.setClipRect(QRectF(0, 0, image.width, image.height))
    painter.setRenderHint(QPainter.RenderHint.SmoothPixmapTransform)
    painter.setOpacity(opacity)
    painter.drawImage(heat.region, heat.image)
    painter.restore()


def _grey_image(grey: NDArray[np.uint8]) -> QImage:
    """A view of the array; it must outlive the image."""
    return QImage(grey.data, grey.shape[1], grey.shape[0], grey.shape[1], QImage.Format.Format_Grayscale8)


def _coloured(colours: NDArray[np.uint8]) -> QImage:
    rows, columns, _ = colours.shape
    image = QImage(colours.tobytes(), columns, rows, 4 * columns, QImage.Format.Format_RGBA8888)
    return image.convertToFormat(QImage.Format.Format_ARGB32_Premultiplied)
