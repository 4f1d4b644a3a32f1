"""The reader's own verdict: stored beside the program's result, never over it."""

from __future__ import annotations

from typing import Final, get_args

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QHBoxLayout, QLineEdit, QVBoxLayout, QWidget

from fieldray.desktop.widgets import PlainButton, label, push_button
from fieldray.domain.run import Verdict, VerdictChoice
from fieldray.translation import Translator

_CHOICES: Final[tuple[VerdictChoice, ...]] = get_args(VerdictChoice)
_LONGEST_NOTE: Final = 500


class VerdictBar(QWidget):
    """Three buttons and a note. A second press on a button takes the verdict back."""

    given = Signal(object)

    def __init__(self, translator: Translator) -> None:
        super().__init__()
        self._verdict: Verdict | None = None
        names: dict[VerdictChoice, str] = {
            "agree": translator.text("Agree"),
            "disagree": translator.text("Disagree"),
            "unsure": translator.text("Unsure"),
        }
        row = QHBoxLayout()
        row.setSpacing(6)
        self.buttons: dict[VerdictChoice, PlainButton] = {}
        for choice in _CHOICES:
            button = push_button(names[choice], role="choice")
            button.setCheckable(True)
            button.setFocusPolicy(Qt.FocusPolicy.TabFocus)
            button.clicked.connect(lambda _=False, chosen=choice: self.choose(chosen))
            self.buttons[choice] = button
            row.addWidget(button, 1)
        self.note = QLineEdit()
        self.note.setPlaceholderText(translator.text("Note on the verdict"))
        self.note.setMaxLength(_LONGEST_NOTE)
        self.note.editingFinished.connect(self._note_changed)
        explained = label(translator.text("Saved beside the program's result, never over it."), role="muted")
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addLayout(row)
        layout.addWidget(self.note)
        layout.addWidget(explained)

    def show_verdict(self, verdict: Verdict | None) -> None:
        """Show what is stored."""
        self._verdict = verdict
        for choice, button in self.buttons.items():
            button.setChecked(verdict is not None and verdict.choice == choice)
        note = verdict.note if verdict else ""
        if self.note.text() != note and not self.note.hasFocus():
            self.note.setText(note)
        self.note.setEnabled(verdict is not None)

    def choose(self, choice: VerdictChoice) -> None:
        """Give this verdict, or take it back if it was given."""
        taken_back = self._verdict is not None and self._verdict.choice == choice
        self._give(None if taken_back else Verdict(choice=choice, note=self.note.text().strip()))

    def _note_changed(self) -> None:
        if self._verdict is not None and self.note.text().strip() != self._verdict.note:
            self._give(Verdict(choice=self._verdict.choice, note=self.note.text().strip()))

    def _give(self, verdict: Verdict | None) -> None:
        self.show_verdict(verdict)
        self.given.emit(verdict)
