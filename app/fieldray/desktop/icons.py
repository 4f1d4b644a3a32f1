"""The icons of the window, and the shapes that stand for the classes of images."""

from __future__ import annotations

from functools import lru_cache

from PySide6.QtCore import QByteArray, QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QIcon, QPainter, QPainterPath, QPaintEvent, QPen, QPixmap, QTransform
from PySide6.QtSvg import QSvgRenderer
from PySide6.QtWidgets import QWidget

from fieldray.desktop.style import Theme, colour, colours
from fieldray.desktop.verdicts import State
from fieldray.domain.finding import Category
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


def class_path(category: Category, box: QRectF) -> QPainterPath:
    """The shape of a class.

    Read first: two triangles, one above the other; abnormal: a triangle; not sure: a diamond; normal: a disc; not
    assessed: a ring; refused: a square with a bar cut out; not an image: a bar; failed: a cross.
    """
    path = QPainterPath()
    left, top, right, bottom = box.left(), box.top(), box.right(), box.bottom()
    middle = box.center()
    if category == "read_first":
        _polygon(path, (middle.x(), top), (right, middle.y()), (left, middle.y()))
        _polygon(path, (middle.x(), middle.y()), (right, bottom), (left, bottom))
    elif category == "abnormal":
        _polygon(path, (middle.x(), top), (right, bottom), (left, bottom))
    elif category == "unsure":
        _polygon(path, (middle.x(), top), (right, middle.y()), (middle.x(), bottom), (left, middle.y()))
    elif category == "normal":
        path.addEllipse(box)
    elif category == "not_assessed":
        path.addEllipse(box)
        inner = box.width() / 4
        path.addEllipse(box.adjusted(inner, inner, -inner, -inner))
    elif category == "refused":
        path.addRect(box)
        path.addRect(
            QRectF(left + box.width() * 0.2, middle.y() - box.height() * 0.1, box.width() * 0.6, box.height() * 0.2)
        )
    elif category == "not_an_image":
        path.addRect(QRectF(left, middle.y() - box.height() * 0.12, box.width(), box.height() * 0.24))
    else:
        arm = box.width() * 0.16
        for turn in (45, -45):
            path = path.united(_bar(middle, box.width() / 2, arm, turn))
    return path


def draw_class(painter: QPainter, category: Category, box: QRectF, shade: QColor) -> None:
    """Draw the shape of a class into a box."""
    painter.save()
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.fillPath(class_path(category, box), shade)
    painter.restore()


def draw_verdict(painter: QPainter, state: State, box: QRectF, shade: QColor) -> None:
    """How a verdict stands. Saved: a tick; being saved: three dots; not saved: an exclamation mark in a ring."""
    path, side = QPainterPath(), box.width()
    dots = {"saved": (), "saving": ((0.1, 0.5), (0.5, 0.5), (0.9, 0.5)), "not_saved": ((0.5, 0.76),)}[state]
    if state == "saved":
        path.addPolygon([box.topLeft() + QPointF(x, y) * side for x, y in ((0.1, 0.55), (0.4, 0.85), (0.9, 0.15))])
    elif state == "not_saved":
        path.addEllipse(box)
        path.moveTo(box.topLeft() + QPointF(0.5, 0.22) * side)
        path.lineTo(box.topLeft() + QPointF(0.5, 0.56) * side)
    for x, y in dots:
        path.addEllipse(box.topLeft() + QPointF(x, y) * side, side / 24, side / 24)
    painter.save()
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.strokePath(path, QPen(shade, side / 8))
    painter.restore()


def class_icon(category: Category, theme: Theme) -> QIcon:
    """The shape as an icon for a button."""
    made = QIcon()
    for side in (16, 32, 48):
        pixmap = QPixmap(QSize(side, side))
        pixmap.fill(Qt.GlobalColor.transparent)
        painter = QPainter(pixmap)
        edge = side / 8
        draw_class(painter, category, QRectF(edge, edge, side - 2 * edge, side - 2 * edge), colour(theme, category))
        painter.end()
        made.addPixmap(pixmap)
    return made


class ClassMark(QWidget):
    """The shape alone, beside a large word."""

    def __init__(self, theme: Theme, *, side: int, parent: QWidget | None = None) -> None:
        super().__init__(parent)
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


def _polygon(path: QPainterPath, *corners: tuple[float, float]) -> None:
    path.moveTo(QPointF(*corners[0]))
    for corner in corners[1:]:
        path.lineTo(QPointF(*corner))
    path.closeSubpath()


def _bar(middle: QPointF, half: float, arm: float, turn: float) -> QPainterPath:
    bar = QPainterPath()
    bar.addRect(QRectF(-half, -arm / 2 * 1.4, 2 * half, arm * 1.4))
    return QTransform().translate(middle.x(), middle.y()).rotate(turn).map(bar)
