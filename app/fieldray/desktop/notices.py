"""Notices to the person who uses the window, and the banners that show the notices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from PySide6.QtCore import QEvent, QObject, Signal
from PySide6.QtWidgets import QApplication, QFrame, QSystemTrayIcon, QWidget

from fieldray.desktop.style import Theme, icon, program_icon
from fieldray.desktop.widgets import (
    column_layout,
    icon_label,
    make_label,
    push_button,
    remove_widgets,
    row_layout,
    show_tray_message,
)
from fieldray.domain.finding import WORK_LIST_ORDER
from fieldray.errors import FieldrayError
from fieldray.formatting import category_label
from fieldray.reasons import Reason
from fieldray.translation import LocalText, Translator

if TYPE_CHECKING:
    from fieldray.desktop.worklist_model import WorkListModel

NoticeLevel = Literal["info", "warning", "error"]


@dataclass(frozen=True, eq=False, slots=True)
class NoticeAction:
    """A button on a notice in the window.

    text                      function that returns the text of the button in a language
    command                   function called after a click
    keeps_notice_until_click  whether the program waits for a click on the button; the notice then stays visible
    """

    text: LocalText
    command: Callable[[], object]
    keeps_notice_until_click: bool = False


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Notice:
    """One message to the person who uses the window.

    key     identifies the subject; a later notice with an equal key replaces this notice
    level   severity: "info", "warning" or "error"
    text    function that returns the message in a language
    action  button of the notice, or None
    """

    key: str
    level: NoticeLevel
    text: LocalText
    action: NoticeAction | None = None


class NoticeBoard(QObject):
    """The notices that the window shows now, the newest notice last."""

    changed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self._notices: dict[str, Notice] = {}

    @property
    def notices(self) -> tuple[Notice, ...]:
        """The notices that the window shows now, the newest notice last."""
        return tuple(self._notices.values())

    def post(
        self, key: str, text: LocalText, *, level: NoticeLevel = "info", action: NoticeAction | None = None
    ) -> None:
        """Show a notice in the window. The notice replaces a notice with an equal key.

        The parameters are the fields of `Notice`.
        """
        self._notices.pop(key, None)
        self._notices[key] = Notice(key=key, level=level, text=text, action=action)
        self.changed.emit()

    def post_reason(
        self, key: str, why: Reason, *, level: NoticeLevel = "error", action: NoticeAction | None = None
    ) -> None:
        """Show the sentence of a `Reason` as a notice in the window.

        The other parameters are the fields of `Notice`.
        """
        self.post(key, lambda translator: translator.reason(why), level=level, action=action)

    def post_error(self, key: str, error: FieldrayError, *, action: NoticeAction | None = None) -> None:
        """Show the reason of an error as a notice in the window. An error without a reason is reported as a bug.

        The other parameters are the fields of `Notice`.
        """
        if error.reason.code != "internal":
            self.post_reason(key, error.reason, action=action)

    def withdraw(self, key: str) -> None:
        """Remove the notice with this key, if the board has such a notice."""
        if self._notices.pop(key, None):
            self.changed.emit()

    def withdraw_by_prefix(self, start: str) -> None:
        """Remove all notices whose key begins with `start`, because newer work makes them obsolete."""
        for key in [key for key in self._notices if key.startswith(start)]:
            self.withdraw(key)


_SIGNS = {"info": "information", "warning": "warning", "error": "warning"}  # the most severe level last


class Banner(QFrame):
    """The widget that shows one notice."""

    def __init__(self, notice: Notice, board: NoticeBoard, translator: Translator, theme: Theme) -> None:
        super().__init__()
        self.setObjectName("banner")
        self.setProperty("level", notice.level)
        self.sentence = make_label()
        sign = icon_label(icon(_SIGNS[notice.level], theme), side=20)
        layout = row_layout(self, sign, (self.sentence, 1), margins=(12, 6, 8, 6))
        if (action := notice.action) is not None:
            self.button = push_button(action.text(translator), partial(board.withdraw, notice.key))
            self.button.clicked.connect(lambda _=False: action.command())
            layout.addWidget(self.button)
        dismiss, cross = partial(board.withdraw, notice.key), icon("close", theme)
        layout.addWidget(push_button("", dismiss, icon=cross, accessible_name=translator.text("Dismiss")))


class BannerArea(QWidget):
    """The part of the window with the notices.

    The newest of the most severe notices and every notice that needs an answer are always visible. All other notices
    are hidden. A button shows the number of hidden notices and makes them visible.
    """

    def __init__(self, board: NoticeBoard, translator: Translator, theme: Theme) -> None:
        super().__init__()
        self._board, self._translator, self._theme = board, translator, theme
        self._banners: dict[Notice, Banner] = {}
        self._is_unfolded = False
        self._shown: Sequence[Notice] = ()
        self.more_button = push_button("", self._turn, role="fold")
        banners = QWidget()
        self._layout = column_layout(banners, spacing=0)
        row_layout(
            self, self.more_button, (banners, 1), margins=(8, 0, 0, 0), spacing=8
        )  # the buttons that close notices do not move
        board.changed.connect(self.refresh)
        self.refresh()

    def show_all_notices(self) -> None:
        """Show the hidden notices, or hide these notices again after a second click on the button."""
        self._is_unfolded = True
        self.refresh()

    def _turn(self) -> None:
        self._is_unfolded = not self._is_unfolded
        self.refresh()

    def refresh(self) -> None:
        """Show the current notices of the notice board. While names are hidden, no notice names a patient."""
        notices = self._board.notices
        for notice in notices:
            self._keep_banner(notice)
        for notice in [known for known in self._banners if known not in notices]:
            remove_widgets(self._banners.pop(notice))
        for notice in notices:
            if notice not in self._banners:
                self._banners[notice] = Banner(notice, self._board, self._translator, self._theme)
                self._layout.insertWidget(0, self._banners[notice])
            self._banners[notice].sentence.setText(notice.text(self._translator))
        self._shown = self._never_folded(notices)
        folded = len(notices) - len(self._shown)
        self._is_unfolded = self._is_unfolded and folded > 0
        for notice in notices:
            self._banners[notice].setVisible(notice in self._shown or self._is_unfolded)
        more = self._translator.plural("{count} more message", "{count} more messages", folded)
        self.more_button.setText(self._translator.text("Collapse the messages") if self._is_unfolded else more)
        self.more_button.setIcon(icon("open" if self._is_unfolded else "folded", self._theme))
        self.more_button.setVisible(folded > 0)
        self.setVisible(bool(notices))

    def leaveEvent(self, event: QEvent) -> None:
        """Show the notices that arrived while the mouse pointer was over this part of the window."""
        super().leaveEvent(event)
        self.refresh()

    def _never_folded(self, notices: Sequence[Notice]) -> Sequence[Notice]:
        """Return the notices that stay visible: the newest of the most severe notices, and all that need an answer.

        While the mouse pointer is over the notices, the visible notices do not change, because a person may be about to
        click.
        """
        keys = {notice.key for notice in self._shown} if self.underMouse() else ()
        staying = [notice for notice in notices if notice.key in keys]
        gravest = max(reversed(notices), key=lambda notice: [*_SIGNS].index(notice.level), default=None)
        return staying or [
            one for one in notices if one is gravest or (one.action and one.action.keeps_notice_until_click)
        ]

    def _keep_banner(self, notice: Notice) -> None:
        """Keep the banner if only the text of its notice has changed, as a person may be about to click its button.

        notice  the newer notice
        """
        if notice in self._banners or notice.action is None:
            return
        for known in list(self._banners):
            if known.key == notice.key and known.action is notice.action and known.level == notice.level:
                self._banners[notice] = self._banners.pop(known)


# ---- notifications of the operating system

NotifyRunEnd = Callable[[QWidget, str, str], None]


def run_end_texts(translator: Translator, rows: WorkListModel) -> tuple[str, str]:
    """Return title and text of the message at the end of a run. The text says how many images are to be read first."""
    counts = rows.class_counts()
    found = (f"{category_label(translator, each, None)}: {counts[each]}" for each in WORK_LIST_ORDER if counts[each])
    return translator.text("The run has ended"), ", ".join(found)


def notify_run_end(window: QWidget, title: str, caption: str) -> None:
    """Mark the window in the taskbar at the end of a run, and show a notification of the operating system.

    A click on the notification activates the window. On a system without notifications, only the window is marked. The
    notification needs a tray icon, which is removed when the window is active.
    """
    QApplication.alert(window)
    if not QSystemTrayIcon.isSystemTrayAvailable() or not QSystemTrayIcon.supportsMessages():
        return
    for before in window.findChildren(QSystemTrayIcon):
        before.deleteLater()
    sign = QSystemTrayIcon(program_icon(), window)
    sign.messageClicked.connect(window.activateWindow)
    sign.activated.connect(window.activateWindow)
    QApplication.instance().focusChanged.connect(sign.deleteLater)  # type: ignore[union-attr]
    sign.show()
    show_tray_message(sign, title, caption)
