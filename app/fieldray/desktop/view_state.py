"""How an image is shown: zoom, centre, turns, window. No widget; each change is a new state, so undo is a list."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple

from PySide6.QtCore import QPointF
from PySide6.QtGui import QTransform

from fieldray.domain.image import Window

Point = tuple[float, float]
_ZOOM_LIMITS: Final = (0.25, 64.0)


class Size(NamedTuple):
    """Width and height, of the image in pixels or of the view in points of the screen."""

    width: float
    height: float


# A length; an angle and a cardiothoracic ratio, of two lines each; a region, from corner to corner.
Measure = Literal["measure", "angle", "ratio", "region"]


class Line(NamedTuple):
    """What is measured: from one image point to another."""

    start: Point
    end: Point
    kind: Measure = "measure"


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewState:
    """zoom 1 fits the image into the view; `center` is the image point in the middle of it (None: the image's own).

    The image is mirrored left-right first (`mirrored`), then turned clockwise by `turns` quarter turns.
    window None: as the file asks. `lines` are what was measured.
    """

    zoom: float = 1.0
    center: Point | None = None
    turns: int = 0
    mirrored: bool = False
    inverted: bool = False
    window: Window | None = None
    lines: tuple[Line, ...] = ()

    def turned(self, quarter_turns: int) -> ViewState:
        """Turned clockwise on the screen."""
        return replace(self, turns=(self.turns + quarter_turns) % 4)

    def flipped_left_right(self) -> ViewState:
        """Flipped on the screen, whatever the turns: a flip after t turns is t turns back after a flip."""
        return replace(self, turns=-self.turns % 4, mirrored=not self.mirrored)

    def flipped_top_bottom(self) -> ViewState:
        """Flipped on the screen: left-right, then half a turn."""
        return self.flipped_left_right().turned(2)

    def inverse(self) -> ViewState:
        """Black for white."""
        return replace(self, inverted=not self.inverted)

    def scale(self, image: Size, view: Size) -> float:
        """Points of the screen for one image pixel."""
        width, height = (image.height, image.width) if self.turns % 2 else image
        return self.zoom * min(view.width / width, view.height / height)

    def transform(self, image: Size, view: Size) -> QTransform:
        """The whole way from image pixels (edges) to points of the view."""
        scale = self.scale(image, view)
        cosine, sine = ((1, 0), (0, 1), (-1, 0), (0, -1))[self.turns]
        side = -1 if self.mirrored else 1
        m11, m12, m21, m22 = scale * cosine * side, scale * sine * side, -scale * sine, scale * cosine
        x, y = self.center or (image.width / 2, image.height / 2)
        return QTransform(m11, m12, m21, m22, view.width / 2 - m11 * x - m21 * y, view.height / 2 - m12 * x - m22 * y)

    def image_point(self, at: Point, image: Size, view: Size) -> Point:
        """The image point under a point of the view."""
        there = self.transform(image, view).inverted()[0].map(QPointF(*at))
        return there.x(), there.y()

    def panned(self, by: Point, image: Size, view: Size) -> ViewState:
        """The image moved by points of the view; its edge never passes the middle of the view."""
        x, y = self.image_point((view.width / 2 - by[0], view.height / 2 - by[1]), image, view)
        return replace(self, center=(min(max(x, 0.0), image.width), min(max(y, 0.0), image.height)))

    def zoomed(self, factor: float, image: Size, view: Size, *, about: Point | None = None) -> ViewState:
        """Zoomed by a factor; the image point under `about` stays where it is."""
        zoom = min(max(self.zoom * factor, _ZOOM_LIMITS[0]), _ZOOM_LIMITS[1])
        closer = replace(self, zoom=zoom)
        if about is None:
            return closer
        now = closer.transform(image, view).map(QPointF(*self.image_point(about, image, view)))
        return closer.panned((about[0] - now.x(), about[1] - now.y()), image, view)

    def measured(self, start: Point, end: Point, image: Size, kind: Measure = "measure") -> ViewState:
        """With one more line between two image points; what lies outside the image is brought to its edge."""
        start, end = ((min(max(x, 0.0), image.width), min(max(y, 0.0), image.height)) for x, y in (start, end))
        return replace(self, lines=(*self.lines, Line(start, end, kind)))

    def pair_of(self, index: int) -> tuple[Line, ...]:
        """The line in a place with the one before it that it is measured against, if it takes two and has the second.

        Lines of a kind are paired in the order in which they were drawn.
        """
        line = self.lines[index]
        before = [other for other in self.lines[:index] if other.kind == line.kind]
        return (before[-1], line) if line.kind in ("angle", "ratio") and len(before) % 2 else (line,)

    def without_half(self) -> ViewState:
        """Without the last line where it waits for a second one."""
        waits = self.lines and self.lines[-1].kind in ("angle", "ratio") and len(self.pair_of(-1)) == 1
        return replace(self, lines=self.lines[:-1]) if waits else self

    def following(
        self,
        other: ViewState,
        window: Window | None,
        *,
        image: Size,
        other_image: Size,
        mapping: Callable[[Point], Point] | None = None,
    ) -> ViewState:
        """As near and at the same place as another image is shown; turns and lines stay.

        `window` is that of this image which is like the other's; `place` says where in this image lies what is at a
        point of the other one. Without it, points are the same as shares of the images' sizes.
        """
        center = other.center
        if mapping is not None and (center is not None or other.zoom > 1):  # two whole images stay whole
            center = mapping(center or (other_image.width / 2, other_image.height / 2))
        elif center is not None:
            center = (center[0] / other_image.width * image.width, center[1] / other_image.height * image.height)
        return replace(self, zoom=other.zoom, center=center, inverted=other.inverted, window=window)

    def fitted(self) -> ViewState:
        """The whole image in the view again; window and turns stay."""
        return replace(self, zoom=1.0, center=None)


def dragged_window(start: Window, by: Point, *, gain: float) -> Window:
    """The window after a drag from `start`: right is wider, up is brighter. `gain` is pixel values a point."""
    return replace(start, width=max(start.width + by[0] * gain, gain), center=start.center + by[1] * gain)
