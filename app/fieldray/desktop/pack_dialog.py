"""The question before a pack is used that only a person can answer; the safe answer is the ready one."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QFontDatabase
from PySide6.QtWidgets import QDialog, QDialogButtonBox, QVBoxLayout, QWidget

from fieldray.desktop.pack_choice import PackQuestion
from fieldray.desktop.widgets import label, push_button
from fieldray.translation import Translator


class PackDialog(QDialog):
    """Trust this key? Use the unsigned legacy model? Use the older version? Accepted means yes."""

    def __init__(self, question: PackQuestion, translator: Translator, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setMinimumWidth(460)
        title, advice, yes = _texts(translator, question)
        self.setWindowTitle(title)
        column = QVBoxLayout(self)
        column.setContentsMargins(24, 20, 24, 16)
        column.setSpacing(12)
        column.addWidget(label(title, role="title"))
        name = translator.pick(question.candidate.names) or question.candidate.pack_name
        column.addWidget(label(f"{name}  {question.candidate.version}", role="heading"))
        if question.kind == "older":
            column.addWidget(label(translator.reason(question.reason)))
        if question.fingerprint:
            fingerprint = label(*fingerprint_lines(question.fingerprint))
            fingerprint.setFont(QFontDatabase.systemFont(QFontDatabase.SystemFont.FixedFont))
            fingerprint.setAlignment(Qt.AlignmentFlag.AlignCenter)
            column.addWidget(fingerprint)
        column.addWidget(label(advice))
        self.yes_button = push_button(yes)
        self.no_button = push_button(translator.text("Do not use"))
        box = QDialogButtonBox()
        box.addButton(self.yes_button, QDialogButtonBox.ButtonRole.AcceptRole)
        box.addButton(self.no_button, QDialogButtonBox.ButtonRole.RejectRole)
        box.accepted.connect(self.accept)
        box.rejected.connect(self.reject)
        column.addWidget(box)
        self.no_button.setDefault(True)
        self.no_button.setFocus()


def fingerprint_lines(fingerprint: str) -> tuple[str, ...]:
    """A fingerprint in four lines of four groups, as it is read aloud over the telephone."""
    groups = fingerprint.split("-")
    return tuple("  ".join(groups[start : start + 4]) for start in range(0, len(groups), 4))


def _texts(translator: Translator, question: PackQuestion) -> tuple[str, str, str]:
    """Title, advice, and the words of the yes."""
    if question.kind == "unknown_key":
        return (
            translator.text("Do you trust this signing key?"),
            translator.text(
                "Compare this fingerprint with the one its maker gives: by telephone, on paper or on their site. "
                "Trust the key only if all groups are the same. Every pack signed with it is then accepted."
            ),
            translator.text("I compared it: trust this key"),
        )
    if question.kind == "legacy":
        return (
            translator.text("Use an unsigned legacy model?"),
            translator.text(
                "Nobody vouches for this model: it may have been changed. It has no operating point, so images get "
                "a score, but are not assessed. Each result is marked so."
            ),
            translator.text("Use it this once"),
        )
    return (
        translator.text("Use an older version?"),
        translator.text("A newer version was used on this computer. An older one may have known faults."),
        translator.text("Use the older version this once"),
    )
