"""The bar over a pair: both dates and the time between, what the pair cannot show, how it is looked at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from PySide6.QtCore import Qt
from PySide6.QtGui import QAction
from PySide6.QtWidgets import QHBoxLayout, QVBoxLayout, QWidget

from fieldray.desktop.comparing import Comparing
from fieldray.desktop.icons import icon
from fieldray.desktop.prior_view import PriorView, day_words, problem_words
from fieldray.desktop.style import Theme
from fieldray.desktop.widgets import PlainButton, label, name_surface, push_button, set_tip
from fieldray.formatting import differences_only, gap_of_pair
from fieldray.translation import Translator

_MODES: Final = ("beside", "swipe", "blink", "difference")


class PriorBar(QWidget):
    """In sight as long as a prior image is compared with the open one."""

    def __init__(
        self,
        comparing: Comparing,
        view: PriorView,
        actions: Mapping[str, QAction],
        translator: Translator,
        theme: Theme,
    ) -> None:
        super().__init__()
        name_surface(self, "panel")
        self._comparing, self._view, self._translator = comparing, view, translator
        self.dates, self.doubts = label(role="heading"), label(role="warning")
        self.state, self.notice = label(), label(differences_only(translator), role="muted")
        self.buttons = self._make_buttons(actions)
        close = push_button("", picture=icon("close", theme))
        close.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        close.setAccessibleName(translator.text("Stop comparing"))
        set_tip(close, actions["prior"].toolTip())
        close.clicked.connect(comparing.stop)
        first, modes = QHBoxLayout(), QHBoxLayout()
        first.addWidget(self.dates, 1)
        first.addWidget(close, 0, Qt.AlignmentFlag.AlignTop)
        modes.setSpacing(6)
        for button in self.buttons.values():
            modes.addWidget(button, 1)
        column = QVBoxLayout(self)
        column.setContentsMargins(10, 6, 6, 6)
        column.setSpacing(4)
        column.addLayout(first)
        for widget in (self.doubts, self.state):
            column.addWidget(widget)
        column.addLayout(modes)
        column.addWidget(self.notice)
        comparing.changed.connect(self._refresh)
        view.changed.connect(self._refresh)
        self._refresh()

    def _make_buttons(self, actions: Mapping[str, QAction]) -> dict[str, PlainButton]:
        text = self._translator.text
        titles = {
            "prior_beside": text("Side by side"),
            "prior_swipe": text("Swipe"),
            "prior_blink": text("Blink"),
            "prior_difference": text("Difference"),
            "prior_mesh": text("Mesh"),
        }
        buttons = {}
        for command, title in titles.items():
            button = push_button(title, role="choice")
            button.setCheckable(True)
            button.setFocusPolicy(Qt.FocusPolicy.TabFocus)
            button.setAccessibleDescription(actions[command].iconText())
            set_tip(button, actions[command].toolTip())
            button.clicked.connect(actions[command].trigger)
            buttons[command] = button
        return buttons

    def _refresh(self) -> None:
        comparing, row, prior = self._comparing, self._comparing.row, self._comparing.prior
        self.setVisible(comparing.is_on and row is not None)
        if not comparing.is_on or row is None:
            return
        translator = self._translator
        if prior is None:
            self.dates.setText(translator.text("Open: {image}", image=day_words(translator, row.header)))
        else:
            self.dates.setText(
                translator.text(
                    "Open: {open}. Prior: {prior}, {gap}",
                    open=day_words(translator, row.header),
                    prior=day_words(translator, prior.header),
                    gap=gap_of_pair(translator, prior.header, row.header),
                )
            )
        doubts = [translator.reason(doubt) for doubt in comparing.doubts]
        self.doubts.setText(*doubts)
        self.doubts.setVisible(bool(doubts))
        self.state.setText(self._state())
        self.state.setVisible(bool(self.state.text()))
        can_lay = comparing.laid is not None
        for mode in _MODES:
            button = self.buttons[f"prior_{mode}"]
            button.setChecked(self._view.mode == mode)
            button.setEnabled(can_lay or mode == "beside")
        self.buttons["prior_mesh"].setChecked(self._view.shows_mesh)
        self.buttons["prior_mesh"].setEnabled(can_lay)

    def _state(self) -> str:
        comparing, translator = self._comparing, self._translator
        if comparing.prior is None:
            if comparing.is_searching:
                return translator.text("Looking for prior images…")
            none = comparing.none_found
            return translator.reason(none) if none else ""
        if comparing.problem is not None:
            return problem_words(translator, comparing)
        if comparing.laid is not None:
            return ""
        return translator.text("Comparing…")
