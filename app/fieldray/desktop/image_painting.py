"""Painting of an image, its heat map and an aligned prior image: grey levels, colours and positions on the screen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray
from PySide6.QtCore import QObject, QPointF, QRect, QRectF, Qt, Signal
from PySide6.QtGui import QImage, QPainter, QPainterPath, QTransform

from fieldray.desktop.style import preserve_painter_state
from fieldray.desktop.worklist_rows import WorkListRow
from fieldray.domain import heat_map
from fieldray.domain.comparison import FRAME_SIDE, PairComparison, change_colours, sample_at
from fieldray.domain.image import CoordinateMap, Image, Window
from fieldray.imaging.preprocess import default_window, grey_level_table

Pixels = NDArray[np.uint8] | NDArray[np.uint16]

_SMALLEST_SIDE: Final = 128

# Display windows of the keys 2 to 5, as percentiles of the image, because a radiograph has no absolute scale as in CT.
# Key 1 is the display window of the file.
_PRESET_PERCENTILES: Final = ((0.0, 100.0), (1.0, 75.0), (25.0, 99.8), (10.0, 90.0))


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class ImagePyramid:
    """An image at several resolutions, for fast painting at any zoom.

    levels                  pixels of each resolution; levels[k] has 1 / 2**k of the image's rows and columns
    initial_display_window  the display window in which the image is shown first
    display_window_presets  display windows of the keys 1 to 5; None for the display window of the file
    """

    image: Image
    levels: tuple[Pixels, ...]
    initial_display_window: Window
    display_window_presets: tuple[Window | None, ...]

    @property
    def size(self) -> Size:
        """Width and height of the image in pixels."""
        return Size(self.columns, self.rows)

    @property
    def rows(self) -> int:
        return int(self.image.pixels.shape[0])

    @property
    def columns(self) -> int:
        return int(self.image.pixels.shape[1])

    def grey_level_table(self, window: Window | None, *, inverted: bool) -> NDArray[np.uint8]:
        """Return the displayed grey level of each pixel value: uint8 (256,) for pixels of 8 bits, (65536,) for 16 bits.

        window    the display window; None for that of the file
        inverted  whether black and white are swapped
        """
        table = grey_level_table(self.image, window)
        return np.uint8(255) - table if inverted else table

    def level_for_screen_resolution(self, pixel_side: float) -> int:
        """Return the index of the lowest resolution in `levels` that still has the detail of the screen.

        pixel_side  side of an image pixel on the screen, in pixels of the screen
        """
        level = 0
        while level + 1 < len(self.levels) and pixel_side * 2 ** (level + 1) <= 1.0:
            level += 1
        return level


def make_image_pyramid(image: Image) -> ImagePyramid:
    """Return an image at several resolutions (see `ImagePyramid`), with the display windows for the keys 1 to 5.

    The lower resolutions take about a third more memory than the image alone.
    """
    levels: list[Pixels] = [image.pixels]
    while min(levels[-1].shape) >= 2 * _SMALLEST_SIDE:
        levels.append(_halved(levels[-1]))
    start = default_window(image)
    presets = tuple(_percentile_window(levels[-1], low, high) for low, high in _PRESET_PERCENTILES)
    return ImagePyramid(
        image=image, levels=tuple(levels), initial_display_window=start, display_window_presets=(None, *presets)
    )


def matching_display_window(window: Window | None, pyramid: ImagePyramid, other: ImagePyramid) -> Window | None:
    """Return the display window of the image `other` that corresponds to a display window of the image `pyramid`.

    A preset of `pyramid` corresponds to the preset of `other` for the same key. Of any other window, two values are
    scaled: the width, and the distance of the centre from that of `initial_display_window`. The factor is the ratio of
    the widths of both `initial_display_window`. None stands for the window of the file.
    """
    if window in pyramid.display_window_presets:
        return other.display_window_presets[pyramid.display_window_presets.index(window)]
    assert window is not None
    own, its = pyramid.initial_display_window, other.initial_display_window
    ratio = its.width / own.width
    return replace(window, width=window.width * ratio, center=its.center + (window.center - own.center) * ratio)


def _halved(pixels: Pixels) -> Pixels:
    """Return the pixels at half the resolution: means over 2 x 2 pixels. An odd last row or column is left out."""
    rows, columns = (side // 2 * 2 for side in pixels.shape)
    total = np.full((rows // 2, columns // 2), 2, np.uint32)
    for row, column in ((0, 0), (0, 1), (1, 0), (1, 1)):
        total += pixels[row:rows:2, column:columns:2]
    halved = total >> np.uint32(2)
    return halved.astype(np.uint8) if pixels.dtype == np.uint8 else halved.astype(np.uint16)


def _percentile_window(pixels: Pixels, low: float, high: float) -> Window:
    bottom, top = np.percentile(pixels, (low, high))
    return Window(float(bottom + top) / 2, max(float(top - bottom), 1.0), "LINEAR_EXACT")


_CRISP_FROM: Final = 6.0


@dataclass(frozen=True, eq=False, slots=True)
class HeatMap:
    """A heat map as colours, with the region of the image that they cover.

    image     the colours
    region    the region in pixels of the X-ray
    is_blank  whether no colour is visible, because all values are below the display threshold
    """

    image: QImage
    region: QRectF
    is_blank: bool


def heat_map_of(row: WorkListRow) -> HeatMap | None:
    """Return the heat map of the finding that decides the class in a row; None if the finding has no heat map."""
    shown = heat_map.shown_heat_map(row.outcome, row.manifest) if row.manifest else None
    if shown is None:
        return None
    shares = shown.colour_strength
    return HeatMap(
        colour_image(heat_map.colours(heat_map.enlarge_smoothly(shares))),
        QRectF(*shown.network_field_of_view),
        not shares.any(),
    )


def draw_image(painter: QPainter, pyramid: ImagePyramid, state: ViewState, view: Size, *, pixel_ratio: float) -> None:
    """Draw the visible part of an image in its display window.

    state        zoom, position and display window
    view         size of the view in points
    pixel_ratio  pixels of the screen for one point of the view
    """
    transform = state.transform(pyramid.size, view)
    scale = state.points_per_pixel(pyramid.size, view) * pixel_ratio
    number = pyramid.level_for_screen_resolution(scale)
    level, step = pyramid.levels[number], 2**number
    seen = transform.inverted()[0].mapRect(QRectF(0, 0, view.width, view.height))
    left, top = max(int(seen.left() / step) - 1, 0), max(int(seen.top() / step) - 1, 0)
    right, bottom = (
        min(int(seen.right() / step) + 2, level.shape[1]),
        min(int(seen.bottom() / step) + 2, level.shape[0]),
    )
    if right <= left or bottom <= top:
        return
    grey = pyramid.grey_level_table(state.display_window, inverted=state.is_inverted).take(
        level[top:bottom, left:right]
    )
    with preserve_painter_state(painter):
        painter.setTransform(transform, combine=True)
        painter.setRenderHint(QPainter.RenderHint.SmoothPixmapTransform, scale < _CRISP_FROM)
        painter.drawImage(QRectF(left * step, top * step, grey.shape[1] * step, grey.shape[0] * step), grey_image(grey))


def draw_heat_map(painter: QPainter, heat: HeatMap, transform: QTransform, *, image: Size, opacity: float) -> None:
    """Draw a heat map over an image. Parts outside the image are clipped.

    transform  maps pixels of the image to points of the view
    image      size of the image in pixels
    opacity    0 (invisible) to 1
    """
    with preserve_painter_state(painter):
        painter.setTransform(transform, combine=True)
        painter.setClipRect(QRectF(0, 0, image.width, image.height), Qt.ClipOperation.IntersectClip)
        painter.setRenderHint(QPainter.RenderHint.SmoothPixmapTransform)
        painter.setOpacity(opacity)
        painter.drawImage(heat.region, heat.image)


def draw_thumbnail(painter: QPainter, thumbnail: NDArray[np.uint8], box: QRect, *, opacity: float = 1.0) -> None:
    """Draw a thumbnail (height, width) uint8 in a box, as large as possible.

    opacity  0 (invisible) to 1
    """
    small = grey_image(np.ascontiguousarray(thumbnail))
    size = small.size().scaled(box.size(), Qt.AspectRatioMode.KeepAspectRatio)
    target = QRect(0, 0, size.width(), size.height())
    target.moveCenter(box.center())
    with preserve_painter_state(painter):
        painter.setOpacity(opacity)
        painter.setRenderHint(QPainter.RenderHint.SmoothPixmapTransform)
        painter.drawImage(target, small)


def grey_image(grey: NDArray[np.uint8]) -> QImage:
    """Convert grey levels (rows, columns) uint8 to a QImage, which shares the memory of the array.

    The array must outlive the QImage.
    """
    return QImage(grey.data, grey.shape[1], grey.shape[0], grey.shape[1], QImage.Format.Format_Grayscale8)


def colour_image(colours: NDArray[np.uint8]) -> QImage:
    """Return a QImage with a copy of colours.

    colours  uint8 (rows, columns, 4): red, green, blue and opacity
    """
    rows, columns, _ = colours.shape
    image = QImage(colours.tobytes(), columns, rows, 4 * columns, QImage.Format.Format_RGBA8888)
    return image.convertToFormat(QImage.Format.Format_ARGB32_Premultiplied)


# ---- the view of an image: zoom, centre, turns, window. Each change makes a new state, so undo is a list.

Point = tuple[float, float]
_ZOOM_LIMITS: Final = (0.25, 64.0)


class Size(NamedTuple):
    """A width and a height: of an image in pixels, or of a view in points of the screen."""

    width: float
    height: float


# A length; an angle and a cardiothoracic ratio, which need two lines each; a region, drawn from corner to corner.
MeasureTool = Literal["measure", "angle", "ratio", "region"]
Tool = Literal["window", "zoom", "pan"] | MeasureTool
MEASURE_TOOLS: Final = get_args(MeasureTool)
LEFT_BUTTON_TOOLS: Final[tuple[Tool, ...]] = ("window", "zoom", "pan", *MEASURE_TOOLS)


class DisplaySwitches(QObject):
    """The display switches, such as *heat map on*. All images and windows share the switches.

    changed  emitted with the names of the changed switches

    tool              the tool of the left mouse button
    heat_map_opacity  opacity of heat map and difference, in percent
    folded            names of the folded cards, separated by spaces
    """

    changed = Signal(object)
    tool: Tool = "window"
    heat_map = True
    lung_outline = False
    magnifier = False
    prior_mesh = False
    hide_patient = False
    by_patient = True
    heat_map_opacity = 45
    difference_opacity_percent = 70
    folded = ""

    def set(self, **parts: object) -> None:
        """Set switches to new values.

        parts  value by name of the switch
        """
        others = {name for name, value in parts.items() if getattr(self, name) != value}
        for name in others:
            setattr(self, name, parts[name])
        if others:
            self.changed.emit(others)

    def toggle(self, name: str) -> None:
        """Change a switch from on to off, or from off to on.

        name  name of the switch
        """
        self.set(**{name: not getattr(self, name)})


class MeasurementLine(NamedTuple):
    """A line that a person drew to measure something, from one point of an image to another point, in pixels."""

    start: Point
    end: Point
    kind: MeasureTool = "measure"


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewState:
    """The state of an image's view: zoom, position, orientation, display window and measurements.

    zoom               magnification; 1 fits the image into the view
    image_center       point of the image in the middle of the view; None for the image's centre
    quarter_turns      number of clockwise quarter turns, after mirroring
    is_mirrored        whether the image is mirrored left-right
    is_inverted        whether black and white are swapped
    display_window     the display window; None for that of the file
    measurement_lines  the lines of measurement
    """

    zoom: float = 1.0
    image_center: Point | None = None
    quarter_turns: int = 0
    is_mirrored: bool = False
    is_inverted: bool = False
    display_window: Window | None = None
    measurement_lines: tuple[MeasurementLine, ...] = ()

    def turned(self, quarter_turns: int) -> ViewState:
        """Return the view turned clockwise on the screen by quarter turns."""
        return replace(self, quarter_turns=(self.quarter_turns + quarter_turns) % 4)

    def flipped_left_right(self) -> ViewState:
        """Return the view flipped left-right on the screen.

        A state is mirrored first and turned afterwards. So the flip also reverses the turns: `quarter_turns` becomes 4
        - `quarter_turns`.
        """
        return replace(self, quarter_turns=-self.quarter_turns % 4, is_mirrored=not self.is_mirrored)

    def flipped_top_bottom(self) -> ViewState:
        """Return the view flipped top-bottom on the screen: a left-right flip, then half a turn."""
        return self.flipped_left_right().turned(2)

    def with_black_and_white_swapped(self) -> ViewState:
        """Return the view with black and white swapped."""
        return replace(self, is_inverted=not self.is_inverted)

    def points_per_pixel(self, image: Size, view: Size) -> float:
        """Return the side of one image pixel on the screen, in points.

        image  size of the image in pixels
        view   size of the view in points
        """
        width, height = (image.height, image.width) if self.quarter_turns % 2 else image
        return self.zoom * min(view.width / width, view.height / height)

    def transform(self, image: Size, view: Size) -> QTransform:
        """Return the transform that maps positions in the image to points of the view.

        Positions in the image are (x, y) in pixels. Whole numbers are edges between pixels: (0, 0) is the upper left
        corner of the image, and (0.5, 0.5) is the middle of the first pixel.
        """
        scale = self.points_per_pixel(image, view)
        cosine, sine = ((1, 0), (0, 1), (-1, 0), (0, -1))[self.quarter_turns]
        side = -1 if self.is_mirrored else 1
        m11, m12, m21, m22 = scale * cosine * side, scale * sine * side, -scale * sine, scale * cosine
        x, y = self.image_center or (image.width / 2, image.height / 2)
        return QTransform(m11, m12, m21, m22, view.width / 2 - m11 * x - m21 * y, view.height / 2 - m12 * x - m22 * y)

    def image_point(self, at: Point, image: Size, view: Size) -> Point:
        """Return the position (x, y) in the image, in pixels, that lies at the point `at` of the view.

        The position may lie outside the image.
        """
        there = self.transform(image, view).inverted()[0].map(QPointF(*at))
        return there.x(), there.y()

    def panned(self, by: Point, image: Size, view: Size) -> ViewState:
        """Return the view after the image was moved by (right, down) points of the view.

        The edge of the image never passes the middle of the view.
        """
        x, y = self.image_point((view.width / 2 - by[0], view.height / 2 - by[1]), image, view)
        return replace(self, image_center=(min(max(x, 0.0), image.width), min(max(y, 0.0), image.height)))

    def zoomed(self, factor: float, image: Size, view: Size, *, about: Point | None = None) -> ViewState:
        """Return a view that is zoomed by a factor.

        about  point of the view at which the image does not move; None for the middle of the view
        """
        zoom = min(max(self.zoom * factor, _ZOOM_LIMITS[0]), _ZOOM_LIMITS[1])
        closer = replace(self, zoom=zoom)
        if about is None:
            return closer
        now = closer.transform(image, view).map(QPointF(*self.image_point(about, image, view)))
        return closer.panned((about[0] - now.x(), about[1] - now.y()), image, view)

    def with_measurement(self, start: Point, end: Point, image: Size, kind: MeasureTool = "measure") -> ViewState:
        """Return the view with one more line of measurement between two points of the image.

        Points outside the image are moved to its edge.

        kind  "measure" for a length, "angle" or "ratio" for one of two lines, "region" for the diagonal of a rectangle
        """
        start, end = ((min(max(x, 0.0), image.width), min(max(y, 0.0), image.height)) for x, y in (start, end))
        return replace(self, measurement_lines=(*self.measurement_lines, MeasurementLine(start, end, kind)))

    def lines_of_measurement(self, index: int) -> tuple[MeasurementLine, ...]:
        """Return the line of measurement at an index, or both lines of a pair if the index is that of the second line.

        Angles and ratios need two lines. Lines of one kind are paired in the order in which they were drawn.
        """
        line = self.measurement_lines[index]
        before = [other for other in self.measurement_lines[:index] if other.kind == line.kind]
        return (before[-1], line) if line.kind in ("angle", "ratio") and len(before) % 2 else (line,)

    def without_unpaired_line(self) -> ViewState:
        """Return the view without its last line, if that line is the first of a pair whose second line is missing."""
        waits = (
            self.measurement_lines
            and self.measurement_lines[-1].kind in ("angle", "ratio")
            and len(self.lines_of_measurement(-1)) == 1
        )
        return replace(self, measurement_lines=self.measurement_lines[:-1]) if waits else self

    def with_zoom_and_position_of(
        self,
        other: ViewState,
        window: Window | None,
        *,
        image: Size,
        other_image: Size,
        mapping: Callable[[Point], Point] | None = None,
    ) -> ViewState:
        """Return this view with the zoom and the position of another image's view. Turns and lines do not change.

        other        the view of the other image
        window       display window of this image that corresponds to that of the other image; None for that of the file
        image        size of this image in pixels
        other_image  size of the other image in pixels
        mapping      function that maps a point of the other image to this image; None to map by the share of width and
                     height
        """
        center = other.image_center
        if mapping is not None and (center is not None or other.zoom > 1):  # otherwise both images are shown as a whole
            center = mapping(center or (other_image.width / 2, other_image.height / 2))
        elif center is not None:
            center = (center[0] / other_image.width * image.width, center[1] / other_image.height * image.height)
        return replace(self, zoom=other.zoom, image_center=center, is_inverted=other.is_inverted, display_window=window)

    def zoomed_to_whole_image(self) -> ViewState:
        """Return the view with the whole image visible. Display window and turns do not change."""
        return replace(self, zoom=1.0, image_center=None)


def dragged_display_window(start: Window, by: Point, *, gain: float) -> Window:
    """Return the display window after a drag of the mouse. To the right widens the window, upwards brightens the image.

    start  the display window before the drag
    by     movement of the mouse in points of the screen
    gain   change of the display window, in pixel values, for one point of the screen
    """
    return replace(start, width=max(start.width + by[0] * gain, gain), center=start.center + by[1] * gain)


# ---- overlays of a comparison: the aligned prior image, the difference, the grid

_MAX_ALIGNED_SIDE: Final = 1024  # longer side of an aligned prior image, as much as a screen shows
_BAND_ROWS: Final = 16
_MESH_STEP: Final = 32


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class ImageOverlays:
    """The overlays of the current image that come from its comparison with a prior image.

    aligned_prior           the prior image, aligned to the current image, with the prior image's display windows
    prior_reduction_factor  reduction factor: one pixel of `aligned_prior` covers `prior_reduction_factor` x
                            `prior_reduction_factor` pixels of the current image
    difference              colours of the change, and the region of the current image that they cover
    alignment_grid          lines of a straight grid on the prior image, aligned to the current image, in pixels of the
                            current image
    matched_points          points of the current image that were matched with the prior image and used to align it, in
                            pixels
    region_centres          middle of each region that differs, the strongest difference first, in pixels
    """

    aligned_prior: ImagePyramid
    prior_reduction_factor: int
    difference: HeatMap
    alignment_grid: QPainterPath
    matched_points: tuple[QPointF, ...]
    region_centres: tuple[QPointF, ...]


def image_overlays(prior: ImagePyramid, pair: PairComparison, *, rows: int, columns: int) -> ImageOverlays:
    """Return the overlays of a comparison. The call takes a fraction of a second.

    prior          the prior image, not aligned
    pair           the result of the comparison
    rows, columns  size of the current image in pixels

    Raises ValueError if the images are not comparable.
    """
    aligned, first, second = pair.aligned_pair, pair.prior, pair.current
    if aligned is None or first is None or second is None:
        raise ValueError("nothing of this pair may be laid over each other")
    step, here, there = -(-max(rows, columns) // _MAX_ALIGNED_SIDE), second.frame_to_image, first.frame_to_image
    shrink = step / here.row_scale * there.row_scale  # pixels of the prior image for one pixel of the result
    pixels = _bent(prior, pair, shape=(-(-rows // step), -(-columns // step)), step=step, shrink=shrink)
    image = replace(prior.image, pixels=pixels, file_rows=0, file_columns=0, spacing_mm=None, reduction_factor=1)
    bent = ImagePyramid(
        image=image,
        levels=(pixels,),
        initial_display_window=prior.initial_display_window,
        display_window_presets=prior.display_window_presets,
    )
    matches = (match for match in aligned.alignment.matches if match.is_kept)
    boxes = (region.box for region in aligned.regions)
    return ImageOverlays(
        aligned_prior=bent,
        prior_reduction_factor=step,
        difference=HeatMap(colour_image(change_colours(aligned.shown_change)), _region(here), not aligned.regions),
        alignment_grid=_mesh(pair, there),
        matched_points=tuple(_in_file(match.row + 0.5, match.column + 0.5, here) for match in matches),
        region_centres=tuple(_in_file(box.top + box.height / 2, box.left + box.width / 2, here) for box in boxes),
    )


def _region(pixel_map: CoordinateMap) -> QRectF:
    return QRectF(_in_file(0, 0, pixel_map), _in_file(FRAME_SIDE, FRAME_SIDE, pixel_map))


def _in_file(row: float, column: float, pixel_map: CoordinateMap) -> QPointF:
    """Map (row, column) in the square frame of a comparison to the point (x, y) of the image's file, in pixels."""
    return QPointF(*reversed(pixel_map.to_image(row, column)))


