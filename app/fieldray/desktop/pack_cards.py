"""What is said of a pack where one is chosen: for whom it is, what it looks for, how good it is, its limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from PySide6.QtWidgets import QDialog, QDialogButtonBox, QFrame, QSizePolicy, QVBoxLayout, QWidget

from fieldray.desktop.widgets import DocumentView, PlainButton, card, fit_dialog, label, paragraphs, push_button
from fieldray.domain.model import Manifest
from fieldray.domain.purpose import patients, performance
from fieldray.formatting import label_meaning
from fieldray.translation import Translator

if TYPE_CHECKING:
    from fieldray.packs.candidate import PackCandidate


class ModelCard(QDialog):
    """What a pack was made of, and all that was measured of it, as its maker wrote it."""

    def __init__(self, text: str, translator: Translator, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setWindowTitle(translator.text("Model card"))
        fit_dialog(self, 940, 700)
        self.page = DocumentView(text, {})
        self.page.setAccessibleName(translator.text("Model card"))
        box = QDialogButtonBox()
        box.addButton(push_button(translator.text("Close")), QDialogButtonBox.ButtonRole.RejectRole)
        box.rejected.connect(self.reject)
        column = QVBoxLayout(self)
        column.addWidget(self.page, 1)
        column.addWidget(box)


def card_button(translator: Translator, wanted: Callable[[bool], None]) -> PlainButton:
    """What opens a pack's model card."""
    button = push_button(translator.text("Model card…"))
    button.clicked.connect(wanted)
    return button


class PackCard(QFrame):
    """One pack as an answer to the question whose images these are."""

    def __init__(
        self,
        candidate: PackCandidate,
        translator: Translator,
        choose: Callable[[bool], None],
        *,
        show_card: Callable[[bool], None],
    ) -> None:
        super().__init__()
        self.setObjectName("card")
        column = QVBoxLayout(self)
        column.setContentsMargins(16, 14, 16, 14)
        column.setSpacing(6)
        name = translator.pick(candidate.names) or candidate.pack_name
        column.addWidget(label(f"{name} {candidate.version}", role="title"))
        if candidate.manifest is not None:
            add_purpose(column, translator, candidate.manifest)
        if candidate.problem is not None:
            column.addWidget(label(translator.reason(candidate.problem), role="muted"))
        column.addStretch(1)
        self.button: PlainButton = push_button(answer_label(translator, candidate), role="primary")
        # A long name is cut, as the title above has it whole, and does not widen the page.
        self.button.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self.button.clicked.connect(choose)
        self.card_button = card_button(translator, show_card)
        column.addWidget(self.card_button)  # before it is shown: without a parent it would be a window
        self.card_button.setVisible(candidate.manifest is not None)
        column.addWidget(self.button)


def answer_label(translator: Translator, candidate: PackCandidate) -> str:
    """What a person says by choosing a pack."""
    if candidate.problem is not None:
        return translator.text("Review…")
    ages = candidate.manifest.accepted.ages_years if candidate.manifest else None
    if ages is None:
        return translator.text("Use this pack")
    name = translator.pick(candidate.names) or candidate.pack_name  # several packs are for the same ages
    return translator.text(
        "{name}: patients aged {youngest} to {oldest} years", name=name, youngest=ages[0], oldest=ages[1]
    )


def add_purpose(column: QVBoxLayout, translator: Translator, manifest: Manifest) -> None:
    """Add the lines on a pack to a card."""
    column.addWidget(label(translator.reason(patients(manifest.accepted)), role="heading"))
    meanings = ", ".join(label_meaning(translator, entry.code, manifest) for entry in manifest.labels)
    column.addWidget(label(translator.text("Looks for: {meaning}", meaning=meanings)))
    for why in performance(manifest):
        column.addWidget(label(translator.reason(why)))
    if manifest.warnings:
        column.addWidget(label(*paragraphs(translator.pick(manifest.warnings)), role="warning"))
    column.addWidget(label(*paragraphs(translator.pick(manifest.limits)), role="muted"))


def chosen_card(text: str) -> QFrame:
    """A card with one line, where there is no pack to choose."""
    frame, column = card()
    column.addWidget(label(text))
    return frame
