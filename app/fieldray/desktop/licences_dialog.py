"""The licences of all that others made: a list of parts, and the texts of the one chosen, as they are."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Qt
from PySide6.QtGui import QFontDatabase
from PySide6.QtWidgets import (
    QDialog,
    QDialogButtonBox,
    QListWidget,
    QPlainTextEdit,
    QSplitter,
    QVBoxLayout,
    QWidget,
)

from fieldray.desktop.widgets import label, plain, push_button
from fieldray.licences import LicensedPart
from fieldray.paths import program_folder
from fieldray.translation import Translator


class LicencesDialog(QDialog):
    """Texts are shown as their authors wrote them, in English; what is said about them is translated."""

    def __init__(self, parts: Sequence[LicensedPart], translator: Translator, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._parts, self._translator = parts, translator
        self.setWindowTitle(translator.text("Licences"))
        self.resize(920, 620)
        column = QVBoxLayout(self)
        column.setContentsMargins(16, 14, 16, 14)
        column.setSpacing(8)
        column.addWidget(label(translator.text("Fieldray itself is under the Apache License 2.0.")))
        column.addWidget(label(_about_qt(translator)))
        self.list = QListWidget()
        self.list.setSpacing(3)
        self.list.setWordWrap(True)
        self.list.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.list.setAccessibleName(translator.text("Licences"))
        self.list.addItems([plain(f"{part.name} {part.version}".strip(), part.licence) for part in parts])
        self.text = QPlainTextEdit()
        self.text.setReadOnly(True)
        self.text.setFont(QFontDatabase.systemFont(QFontDatabase.SystemFont.FixedFont))
        split = QSplitter()
        split.addWidget(self.list)
        split.addWidget(self.text)
        split.setSizes([300, 600])
        column.addWidget(split, 1)
        close = push_button(translator.text("Close"))
        box = QDialogButtonBox()
        box.addButton(close, QDialogButtonBox.ButtonRole.RejectRole)
        box.rejected.connect(self.reject)
        column.addWidget(box)
        self.list.currentRowChanged.connect(self._show)
        self.list.setCurrentRow(0)

    def _show(self, row: int) -> None:
        part = self._parts[row]
        pieces = [f"{part.name} {part.version}\n{part.licence}"]
        if part.replaceable:
            files = "\n".join(f"  {file}" for file in part.replaceable)
            pieces.append(f"{self._translator.text('Libraries you may replace:')}\n{files}")
        pieces += [f"--- {title}\n\n{text.strip()}" for title, text in part.texts.items()]
        self.text.setPlainText("\n\n".join(pieces))


def _about_qt(translator: Translator) -> str:
    return translator.text(
        "Qt and Qt for Python are used under the GNU LGPL, version 3. Their libraries are files of their own in "
        "{folder}: you may replace them with your own builds, and may take the program apart to find faults in them. "
        "Their sources are kept by the Qt project (code.qt.io).",
        folder=program_folder(),
    )
