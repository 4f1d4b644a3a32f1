"""Verdicts between the window and the store: carries out what their playbook commands, and says what is not saved.

And which images were read: that is noted in the same place, and needs no playbook.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from PySide6.QtCore import QObject, QTimer, Signal
from PySide6.QtWidgets import QApplication

from fieldray.desktop.background import Background
from fieldray.desktop.list_reader import WorkRow, image_title
from fieldray.desktop.notices import Action, NoticeBoard
from fieldray.desktop.open_image import OpenImage
from fieldray.desktop.verdicts import Commands, Given, Judged, Read, Verdicts, Write
from fieldray.domain.run import VerdictChoice
from fieldray.errors import FieldrayError
from fieldray.settings import Settings
from fieldray.translation import Translator

_CHANNEL = "verdict"
_READ_MS: Final = 2000


class Judging(QObject):
    """`changed` names the image whose verdict stands otherwise; `settled`: nothing is being saved any more."""

    changed = Signal(object)
    settled = Signal()

    def __init__(self, background: Background, board: NoticeBoard, settings: Settings) -> None:
        super().__init__()
        self._background, self._board, self._settings = background, board, settings
        self.verdicts = Verdicts()
        self._shown: list[tuple[Judged, object]] = []

    @property
    def is_saving(self) -> bool:
        return any(given.state == "saving" for _, given in self.verdicts.unsaved())

    # ---- a person

    def open(self, row: WorkRow | None) -> None:
        """This image is open; what was typed on the one before is saved with that one."""
        can_be_judged = row is not None and bool(row.outcome.facts.content_sha256)  # a verdict belongs to these bytes
        judged = Judged(row.row_id, row.outcome) if row is not None and can_be_judged else None
        self._carry_out(self.verdicts.open(judged, row.verdict if row else None), judged)

    def type(self, note: str) -> None:
        """The note on the open image, as far as it is typed."""
        self.verdicts.type(note)
        self._carry_out((), self.verdicts.open_image)

    def commit(self) -> None:
        """What was typed is to be saved now."""
        self._carry_out(self.verdicts.commit(), self.verdicts.open_image)

    def choose(self, choice: VerdictChoice) -> None:
        """Give this verdict on the open image, or take it back if it was given."""
        self._carry_out(self.verdicts.choose(choice), self.verdicts.open_image)

    def insist(self, *images: Judged) -> None:
        """Save what was not saved: try again, or put it in the place of what another window said."""
        for judged in images:
            self._carry_out(self.verdicts.insist(judged), judged)

    def give_in(self, judged: Judged) -> None:
        """Withdraw what was not saved."""
        self._carry_out(self.verdicts.give_in(judged), judged)

    # ---- the store

    def _carry_out(self, commands: Commands, *about: Judged | None) -> None:
        for command in commands:
            self._begin(command)
        for judged in {*about, *(command.judged for command in commands)} - {None}:
            self.changed.emit(judged)
        self._show_unsaved()
        if not self.is_saving:
            self.settled.emit()

    def _begin(self, command: Read | Write) -> None:
        judged, row_id, outcome = command.judged, command.judged.row_id, command.judged.outcome
        if isinstance(command, Read):
            self._background.ask(
                lambda services: services.work_list.asked(lambda query: query.verdict(row_id, outcome)),
                channel=_CHANNEL,
                done=lambda stored: self._carry_out(self.verdicts.found(judged, stored), judged),
                # The verdict read with the row stays: what is newer is found when one is written over it.
                failed=lambda _: None,
            )
            return
        verdict, over = command.verdict, command.over
        self._background.ask(
            lambda services: services.session.set_verdict(row_id, verdict, judged=outcome, over=over),
            channel=_CHANNEL,
            done=lambda stored: self._carry_out(self.verdicts.written(judged, stored), judged),
            failed=lambda error: self._carry_out(self.verdicts.failed(judged, error.reason), judged),
        )

    # ---- what is not saved

    def _show_unsaved(self) -> None:
        """A notice says it as soon as there is something new to be said, whichever image is open by then."""
        lost = [(judged, given) for judged, given in self.verdicts.unsaved() if given.state == "not_saved"]
        now: list[tuple[Judged, object]] = [(judged, given.problem or given.stored) for judged, given in lost]
        before, self._shown = self._shown, now
        if now == before:
            return
        if not lost:
            self._board.withdraw(_CHANNEL)
            return
        refused = [judged for judged, given in lost if given.problem is not None]
        again = Action(lambda t: t.text("Try again"), lambda: self.insist(*refused))
        text = partial(self._sentences, lost[-3:], len(lost))
        self._board.post(_CHANNEL, text, level="error", action=again if refused else None)

    def _sentences(self, lost: Sequence[tuple[Judged, Given]], count: int, translator: Translator) -> str:
        said = [self.sentence(translator, *each) for each in lost]
        if count > len(lost):
            said.append(translator.plural("{count} verdict is not saved.", "{count} verdicts are not saved.", count))
        return " ".join(said)

    def sentence(self, translator: Translator, judged: Judged, given: Given) -> str:
        """How it stands with an image, by its name."""
        is_hidden = bool(self._settings["hide_patient"])
        image = image_title(translator, judged.row_id, judged.outcome, hides_patient=is_hidden)
        if given.state == "saving":
            return translator.text("Your verdict on {image} is being saved.", image=image)
        if given.asks:
            return translator.text("Another window changed the verdict on {image}. Open it to choose.", image=image)
        if given.wanted is None:
            said = translator.text("Your verdict on {image} is not withdrawn.", image=image)
        else:
            said = translator.text("Your verdict on {image} is not saved.", image=image)
        return f"{said} {translator.reason(given.problem)}" if given.problem else said


class Reading(QObject):
    """What a person has read: it was open before their eyes for two seconds, or they went on from it, or judged it.

    `changed` names the row that is read or unread now.
    """

    changed = Signal(object)

    def __init__(self, background: Background, board: NoticeBoard, image: OpenImage) -> None:
        super().__init__()
        self._background, self._board, self._image = background, board, image
        self._soon = QTimer(self, singleShot=True, interval=_READ_MS)
        self._soon.timeout.connect(self._look)
        image.changed.connect(self._soon.stop)
        image.loaded.connect(self._soon.start)

    def toggle(self) -> None:
        """The open image is to be read once more, or needs not."""
        row = self._image.row
        if row is not None and row.verdict is not None:
            self._board.post(_CHANNEL, lambda t: t.text("Your verdict is on this image: it counts as read."))
        elif row is not None:
            self._soon.stop()
            self.note(is_read=not row.is_read)

    def note(self, *, is_read: bool = True) -> None:
        """Keep that the open image is read, or is not."""
        row = self._image.row
        if row is None or row.is_read == is_read:
            return
        outcome = row.outcome
        self._show(row, is_read=is_read)
        self._background.ask(
            lambda services: services.session.set_read(row.row_id, judged=outcome, is_read=is_read),
            channel=_CHANNEL,
            failed=partial(self._not_noted, row, is_read),
        )

    def _look(self) -> None:
        if QApplication.activeWindow() is None:  # nobody looks
            self._soon.start()
        else:
            self.note()

    def _show(self, row: WorkRow, *, is_read: bool) -> None:
        row.is_read = is_read
        self.changed.emit(row)

    def _not_noted(self, row: WorkRow, was_read: bool, error: FieldrayError) -> None:
        self._show(row, is_read=not was_read)
        self._board.post_error("reading", error)
