"""Colours, style sheet and icons: two palettes from one table, one accent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache, partial
from string import Template
from typing import Final, Literal

from PySide6.QtCore import QByteArray, QPointF, QRectF, QSize, Qt
from PySide6.QtGui import (
    QColor,
    QFont,
    QGuiApplication,
    QIcon,
    QPainter,
    QPainterPath,
    QPaintEvent,
    QPalette,
    QPen,
    QPixmap,
    QTransform,
)
from PySide6.QtSvg import QSvgRenderer
from PySide6.QtWidgets import QApplication, QWidget

from fieldray.desktop.verdicts import State
from fieldray.domain.finding import Category
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


def chosen_theme(setting: str) -> Theme:
    """The theme of the setting "system" (light where the desktop does not say), "light" or "dark"."""
    is_dark = QGuiApplication.styleHints().colorScheme() == Qt.ColorScheme.Dark
    return "dark" if setting == "dark" or (setting == "system" and is_dark) else "light"


@lru_cache
def colours(theme: Theme) -> Mapping[str, str]:
    """Colour by name, as "#rrggbb"."""
    return {name: pair[theme == "dark"] for name, pair in _TABLE.items()}


def colour(theme: Theme, name: str) -> QColor:
    """One colour of the table."""
    return QColor(colours(theme)[name])


def style_sheet(theme: Theme) -> str:
    """The whole style sheet; `assets/style/fieldray.qss` with its `$names` replaced."""
    names = {**colours(theme), "theme": theme, "icons": asset("style").as_posix()}
    return Template(asset("style/fieldray.qss").read_text(encoding="utf-8")).substitute(names)


def scaled(font: QFont, share: float) -> QFont:
    """The font in another size."""
    made = QFont(font)
    made.setPointSizeF(font.pointSizeF() * share)
    return made


@contextmanager
def kept(painter: QPainter, *hints: QPainter.RenderHint) -> Iterator[None]:
    """Draw with these hints; the painter is as it was afterwards."""
    painter.save()
    for hint in hints:
        painter.setRenderHint(hint)
    yield
    painter.restore()


def apply(application: QApplication, theme: Theme) -> None:
    """Give the application this theme, Qt's own dialogs included."""
    sheet = style_sheet(theme)
    if application.styleSheet() == sheet:
        return  # Qt would style every widget there is three times over
    palette = QPalette()
    for role, name in _ROLES.items():
        palette.setColor(role, colour(theme, name))
    for role in (QPalette.ColorRole.Text, QPalette.ColorRole.ButtonText, QPalette.ColorRole.WindowText):
        palette.setColor(QPalette.ColorGroup.Disabled, role, colour(theme, "disabled"))
    application.setStyle("Fusion")
    application.setPalette(palette)
    application.setStyleSheet(sheet)


# ---- The icons of the window, and the shapes that stand for the classes of images.

_SIDES = (20, 40, 60)


@lru_cache(maxsize=256)
def icon(name: str, theme: Theme, colour_name: str = "text") -> QIcon:
    """An icon of `assets/icons`, drawn in one colour of the table; disabled it takes the disabled colour."""
    made = QIcon()
    for mode, shade in ((QIcon.Mode.Normal, colour_name), (QIcon.Mode.Disabled, "disabled")):
        for side in _SIDES:
            made.addPixmap(_pixmap(name, colours(theme)[shade], side), mode)
    return made


def program_icon() -> QIcon:
    """The program's own icon, in its own colours."""
    made = QIcon()
    for side in (16, 32, 48, 64, 128, 256):
        made.addPixmap(_pixmap("fieldray", "", side))
    return made


def _pixmap(name: str, shade: str, side: int) -> QPixmap:
    drawing = asset(f"icons/{name}.svg").read_text(encoding="utf-8").replace("currentColor", shade)
    renderer = QSvgRenderer(QByteArray(drawing.encode()))
    return _drawn(side, lambda painter: renderer.render(painter, QRectF(0, 0, side, side)))


def _drawn(side: int, draw: Callable[[QPainter], object]) -> QPixmap:
    pixmap = QPixmap(QSize(side, side))
    pixmap.fill(Qt.GlobalColor.transparent)
    painter = QPainter(pixmap)
    draw(painter)
    painter.end()
    return pixmap


