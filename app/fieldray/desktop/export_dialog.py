"""What to save: the formats, one line each, and whether patients are named."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtWidgets import QCheckBox, QDialog, QDialogButtonBox, QVBoxLayout, QWidget

from fieldray.desktop.widgets import card, label, lay_out_dialog, name_surface, push_button, set_tip
from fieldray.reasons import reason
from fieldray.reports.exporter import EXPORTERS, Exporter, ReportOptions
from fieldray.translation import Translator

_WIDTH = 560


class ExportDialog(QDialog):
    """Once it is accepted, `formats()` and `options()` say what was chosen; the folder is asked for after that.

    chosen  names of the formats that are ticked at first; without any, those that are written by default
    """

    def __init__(self, translator: Translator, parent: QWidget | None = None, *, chosen: Sequence[str] = ()) -> None:
        super().__init__(parent)
        self._translator = translator
        self.setWindowTitle(translator.text("Save the results"))
        self.save = push_button(translator.text("Choose a folder…"), role="primary")
        self.boxes = {exporter.name: self._box(exporter, chosen) for exporter in EXPORTERS.entries()}
        self.names_box = QCheckBox(translator.text("Name the patients"))
        page = QWidget()
        name_surface(page, "page")
        choices = QVBoxLayout(page)
        choices.setContentsMargins(0, 0, 0, 0)
        choices.setSpacing(12)
        choices.addWidget(label(translator.text("Save the results"), role="title"))
        choices.addWidget(self._formats_card())
        choices.addWidget(self._names_card())
        lay_out_dialog(self, page, self._buttons(), width=_WIDTH)
        self.save.setEnabled(bool(self.formats()))

    def formats(self) -> tuple[str, ...]:
        """The names of the formats that are ticked."""
        return tuple(name for name, box in self.boxes.items() if box.isChecked())

    def options(self) -> ReportOptions:
        """Language and naming."""
        return ReportOptions(language=self._translator.language, names_people=self.names_box.isChecked())

    def _box(self, exporter: Exporter, chosen: Sequence[str]) -> QCheckBox:
        box = QCheckBox(self._translator.text(exporter.title).replace("&", "&&"))
        why = exporter.unavailable_reason()
        if why is not None:
            box.setEnabled(False)
            set_tip(box, self._translator.reason(why))
        box.setChecked(why is None and (exporter.name in chosen if chosen else exporter.is_default))
        box.toggled.connect(lambda: self.save.setEnabled(bool(self.formats())))
        return box

    def _formats_card(self) -> QWidget:
        frame, column = card()
        column.addWidget(label(self._translator.text("Formats"), role="heading"))
        for box in self.boxes.values():
            column.addWidget(box)
        return frame

    def _names_card(self) -> QWidget:
        frame, column = card()
        column.addWidget(self.names_box)
        why = self._translator.text(
            "Without this, the files carry pseudonyms. Tick it for reports that go into your own archive (PACS): "
            "there a report with a pseudonym is filed under another patient."
        )
        for words in (why, self._translator.reason(reason("pixels_not_cleaned"))):
            column.addWidget(label(words, role="muted"))
        return frame

    def _buttons(self) -> QDialogButtonBox:
        box = QDialogButtonBox()
        box.addButton(self.save, QDialogButtonBox.ButtonRole.AcceptRole)
        box.addButton(push_button(self._translator.text("Cancel")), QDialogButtonBox.ButtonRole.RejectRole)
        box.accepted.connect(self.accept)
        box.rejected.connect(self.reject)
        return box
