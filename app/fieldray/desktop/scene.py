"""What is painted in a view at one time: the image, what lies over it, and the magnifier's glass with the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from PySide6.QtCore import QPointF, QRect
from PySide6.QtGui import QFont, QPainter, QPainterPath, QPen

from fieldray.desktop.image_painting import HeatMap, Picture, draw_heat_map, draw_image, draw_outline
from fieldray.desktop.measuring import draw_lines
from fieldray.desktop.style import Theme, colour
from fieldray.desktop.view_state import Size, ViewState
from fieldray.translation import Translator

_GLASS_RADIUS: Final = 110
_GLASS_ZOOM: Final = 2.5


class Layer(Protocol):
    """What else lies over an image, such as a prior one (`prior_layer`); what the pack found is then hidden."""

    def draw(self, painter: QPainter, picture: Picture, state: ViewState, view: Size) -> None: ...
    def draw_words(self, painter: QPainter, area: QRect, font: QFont) -> QRect: ...


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Scene:
    """An image with what lies over it, each None where it is not shown; `pixel_ratio` is the screen's."""

    picture: Picture
    layer: Layer | None
    heat_map: HeatMap | None
    outline: QPainterPath | None
    opacity: float
    translator: Translator
    font: QFont
    pixel_ratio: float

    def draw(self, painter: QPainter, state: ViewState, view: Size) -> None:
        """Draw everything as `state` has it."""
        size = Size(self.picture.columns, self.picture.rows)
        draw_image(painter, self.picture, state, view, pixel_ratio=self.pixel_ratio)
        if self.layer is not None:
            self.layer.draw(painter, self.picture, state, view)
        if self.heat_map is not None:
            draw_heat_map(painter, self.heat_map, state, image=size, view=view, opacity=self.opacity)
        if self.outline is not None:
            draw_outline(painter, self.outline, state, image=size, view=view)
        draw_lines(painter, state, self.picture.image, self.translator, self.font, image=size, view=view)

    def draw_magnified(self, painter: QPainter, state: ViewState, view: Size, *, at: QPointF, theme: Theme) -> None:
        """Draw a round glass at a point of the view, with the same nearer."""
        glass = QPainterPath()
        glass.addEllipse(at, _GLASS_RADIUS, _GLASS_RADIUS)
        nearer = state.zoomed(_GLASS_ZOOM, Size(self.picture.columns, self.picture.rows), view, about=(at.x(), at.y()))
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setClipPath(glass)
        painter.fillPath(glass, colour(theme, "image"))
        self.draw(painter, nearer, view)
        painter.setClipping(False)
        painter.strokePath(glass, QPen(colour(theme, "on_image"), 2))
        painter.restore()
