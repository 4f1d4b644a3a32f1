"""The small buttons over the image: everything the keys can do, for the mouse."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QAction, QResizeEvent
from PySide6.QtWidgets import QHBoxLayout, QSizePolicy, QToolButton, QWidget

from fieldray.desktop.icons import icon
from fieldray.desktop.image_area import ImageArea
from fieldray.desktop.style import Theme
from fieldray.desktop.widgets import name_surface, set_tip

_GAP: Final = 8
_BUTTON_ROOM: Final = 41

# Command of the key table and its picture; "" leaves a gap.
_BUTTONS: Final = (
    ("tool_window", "window"),
    ("tool_zoom", "zoom"),
    ("tool_pan", "pan"),
    ("tool_measure", "measure"),
    ("magnifier", "magnifier"),
    ("", ""),
    ("heat_map", "heat-map"),
    ("lung_outline", "lungs"),
    ("network_view", "network"),
    ("", ""),
    ("invert", "invert"),
    ("rotate_left", "rotate-left"),
    ("rotate_right", "rotate-right"),
    ("flip_left_right", "flip-horizontal"),
    ("flip_top_bottom", "flip-vertical"),
    ("fit", "fit"),
    ("reset", "reset"),
    ("", ""),
    ("keep_beside", "beside"),
    ("link", "link"),
    ("hide_patient", "hide"),
)


# Left out one after another where there is no room; the menu and the keys still have them.
_LEAVE_OUT: Final = (
    "flip_top_bottom",
    "flip_left_right",
    "rotate_left",
    "rotate_right",
    "fit",
    "link",
    "hide_patient",
    "magnifier",
    "tool_zoom",
    "tool_pan",
    "tool_window",
    "tool_measure",
    "keep_beside",
    "network_view",
    "lung_outline",
)


_CHECKED: Final = (
    "tool_window",
    "tool_zoom",
    "tool_pan",
    "tool_measure",
    "magnifier",
    "heat_map",
    "lung_outline",
    "network_view",
    "keep_beside",
    "link",
)


class ViewTools(QWidget):
    """One row of buttons, as many as there is room for."""

    def __init__(self, area: ImageArea, actions: Mapping[str, QAction], theme: Theme) -> None:
        super().__init__()
        name_surface(self, "panel")
        row = QHBoxLayout(self)
        row.setContentsMargins(_GAP, 6, _GAP, 6)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        row.setSpacing(3)
        self.buttons: dict[str, QToolButton] = {}
        row.addStretch(1)
        for command, picture in _BUTTONS:
            if not command:
                row.addSpacing(_GAP)
                continue
            self.buttons[command] = self._button(actions[command], picture, theme)
            row.addWidget(self.buttons[command])
        row.addStretch(1)
        for command in _CHECKED:
            self.buttons[command].setCheckable(True)
        viewer = area.viewer
        viewer.tool_changed.connect(self._show_tool)
        viewer.heat_map_shown.connect(self.buttons["heat_map"].setChecked)
        viewer.outline_shown.connect(self.buttons["lung_outline"].setChecked)
        viewer.magnifier_shown.connect(self.buttons["magnifier"].setChecked)
        area.kept_changed.connect(self._show_kept)
        area.link_changed.connect(self.buttons["link"].setChecked)
        viewer.network_view_shown.connect(self.buttons["network_view"].setChecked)
        self._show_tool(viewer.tool)
        self.buttons["heat_map"].setChecked(viewer.shows_heat_map)
        self.buttons["link"].setChecked(area.is_linked)
        self._show_kept(area.has_kept)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        room = (self.width() - 3 * _GAP - 2 * _GAP) // _BUTTON_ROOM
        left_out = _LEAVE_OUT[: max(0, len(self.buttons) - room)]
        for command, button in self.buttons.items():
            button.setVisible(command not in left_out)

    def _button(self, action: QAction, picture: str, theme: Theme) -> QToolButton:
        button = QToolButton()
        button.setIcon(icon(picture, theme))
        button.setIconSize(QSize(18, 18))
        button.setAutoRaise(True)
        button.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        set_tip(button, action.toolTip())
        button.setAccessibleName(action.iconText())
        button.clicked.connect(action.trigger)
        return button

    def _show_tool(self, tool: str) -> None:
        for name in ("window", "zoom", "pan", "measure"):
            self.buttons[f"tool_{name}"].setChecked(name == tool)

    def _show_kept(self, is_kept: bool) -> None:
        self.buttons["keep_beside"].setChecked(is_kept)
        self.buttons["link"].setEnabled(is_kept)