# Corners of each part of a shape in a box from 0 to 1; a part inside another one is cut out of it.
_SHAPES: Final[Mapping[Category, tuple[tuple[tuple[float, float], ...], ...]]] = {
    "read_first": (((0.5, 0), (1, 0.5), (0, 0.5)), ((0.5, 0.5), (1, 1), (0, 1))),
    "abnormal": (((0.5, 0), (1, 1), (0, 1)),),
    "unsure": (((0.5, 0), (1, 0.5), (0.5, 1), (0, 0.5)),),
    "refused": (((0, 0), (1, 0), (1, 1), (0, 1)), ((0.2, 0.4), (0.8, 0.4), (0.8, 0.6), (0.2, 0.6))),
    "not_an_image": (((0, 0.38), (1, 0.38), (1, 0.62), (0, 0.62)),),
}


def class_path(category: Category, box: QRectF) -> QPainterPath:
    """The shape of a class.

    Read first: two triangles, one above the other; abnormal: a triangle; not sure: a diamond; normal: a disc; not
    assessed: a ring; refused: a square with a bar cut out; not an image: a bar; failed: a cross.
    """
    path, side = QPainterPath(), box.width()
    for corners in _SHAPES.get(category, ()):
        path.addPolygon([box.topLeft() + QPointF(x * side, y * box.height()) for x, y in corners])
        path.closeSubpath()
    if category in ("normal", "not_assessed"):
        path.addEllipse(box)
    if category == "not_assessed":
        path.addEllipse(box.adjusted(side / 4, side / 4, -side / 4, -side / 4))
    if category == "failed":
        for turn in (45, -45):
            path = path.united(_bar(box.center(), side / 2, side * 0.16, turn))
    return path


def draw_class(painter: QPainter, category: Category, box: QRectF, shade: QColor) -> None:
    """Draw the shape of a class into a box."""
    with kept(painter, QPainter.RenderHint.Antialiasing):
        painter.fillPath(class_path(category, box), shade)


def draw_verdict(painter: QPainter, state: State | Literal["unread"], box: QRectF, shade: QColor) -> None:
    """How a verdict stands. Saved: a tick; being saved: three dots; not saved: an exclamation mark in a ring.

    A disc where nobody has read the image.
    """
    path, side = QPainterPath(), box.width()
    if state == "unread":
        path.addEllipse(box.center(), side / 4, side / 4)
        with kept(painter, QPainter.RenderHint.Antialiasing):
            painter.fillPath(path, shade)
        return
    dots = {"saved": (), "saving": ((0.1, 0.5), (0.5, 0.5), (0.9, 0.5)), "not_saved": ((0.5, 0.76),)}[state]
    if state == "saved":
        path.addPolygon([box.topLeft() + QPointF(x, y) * side for x, y in ((0.1, 0.55), (0.4, 0.85), (0.9, 0.15))])
    elif state == "not_saved":
        path.addEllipse(box)
        path.moveTo(box.topLeft() + QPointF(0.5, 0.22) * side)
        path.lineTo(box.topLeft() + QPointF(0.5, 0.56) * side)
    for x, y in dots:
        path.addEllipse(box.topLeft() + QPointF(x, y) * side, side / 24, side / 24)
    with kept(painter, QPainter.RenderHint.Antialiasing):
        painter.strokePath(path, QPen(shade, side / 8))


def class_icon(category: Category, theme: Theme) -> QIcon:
    """The shape as an icon for a button."""
    made = QIcon()
    for side in (16, 32, 48):
        box = QRectF(side / 8, side / 8, side - 2 * side / 8, side - 2 * side / 8)
        made.addPixmap(_drawn(side, partial(draw_class, category=category, box=box, shade=colour(theme, category))))
    return made


class ClassMark(QWidget):
    """The shape alone, beside a large word."""

    def __init__(self, theme: Theme, *, side: int) -> None:
        super().__init__()
        self._theme: Theme = theme
        self._category: Category | None = None
        self.setFixedSize(side, side)

    def show_class(self, category: Category | None) -> None:
        """Draw another class, nothing for None."""
        self._category = category
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        if self._category is None:
            return
        painter = QPainter(self)
        draw_class(
            painter, self._category, QRectF(self.rect()).adjusted(2, 2, -2, -2), colour(self._theme, self._category)
        )
        painter.end()


def _bar(middle: QPointF, half: float, arm: float, turn: float) -> QPainterPath:
    bar = QPainterPath()
    bar.addRect(QRectF(-half, -arm / 2 * 1.4, 2 * half, arm * 1.4))
    return QTransform().translate(middle.x(), middle.y()).rotate(turn).map(bar)
