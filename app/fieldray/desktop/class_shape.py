"""Each class has a shape of its own, so that nobody needs colours to tell them apart."""

from __future__ import annotations

from PySide6.QtCore import QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QIcon, QPainter, QPainterPath, QPaintEvent, QPixmap, QTransform
from PySide6.QtWidgets import QWidget

from fieldray.desktop.style import Theme, colour
from fieldray.domain.finding import Category


def class_path(category: Category, box: QRectF) -> QPainterPath:
    """Abnormal: a triangle; not sure: a diamond; normal: a disc; not assessed: a ring; refused: a square with a bar
    cut out; failed: a cross."""
    path = QPainterPath()
    left, top, right, bottom = box.left(), box.top(), box.right(), box.bottom()
    middle = box.center()
    if category == "abnormal":
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
