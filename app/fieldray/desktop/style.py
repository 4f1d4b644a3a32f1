"""Colours, style sheet and icons of the window, for a light and a dark theme."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from string import Template
from typing import Final, Literal

from PySide6.QtCore import QByteArray, QRectF, QSize, Qt
from PySide6.QtGui import (
    QColor,
    QFont,
    QGuiApplication,
    QIcon,
    QPainter,
    QPalette,
    QPixmap,
)
from PySide6.QtSvg import QSvgRenderer
from PySide6.QtWidgets import QApplication

from fieldray.domain.finding import Category
from fieldray.domain.run import VerdictChoice
from fieldray.paths import asset_path

Theme = Literal["light", "dark"]

# Every colour of the window: (light, dark). Text and class colours keep a contrast of at least 4.5:1 on `surface`
# (a test measures the contrast). The classes also differ in lightness, and are never shown by colour alone.
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


def resolve_theme(setting: str) -> Theme:
    """Return the theme that a setting selects. "system" selects the theme of the desktop, or light if that is unknown.

    setting  "light", "dark" or "system"
    """
    is_dark = QGuiApplication.styleHints().colorScheme() == Qt.ColorScheme.Dark
    return "dark" if setting == "dark" or (setting == "system" and is_dark) else "light"


@lru_cache
def colours(theme: Theme) -> Mapping[str, str]:
    """Return the colours of a theme by name, as "#rrggbb"."""
    return {name: pair[theme == "dark"] for name, pair in _TABLE.items()}


def colour(theme: Theme, name: str) -> QColor:
    """Return the colour of a theme with this name (see `colours`)."""
    return QColor(colours(theme)[name])


def style_sheet(theme: Theme) -> str:
    """Return the Qt style sheet of a theme: `assets/style/fieldray.qss` with each `$name` replaced by a colour."""
    names = {**colours(theme), "theme": theme, "icons": asset_path("style").as_posix()}
    return Template(asset_path("style/fieldray.qss").read_text(encoding="utf-8")).substitute(names)


def scaled_font(font: QFont, share: float) -> QFont:
    """Return a copy of a font. The size is multiplied by `share`."""
    made = QFont(font)
    made.setPointSizeF(font.pointSizeF() * share)
    return made


@contextmanager
def preserve_painter_state(painter: QPainter, *hints: QPainter.RenderHint) -> Iterator[None]:
    """Set render hints of a painter for a `with` block. Afterwards, restore the state of the painter."""
    painter.save()
    for hint in hints:
        painter.setRenderHint(hint)
    yield
    painter.restore()


def apply_theme(application: QApplication, theme: Theme) -> None:
    """Apply a theme to the application, including Qt's own dialogs."""
    sheet = style_sheet(theme)
    if application.styleSheet() == sheet:
        return  # otherwise Qt would style every widget three times
    palette = QPalette()
    for role, name in _ROLES.items():
        palette.setColor(role, colour(theme, name))
    for role in (QPalette.ColorRole.Text, QPalette.ColorRole.ButtonText, QPalette.ColorRole.WindowText):
        palette.setColor(QPalette.ColorGroup.Disabled, role, colour(theme, "disabled"))
    application.setStyle("Fusion")
    application.setPalette(palette)
    application.setStyleSheet(sheet)


# ---- icons of the window, and shapes of the classes

_SIDES = (16, 20, 40, 60)
_CLASS_INSET: Final = 0.125


@lru_cache(maxsize=256)
def icon(name: str, theme: Theme, colour_name: str = "text", *, inset: float = 0.0) -> QIcon:
    """Return an icon of `assets/icons`, drawn in one colour of the theme. A disabled icon is grey.

    colour_name  name of the colour in `colours`
    inset        margin around the icon, as a share of its side
    """
    made = QIcon()
    for mode, shade in ((QIcon.Mode.Normal, colour_name), (QIcon.Mode.Disabled, "disabled")):
        for side in _SIDES:
            made.addPixmap(_pixmap(name, colours(theme)[shade], side, inset=inset), mode)
    return made


def program_icon() -> QIcon:
    """Return the icon of the program."""
    made = QIcon()
    for side in (16, 32, 48, 64, 128, 256):
        made.addPixmap(_pixmap("fieldray", "", side))
    return made


def _pixmap(name: str, shade: str, side: int, *, inset: float = 0.0) -> QPixmap:
    pixmap = QPixmap(QSize(side, side))
    pixmap.fill(Qt.GlobalColor.transparent)
    painter, room = QPainter(pixmap), inset * side
    _drawing(name, shade).render(painter, QRectF(pixmap.rect()).adjusted(room, room, -room, -room))
    painter.end()
    return pixmap


@lru_cache(maxsize=256)
def _drawing(name: str, shade: str) -> QSvgRenderer:
    drawing = asset_path(f"icons/{name}.svg").read_text(encoding="utf-8").replace("currentColor", shade)
    return QSvgRenderer(QByteArray(drawing.encode()))


def draw_category_icon(painter: QPainter, category: Category, box: QRectF, theme: Theme) -> None:
    """Draw the icon of a class so that it fills a box."""
    _drawing(f"classes/{category}", colours(theme)[category]).render(painter, box)


VerdictMark = VerdictChoice | Literal["saving", "not_saved", "unread"]


def draw_verdict_mark(painter: QPainter, mark: VerdictMark, box: QRectF, theme: Theme) -> None:
    """Draw the mark of a reader's verdict. Agree is a tick, disagree a cross, unsure a question mark.

    A verdict that is being saved is three dots. A verdict that is not saved is an exclamation mark in a ring. An unread
    image has a disc.
    """
    _drawing(f"verdicts/{mark}", colours(theme)["text"]).render(painter, box)


def category_icon(category: Category, theme: Theme) -> QIcon:
    """Return the shape of a class as an icon for a button.

    The shapes are: read first, two triangles, one above the other; abnormal, a triangle; unsure, a diamond; normal, a
    disc; no threshold, a ring; not suitable, a square with a bar cut out; not an image, a bar; failed, a cross.
    """
    return icon(f"classes/{category}", theme, category, inset=_CLASS_INSET)
