"""What the window has to tell beyond a result: fall-backs, errors, drives. Kept until answered or no longer true."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from PySide6.QtCore import QObject, Signal

from fieldray.errors import FieldrayError
from fieldray.reasons import Reason
from fieldray.translation import Translator

Level = Literal["info", "warning", "error"]
Say = Callable[[Translator], str]


@dataclass(frozen=True, eq=False, slots=True)
class Action:
    """A button on a notice."""

    say: Say
    command: Callable[[], None]


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Notice:
    """One message. `key`: a later notice with the same key takes its place. `say` gives the text in a language."""

    key: str
    level: Level
    say: Say
    action: Action | None = None


class NoticeBoard(QObject):
    """The notices now in force, the newest last."""

    changed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self._notices: dict[str, Notice] = {}

    @property
    def notices(self) -> tuple[Notice, ...]:
        return tuple(self._notices.values())

    def post(self, notice: Notice) -> None:
        """Show a notice."""
        self._notices.pop(notice.key, None)
        self._notices[notice.key] = notice
        self.changed.emit()

    def post_reason(self, key: str, why: Reason, *, level: Level = "error", action: Action | None = None) -> None:
        """Show a reason as a notice."""
        self.post(Notice(key=key, level=level, say=lambda translator: translator.reason(why), action=action))

    def post_error(self, key: str, error: Exception, *, action: Action | None = None) -> None:
        """Show why something did not work. Anything without a reason is our bug: it is raised again."""
        if not isinstance(error, FieldrayError):
            raise error
        self.post_reason(key, error.reason, action=action)

    def withdraw(self, key: str) -> None:
        """Take a notice away, if it is there."""
        if self._notices.pop(key, None):
            self.changed.emit()
