"""The settings, derived from the table in `settings.py`: a new row there is a new line here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from PySide6.QtWidgets import (
    QCheckBox,
    QComboBox,
    QDialog,
    QDialogButtonBox,
    QFormLayout,
    QVBoxLayout,
    QWidget,
)

from fieldray.backends import BACKENDS
from fieldray.desktop.widgets import PlainLabel, choice_box, fit_dialog, label, number_box, push_button, scrolled
from fieldray.settings import TABLE, Row, Settings, Value
from fieldray.translation import Translator, languages

_MARGIN: Final = 8


class SettingsDialog(QDialog):
    """One line a setting. `changes()` gives what a person changed once the dialog is accepted."""

    def __init__(self, settings: Settings, translator: Translator, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._settings, self._translator = settings, translator
        self._read: dict[str, Callable[[], Value]] = {}
        self.fields: dict[str, QWidget] = {}
        self.setWindowTitle(translator.text("Settings"))
        fit_dialog(self, 760, 576)
        page = QWidget()
        form = QFormLayout(page)
        form.setContentsMargins(0, 0, _MARGIN, 0)
        form.setRowWrapPolicy(QFormLayout.RowWrapPolicy.WrapLongRows)
        form.setSpacing(10)
        for row in TABLE:
            if row.in_dialog:
                self.fields[row.key] = self._field(row)
                self.fields[row.key].setAccessibleName(translator.text(row.label))
                form.addRow(PlainLabel(translator.text(row.label)), self.fields[row.key])
        column = QVBoxLayout(self)
        column.setContentsMargins(24, 20, 24, 16)
        column.setSpacing(14)
        column.addWidget(label(translator.text("Settings"), role="title"))
        column.addWidget(scrolled(page), 1)
        when = translator.text(
            "Language, appearance and devices change at once. The clock speed of the Edge TPU changes when "
            "the program is next started, everything else with the next run."
        )
        column.addWidget(label(when, role="muted"))
        column.addWidget(self._buttons())

    def changes(self) -> dict[str, Value]:
        """The settings that are not as before, by key."""
        values = {key: read() for key, read in self._read.items()}
        return {key: value for key, value in values.items() if value != self._settings[key]}

    def _field(self, row: Row) -> QWidget:
        value = self._settings[row.key]
        if row.choices:
            return self._choice(row, str(value))
        if isinstance(row.default, bool):
            box = QCheckBox()
            box.setChecked(bool(value))
            self._read[row.key] = box.isChecked
            return box
        number = number_box(int(row.low), int(row.high), int(value))
        number.lineEdit().setTextMargins(_MARGIN, 0, 0, 0)
        self._read[row.key] = number.value
        return number

    def _choice(self, row: Row, value: str) -> QComboBox:
        combo = choice_box((choice_label(self._translator, choice), choice) for choice in row.choices)
        combo.setCurrentIndex(combo.findData(value))
        self._read[row.key] = lambda: str(combo.currentData())
        return combo

    def _buttons(self) -> QDialogButtonBox:
        box = QDialogButtonBox()
        save = push_button(self._translator.text("Save"), role="primary")
        box.addButton(save, QDialogButtonBox.ButtonRole.AcceptRole)
        box.addButton(push_button(self._translator.text("Cancel")), QDialogButtonBox.ButtonRole.RejectRole)
        box.accepted.connect(self.accept)
        box.rejected.connect(self.reject)
        save.setDefault(True)
        return box


def choice_label(translator: Translator, choice: str) -> str:
    """What a choice of the settings table is called; a language by its own name, the code where there is no word."""
    known: dict[str, str] = {
        **{entry.name: translator.text(entry.title) for entry in BACKENDS},
        "system": translator.text("System default"),
        "light": translator.text("Light"),
        "dark": translator.text("Dark"),
        "auto": translator.text("Automatic"),
        "accelerator": translator.text("Edge TPU only"),
        "fastest": translator.text("Whichever is faster"),
        "both": translator.text("Both together"),
        "std": translator.text("Standard"),
        "max": translator.text("Highest"),
        **languages(),
    }
    return known.get(choice, choice)
