"""The user guide, in the language of the window: a Markdown file of the program beside a list of its headings."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QDialog, QDialogButtonBox, QListWidget, QSplitter, QVBoxLayout, QWidget

from fieldray.desktop.widgets import DocumentView, fit_dialog, plain, push_button
from fieldray.paths import guide_folder
from fieldray.translation import Translator

_SOURCE = "en"


class GuideDialog(QDialog):
    """Shows nothing but files of the guide's folder, and opens no link.

    folder    another guide than the program's
    """

    def __init__(self, translator: Translator, parent: QWidget | None = None, *, folder: Path | None = None) -> None:
        super().__init__(parent)
        self.setWindowTitle(translator.text("User guide"))
        fit_dialog(self, 1120, 700)
        folder = folder or guide_folder()
        images = {path.name: path for path in folder.glob("*.png")}
        self.page = DocumentView(guide_text(folder, translator.language), images)
        self.page.setAccessibleName(translator.text("User guide"))
        self.contents = QListWidget()
        self.contents.setSpacing(3)
        self.contents.setWordWrap(True)
        self.contents.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.contents.setAccessibleName(translator.text("Contents"))
        self._positions = [position for _, position in self.page.headings()]
        self.contents.addItems([plain(text) for text, _ in self.page.headings()])
        self.contents.currentRowChanged.connect(lambda row: self.page.show_position(self._positions[row]))
        split = QSplitter()
        split.addWidget(self.contents)
        split.addWidget(self.page)
        split.setStretchFactor(1, 1)
        split.setSizes([240, 880])
        close = push_button(translator.text("Close"))
        box = QDialogButtonBox()
        box.addButton(close, QDialogButtonBox.ButtonRole.RejectRole)
        box.rejected.connect(self.reject)
        column = QVBoxLayout(self)
        column.setContentsMargins(12, 12, 12, 12)
        column.addWidget(split, 1)
        column.addWidget(box)


def guide_text(folder: Path, language: str) -> str:
    """The guide in this language; in English where it is not written in it."""
    path = folder / f"{language}.md"
    return (path if path.is_file() else folder / f"{_SOURCE}.md").read_text(encoding="utf-8")
