"""The widget that displays an image at any zoom, and handles mouse actions and keyboard commands."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Final, cast

from PySide6.QtCore import QEvent, QPointF, QRectF, Qt, Signal
from PySide6.QtGui import QContextMenuEvent, QMouseEvent, QPainter, QPainterPath, QPaintEvent, QPen, QWheelEvent
from PySide6.QtWidgets import QSizePolicy, QWidget

from fieldray.desktop.current_image import CurrentImage
from fieldray.desktop.image_painting import (
    MEASURE_TOOLS,
    DisplaySwitches,
    HeatMap,
    ImagePyramid,
    MeasureTool,
    Point,
    Size,
    Tool,
    ViewState,
    dragged_display_window,
    draw_heat_map,
    draw_image,
    draw_thumbnail,
    heat_map_of,
)
from fieldray.desktop.overlay import (
    BOTTOM_RIGHT,
    corner_texts,
    draw_corner_texts,
    draw_heat_map_legend,
    draw_keyboard_crosshair,
    draw_lung_outline,
    draw_measurement_lines,
    heat_map_legend_box,
    lung_outline_path,
    measurement_text,
)
from fieldray.desktop.style import Theme, colour, preserve_painter_state, scaled_font
from fieldray.desktop.widgets import without_markup
from fieldray.domain.finding import lungs_of
from fieldray.translation import Translator

if TYPE_CHECKING:
    from fieldray.desktop.comparison_view import ComparisonView

_ZOOM_STEP: Final = 1.25
_ZOOM_PER_POINT: Final = 1.01
_WINDOW_POINTS: Final = 400.0
_MENU_SLACK: Final = 4
_PAN_SHARE, _WINDOW_STEP = 0.1, 20.0  # for one key press: a share of the view, and points of a drag
_WHEEL_NOTCH: Final = 120
_GLASS_RADIUS, _GLASS_ZOOM = 110, 2.5
_CURSORS: Final[dict[Tool, Qt.CursorShape]] = {
    "window": Qt.CursorShape.ArrowCursor,
    "zoom": Qt.CursorShape.SizeVerCursor,
    "pan": Qt.CursorShape.OpenHandCursor,
    **dict.fromkeys(MEASURE_TOOLS, Qt.CursorShape.CrossCursor),
}


class Viewer(QWidget):
    """The widget that shows an image.

    A drag with the left button uses the chosen tool, a drag with the middle button moves the image, and a drag with the
    right button zooms. The wheel opens the next image. Commands of keys act at the mouse's position. After a key has
    moved the image, commands act in the middle of the view.
    """

    image_step_requested = Signal(int)
    menu_requested = Signal(object)
    full_screen_requested = Signal()  # show the image on the whole screen
    state_changed = Signal()
    shown_image_changed = Signal()  # between the image and the network's input

    def __init__(
        self, open_image: CurrentImage, switches: DisplaySwitches, translator: Translator, theme: Theme
    ) -> None:
        super().__init__()
        self._open_image, self._translator, self._theme = open_image, translator, theme
        self._switches = switches
        self.state = ViewState()
        self.shows_network_view = False
        self._layer: ComparisonView | None = None
        self._heat_map: HeatMap | None = None
        self._outline: QPainterPath | None = None
        self._undo: list[ViewState] = []
        self.changed_s = 0.0  # time of a person's last change of the view, by the monotonic clock
        self._drag: tuple[Tool, QPointF, ViewState] | None = None
        self._wheel = 0
        self._mouse: QPointF | None = None
        self._mark: Point | None = None
        self.setMouseTracking(True)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Expanding)
        self.setMinimumSize(170, 120)
        self.setAccessibleName(translator.text("Image"))
        open_image.changed.connect(self._image_changed)
        open_image.loaded.connect(self.update)
        switches.changed.connect(self._switch)
        self.update_cursor()
        self._image_changed()

    # ---- commands

    def apply_view_state(self, state: ViewState) -> None:
        """Show the image in another state of the view. `undo` restores the state before."""
        if state != self.state and self.pyramid is not None:
            self._undo.append(self.state)
            self._show_state(state)

    def show_linked_state(self, state: ViewState) -> None:
        """Show the image in the state of the linked view. `undo` does not restore the state before."""
        self.state = state
        self.update()

    @property
    def can_undo(self) -> bool:
        """Whether `undo` can undo a change of the view."""
        return bool(self._undo)

    def undo(self) -> None:
        """Undo the last change of the image's view, such as a zoom or a drawn line."""
        if self._undo:
            self._show_state(self._undo.pop())

    def zoom(self, steps: int) -> None:
        """Zoom in (steps 1) or out (steps -1) about the middle of the view."""
        self.apply_view_state(self.state.zoomed(_ZOOM_STEP**steps, self.image_size, self.view_size))

    def pan(self, right: int, down: int) -> None:
        """Move the visible part of the image by one step, after a key press.

        right  1 to see more of the right side, -1 of the left side, 0 for neither
        down   1 to see more of the lower side, -1 of the upper side, 0 for neither
        """
        if self.pyramid is not None:
            step = _PAN_SHARE * min(self.width(), self.height())
            self._mouse = None
            self.apply_view_state(self.state.panned((-right * step, -down * step), self.image_size, self.view_size))

    def change_display_window(self, wider: int, brighter: int) -> None:
        """Change the display window by one step.

        wider     1 widens the window, -1 narrows the window, 0 for no change
        brighter  1 brightens the image, -1 darkens the image, 0 for no change
        """
        if self.pyramid is not None:
            self.apply_view_state(self._windowed(self.state, (wider * _WINDOW_STEP, -brighter * _WINDOW_STEP)))

    def set_measurement_point(self) -> None:
        """Begin or end a line of measurement at the point that a person moves with keys."""
        if self.pyramid is None or self._switches.tool not in MEASURE_TOOLS:
            return
        here = self._image_point(self._key_position)
        if self._mark is None:
            self._mark = here
        else:
            self.apply_view_state(self._measured(self.state, self._mark, here))
            self._mark = None
        self.update()

    def apply_window_preset(self, number: int) -> None:
        """Show the image in the display window of a key.

        number  number of the key, 1 to 5
        """
        if self.pyramid is not None:
            self.apply_view_state(replace(self.state, display_window=self.pyramid.display_window_presets[number - 1]))

    def update_cursor(self) -> None:
        """Set the shape of the mouse cursor to that of the tool for the left button."""
        self.setCursor(_CURSORS[self._switches.tool])

    def show_prior_image(self, layer: ComparisonView | None) -> None:
        """Show a prior image over the current image, in place of the pack's overlays; None removes the prior image."""
        self._layer = layer
        self.update()

    def show_network_input(self, is_shown: bool) -> None:
        """Show the network's input instead of the image, or the image again.

        is_shown  True for the network's input, False for the image
        """
        self.shows_network_view = is_shown and self._open_image.network_image is not None
        self.state, self._undo, self._mark = ViewState(), [], None
        self._show_switched()

    def cancel_drag(self) -> None:
        """Cancel a drag of the mouse, a line that a key began, or a first line that waits for its second line."""
        self._mark = None
        self.apply_view_state(self.state.without_unpaired_line())
        if self._drag is not None:
            before, self._drag = self._drag[2], None
            self._show_state(before)
        self.update()

    @property
    def pyramid(self) -> ImagePyramid | None:
        """The displayed image, which may be the network's input; None while the image is being loaded."""
        return self._open_image.network_image if self.shows_network_view else self._open_image.pyramid

    # ---- painting

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.fillRect(self.rect(), colour(self._theme, "image"))
        row, pyramid = self._open_image.row, self.pyramid
        if row is None:
            self._draw_label(painter, self._translator.text("Select an image in the work list (Down arrow key)."))
        elif pyramid is not None:
            self.draw(painter, pyramid)
            if self._switches.magnifier:
                self._draw_magnified(painter, pyramid, self._with_open_line())
            if self._switches.tool in MEASURE_TOOLS and self._mouse is None:
                draw_keyboard_crosshair(painter, self._key_position)
        else:
            self._draw_waiting(painter)
        if self.hasFocus():
            painter.setPen(colour(self._theme, "accent"))
            painter.drawRect(self.rect().adjusted(0, 0, -1, -1))
        painter.end()

    def draw(self, painter: QPainter, pyramid: ImagePyramid) -> None:
        """Draw the image with its overlays and texts."""
        row = self._open_image.row
        assert row is not None
        state, area, font = self._with_open_line(), self.rect(), scaled_font(self.font(), 0.92)
        layer, heat = self._layer_in_sight, self._heat_map_in_sight
        self._draw_scene(painter, pyramid, state)
        if heat is not None:
            strip = heat_map_legend_box(area, self._translator, font, is_blank=heat.is_blank)
            area = area.adjusted(0, 0, 0, -strip.height())
            draw_heat_map_legend(painter, strip, self._translator, font, is_blank=heat.is_blank)
        if layer is not None:
            area = layer.draw_captions(painter, area, font)
        if self.shows_network_view:
            caption = self._translator.text(
                "This is the model's input: the image made smaller and cropped. Press N to return to the image."
            )
            self._draw_label(painter, caption, edge=Qt.AlignmentFlag.AlignTop)
        else:
            percent = 100 * self.state.points_per_pixel(self.image_size, self.view_size) * self.devicePixelRatio()
            corners = corner_texts(self._translator, row.outcome.ref, pyramid, self.state, percent=percent)
            if layer is not None:  # the prior image has its own labels
                corners = {BOTTOM_RIGHT: corners[BOTTOM_RIGHT]}
            draw_corner_texts(painter, area, corners, font)

    def _draw_scene(self, painter: QPainter, pyramid: ImagePyramid, state: ViewState) -> None:
        """Draw the image with all overlays in a state of the view."""
        view, transform = self.view_size, state.transform(pyramid.size, self.view_size)
        draw_image(painter, pyramid, state, view, pixel_ratio=painter.device().devicePixelRatioF())
        if self._layer_in_sight is not None:
            self._layer_in_sight.draw(painter, pyramid, state, view)
        elif self._heat_map_in_sight is not None:
            heat = self._heat_map_in_sight
            if self.shows_network_view:
                heat = replace(heat, region=QRectF(0, 0, pyramid.columns, pyramid.rows))
            draw_heat_map(painter, heat, transform, image=pyramid.size, opacity=self._switches.heat_map_opacity / 100)
        is_own = self._layer is None and not self.shows_network_view
        if self._outline is not None and self._switches.lung_outline and is_own:
            draw_lung_outline(painter, self._outline, transform)
        font = scaled_font(self.font(), 0.92)
        draw_measurement_lines(painter, state, pyramid, self._translator, view=view, font=font)

    def _draw_magnified(self, painter: QPainter, pyramid: ImagePyramid, state: ViewState) -> None:
        """Draw a round magnifier at the mouse, which enlarges the image with its overlays."""
        at, glass = self._key_position, QPainterPath()
        glass.addEllipse(at, _GLASS_RADIUS, _GLASS_RADIUS)
        with preserve_painter_state(painter, QPainter.RenderHint.Antialiasing):
            painter.setClipPath(glass)
            painter.fillPath(glass, colour(self._theme, "image"))
            nearer = state.zoomed(_GLASS_ZOOM, pyramid.size, self.view_size, about=(at.x(), at.y()))
            self._draw_scene(painter, pyramid, nearer)
            painter.setClipping(False)
            painter.strokePath(glass, QPen(colour(self._theme, "on_image"), 2))

    @property
    def _layer_in_sight(self) -> ComparisonView | None:
        return None if self.shows_network_view else self._layer

    @property
    def _heat_map_in_sight(self) -> HeatMap | None:
        return self._heat_map if self._switches.heat_map and self._layer_in_sight is None else None

    def _with_open_line(self) -> ViewState:
        """Return the state of the view with the unfinished line, which ends at the point that keys move."""
        if self._mark is None:
            return self.state
        return self._measured(self.state, self._mark, self._image_point(self._key_position))

    def _measured(self, state: ViewState, start: Point, end: Point) -> ViewState:
        return state.with_measurement(start, end, self.image_size, cast("MeasureTool", self._switches.tool))

    def _draw_waiting(self, painter: QPainter) -> None:
        """Draw the thumbnail of the current image until its pixels are loaded.

        The previous image is never shown meanwhile.
        """
        row, problem = self._open_image.row, self._open_image.problem
        assert row is not None
        thumbnail = row.outcome.facts.thumbnail
        if thumbnail is not None and problem is None:
            draw_thumbnail(painter, thumbnail, self.rect(), opacity=0.5)
        loading = self._translator.text("Loading the image…")
        self._draw_label(painter, self._translator.reason(problem) if problem else loading)

    def _draw_label(
        self, painter: QPainter, caption: str, *, edge: Qt.AlignmentFlag = Qt.AlignmentFlag.AlignCenter
    ) -> None:
        painter.setPen(colour(self._theme, "on_image"))
        box = self.rect().adjusted(24, 12, -24, -12)
        painter.drawText(box, Qt.AlignmentFlag.AlignHCenter | edge | Qt.TextFlag.TextWordWrap, without_markup(caption))

    # ---- mouse

    def mousePressEvent(self, event: QMouseEvent) -> None:
        tools: dict[Qt.MouseButton, Tool] = {
            Qt.MouseButton.LeftButton: self._switches.tool,
            Qt.MouseButton.MiddleButton: "pan",
            Qt.MouseButton.RightButton: "zoom",
        }
        tool = tools.get(event.button())
        self._mouse = event.position()
        if tool is not None and self._drag is None:
            self._drag = (tool, event.position(), self.state)

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        self._mouse = event.position()
        if self._drag is not None and self.pyramid is not None:
            tool, start, before = self._drag
            self._show_state(self._dragged(tool, before, start, event.position() - start))
        elif self._switches.magnifier or self._switches.tool in MEASURE_TOOLS:
            self.update()

    def leaveEvent(self, event: QEvent) -> None:
        self._mouse = None
        self.update()

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        if self._drag is None:
            return
        tool, start, before = self._drag
        self._drag = None
        is_click = (event.position() - start).manhattanLength() < _MENU_SLACK
        if is_click and (event.button() == Qt.MouseButton.RightButton or tool in MEASURE_TOOLS):
            self._show_state(before)
        if is_click and event.button() == Qt.MouseButton.RightButton:
            self.menu_requested.emit(event.globalPosition().toPoint())
        elif self.state != before:
            self._undo.append(before)

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        """Show the image on the whole screen. Ignored for a measuring tool, where two quick clicks set two points."""
        if event.button() == Qt.MouseButton.LeftButton and self._switches.tool not in MEASURE_TOOLS:
            self.full_screen_requested.emit()
        else:
            self.mousePressEvent(event)

    def contextMenuEvent(self, event: QContextMenuEvent) -> None:
        """Open the menu for the menu key. For the right mouse button, the menu opens when the button is released."""
        if event.reason() == QContextMenuEvent.Reason.Keyboard:
            self.menu_requested.emit(self.mapToGlobal(self.rect().center()))

    def wheelEvent(self, event: QWheelEvent) -> None:
        self._wheel += event.angleDelta().y()
        notches = int(self._wheel / _WHEEL_NOTCH)
        self._wheel -= notches * _WHEEL_NOTCH
        if notches and event.modifiers() & Qt.KeyboardModifier.ControlModifier:
            about = event.position().toTuple()
            self.apply_view_state(self.state.zoomed(_ZOOM_STEP**notches, self.image_size, self.view_size, about=about))
        elif notches:
            self.image_step_requested.emit(-notches)
        event.accept()

    def _dragged(self, tool: Tool, before: ViewState, start: QPointF, by: QPointF) -> ViewState:
        if tool == "pan":
            return before.panned((by.x(), by.y()), self.image_size, self.view_size)
        if tool == "zoom":
            factor = _ZOOM_PER_POINT ** -by.y()
            return before.zoomed(factor, self.image_size, self.view_size, about=(start.x(), start.y()))
        if tool in MEASURE_TOOLS:
            return self._measured(before, self._image_point(start), self._image_point(start + by))
        return self._windowed(before, (by.x(), by.y()))

    def _windowed(self, before: ViewState, by: tuple[float, float]) -> ViewState:
        pyramid = self.pyramid
        assert pyramid is not None
        gain = pyramid.initial_display_window.width / _WINDOW_POINTS
        return replace(
            before,
            display_window=dragged_display_window(
                before.display_window or pyramid.initial_display_window, by, gain=gain
            ),
        )

    # ---- lines and positions

    def _switch(self, names: Collection[str]) -> None:
        if "tool" in names:
            self._mark = None
            self.update_cursor()
        self.update()

    def _show_switched(self) -> None:
        self.shown_image_changed.emit()
        self.update()

    def _show_state(self, state: ViewState) -> None:
        self.state, self.changed_s = state, time.monotonic()
        pyramid, lines = self.pyramid, state.measurement_lines
        measured = measurement_text(self._translator, state, len(lines) - 1, pyramid.image) if pyramid and lines else ""
        self.setAccessibleDescription(measured)
        self.state_changed.emit()
        self.update()

    def _image_changed(self) -> None:
        if self._open_image.pyramid is None:
            self.state, self._undo, self._drag, self._mark = ViewState(), [], None, None
        self.shows_network_view = False
        row = self._open_image.row
        self._heat_map = heat_map_of(row) if row is not None else None
        self._outline = lung_outline_path(lungs_of(row.outcome)) if row is not None else None
        self._show_switched()

    @property
    def _key_position(self) -> QPointF:
        """The position in the view at which commands of keys act: that of the mouse, or the middle of the view."""
        return self._mouse or QPointF(self.width() / 2, self.height() / 2)

    def _image_point(self, at: QPointF) -> Point:
        return self.state.image_point((at.x(), at.y()), self.image_size, self.view_size)

    @property
    def image_size(self) -> Size:
        """Width and height of the displayed image in pixels."""
        pyramid = self.pyramid
        return pyramid.size if pyramid is not None else Size(1, 1)

    @property
    def view_size(self) -> Size:
        """Width and height of the view in points of the screen."""
        return Size(max(self.width(), 1), max(self.height(), 1))
