"""The image: painted by itself, moved by the mouse and the keys of the key sheet."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Literal

from PySide6.QtCore import QPointF, QRect, QRectF, Qt, Signal
from PySide6.QtGui import (
    QContextMenuEvent,
    QFont,
    QImage,
    QMouseEvent,
    QPainter,
    QPainterPath,
    QPaintEvent,
    QWheelEvent,
)
from PySide6.QtWidgets import QSizePolicy, QWidget

from fieldray.desktop.image_painting import (
    HeatMap,
    Picture,
    draw_heat_map,
    draw_image,
    draw_outline,
    heat_map_of,
    outline_of,
)
from fieldray.desktop.open_image import OpenImage
from fieldray.desktop.overlay import corner_texts, draw_corners, draw_legend, legend_strip
from fieldray.desktop.style import Theme, colour
from fieldray.desktop.view_state import Size, ViewState, dragged_window
from fieldray.desktop.widgets import plain
from fieldray.domain.finding import lungs_of
from fieldray.domain.image import Window
from fieldray.translation import Translator

Tool = Literal["window", "zoom", "pan"]
_ZOOM_STEP: Final = 1.25
_ZOOM_PER_POINT: Final = 1.01
_WINDOW_POINTS: Final = 400.0
_MENU_SLACK: Final = 4
_WHEEL_NOTCH: Final = 120
_CURSORS: Final = {
    "window": Qt.CursorShape.ArrowCursor,
    "zoom": Qt.CursorShape.SizeVerCursor,
    "pan": Qt.CursorShape.OpenHandCursor,
}


class Viewer(QWidget):
    """Shows the open image. Left drag: the chosen tool; middle: move; right: zoom; wheel: next image."""

    stepped = Signal(int)
    menu_wanted = Signal(object)
    tool_changed = Signal(str)
    heat_map_shown = Signal(bool)
    outline_shown = Signal(bool)
    network_view_shown = Signal(bool)

    def __init__(self, open_image: OpenImage, translator: Translator, theme: Theme) -> None:
        super().__init__()
        self._open_image, self._translator = open_image, translator
        self._theme: Theme = theme
        self.state = ViewState()
        self.tool: Tool = "window"
        self.hide_patient = False
        self.shows_heat_map = True
        self.shows_outline = False
        self.shows_network_view = False
        self.opacity = 0.45
        self._heat_map: HeatMap | None = None
        self._outline: QPainterPath | None = None
        self._undo: list[ViewState] = []
        self._drag: tuple[Tool, QPointF, ViewState] | None = None
        self._wheel = 0
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Expanding)
        self.setMinimumSize(240, 200)
        self.setAccessibleName(translator.text("Image"))
        open_image.changed.connect(self._image_changed)
        open_image.loaded.connect(self.update)
        self._image_changed()

    # ---- commands

    def apply(self, state: ViewState) -> None:
        """Show another state; undo comes back from it."""
        if state != self.state and self.picture is not None:
            self._undo.append(self.state)
            self.state = state
            self.update()

    def undo(self) -> None:
        """Take the last change back."""
        if self._undo:
            self.state = self._undo.pop()
            self.update()

    def zoom(self, steps: int) -> None:
        """Zoom in (1) or out (-1) about the middle."""
        if self.picture is not None:
            self.apply(self.state.zoomed(_ZOOM_STEP**steps, self._image_size, self._view_size))

    def reset(self) -> None:
        """As the image was first shown."""
        self.apply(ViewState())

    def set_preset(self, number: int) -> None:
        """Window preset 1 to 5."""
        if self.picture is not None:
            self.apply(_with_window(self.state, self.picture.presets[number - 1]))

    def set_tool(self, tool: Tool) -> None:
        """What the left drag does."""
        self.tool = tool
        self.setCursor(_CURSORS[tool])
        self.tool_changed.emit(tool)

    def show_heat_map(self, shown: bool) -> None:
        """Show or hide the heat map."""
        self.shows_heat_map = shown
        self.heat_map_shown.emit(shown)
        self.update()

    def show_outline(self, shown: bool) -> None:
        """Show or hide the outline of the lungs."""
        self.shows_outline = shown
        self.outline_shown.emit(shown)
        self.update()

    def show_network_view(self, shown: bool) -> None:
        """Show what the network got instead of the image."""
        self.shows_network_view = shown and self._open_image.network_image is not None
        self.state, self._undo = ViewState(), []
        self.network_view_shown.emit(self.shows_network_view)
        self.update()

    def set_opacity(self, percent: int) -> None:
        """Opacity of the heat map, 0 to 100."""
        self.opacity = percent / 100
        self.update()

    def cancel_drag(self) -> None:
        """Take back the drag under way."""
        if self._drag is not None:
            self.state, self._drag = self._drag[2], None
            self.update()

    @property
    def picture(self) -> Picture | None:
        """What is shown: the image, or what the network saw of it; None while it is loaded."""
        return self._open_image.network_image if self.shows_network_view else self._open_image.picture

    # ---- painting

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.fillRect(self.rect(), colour(self._theme, "image"))
        row, picture = self._open_image.row, self.picture
        if row is None:
            self._draw_label(painter, self._translator.text("Select an image in the work list (Down)."))
        elif picture is not None:
            self._draw_image(painter, picture)
        else:
            self._draw_waiting(painter)
        if self.hasFocus():
            painter.setPen(colour(self._theme, "accent"))
            painter.drawRect(self.rect().adjusted(0, 0, -1, -1))
        painter.end()

    def _draw_image(self, painter: QPainter, picture: Picture) -> None:
        row = self._open_image.row
        assert row is not None
        draw_image(painter, picture, self.state, self._view_size, pixel_ratio=self.devicePixelRatio())
        area = self.rect()
        if self._heat_map is not None and self.shows_heat_map:
            is_blank, font = self._heat_map.is_blank, self._small_font()
            strip = legend_strip(self.rect(), self._translator, font, is_blank=is_blank)
            area = area.adjusted(0, 0, 0, -strip.height())
            self._draw_heat_map(painter, self._heat_map)
            draw_legend(painter, strip, self._translator, font, is_blank=is_blank)
        if self._outline is not None and self.shows_outline and not self.shows_network_view:
            draw_outline(painter, self._outline, self.state, image=self._image_size, view=self._view_size)
        if self.shows_network_view:
            self._draw_title(painter, self._translator.text("Input of the model. Press N to return to the image."))
            return
        percent = 100 * self.state.scale(self._image_size, self._view_size) * self.devicePixelRatio()
        corners = corner_texts(
            self._translator, row.outcome.ref, picture, self.state, percent=percent, hide_patient=self.hide_patient
        )
        draw_corners(painter, area, corners, self._small_font())

    def _draw_heat_map(self, painter: QPainter, heat: HeatMap) -> None:
        size = self._image_size
        if self.shows_network_view:
            heat = replace(heat, region=QRectF(0, 0, size.width, size.height))
        draw_heat_map(painter, heat, self.state, image=size, view=self._view_size, opacity=self.opacity)

    def _draw_waiting(self, painter: QPainter) -> None:
        """The thumbnail of the right image, never the image before, until the pixels are there."""
        row, problem = self._open_image.row, self._open_image.problem
        assert row is not None
        thumbnail = row.outcome.facts.thumbnail
        if thumbnail is not None and problem is None:
            rows, columns = thumbnail.shape
            thumbnail_image = QImage(thumbnail.tobytes(), columns, rows, columns, QImage.Format.Format_Grayscale8)
            size = thumbnail_image.size().scaled(self.size(), Qt.AspectRatioMode.KeepAspectRatio)
            target = QRect(0, 0, size.width(), size.height())
            target.moveCenter(self.rect().center())
            painter.setOpacity(0.5)
            painter.setRenderHint(QPainter.RenderHint.SmoothPixmapTransform)
            painter.drawImage(target, thumbnail_image)
            painter.setOpacity(1.0)
        loading = self._translator.text("Loading the image…")
        self._draw_label(painter, self._translator.reason(problem) if problem else loading)

    def _draw_label(self, painter: QPainter, words: str) -> None:
        painter.setPen(colour(self._theme, "on_image"))
        box = self.rect().adjusted(24, 24, -24, -24)
        painter.drawText(box, Qt.AlignmentFlag.AlignCenter | Qt.TextFlag.TextWordWrap, plain(words))

    def _draw_title(self, painter: QPainter, words: str) -> None:
        painter.setPen(colour(self._theme, "on_image"))
        box = self.rect().adjusted(12, 12, -12, -12)
        painter.drawText(box, Qt.AlignmentFlag.AlignHCenter | Qt.AlignmentFlag.AlignTop, words)

    # ---- mouse

    def mousePressEvent(self, event: QMouseEvent) -> None:
        tools: dict[Qt.MouseButton, Tool] = {
            Qt.MouseButton.LeftButton: self.tool,
            Qt.MouseButton.MiddleButton: "pan",
            Qt.MouseButton.RightButton: "zoom",
        }
        tool = tools.get(event.button())
        if tool is not None and self._drag is None:
            self._drag = (tool, event.position(), self.state)

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        if self._drag is None or self.picture is None:
            return
        tool, start, before = self._drag
        by = event.position() - start
        self.state = self._dragged(tool, before, start, by)
        self.update()

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        if self._drag is None:
            return
        _, start, before = self._drag
        self._drag = None
        if event.button() == Qt.MouseButton.RightButton and (event.position() - start).manhattanLength() < _MENU_SLACK:
            self.state = before
            self.menu_wanted.emit(event.globalPosition().toPoint())
        elif self.state != before:
            self._undo.append(before)

    def contextMenuEvent(self, event: QContextMenuEvent) -> None:
        """Only the menu key comes here: the right button opens the menu when it is let go without a drag."""
        if event.reason() == QContextMenuEvent.Reason.Keyboard:
            self.menu_wanted.emit(self.mapToGlobal(self.rect().center()))

    def wheelEvent(self, event: QWheelEvent) -> None:
        self._wheel += event.angleDelta().y()
        notches = int(self._wheel / _WHEEL_NOTCH)
        if notches:
            self._wheel -= notches * _WHEEL_NOTCH
            if event.modifiers() & Qt.KeyboardModifier.ControlModifier:
                self._zoom_about(notches, event.position())
            else:
                self.stepped.emit(-notches)
        event.accept()

    def _zoom_about(self, notches: int, at: QPointF) -> None:
        if self.picture is not None:
            about = (at.x(), at.y())
            self.apply(self.state.zoomed(_ZOOM_STEP**notches, self._image_size, self._view_size, about=about))

    def _dragged(self, tool: Tool, before: ViewState, start: QPointF, by: QPointF) -> ViewState:
        picture = self.picture
        assert picture is not None
        if tool == "pan":
            return before.panned((by.x(), by.y()), self._image_size, self._view_size)
        if tool == "zoom":
            factor = _ZOOM_PER_POINT ** -by.y()
            return before.zoomed(factor, self._image_size, self._view_size, about=(start.x(), start.y()))
        gain = picture.start_window.width / _WINDOW_POINTS
        return _with_window(before, dragged_window(before.window or picture.start_window, (by.x(), by.y()), gain=gain))

    # ---- inside

    def _image_changed(self) -> None:
        self.state, self._undo, self._drag = ViewState(), [], None
        self.shows_network_view = False
        self.network_view_shown.emit(False)
        row = self._open_image.row
        self._heat_map = heat_map_of(row) if row is not None else None
        self._outline = outline_of(lungs_of(row.outcome)) if row is not None else None
        self.update()

    @property
    def _image_size(self) -> Size:
        picture = self.picture
        return Size(picture.columns, picture.rows) if picture is not None else Size(1, 1)

    @property
    def _view_size(self) -> Size:
        return Size(max(self.width(), 1), max(self.height(), 1))

    def _small_font(self) -> QFont:
        font = QFont(self.font())
        font.setPointSizeF(font.pointSizeF() * 0.92)
        return font


def _with_window(state: ViewState, window: Window | None) -> ViewState:
    return replace(state, window=window)
