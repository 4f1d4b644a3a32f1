"""The area with the current image and, next to it, a second image that a person pinned.

Display window and zoom of both images are linked. Selecting an image in the work list changes the current image only.
Keys act on the image with the focus. While the list has the focus, keys act on the current image.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from PySide6.QtCore import QRect, QSize, Qt, Signal
from PySide6.QtGui import (
    QAction,
    QFontMetrics,
    QGuiApplication,
    QImage,
    QPageLayout,
    QPaintDevice,
    QPainter,
    QResizeEvent,
)
from PySide6.QtWidgets import QSizePolicy, QSplitter, QToolButton, QWidget

from fieldray.desktop.comparison_controller import ComparisonController
from fieldray.desktop.comparison_view import ComparisonView, study_date_text
from fieldray.desktop.image_painting import LEFT_BUTTON_TOOLS, DisplaySwitches, ViewState, matching_display_window
from fieldray.desktop.notices import NoticeBoard
from fieldray.desktop.style import Theme, colour, icon, preserve_painter_state, scaled_font
from fieldray.desktop.viewer import Viewer
from fieldray.desktop.widgets import (
    PlainLabel,
    column_layout,
    connect_button,
    push_button,
    row_layout,
    set_surface,
    without_markup,
)
from fieldray.desktop.worklist_rows import WorkListRow, image_title, pack_title
from fieldray.formatting import format_dicom_date, research_only_notice
from fieldray.translation import Translator

# Commands that switch a display option for all images.
_SWITCHES: Final = ("heat_map", "lung_outline", "magnifier", "prior_mesh", "hide_patient", "by_patient")


class ImageArea(QWidget):
    """The part of the window with the current image and, next to it, a second image that a person pinned."""

    view_count_or_link_changed = Signal()  # the number of views changed, or the link between them

    def __init__(
        self, comparing: ComparisonController, switches: DisplaySwitches, translator: Translator, theme: Theme
    ) -> None:
        super().__init__()
        self._comparing, self.switches, self._translator = comparing, switches, translator
        self._image, self._kept = image, kept = comparing.image, comparing.second_image
        self.is_linked, self.has_second_image = True, False
        self.viewer, self.second_viewer = (Viewer(one, switches, translator, theme) for one in (image, kept))
        self.prior_view = ComparisonView(comparing, switches, self.viewer, translator)
        self.second_viewer.setAccessibleName(translator.text("Pinned image"))
        named = translator.text("Unpin the image")
        close = push_button("", lambda: self._kept.show(None), icon=icon("close", theme), accessible_name=named)
        self._heads = _ImageHeading(), _ImageHeading(close)
        self._splitter = QSplitter(Qt.Orientation.Horizontal)
        self._splitter.setChildrenCollapsible(False)
        self._parts = QWidget(), QWidget()
        for part, head, viewer in zip(self._parts, self._heads, self.viewers, strict=True):
            column_layout(part, head, (viewer, 1), spacing=0)
            self._splitter.addWidget(part)
        column_layout(self, self._splitter)
        self._connect()
        self._show_kept()

    @property
    def viewers(self) -> tuple[Viewer, Viewer]:
        """The viewers of the current image and of the pinned image."""
        return self.viewer, self.second_viewer

    @property
    def active_viewer(self) -> Viewer:
        """The viewer on which keys act: the viewer with the focus, else that of the current image."""
        return self.second_viewer if self.second_viewer.hasFocus() else self.viewer

    def commands(self) -> dict[str, Callable[[], None]]:
        """Return the functions that keys and menus call on the active image, by the name of the command."""

        def acting(act: Callable[..., None], *values: object) -> Callable[[], None]:
            return lambda: act(self.active_viewer, *values)

        def turned(change: Callable[[ViewState], ViewState]) -> Callable[[], None]:
            return lambda: self.active_viewer.apply_view_state(change(self.active_viewer.state))

        return {
            **{name: partial(self.switches.toggle, name) for name in _SWITCHES},
            "network_view": lambda: self.active_viewer.show_network_input(not self.active_viewer.shows_network_view),
            "keep_image": self.pin_or_close_image,
            "link": self._link_or_unlink,
            "invert": turned(ViewState.with_black_and_white_swapped),
            "rotate_right": turned(lambda state: state.turned(1)),
            "rotate_left": turned(lambda state: state.turned(-1)),
            "flip_left_right": turned(ViewState.flipped_left_right),
            "flip_top_bottom": turned(ViewState.flipped_top_bottom),
            "zoom_in": acting(Viewer.zoom, 1),
            "zoom_out": acting(Viewer.zoom, -1),
            "pan_left": acting(Viewer.pan, -1, 0),
            "pan_right": acting(Viewer.pan, 1, 0),
            "pan_up": acting(Viewer.pan, 0, -1),
            "pan_down": acting(Viewer.pan, 0, 1),
            "fit": turned(ViewState.zoomed_to_whole_image),
            "reset": turned(lambda _: ViewState()),
            "undo": acting(Viewer.undo),
            "narrower": acting(Viewer.change_display_window, -1, 0),
            "wider": acting(Viewer.change_display_window, 1, 0),
            "brighter": acting(Viewer.change_display_window, 0, 1),
            "darker": acting(Viewer.change_display_window, 0, -1),
            "mark": acting(Viewer.set_measurement_point),
            **self.prior_view.commands(),
            **{f"tool_{tool}": partial(self.switches.set, tool=tool) for tool in LEFT_BUTTON_TOOLS},
            **{f"preset_{number}": acting(Viewer.apply_window_preset, number) for number in range(1, 6)},
        }

    # ---- both images

    def cancel_drag_or_line(self) -> None:
        """Cancel a drag of the mouse, or a line of measurement that a person is drawing."""
        for viewer in self.viewers:
            viewer.cancel_drag()

    def pin_or_close_image(self) -> None:
        """Pin the current image, so that the image stays visible while other images are opened.

        If an image is pinned, close that image.
        """
        self._kept.show(self._image.row if self._kept.row is None else None)

    # ---- linking

    def _connect(self) -> None:
        """Connect signals of the images to this widget.

        Signals are connected to methods only, because the images outlive this widget. Qt disconnects the methods of a
        closed widget.
        """
        self.viewer.state_changed.connect(self._kept_follows)
        self.second_viewer.state_changed.connect(self._open_follows)
        for news in (self._image.changed, self.switches.changed):
            news.connect(self._name)
        self._image.loaded.connect(self._open_follows)
        self._kept.changed.connect(self._show_kept)
        self._kept.loaded.connect(self._kept_follows)
        self.prior_view.changed.connect(self._show_kept)
        self.prior_view.changed.connect(self._kept_follows)

    def _open_follows(self) -> None:
        self._follow(self.second_viewer, self.viewer)

    def _kept_follows(self) -> None:
        self._follow(self.viewer, self.second_viewer)

    def _link_or_unlink(self) -> None:
        self.is_linked = not self.is_linked
        self.view_count_or_link_changed.emit()
        if self.active_viewer is self.viewer:
            self._kept_follows()
        else:
            self._open_follows()

    def _follow(self, leader: Viewer, follower: Viewer) -> None:
        """Show the image of one viewer at zoom and position of the other viewer, with a corresponding display window.

        leader    viewer whose zoom and position are copied
        follower  viewer that is changed
        """
        shown, other = leader.pyramid, follower.pyramid
        if not self.is_linked or shown is None or other is None or self._kept.row is None:
            return
        window = matching_display_window(leader.state.display_window, shown, other)
        state = follower.state.with_zoom_and_position_of(
            leader.state,
            window,
            image=follower.image_size,
            other_image=leader.image_size,
            mapping=self._comparing.point_mapping(to_prior=follower is self.second_viewer),
        )
        follower.show_linked_state(state)

    def _show_kept(self) -> None:
        comes_soon = self._comparing.may_find_prior_soon and self._parts[1].isVisibleTo(self)
        self.has_second_image = self._kept.row is not None or comes_soon
        is_seen = self.has_second_image and self.prior_view.mode == "side_by_side"
        if not is_seen and self.second_viewer.hasFocus():
            self.viewer.setFocus()
        self._parts[1].setVisible(is_seen)
        for head in self._heads:
            head.setVisible(is_seen)
        self.view_count_or_link_changed.emit()
        self._name()

    def _name(self) -> None:
        """Show name and date above each image."""
        text, opened, kept = self._translator.text, self._image.row, self._kept.row
        if self._comparing.prior is not None:  # the corners show the names, so this line shows the dates
            days = [study_date_text(self._translator, row.header) if row else "" for row in (opened, kept)]
            texts = text("Current image: {image}", image=days[0]), text("Prior image: {day}", day=days[1])
        else:
            texts = (
                text("Current image: {image}", image=self._named(opened)) if opened else "",
                text("Pinned image: {image}", image=self._named(kept)) if kept else "",
            )
        for head, caption in zip(self._heads, texts, strict=True):
            head.name.setText(without_markup(caption))

    def _named(self, row: WorkListRow) -> str:
        title = image_title(self._translator, row.row_id, row.outcome)
        rows = [image.row for image in (self._image, self._kept) if image.row]
        is_of_one = all(not other.additional_pack_rows and other.run_id == row.run_id for other in rows)
        pack = "" if is_of_one else pack_title(self._translator, row.manifest)
        return ", ".join(
            part for part in (title, format_dicom_date(self._translator, row.header.study_date), pack) if part
        )


class _ImageHeading(QWidget):
    """The line with the name above an image. The line has a close button if the image can be closed."""

    def __init__(self, *close: QWidget) -> None:
        super().__init__()
        set_surface(self, "panel")
        self.name = PlainLabel()
        self.name.setMinimumWidth(1)
        row_layout(self, (self.name, 1), *close, margins=(10, 4, 6, 4))
        self.setFixedHeight(44)


# ---- the tool buttons above the images: commands of the keys, for the mouse

_GAP: Final = 8
_BUTTON_ROOM: Final = 41

# Command of the key table, icon, whether the button stays pressed, and the order in which buttons are hidden in a
# narrow window (1 first, 0 never). The menu and the keys have all commands. "" leaves a gap.
_BUTTONS: Final = (
    ("tool_window", "window", True, 14),
    ("tool_zoom", "zoom", True, 12),
    ("tool_pan", "pan", True, 13),
    ("tool_measure", "measure", True, 15),
    ("tool_angle", "angle", True, 8),
    ("tool_ratio", "ratio", True, 9),
    ("tool_region", "region", True, 7),
    ("magnifier", "magnifier", True, 11),
    ("", "", False, 0),
    ("heat_map", "heat-map", True, 0),
    ("lung_outline", "lungs", True, 18),
    ("network_view", "network", True, 17),
    ("", "", False, 0),
    ("invert", "invert", False, 0),
    ("rotate_left", "rotate-left", False, 3),
    ("rotate_right", "rotate-right", False, 4),
    ("flip_left_right", "flip-horizontal", False, 2),
    ("flip_top_bottom", "flip-vertical", False, 1),
    ("fit", "fit", False, 5),
    ("reset", "reset", False, 0),
    ("", "", False, 0),
    ("keep_image", "side-by-side", True, 16),
    ("link", "link", True, 6),
    ("hide_patient", "hide", True, 10),
)


class ImageToolButtons(QWidget):
    """The row of tool buttons above the images. The number of buttons depends on the width of the window."""

    def __init__(self, area: ImageArea, actions: Mapping[str, QAction], theme: Theme) -> None:
        super().__init__()
        set_surface(self, "panel")
        row = row_layout(self, 1, margins=(_GAP, 6, _GAP, 6), spacing=3)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self.buttons: dict[str, QToolButton] = {}
        for command, icon_name, is_checkable, _ in _BUTTONS:
            if not command:
                row.addSpacing(_GAP)
                continue
            self.buttons[command] = self._button(actions[command], icon_name, theme)
            self.buttons[command].setCheckable(is_checkable)
            row.addWidget(self.buttons[command])
        row.addStretch(1)
        self._area = area
        for news in (area.view_count_or_link_changed, area.viewer.shown_image_changed, area.switches.changed):
            news.connect(self._refresh)
        self._refresh()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit()

    def _fit(self) -> None:
        """Hide tool buttons that do not fit. The tool in use is never hidden."""
        room = (self.width() - 3 * _GAP - 2 * _GAP) // _BUTTON_ROOM
        in_use = f"tool_{self._area.switches.tool}"
        ranked = sorted((rank, command) for command, _, _, rank in _BUTTONS if rank and command != in_use)
        hidden = {command for _, command in ranked[: max(len(self.buttons) - room, 0)]}
        for command, button in self.buttons.items():
            button.setVisible(command not in hidden)

    def _button(self, action: QAction, icon_name: str, theme: Theme) -> QToolButton:
        button = QToolButton()
        button.setIcon(icon(icon_name, theme))
        button.setIconSize(QSize(18, 18))
        button.setAutoRaise(True)
        connect_button(button, action)
        return button

    def _refresh(self) -> None:
        area, switches = self._area, self._area.switches
        pressed: dict[str, bool] = {
            **{f"tool_{tool}": tool == switches.tool for tool in LEFT_BUTTON_TOOLS},
            **{name: getattr(switches, name) for name in _SWITCHES if name in self.buttons},
            "network_view": area.viewer.shows_network_view,
            "keep_image": area.has_second_image,
            "link": area.is_linked,
        }
        for command, is_pressed in pressed.items():
            self.buttons[command].setChecked(is_pressed)
        self.buttons["link"].setEnabled(area.has_second_image)
        self._fit()


# ---- a picture of the visible part of an image with its overlays, copied or printed

_PIXELS_PER_POINT: Final = 2.0  # minimum resolution, more than that of a screen


def draw_picture(viewer: Viewer, translator: Translator) -> QImage | None:
    """Return a picture of what a viewer shows, with the notice *research use only*; None without an image."""
    pyramid, font = viewer.pyramid, scaled_font(viewer.font(), 0.92)
    if pyramid is None:
        return None
    size, ratio = viewer.size(), max(_PIXELS_PER_POINT, viewer.devicePixelRatio())
    strip = QRect(0, size.height(), size.width(), 2 * QFontMetrics(font).height())
    picture = QImage((size + QSize(0, strip.height())) * ratio, QImage.Format.Format_RGB32)
    picture.setDevicePixelRatio(ratio)
    picture.fill(colour("dark", "image"))
    painter = QPainter(picture)
    with preserve_painter_state(painter):
        painter.setClipRect(viewer.rect())
        viewer.draw(painter, pyramid)
    painter.setFont(font)
    painter.setPen(colour("dark", "on_image"))
    painter.drawText(strip, Qt.AlignmentFlag.AlignCenter, research_only_notice(translator))
    painter.end()
    return picture


def copy_picture(viewer: Viewer, translator: Translator, board: NoticeBoard) -> None:
    """Copy a picture of a viewer to the clipboard, and show a notice that the picture was copied."""
    picture = draw_picture(viewer, translator)
    if picture is not None:
        QGuiApplication.clipboard().setImage(picture)
        board.post("copied", lambda t: t.text("The image was copied to the clipboard as shown."))


def print_picture(viewer: Viewer, translator: Translator) -> None:
    """Ask a person for a printer or a PDF file, and print a picture of a viewer."""
    from PySide6.QtPrintSupport import QPrintDialog, QPrinter

    picture = draw_picture(viewer, translator)
    if picture is None:
        return
    printer = QPrinter(QPrinter.PrinterMode.HighResolution)
    printer.setDocName("Fieldray")  # no patient's name, because the printer's queue shows the title
    is_wide = picture.width() > picture.height()
    printer.setPageOrientation(QPageLayout.Orientation.Landscape if is_wide else QPageLayout.Orientation.Portrait)
    dialog = QPrintDialog(printer, viewer.window())
    dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
    dialog.accepted.connect(lambda: draw_picture_on_page(printer, picture))
    dialog.setModal(True)
    dialog.show()


def draw_picture_on_page(page: QPaintDevice, picture: QImage) -> None:
    """Draw a picture at the top of a printed page, as large as possible."""
    painter = QPainter(page)
    room = painter.viewport()
    size = picture.size().scaled(room.size(), Qt.AspectRatioMode.KeepAspectRatio)
    painter.setRenderHint(QPainter.RenderHint.SmoothPixmapTransform)
    painter.drawImage(QRect((room.width() - size.width()) // 2, 0, size.width(), size.height()), picture)
    painter.end()
