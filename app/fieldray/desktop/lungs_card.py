"""What is said of the lungs of the open image: their areas, the evidence inside them, and what to look at."""

from __future__ import annotations

from typing import Final

from PySide6.QtWidgets import QCheckBox, QVBoxLayout, QWidget

from fieldray.desktop.widgets import card, label
from fieldray.domain.finding import Outcome, lungs_of, notes_of
from fieldray.formatting import number
from fieldray.translation import Translator

EVIDENCE_NOTE: Final = "evidence_outside"


class LungsCard(QWidget):
    """The card of the result panel; it hides itself where the image has no usable lung fields."""

    def __init__(self, translator: Translator) -> None:
        super().__init__()
        self._translator = translator
        self.outline_box = QCheckBox(translator.text("Show the outline of the lungs (O)"))
        self._areas = label()
        self._evidence = label(role="heading")
        self._warning = label(role="warning")
        frame, column = card()
        parts = (self.outline_box, self._areas, self._evidence, self._warning)
        for part in (label(translator.text("Lungs"), role="heading"), *parts):
            column.addWidget(part)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(frame)

    def show_outcome(self, outcome: Outcome) -> None:
        """Show what was found in an image; nothing where it was not usable."""
        lungs, translator = lungs_of(outcome), self._translator
        self.setVisible(lungs is not None and lungs.refusal is None)
        if lungs is None:
            return
        right, left = (number(translator, 100 * share, digits=1) for share in (lungs.right_share, lungs.left_share))
        self._areas.setText(
            translator.text("Area in the image: right lung {right} %, left lung {left} %", right=right, left=left)
        )
        inside = lungs.evidence_inside
        self._evidence.setVisible(inside is not None)
        if inside is not None:
            share = round(100 * inside)
            self._evidence.setText(translator.text("Heat map inside the lungs: {percent} %", percent=share))
        warnings = [note for note in notes_of(outcome) if note.code == EVIDENCE_NOTE]
        self._warning.setVisible(bool(warnings))
        self._warning.setText(*map(translator.reason, warnings))
