"""What stands in the window before there is an image: what to do next."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QAction
from PySide6.QtWidgets import QHBoxLayout, QLabel, QVBoxLayout, QWidget

from fieldray.desktop.controller import Controller
from fieldray.desktop.icons import icon
from fieldray.desktop.style import Theme
from fieldray.desktop.toolbar import pack_label
from fieldray.desktop.widgets import card, icon_label, label, name_surface, paragraphs, push_button
from fieldray.translation import Translator


class Welcome(QWidget):
    """Two steps: a pack, then images."""

    def __init__(
        self, controller: Controller, open_folder: QAction, open_files: QAction, translator: Translator, theme: Theme
    ) -> None:
        super().__init__()
        name_surface(self, "page")
        self._packs, self._translator = controller.packs, translator
        frame, column = card()
        frame.setMaximumWidth(640)
        column.setContentsMargins(32, 28, 32, 28)
        column.setSpacing(18)
        column.addWidget(label(translator.text("Screen a folder of chest X-rays"), role="title"))
        self._pack_title, self._pack_text = label("", role="heading"), label("", role="muted")
        column.addLayout(self._step("drive", theme, self._pack_title, self._pack_text))
        drop = label(
            translator.text("Drop a folder, files, a DICOMDIR or a zip file here, or open them."), role="heading"
        )
        kinds = label(translator.text("DICOM, PNG and JPEG. The files are only read, never changed."), role="muted")
        column.addLayout(self._step("folder", theme, drop, kinds))
        buttons = QHBoxLayout()
        picture = icon("folder", theme, "on_accent")
        self.open_button = push_button(translator.text("Open folder"), picture=picture, role="primary")
        self.open_button.clicked.connect(open_folder.trigger)
        files = push_button(translator.text("Open files"), picture=icon("file", theme))
        files.clicked.connect(open_files.trigger)
        buttons.addWidget(self.open_button)
        buttons.addWidget(files)
        buttons.addStretch(1)
        column.addLayout(buttons)
        outer = QVBoxLayout(self)
        outer.addStretch(1)
        row = QHBoxLayout()
        row.addStretch(1)
        row.addWidget(frame, 10)
        row.addStretch(1)
        outer.addLayout(row)
        outer.addStretch(2)
        controller.packs.listed.connect(self.refresh)
        controller.packs.model_changed.connect(self.refresh)
        self.refresh()

    def refresh(self) -> None:
        """Say which pack is ready, or how to get one."""
        translator, model = self._translator, self._packs.model
        if model is None:
            self._pack_title.setText(translator.text("Plug in a model drive."))
            self._pack_text.setText(translator.text("The pack on it defines what the program looks for."))
            return
        first, second = pack_label(translator, self._packs)
        self._pack_title.setText(translator.text("Ready: {pack} ({details})", pack=first, details=second))
        self._pack_text.setText(*paragraphs(translator.pick(model.manifest.descriptions)))

    def _step(self, picture: str, theme: Theme, title: QLabel, text: QLabel) -> QHBoxLayout:
        row = QHBoxLayout()
        row.setSpacing(16)
        row.addWidget(icon_label(icon(picture, theme, "accent"), side=36), 0, Qt.AlignmentFlag.AlignTop)
        column = QVBoxLayout()
        column.setSpacing(2)
        column.addWidget(title)
        column.addWidget(text)
        row.addLayout(column, 1)
        return row
