"""Colours and the style sheet: two palettes from one table, one accent."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from string import Template
from typing import Final, Literal

from PySide6.QtCore import Qt
from PySide6.QtGui import QColor, QGuiApplication, QPalette
from PySide6.QtWidgets import QApplication

from fieldray.paths import asset

Theme = Literal["light", "dark"]

# Every colour of the window: (light, dark). Text and class colours keep a contrast of at least 4.5:1 on `surface`
# (a test measures it); the classes differ in lightness too, and are never told apart by colour alone.
# fmt: off
_TABLE: Final[Mapping[str, tuple[str, str]]] = {
    "window":       ("#eceff2", "#14181c"),
    "surface":      ("#ffffff", "#1c2227"),
    "raised":       ("#f4f6f8", "#252c33"),
    "pressed":      ("#dfe5ea", "#303942"),
    "line":         ("#cdd5dc", "#36414a"),
    "text":         ("#18222b", "#e7ecf0"),
    "muted":        ("#54616d", "#9fabb6"),
    "disabled":     ("#8e99a3", "#69747e"),
    "accent":       ("#0b6488", "#58b7da"),
    "accent_hover": ("#0d769f", "#74c6e4"),
    "on_accent":    ("#ffffff", "#08202b"),
    "selection":    ("#d5e8f1", "#1f4253"),
    "image":         ("#0c0e10", "#07090a"),
    "on_image":      ("#e4e9ed", "#dfe5e9"),
    "info":         ("#e3eff5", "#1b313c"),
    "warning":      ("#fdf0d2", "#3d3113"),
    "error":        ("#fbe3de", "#43201a"),
    "read_first":   ("#9e0c30", "#ff8096"),
    "abnormal":     ("#b3370b", "#ff9362"),
    "unsure":     ("#7d5b00", "#ecc24d"),
    "normal":       ("#0a6a55", "#58cba9"),
    "not_assessed": ("#4a5a86", "#a7b6e0"),
    "refused":      ("#57626c", "#b3bdc6"),
    "failed":       ("#93266a", "#ea98c8"),
    "not_an_image": ("#57626c", "#b3bdc6"),
}
# fmt: on

_ROLES: Final[Mapping[QPalette.ColorRole, str]] = {
    QPalette.ColorRole.Window: "window",
    QPalette.ColorRole.WindowText: "text",
    QPalette.ColorRole.Base: "surface",
    QPalette.ColorRole.AlternateBase: "raised",
    QPalette.ColorRole.Text: "text",
    QPalette.ColorRole.Button: "raised",
    QPalette.ColorRole.ButtonText: "text",
    QPalette.ColorRole.Highlight: "selection",
    QPalette.ColorRole.HighlightedText: "text",
    QPalette.ColorRole.PlaceholderText: "muted",
    QPalette.ColorRole.ToolTipBase: "surface",
    QPalette.ColorRole.ToolTipText: "text",
    QPalette.ColorRole.Link: "accent",
    QPalette.ColorRole.Accent: "accent",
    QPalette.ColorRole.Mid: "line",
    QPalette.ColorRole.Dark: "line",
}


def system_theme() -> Theme:
    """What the desktop is set to; light where it does not say."""
    dark = QGuiApplication.styleHints().colorScheme() == Qt.ColorScheme.Dark
    return "dark" if dark else "light"


def chosen_theme(setting: str) -> Theme:
    """The theme of the setting "system", "light" or "dark"."""
    return "dark" if setting == "dark" or (setting == "system" and system_theme() == "dark") else "light"


@lru_cache
def colours(theme: Theme) -> Mapping[str, str]:
    """Colour by name, as "#rrggbb"."""
    return {name: pair[theme == "dark"] for name, pair in _TABLE.items()}


def colour(theme: Theme, name: str) -> QColor:
    """One colour of the table."""
    return QColor(colours(theme)[name])


def style_sheet(theme: Theme) -> str:
    """The whole style sheet; `assets/style/fieldray.qss` with its `$names` replaced."""
    names = {**colours(theme), "theme": theme, "pictures": asset("style").as_posix()}
    return Template(asset("style/fieldray.qss").read_text(encoding="utf-8")).substitute(names)


def apply(application: QApplication, theme: Theme) -> None:
    """Give the application this theme, Qt's own dialogs included."""
    palette = QPalette()
    for role, name in _ROLES.items():
        palette.setColor(role, colour(theme, name))
    for role in (QPalette.ColorRole.Text, QPalette.ColorRole.ButtonText, QPalette.ColorRole.WindowText):
        palette.setColor(QPalette.ColorGroup.Disabled, role, colour(theme, "disabled"))
    application.setStyle("Fusion")
    application.setPalette(palette)
    application.setStyleSheet(style_sheet(theme))
