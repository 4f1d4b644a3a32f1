"""The few parts all pages are put together from: labels, cards, buttons, named surfaces."""

from __future__ import annotations

from typing import Literal

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QIcon
from PySide6.QtWidgets import QFrame, QLabel, QPushButton, QScrollArea, QVBoxLayout, QWidget

Surface = Literal["page", "panel", "header"]


def words(text: str, *, role: str = "") -> QLabel:
    """A wrapped, selectable label. Plain text only: names from files and drives must never become markup.

    role: "title", "heading" or "muted" (see the style sheet).
    """
    label = QLabel(text)
    label.setWordWrap(True)
    label.setTextFormat(Qt.TextFormat.PlainText)
    label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
    if role:
        label.setProperty("role", role)
    return label


def card() -> tuple[QFrame, QVBoxLayout]:
    """A card and the column inside it."""
    frame = QFrame()
    frame.setObjectName("card")
    column = QVBoxLayout(frame)
    column.setContentsMargins(14, 12, 14, 12)
    column.setSpacing(6)
    return frame, column


def push_button(text: str, *, picture: QIcon | None = None, role: str = "") -> QPushButton:
    """A button; role: "primary", "chip", "filter" or "choice" (see the style sheet)."""
    button = QPushButton(text)
    if picture is not None:
        button.setIcon(picture)
        button.setIconSize(QSize(20, 20))
    if role:
        button.setProperty("role", role)
    return button


def picture_label(picture: QIcon, *, side: int) -> QLabel:
    """An icon that stands beside words, `side` points wide."""
    label = QLabel()
    label.setPixmap(picture.pixmap(QSize(side, side)))
    return label


def name_surface(widget: QWidget, name: Surface) -> None:
    """Give a widget the ground of a page, a panel or the header."""
    widget.setObjectName(name)
    widget.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)


def scrolled(page: QWidget) -> QScrollArea:
    """A page in a scroll area that is as wide as the room there is."""
    area = QScrollArea()
    area.setWidgetResizable(True)
    area.setWidget(page)
    return area
