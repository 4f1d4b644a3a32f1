"""Control of verdicts: saving in the background, and reports of verdicts that could not be saved.

The state machine in `verdicts` decides what is saved. This module also records which images were read, and contains the
verdict bar and the question before an unsaved verdict is discarded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, get_args

from PySide6.QtCore import QObject, QTimer, Signal
from PySide6.QtWidgets import QApplication, QLineEdit, QWidget

from fieldray.desktop.background import BackgroundTasks
from fieldray.desktop.current_image import CurrentImage
from fieldray.desktop.notices import NoticeAction
from fieldray.desktop.verdicts import (
    Commands,
    ReadVerdictCommand,
    SavingState,
    Verdicts,
    VerdictState,
    VerdictSubject,
    WriteVerdictCommand,
)
from fieldray.desktop.widgets import (
    PlainButton,
    column_layout,
    make_label,
    push_button,
    question_box,
    row_layout,
    set_tooltip,
    without_markup,
)
from fieldray.desktop.worklist_rows import WorkListRow, image_title
from fieldray.domain.run import Verdict, VerdictChoice
from fieldray.errors import FieldrayError
from fieldray.formatting import verdict_line, verdict_names
from fieldray.reasons import Reason, reason
from fieldray.translation import Translator

_CHANNEL = "verdict"
_NOT_GIVEN: Final = "verdict_not_given"
_READ_MS: Final = 2000


ReasonNotToJudge = Callable[[], Reason | None]  # the reason why no verdict is possible, or None


class VerdictController(QObject):
    """Controls a person's verdicts on the current image, and saves them in the background.

    why_not  function that returns the reason why the image cannot be judged now, or None

    changed                  emitted with the image whose verdict has changed
    verdict_about_to_change  emitted with the current image before its verdict is given or withdrawn
    all_saved                emitted when no verdict is being saved any more
    """

    changed = Signal(object)
    verdict_about_to_change = Signal(object)
    all_saved = Signal()

    def __init__(self, background: BackgroundTasks, why_not: ReasonNotToJudge) -> None:
        super().__init__()
        self._background, self._board, self._why_not = background, background.notice_board, why_not
        self.verdicts = Verdicts()
        self.given_s = 0.0  # time of the last change of a verdict, by the monotonic clock
        self._shown: list[tuple[VerdictSubject, object]] = []

    @property
    def is_saving(self) -> bool:
        """Whether a verdict is being saved."""
        return any(given.saving_state == "saving" for _, given in self.verdicts.unsaved_verdicts())

    # ---- commands of a person

    def set_current_image(self, row: WorkListRow | None) -> None:
        """Make an image the current one; None means that no image is open.

        A typed note on the previous image is saved with the verdict on that image.
        """
        can_be_judged = row is not None and bool(row.outcome.facts.content_sha256)  # a verdict needs file content
        judged = VerdictSubject(row.result_id, row.outcome) if row is not None and can_be_judged else None
        self._carry_out(self.verdicts.set_current_image(judged, row.verdict if row else None), judged)

    def set_draft_note(self, note: str) -> None:
        """Keep in memory the unfinished note that a person is typing on the current image."""
        if self._is_refused():
            self._carry_out((), self.verdicts.open_image)
            return
        self.verdicts.set_draft_note(note)
        self._carry_out((), self.verdicts.open_image)

    def discard_note(self) -> None:
        """Discard the note that was typed on the current image since its verdict was given."""
        self.verdicts.discard_note()
        self._carry_out((), self.verdicts.open_image)

    def save_typed_note(self) -> None:
        """Save the typed note on the current image at once, together with the verdict."""
        self._carry_out(self.verdicts.add_note_to_verdict(), self.verdicts.open_image)

    def give_verdict(self, choice: VerdictChoice) -> None:
        """Give a verdict on the current image, and save the verdict.

        If the image already has this verdict, nothing is written and the panel says so.
        """
        if not self._is_refused():
            self._give(self.verdicts.give_verdict(choice))

    def withdraw_verdict(self) -> None:
        """Withdraw the verdict on the current image, with its note."""
        if not self._is_refused():
            self._give(self.verdicts.withdraw_verdict())

    def undo(self) -> VerdictSubject | None:
        """Undo the last change of a verdict, on any image. Returns the image; None if there is nothing to undo."""
        judged = self.verdicts.last_changed_image
        if judged is not None:
            self._change(self.verdicts.undo(), judged)
            before = self.verdicts.state_for(judged).chosen_verdict
            self._board.post("taken_back", partial(_taken_back, judged, before))
        return judged

    def _give(self, commands: Commands) -> None:
        judged = self.verdicts.open_image
        if commands:
            self.verdict_about_to_change.emit(judged)
        self._change(commands, judged)

    def _change(self, commands: Commands, judged: VerdictSubject | None) -> None:
        self._board.withdraw("taken_back")
        if commands:
            self.given_s = time.monotonic()
        self._carry_out(commands, judged)

    def _is_refused(self) -> bool:
        """Return whether no verdict on the current image is possible now. If so, the reason is shown as a notice."""
        why = self._why_not()
        if why is None:
            self._board.withdraw(_NOT_GIVEN)
        else:
            self._board.post_reason(_NOT_GIVEN, why, level="warning")
        return why is not None

    def keep_own_verdict(self, *images: VerdictSubject) -> None:
        """Save verdicts of this window again, after saving failed or another window saved a different verdict.

        images  images whose verdicts are saved; a verdict that another window saved on one of them is overwritten
        """
        for judged in images:
            self._carry_out(self.verdicts.keep_own_verdict(judged), judged)

    def keep_stored_verdict(self, judged: VerdictSubject) -> None:
        """Discard an unsaved verdict of this window. The verdict in the database then applies."""
        self._carry_out(self.verdicts.keep_stored_verdict(judged), judged)

    # ---- the database

    def _carry_out(self, commands: Commands, *about: VerdictSubject | None) -> None:
        for command in commands:
            self._begin(command)
        for judged in {*about, *(command.judged for command in commands)} - {None}:
            self.changed.emit(judged)
        self._show_unsaved()
        if not self.is_saving:
            self.all_saved.emit()

    def _begin(self, command: ReadVerdictCommand | WriteVerdictCommand) -> None:
        judged, result_id, outcome = command.judged, command.judged.result_id, command.judged.outcome
        if isinstance(command, ReadVerdictCommand):
            self._background.run_with_services(
                lambda services: services.history.run_query(lambda query: query.verdict(result_id, outcome)),
                channel=_CHANNEL,
                done=lambda stored: self._carry_out(self.verdicts.handle_verdict_read(judged, stored), judged),
                # The verdict read with the row stays. A newer verdict is detected when a verdict is written.
                failed=lambda _: None,
            )
            return
        verdict, over = command.verdict, command.replaceable_verdicts
        self._background.run_with_services(
            lambda services: services.session.set_verdict(result_id, verdict, judged=outcome, replaceable=over),
            channel=_CHANNEL,
            done=lambda stored: self._carry_out(self.verdicts.handle_verdict_written(judged, stored), judged),
            failed=lambda error: self._carry_out(self.verdicts.handle_failed_write(judged, error.reason), judged),
        )

    # ---- unsaved verdicts

    def _show_unsaved(self) -> None:
        """Show a notice about unsaved verdicts on all images. The notice changes only if there is a new one."""
        lost = [
            (judged, given) for judged, given in self.verdicts.unsaved_verdicts() if given.saving_state == "not_saved"
        ]
        now: list[tuple[VerdictSubject, object]] = [(judged, given.problem or given.stored) for judged, given in lost]
        before, self._shown = self._shown, now
        if now == before:
            return
        if not lost:
            self._board.withdraw(_CHANNEL)
            return
        refused = [judged for judged, given in lost if given.problem is not None]
        again = NoticeAction(lambda t: t.text("Try again"), lambda: self.keep_own_verdict(*refused))
        text = partial(self._sentences, lost[-3:], len(lost))
        self._board.post(_CHANNEL, text, level="error", action=again if refused else None)

    def _sentences(
        self, lost: Sequence[tuple[VerdictSubject, VerdictState]], count: int, translator: Translator
    ) -> str:
        said = [self.saving_state_sentence(translator, *each) for each in lost]
        if count > len(lost):
            said.append(translator.plural("{count} verdict is not saved.", "{count} verdicts are not saved.", count))
        return " ".join(said)

    def saving_state_sentence(self, translator: Translator, judged: VerdictSubject, given: VerdictState) -> str:
        """Return a sentence that says why the verdict `given` on the image `judged` is not in the database."""
        image = image_title(translator, judged.result_id, judged.outcome)
        if given.saving_state == "saving":
            return translator.text("Your verdict on {image} is being saved.", image=image)
        if given.has_conflict:
            return translator.text(
                "Another window changed the verdict on {image}. To choose between the two verdicts, open the image.",
                image=image,
            )
        if given.chosen_verdict is None:
            said = translator.text("Your verdict on {image} could not be withdrawn.", image=image)
        else:
            said = translator.text("Your verdict on {image} could not be saved.", image=image)
        return f"{said} {translator.reason(given.problem)}" if given.problem else said


def _taken_back(judged: VerdictSubject, verdict: Verdict | None, translator: Translator) -> str:
    """Return a sentence about an undone change of a verdict: the image, and the verdict that applies again.

    verdict  the restored verdict; None if there was none
    """
    image = image_title(translator, judged.result_id, judged.outcome)
    if verdict is None:
        return translator.text("Your verdict on {image} was withdrawn.", image=image)
    said = verdict_names(translator)[verdict.choice]
    return translator.text("Your earlier verdict on {image} was restored: {verdict}.", image=image, verdict=said)


class ReadMarks(QObject):
    """Records which images a person has read. An image counts as read if it was visible for two seconds, or judged.

    changed           emitted with the row whose read mark changed
    is_image_covered  function that returns whether another page covers the image
    """

    changed = Signal(object)

    def __init__(self, background: BackgroundTasks, image: CurrentImage, why_not: ReasonNotToJudge) -> None:
        super().__init__()
        self._background, self._board, self._image, self._why_not = background, background.notice_board, image, why_not
        self.is_image_covered = False
        self._soon = QTimer(self, singleShot=True, interval=_READ_MS)
        self._soon.timeout.connect(self._mark_read_if_visible)
        image.changed.connect(self._soon.stop)
        image.result_replaced.connect(self._soon.stop)
        image.loaded.connect(self._soon.start)

    def toggle(self) -> None:
        """Mark the current image as unread if it is marked as read, and as read otherwise."""
        row, why = self._image.row, self._why_not()
        if row is None or why is not None:
            self._board.post_reason(_NOT_GIVEN, why or reason("not_judged_none"), level="warning")
        elif row.verdict is not None:
            self._board.post(_CHANNEL, lambda t: t.text("This image counts as read, because it has your verdict."))
        else:
            self._soon.stop()
            self._note(self._image.packs[0], is_read=not self._image.packs[0].is_read)

    def mark_read(self) -> None:
        """Record that a person has read the current image."""
        if self._image.row is not None and self._why_not() is None:
            self._note(self._image.packs[0], is_read=True)

    def _note(self, row: WorkListRow, *, is_read: bool) -> None:
        """Store whether the result in a row of the work list was read.

        Does nothing if the row has this state already.
        """
        if row.is_read == is_read:
            return
        outcome = row.outcome
        self._show(row, is_read=is_read)
        self._background.run_with_services(
            lambda services: services.session.set_read_state(row.result_id, judged=outcome, is_read=is_read),
            channel=_CHANNEL,
            failed=partial(self._not_noted, row, is_read),
        )

    def _mark_read_if_visible(self) -> None:
        is_looked_at = QApplication.activeWindow() is not None and QApplication.activeModalWidget() is None
        if is_looked_at and not self.is_image_covered:
            self.mark_read()
        else:
            self._soon.start()

    def _show(self, row: WorkListRow, *, is_read: bool) -> None:
        row.is_read = is_read
        self.changed.emit(row)

    def _not_noted(self, row: WorkListRow, was_read: bool, error: FieldrayError) -> None:
        self._show(row, is_read=not was_read)
        self._board.post_error("reading", error)


# ---- the verdict bar, and the question before an unsaved verdict is discarded

_CHOICES: Final[tuple[VerdictChoice, ...]] = get_args(VerdictChoice)
_LONGEST_NOTE: Final = 500
_PATIENCE_MS: Final = 400  # most verdicts are saved by then, without a question
_MAX_LISTED_VERDICTS: Final = 8


class VerdictBar(QWidget):
    """The widget for the verdict on the current image: three buttons, a note, the state of the verdict, and *Withdraw*.

    In the field for the note, Enter saves the text and Esc discards it. Both keys emit `note_finished`.
    """

    note_finished = Signal()

    def __init__(self, judging: VerdictController, reader: Callable[[], str], translator: Translator) -> None:
        """Make the verdict bar.

        reader  function that returns the name that reports print with a verdict; "" without a name
        """
        super().__init__()
        self._judging, self._reader, self._translator = judging, reader, translator
        self._names = verdict_names(translator)
        self.buttons: dict[VerdictChoice, PlainButton] = {}
        for choice in _CHOICES:
            button = push_button(self._names[choice], partial(judging.give_verdict, choice), role="choice")
            self.buttons[choice] = button
        self.note = QLineEdit()
        self.note.setAccessibleName(translator.text("Note on the verdict"))
        self.note.setMaxLength(_LONGEST_NOTE)
        self.note.textEdited.connect(judging.set_draft_note)
        self.note.editingFinished.connect(judging.save_typed_note)
        self.note.returnPressed.connect(self.note_finished)
        self._meaning, self._how = make_label(), make_label()
        self._why_not = make_label(role="warning")
        self.retry_button = push_button("", lambda: self._answer(judging.keep_own_verdict))
        self.keep_stored_verdict = push_button("", lambda: self._answer(judging.keep_stored_verdict))
        self.withdraw = push_button(translator.text("Withdraw"), judging.withdraw_verdict)
        set_tooltip(self.withdraw, translator.text("Withdraw my verdict") + " (Ctrl+0)")
        choices = row_layout(None, *((button, 1) for button in self.buttons.values()), spacing=6)
        # One below the other, so that long words in a narrow column are not cut.
        answers = column_layout(
            None, self.retry_button, self.keep_stored_verdict, row_layout(None, self.withdraw, 1), spacing=6
        )
        column_layout(self, self._meaning, choices, self.note, self._how, self._why_not, answers)
        judging.changed.connect(self.refresh)
        self.refresh()

    def show_agree_meaning(self, meaning: str) -> None:
        """Show an explanation of *Agree* for the current result; "" hides the explanation."""
        self._meaning.setText(meaning)
        self._meaning.setVisible(bool(meaning))

    def refresh(self, *_: object) -> None:
        """Show the verdict on the current image and its state."""
        verdicts, text = self._judging.verdicts, self._translator.text
        given = verdicts.state_for(verdicts.open_image)
        for choice, button in self.buttons.items():
            button.setChecked(given.chosen_verdict is not None and given.chosen_verdict.choice == choice)
        if self.note.text() != given.note:
            self.note.setText(given.note)
        can_be_noted = given.chosen_verdict is not None
        self.note.setEnabled(can_be_noted)
        self.note.setPlaceholderText(
            text("Note on the verdict") if can_be_noted else text("Give a verdict to add a note")
        )
        captions: dict[SavingState | None, str] = {
            None: self._printed(None),
            "saving": text("Your verdict is being saved…"),
            "saved": text("Your verdict is saved, but the note is not. Press Enter to save the note, or Esc to "
                          "discard the note.")
            if given.has_unsaved_note else text("Your verdict was saved.") + " " + self._printed(given.chosen_verdict),
            "not_saved": "",
        }  # fmt: skip
        is_lost = given.saving_state == "not_saved"
        kept = text("You already gave this verdict. To remove your verdict, press Withdraw.")
        self._how.setText(kept if verdicts.is_repeated else captions[given.saving_state])
        self._why_not.setText(*self._problem(given) if is_lost else ())
        self._how.setVisible(not is_lost)
        for widget in (self._why_not, self.retry_button, self.keep_stored_verdict):
            widget.setVisible(is_lost)
        self.withdraw.setVisible(not is_lost and given.chosen_verdict is not None)
        self.retry_button.setText(text("Save my verdict") if given.has_conflict else text("Try again"))
        keeps = text("Keep my verdict") if given.chosen_verdict is None else text("Withdraw")
        self.keep_stored_verdict.setText(text("Keep the saved verdict") if given.has_conflict else keeps)

    def discard_note(self) -> None:
        """Discard the typed note. Called when a person presses Esc in the field of the note."""
        self._judging.discard_note()
        self.note_finished.emit()

    def _problem(self, given: VerdictState) -> tuple[str, ...]:
        text = self._translator.text
        if given.has_conflict:
            theirs = text(
                "Another window changed the verdict on this image: {verdict}.", verdict=self._verdict_text(given.stored)
            )
            return theirs, text(
                "Your verdict is not saved: {verdict}.", verdict=self._verdict_text(given.chosen_verdict)
            )
        assert given.problem is not None
        said = (
            text("Your verdict could not be saved.")
            if given.chosen_verdict
            else text("Your verdict could not be withdrawn.")
        )
        return (f"{said} {self._translator.reason(given.problem)}",)

    def _printed(self, verdict: Verdict | None) -> str:
        """Return the text that reports will print about a verdict.

        Without a reader's name, the text says where to enter a name.
        """
        text, reader = self._translator.text, self._reader()
        said = text(
            "Reports will say “Verdict of the reader: {verdict}”.",
            verdict=verdict_line(self._translator, verdict, reader=reader),
        )
        named = text("To print your name too, enter your name in the settings.")
        return said if reader or verdict is None else f"{said} {named}"

    def _verdict_text(self, verdict: Verdict | None) -> str:
        if verdict is None:
            return self._translator.text("no verdict")
        return self._names[verdict.choice] + (f" ({verdict.note})" if verdict.note else "")

    def _answer(self, answer: Callable[[VerdictSubject], None]) -> None:
        judged = self._judging.verdicts.open_image
        if judged is not None:
            answer(judged)


def close_when_saved(
    parent: QWidget, judging: VerdictController, translator: Translator, close: Callable[[], None]
) -> None:
    """Save all verdicts, and then call `close`.

    If saving is slow or fails, a person decides whether to discard the unsaved verdicts.

    close  function that closes the window
    """
    judging.save_typed_note()
    if not any(judging.verdicts.unsaved_verdicts()):
        close()
        return

    def give_up() -> None:
        judging.verdicts.discard_unsaved()
        close()

    text = translator.text
    answers = {text("Close without saving"): give_up}
    lost = text("If you close the window now, these verdicts are lost:")
    box = question_box(parent, lost, answers=answers, decline_text=text("Keep the window open"))

    def refresh() -> None:
        lost = list(judging.verdicts.unsaved_verdicts())
        lines = [judging.saving_state_sentence(translator, *each) for each in lost[:_MAX_LISTED_VERDICTS]]
        box.setInformativeText(without_markup(*lines, *(["…"] if len(lost) > _MAX_LISTED_VERDICTS else [])))
        if not lost:
            box.done(0)
            close()

    watched = [judging.changed.connect(refresh)]
    for ended in (box.finished, box.destroyed):  # after an answer, or when a new window replaces the old one
        ended.connect(lambda: watched and judging.changed.disconnect(watched.pop()))
    box.finished.connect(box.deleteLater)
    refresh()
    QTimer.singleShot(_PATIENCE_MS if judging.is_saving else 0, box, box.open)