def _bent(
    prior: ImagePyramid, pair: PairComparison, *, shape: tuple[int, int], step: int, shrink: float
) -> NDArray[Any]:
    """Sample the aligned prior image at each pixel of the result. Returns an array of `shape`.

    The work is done in bands of rows, so that other Python threads can run in between.

    shape   rows and columns of the result
    step    one pixel of the result covers `step` x `step` pixels of the current image
    shrink  pixels of the prior image for one pixel of the result
    """
    number = prior.level_for_screen_resolution(1 / shrink)
    level, bent = prior.levels[number].astype(np.float32), np.zeros(shape, prior.levels[number].dtype)
    rows, columns = ((np.arange(side) + 0.5) * step for side in shape)
    for start in range(0, shape[0], _BAND_ROWS):
        band = slice(start, start + _BAND_ROWS)
        places = pair.position_in_prior(*np.meshgrid(rows[band], columns, indexing="ij"))
        bent[band] = np.rint(sample_at(level, *(place / 2**number - 0.5 for place in places)))
    return bent


def _mesh(pair: PairComparison, there: CoordinateMap) -> QPainterPath:
    """Return the lines of a straight grid on the prior image, at their positions in the current image.

    there  maps the frame of the prior image to its file
    """
    lines = np.arange(0, FRAME_SIDE + 1, _MESH_STEP, dtype=np.float64)
    down, across = pair.position_in_current(*there.to_image(*np.meshgrid(lines, lines, indexing="ij")))
    points, path = np.stack((across, down), axis=-1), QPainterPath()
    for lane in (*points, *points.transpose(1, 0, 2)):
        path.addPolygon([QPointF(x, y) for x, y in lane.tolist()])
    return path
