"""What this program is, what it connects to (nothing), and the licences of what others made."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

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

from fieldray.desktop.widgets import fit_dialog, label, lay_out_dialog, name_surface, plain, push_button
from fieldray.formatting import research_only
from fieldray.paths import VERSION, asset, licence_table, program_folder, user_data
from fieldray.translation import Translator

_ABOUT_WIDTH: Final = 560


@dataclass(frozen=True, slots=True, kw_only=True)
class LicensedPart:
    """One part: its licence's name, the texts by title, and the libraries that may be replaced, where it is LGPL."""

    name: str
    version: str
    licence: str
    texts: Mapping[str, str]
    replaceable: tuple[str, ...]


def licensed_parts(table: Path | None = None) -> tuple[LicensedPart, ...]:
    """All parts by name; none where the program was not installed. Raises OSError or ValueError for a damaged table."""
    path = table or licence_table()
    if not path.is_file():
        return ()
    content = json.loads(path.read_text(encoding="utf-8"))
    texts: Mapping[str, str] = content["texts"]
    return tuple(
        LicensedPart(
            name=row["name"],
            version=row["version"],
            licence=row["licence"],
            texts={title: texts[key] for title, key in row["texts"]},
            replaceable=tuple(row["files"]),
        )
        for row in content["parts"]
    )


class AboutDialog(QDialog):
    """Name, version, purpose, connections, where results are kept, and the licences of what others made.

    licences    another table of them than the installed program's
    """

    def __init__(self, translator: Translator, parent: QWidget | None = None, *, licences: Path | None = None) -> None:
        super().__init__(parent)
        self.setWindowTitle(translator.text("About Fieldray"))
        page = QWidget()
        name_surface(page, "page")
        column = QVBoxLayout(page)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(10)
        column.addWidget(label(f"Fieldray {VERSION}", role="title"))
        column.addWidget(label(research_only(translator), role="heading"))
        column.addWidget(label(translator.text("Screens chest X-rays with a model pack, on this computer only.")))
        column.addWidget(label(translator.text("This program connects to nothing."), role="heading"))
        column.addWidget(
            label(
                translator.text(
                    "It opens no network connection, sends nothing and does not update itself. Images are only read, "
                    "never changed."
                )
            )
        )
        column.addWidget(
            label(
                translator.text(
                    "The images of the demonstration are from Kermany, Zhang and Goldbaum (Mendeley Data, 2018, CC BY "
                    "4.0) and from Winther et al. (COVID-19 Image Repository, Hannover, 2020, CC BY 3.0). Sources, "
                    "licences and changes: {file}",
                    file=asset("demonstration/CREDITS.md"),
                ),
                role="muted",
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
            column.addWidget(
                label(translator.text("The licences of its parts are listed in the installed program."), role="muted")
            )
        box.addButton(close, QDialogButtonBox.ButtonRole.RejectRole)
        box.rejected.connect(self.reject)
        column.addStretch(1)
        lay_out_dialog(self, page, box, width=_ABOUT_WIDTH)


class LicencesDialog(QDialog):
    """Texts are shown as their authors wrote them, in English; what is said about them is translated."""

    def __init__(self, parts: Sequence[LicensedPart], translator: Translator, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._parts, self._translator = parts, translator
        self.setWindowTitle(translator.text("Licences"))
        fit_dialog(self, 920, 620)
        column = QVBoxLayout(self)
        column.setContentsMargins(16, 14, 16, 14)
        column.setSpacing(8)
        column.addWidget(label(translator.text("Fieldray itself is licensed under the Apache License 2.0.")))
        column.addWidget(label(_about_qt(translator)))
        self.list = QListWidget()
        self.list.setSpacing(3)
        self.list.setWordWrap(True)
        self.list.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.list.setAccessibleName(translator.text("Licences"))
        self.list.addItems([plain(f"{part.name} {part.version}".strip(), part.licence) for part in parts])
        self.text = QPlainTextEdit()
        self.text.setReadOnly(True)
        self.text.setAccessibleName(translator.text("Text of the licence"))
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
        "Qt and Qt for Python are used under the GNU LGPL, version 3. Their libraries are separate files "
        "in {folder}. You may replace them with your own builds, and you may reverse engineer the "
        "program to debug them. The Qt project publishes the source code (code.qt.io).",
        folder=program_folder(),
    )
