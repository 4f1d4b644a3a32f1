"""The yes to an operating point of one's own: it needs a name for it, and the person's."""

from __future__ import annotations

from PySide6.QtWidgets import QDialog, QDialogButtonBox, QFormLayout, QLineEdit, QVBoxLayout, QWidget

from fieldray.desktop.widgets import PlainLabel, label, push_button
from fieldray.translation import Translator


class LocalPointDialog(QDialog):
    """Accepted means yes; only with both names."""

    def __init__(self, proposal: str, translator: Translator, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        text = translator.text
        self.setMinimumWidth(520)
        title = text("Use a local operating point?")
        self.setWindowTitle(title)
        column = QVBoxLayout(self)
        column.setContentsMargins(24, 20, 24, 16)
        column.setSpacing(12)
        column.addWidget(label(title, role="title"))
        column.addWidget(label(proposal))
        advice = text(
            "It was measured on the images of this run alone. It is kept on this computer, for this version of the "
            "pack only, and every result shows that it is local. The operating points of the pack stay."
        )
        column.addWidget(label(advice))
        self.name, self.person = QLineEdit(), QLineEdit()
        self.name.setPlaceholderText(text("for example: our-clinic"))
        form = QFormLayout()
        form.setSpacing(10)
        for caption, field in (
            (text("Name of the operating point (a–z, 0–9, -)"), self.name),
            (text("Your name"), self.person),
        ):
            field.setAccessibleName(caption)
            field.textChanged.connect(self._check)
            form.addRow(PlainLabel(caption), field)
        column.addLayout(form)
        self.yes_button = push_button(text("Yes, use it here"))
        self.no_button = push_button(text("Do not use"))
        box = QDialogButtonBox()
        box.addButton(self.yes_button, QDialogButtonBox.ButtonRole.AcceptRole)
        box.addButton(self.no_button, QDialogButtonBox.ButtonRole.RejectRole)
        box.accepted.connect(self.accept)
        box.rejected.connect(self.reject)
        column.addWidget(box)
        self._check()

    def _check(self) -> None:
        self.yes_button.setEnabled(bool(self.name.text().strip() and self.person.text().strip()))
