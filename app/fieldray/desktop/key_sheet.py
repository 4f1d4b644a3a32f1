"""All keys and what the mouse does, on one sheet."""

from __future__ import annotations

from PySide6.QtWidgets import (
    QDialog,
    QDialogButtonBox,
    QGridLayout,
    QHBoxLayout,
    QVBoxLayout,
    QWidget,
)

from fieldray.desktop.keys import KEYS, Group, group_title, key_name
from fieldray.desktop.widgets import card, label, name_surface, push_button, scrolled
from fieldray.translation import Translator

_COLUMNS: tuple[tuple[Group, ...], ...] = (("list", "tools"), ("view",), ("program",))


class KeySheet(QDialog):
    """Derived from the key table."""

    def __init__(self, translator: Translator, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setWindowTitle(translator.text("Keys and mouse"))
        self.resize(min(1160, parent.width() - 40) if parent else 1160, 660)
        page = QWidget()
        name_surface(page, "page")
        columns = QHBoxLayout(page)
        for groups in _COLUMNS:
            column = QVBoxLayout()
            for group in groups:
                column.addWidget(_group_card(translator, group))
            column.addStretch(1)
            columns.addLayout(column, 1)
        close = push_button(translator.text("Close"))
        box = QDialogButtonBox()
        box.addButton(close, QDialogButtonBox.ButtonRole.RejectRole)
        box.rejected.connect(self.reject)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(12, 12, 12, 12)
        layout.addWidget(scrolled(page), 1)
        layout.addWidget(box)


def _group_card(translator: Translator, group: Group) -> QWidget:
    frame, column = card()
    column.addWidget(label(group_title(translator, group), role="heading"))
    grid = QGridLayout()
    grid.setColumnStretch(1, 1)
    lines = [(_key_names(key.keys), key.say(translator)) for key in KEYS if key.group == group]
    if group == "tools":
        lines = [*mouse_lines(translator), *lines]
    for place, (keys, meaning) in enumerate(lines):
        grid.addWidget(label(keys, role="heading"), place, 0)
        grid.addWidget(label(meaning), place, 1)
    column.addLayout(grid)
    return frame


def mouse_lines(translator: Translator) -> list[tuple[str, str]]:
    """What the mouse does on the image."""
    return [
        (translator.text("Left drag"), translator.text("Window (across) and level (up and down)")),
        (translator.text("Middle drag"), translator.text("Move the image")),
        (translator.text("Right drag"), translator.text("Zoom")),
        (translator.text("Right click"), translator.text("Menu")),
        (translator.text("Wheel"), translator.text("Next or previous image")),
        (translator.text("Ctrl + wheel"), translator.text("Zoom at the pointer")),
    ]


def _key_names(keys: tuple[str, ...]) -> str:
    return ",  ".join(map(key_name, keys))
