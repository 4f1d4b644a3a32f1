"""The images in sight: the open one, and beside it one that was kept from the list, with linked window and zoom.

The list goes on with the open image while the other stays. Keys act on the one that has the focus, on the open one
while the list has it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import get_args

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QHBoxLayout, QSplitter, QVBoxLayout, QWidget

from fieldray.desktop.comparing import Comparing
from fieldray.desktop.icons import icon
from fieldray.desktop.image_painting import like_window
from fieldray.desktop.open_image import OpenImage
from fieldray.desktop.prior_view import PriorView, day_words
from fieldray.desktop.style import Theme
from fieldray.desktop.view_state import ViewState
from fieldray.desktop.viewer import Tool, Viewer
from fieldray.desktop.widgets import PlainLabel, name_surface, plain, push_button, set_tip
from fieldray.desktop.work_row import WorkRow
from fieldray.formatting import date, file_name, person
from fieldray.translation import Translator


class ImageArea(QWidget):
    """One view, or two beside each other."""

    link_changed = Signal(bool)
    kept_changed = Signal(bool)

    def __init__(
        self, image: OpenImage, kept: OpenImage, comparing: Comparing, translator: Translator, theme: Theme
    ) -> None:
        super().__init__()
        self._image, self._kept, self._comparing, self._translator = image, kept, comparing, translator
        self.is_linked = True
        self.viewer, self.beside = Viewer(image, translator, theme), Viewer(kept, translator, theme)
        self.prior_view = PriorView(comparing, image, self.viewer, translator)
        self.beside.setAccessibleName(translator.text("Image kept for comparison"))
        close = push_button("", picture=icon("close", theme))
        close.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        close.setAccessibleName(translator.text("Close the kept image"))
        set_tip(close, translator.text("Close the kept image"))
        close.clicked.connect(lambda: self._kept.show(None))
        self._heads = _Head(None), _Head(close)
        self._splitter = QSplitter(Qt.Orientation.Horizontal)
        self._splitter.setChildrenCollapsible(False)
        self._parts = [_under(head, viewer) for head, viewer in zip(self._heads, self.viewers, strict=True)]
        for part in self._parts:
            self._splitter.addWidget(part)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(self._splitter)
        self._connect()
        self._show_kept()

    @property
    def viewers(self) -> tuple[Viewer, Viewer]:
        """The open image's, and the kept one's."""
        return self.viewer, self.beside

    @property
    def active(self) -> Viewer:
        """The one that keys act on."""
        return self.beside if self.beside.hasFocus() else self.viewer

    @property
    def has_kept(self) -> bool:
        """Whether there is an image beside the open one."""
        return self._kept.row is not None

    def commands(self) -> dict[str, Callable[[], None]]:
        """What the keys of the image and of the mouse do."""

        def acting(act: Callable[..., None], *values: object) -> Callable[[], None]:
            return lambda: act(self.active, *values)

        def turned(change: Callable[[ViewState], ViewState]) -> Callable[[], None]:
            return lambda: self.active.apply(change(self.active.state))

        tools: tuple[Tool, ...] = get_args(Tool)
        return {
            "heat_map": lambda: self.show_heat_map(not self.viewer.shows_heat_map),
            "lung_outline": lambda: self.show_outline(not self.viewer.shows_outline),
            "network_view": lambda: self.active.show_network_view(not self.active.shows_network_view),
            "magnifier": lambda: self._on_both(Viewer.show_magnifier, not self.viewer.shows_magnifier),
            "keep_beside": self.keep_or_close,
            "link": self._link_or_unlink,
            "invert": turned(ViewState.inverse),
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
            "fit": turned(ViewState.fitted),
            "reset": acting(Viewer.reset),
            "undo": acting(Viewer.undo),
            "narrower": acting(Viewer.change_window, -1, 0),
            "wider": acting(Viewer.change_window, 1, 0),
            "brighter": acting(Viewer.change_window, 0, 1),
            "darker": acting(Viewer.change_window, 0, -1),
            "mark": acting(Viewer.mark),
            **self.prior_view.commands(),
            **{f"tool_{tool}": partial(self._on_both, Viewer.set_tool, tool) for tool in tools},
            **{f"preset_{number}": acting(Viewer.set_preset, number) for number in range(1, 6)},
        }

    # ---- both images

    def show_heat_map(self, shown: bool) -> None:
        """Show or hide the heat maps."""
        self._on_both(Viewer.show_heat_map, shown)

    def show_outline(self, shown: bool) -> None:
        """Show or hide the outlines of the lungs."""
        self._on_both(Viewer.show_outline, shown)

    def set_opacity(self, percent: int) -> None:
        """Opacity of the heat maps, 0 to 100."""
        self._on_both(Viewer.set_opacity, percent)

    def set_hide_patient(self, hidden: bool) -> None:
        """Show or hide names and numbers."""
        for viewer in self.viewers:
            viewer.hide_patient = hidden
            viewer.update()
        self._name()

    def cancel(self) -> None:
        """Take back what is under way: a drag, a line."""
        for viewer in self.viewers:
            viewer.cancel_drag()

    def keep_or_close(self) -> None:
        """Keep the open image beside the others of the list, or close the kept one."""
        self._kept.show(self._image.row if self._kept.row is None else None)

    # ---- inside

    def _connect(self) -> None:
        """To methods alone: the images outlive this window, and Qt forgets a method with its widget."""
        self.viewer.state_changed.connect(self._kept_follows)
        self.beside.state_changed.connect(self._open_follows)
        self._image.changed.connect(self._name)
        self._image.loaded.connect(self._open_follows)
        self._kept.changed.connect(self._show_kept)
        self._kept.loaded.connect(self._kept_follows)
        self.prior_view.changed.connect(self._show_kept)
        self.prior_view.changed.connect(self._kept_follows)

    def _open_follows(self) -> None:
        self._follow(self.beside, self.viewer)

    def _kept_follows(self) -> None:
        self._follow(self.viewer, self.beside)

    def _on_both(self, act: Callable[..., None], value: object) -> None:
        for viewer in self.viewers:
            act(viewer, value)

    def _link_or_unlink(self) -> None:
        self.is_linked = not self.is_linked
        self.link_changed.emit(self.is_linked)
        if self.active is self.viewer:
            self._kept_follows()
        else:
            self._open_follows()

    def _follow(self, leader: Viewer, follower: Viewer) -> None:
        """Show one image as near, at the same place and in the like window as the other."""
        shown, other = leader.picture, follower.picture
        if not self.is_linked or shown is None or other is None or not self.has_kept:
            return
        window = like_window(leader.state.window, shown, other)
        state = follower.state.following(
            leader.state,
            window,
            image=follower.image_size,
            other_image=leader.image_size,
            place=self._comparing.place(to_prior=follower is self.beside),
        )
        follower.follow(state)

    def _show_kept(self) -> None:
        comes_soon = self._comparing.is_looking and self._parts[1].isVisibleTo(self)
        is_kept = self.has_kept or comes_soon
        is_seen = is_kept and self.prior_view.mode == "beside"
        if not is_seen and self.beside.hasFocus():
            self.viewer.setFocus()
        self._parts[1].setVisible(is_seen)
        for head in self._heads:
            head.setVisible(is_seen)
        self.kept_changed.emit(is_kept)
        self._name()

    def _name(self) -> None:
        """Say above each image which one it is, and of which day."""
        translator = self._translator
        prior = self._comparing.prior
        if prior is not None:  # names stand in the corners of both; here is room for the days
            rows = (self._image.row, self._kept.row)
            days = [day_words(translator, row.header) if row else "" for row in rows]
            texts = translator.text("Open: {image}", image=days[0]), translator.text("Prior: {day}", day=days[1])
        else:
            named = translator.text("Open: {image}"), translator.text("Kept: {image}")
            opened, kept = (
                text.replace("{image}", self._words(image.row)) if image.row else ""
                for text, image in zip(named, (self._image, self._kept), strict=True)
            )
            texts = opened, kept
        for head, words in zip(self._heads, texts, strict=True):
            head.name.setText(plain(words))

    def _words(self, row: WorkRow) -> str:
        whose = "" if self.viewer.hide_patient else person(row.header.patient_name) or file_name(row.outcome.ref)
        day = date(self._translator, row.header.study_date)
        return ", ".join(part for part in (whose, day) if part)


class _Head(QWidget):
    """The line above an image, with a button to close it where it can be."""

    def __init__(self, close: QWidget | None) -> None:
        super().__init__()
        name_surface(self, "panel")
        self.name = PlainLabel()
        self.name.setMinimumWidth(1)
        row = QHBoxLayout(self)
        row.setContentsMargins(10, 4, 6, 4)
        row.addWidget(self.name, 1)
        if close is not None:
            row.addWidget(close)
        self.setFixedHeight(44)


def _under(head: QWidget, viewer: Viewer) -> QWidget:
    part = QWidget()
    column = QVBoxLayout(part)
    column.setContentsMargins(0, 0, 0, 0)
    column.setSpacing(0)
    column.addWidget(head)
    column.addWidget(viewer, 1)
    return part
