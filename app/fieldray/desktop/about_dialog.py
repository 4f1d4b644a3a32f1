"""What this program is, and what it connects to: nothing."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtWidgets import QDialog, QDialogButtonBox, QVBoxLayout, QWidget

from fieldray.desktop.formatting import research_only
from fieldray.desktop.licences_dialog import LicencesDialog
from fieldray.desktop.widgets import label, push_button
from fieldray.licences import licensed_parts
from fieldray.paths import VERSION, user_data
from fieldray.translation import Translator


class AboutDialog(QDialog):
    """Name, version, purpose, connections, where results are kept, and the licences of what others made.

    licences    another table of them than the installed program's
    """

    def __init__(self, translator: Translator, parent: QWidget | None = None, *, licences: Path | None = None) -> None:
        super().__init__(parent)
        self.setWindowTitle(translator.text("About Fieldray"))
        self.setMinimumWidth(480)
        column = QVBoxLayout(self)
        column.setContentsMargins(24, 20, 24, 16)
        column.setSpacing(10)
        column.addWidget(label(f"Fieldray {VERSION}", role="title"))
        column.addWidget(label(research_only(translator), role="heading"))
        column.addWidget(label(translator.text("Sorts chest X-rays with a model pack, on this computer alone.")))
        column.addWidget(label(translator.text("What this program connects to: nothing."), role="heading"))
        column.addWidget(
            label(
                translator.text(
                    "It opens no network connection, sends nothing, and does not update itself. Images are only read, "
                    "never changed."
                )
            )
        )
        column.addWidget(label(translator.text("Results are kept in {folder}", folder=user_data()), role="muted"))
        close = push_button(translator.text("Close"))
        box = QDialogButtonBox()
        parts = licensed_parts(licences)
        if parts:
            self.licences_button = push_button(translator.text("Licences…"))
            self.licences_button.clicked.connect(lambda: LicencesDialog(parts, translator, self).open())
            box.addButton(self.licences_button, QDialogButtonBox.ButtonRole.ActionRole)
        else:
            column.addWidget(label(translator.text("Its licences are collected when it is installed."), role="muted"))
        box.addButton(close, QDialogButtonBox.ButtonRole.RejectRole)
        box.rejected.connect(self.reject)
        column.addWidget(box)
