"""Icons in the colour of the text, sharp at every scale."""

from __future__ import annotations

from functools import lru_cache

from PySide6.QtCore import QByteArray, QRectF, QSize, Qt
from PySide6.QtGui import QIcon, QPainter, QPixmap
from PySide6.QtSvg import QSvgRenderer

from fieldray.desktop.style import Theme, colours
from fieldray.paths import asset

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
    pixmap = QPixmap(QSize(side, side))
    pixmap.fill(Qt.GlobalColor.transparent)
    painter = QPainter(pixmap)
    renderer.render(painter, QRectF(0, 0, side, side))
    painter.end()
    return pixmap
