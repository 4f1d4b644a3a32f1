"""Where a person gives a verdict and sees how it stands, and what they are asked before one is lost."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, get_args

from PySide6.QtCore import QTimer
from PySide6.QtWidgets import QLineEdit, QWidget

from fieldray.desktop.judging import Judging
from fieldray.desktop.verdicts import Given, Judged, State
from fieldray.desktop.widgets import PlainButton, label, lay_column, lay_row, plain, push_button, question_box
from fieldray.domain.run import Verdict, VerdictChoice
from fieldray.formatting import verdict_text
from fieldray.translation import Translator

_CHOICES: Final[tuple[VerdictChoice, ...]] = get_args(VerdictChoice)
_LONGEST_NOTE: Final = 500
_PATIENCE_MS: Final = 400  # a verdict is mostly saved by then: no question flashes up
_MOST_NAMED: Final = 8


class VerdictBar(QWidget):
    """Three buttons, a note, and how it stands with the verdict. A second press on a button takes the verdict back."""

    def __init__(self, judging: Judging, translator: Translator) -> None:
        super().__init__()
        self._judging, self._translator = judging, translator
        self._names = verdict_text(translator)
        self.buttons: dict[VerdictChoice, PlainButton] = {}
        for choice in _CHOICES:
            button = push_button(self._names[choice], partial(judging.choose, choice), role="choice")
            self.buttons[choice] = button
        self.note = QLineEdit()
        self.note.setAccessibleName(translator.text("Note on the verdict"))
        self.note.setMaxLength(_LONGEST_NOTE)
        self.note.textEdited.connect(judging.type)
        self.note.editingFinished.connect(judging.commit)
        self._meaning, self._how = label(), label(role="muted")
        self._why_not = label(role="warning")
        self.again = push_button("", lambda: self._answer(judging.insist))
        self.withdraw = push_button("", lambda: self._answer(judging.give_in))
        choices = lay_row(None, *((button, 1) for button in self.buttons.values()), spacing=6)
        answers = lay_row(None, self.again, self.withdraw, 1, spacing=6)
        lay_column(self, self._meaning, choices, self.note, self._how, self._why_not, answers)
        judging.changed.connect(self.refresh)
        self.refresh()

    def explain(self, meaning: str) -> None:
        """Say what there is to agree with, "" where the result says it."""
        self._meaning.setText(meaning)
        self._meaning.setVisible(bool(meaning))

    def refresh(self, *_: object) -> None:
        """Show how it stands with the open image."""
        verdicts, text = self._judging.verdicts, self._translator.text
        given = verdicts.of(verdicts.open_image)
        for choice, button in self.buttons.items():
            button.setChecked(given.wanted is not None and given.wanted.choice == choice)
        if self.note.text() != given.note:
            self.note.setText(given.note)
        can_be_noted = given.wanted is not None
        self.note.setEnabled(can_be_noted)
        self.note.setPlaceholderText(text("Note on the verdict") if can_be_noted else text("A note needs a verdict"))
        captions: dict[State | None, str] = {
            None: text("A verdict is kept with the program's result, never in place of it."),
            "saving": text("Your verdict is being saved…"),
            "saved": text("Your verdict is saved, the note not yet.") if given.is_typing else
            text("Saved with the program's result, never in place of it."),
            "not_saved": "",
        }  # fmt: skip
        is_lost = given.state == "not_saved"
        self._how.setText(captions[given.state])
        self._why_not.setText(*self._problem(given) if is_lost else ())
        self._how.setVisible(not is_lost)
        for widget in (self._why_not, self.again, self.withdraw):
            widget.setVisible(is_lost)
        self.again.setText(text("Save mine") if given.asks else text("Try again"))
        keeps = text("Keep the verdict") if given.wanted is None else text("Withdraw")
        self.withdraw.setText(text("Keep theirs") if given.asks else keeps)

    def _problem(self, given: Given) -> tuple[str, ...]:
        text = self._translator.text
        if given.asks:
            theirs = text(
                "Another window changed the verdict on this image: {verdict}.", verdict=self._said(given.stored)
            )
            return theirs, text("Yours is not saved: {verdict}.", verdict=self._said(given.wanted))
        assert given.problem is not None
        said = text("Your verdict is not saved.") if given.wanted else text("Your verdict is not withdrawn.")
        return (f"{said} {self._translator.reason(given.problem)}",)

    def _said(self, verdict: Verdict | None) -> str:
        if verdict is None:
            return self._translator.text("no verdict")
        return self._names[verdict.choice] + (f" ({verdict.note})" if verdict.note else "")

    def _answer(self, answer: Callable[[Judged], None]) -> None:
        judged = self._judging.verdicts.open_image
        if judged is not None:
            answer(judged)


def leave(parent: QWidget, judging: Judging, translator: Translator, close: Callable[[], None]) -> None:
    """Close once all is saved; where that takes long or cannot be, a person decides what is lost."""
    judging.commit()
    if not any(judging.verdicts.unsaved()):
        close()
        return

    def give_up() -> None:
        judging.verdicts.give_up()
        close()

    text = translator.text
    answers = {text("Close without saving"): give_up}
    lost = text("These verdicts are not saved and would be lost:")
    box = question_box(parent, lost, answers=answers, no=text("Keep the window open"))

    def refresh() -> None:
        lost = list(judging.verdicts.unsaved())
        lines = [judging.sentence(translator, *each) for each in lost[:_MOST_NAMED]]
        box.setInformativeText(plain(*lines, *(["…"] if len(lost) > _MOST_NAMED else [])))
        if not lost:
            box.done(0)
            close()

    watched = [judging.changed.connect(refresh)]
    for ended in (box.finished, box.destroyed):  # by an answer, or with the window that another one replaces
        ended.connect(lambda: watched and judging.changed.disconnect(watched.pop()))
    box.finished.connect(box.deleteLater)
    refresh()
    QTimer.singleShot(_PATIENCE_MS if judging.is_saving else 0, box, box.open)
