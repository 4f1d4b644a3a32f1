"""The few parts all pages are put together from: labels, cards, buttons, choices, questions, tool tips.

Much of what the window shows was written elsewhere: names of files and drives, fields of images, texts of packs. Every
text that is set goes through here, and is shown as what it is: never as markup, which can open files and addresses,
never as a mnemonic, and never with characters that hide, reorder it or begin a line. A text is one line; who wants
several gives several.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Literal

from PySide6.QtCore import QEvent, QObject, QSize, Qt, QUrl
from PySide6.QtGui import QAction, QIcon, QImage, QResizeEvent, QTextBlock, QTextCursor, QTextDocument
from PySide6.QtGui import Qt as Rich
from PySide6.QtWidgets import (
    QApplication,
    QComboBox,
    QDialog,
    QFrame,
    QLabel,
    QLineEdit,
    QMessageBox,
    QPushButton,
    QScrollArea,
    QSlider,
    QSpinBox,
    QStyledItemDelegate,
    QTableWidgetItem,
    QTextBrowser,
    QVBoxLayout,
    QWidget,
)

from fieldray.plain_text import visible

Surface = Literal["page", "panel", "toolbar"]
_FRAME: Final = 40  # what the system draws around a window, at most
_LEAST_DIALOG: Final = 480


class PlainLabel(QLabel):
    """A label of plain lines."""

    def __init__(self, *lines: str) -> None:
        super().__init__()
        self.setTextFormat(Qt.TextFormat.PlainText)
        self.setText(*lines)

    def setText(self, *lines: str) -> None:
        super().setText(plain(*lines))


class PlainButton(QPushButton):
    """A button of plain lines: an `&` is an `&` and makes no shortcut."""

    def __init__(self, *lines: str) -> None:
        super().__init__()
        self.setText(*lines)

    def setText(self, *lines: str) -> None:
        super().setText(plain(*lines).replace("&", "&&"))


class DocumentView(QTextBrowser):
    """A Markdown document that is part of the program: no link is opened, and no file but the given images is read.

    images    the files that the document may show, by the names it gives them
    """

    def __init__(self, markdown: str, images: Mapping[str, Path]) -> None:
        super().__init__()
        self._images = dict(images)
        self.setOpenLinks(False)
        self.setOpenExternalLinks(False)
        dialect = QTextDocument.MarkdownFeature.MarkdownDialectGitHub
        self.document().setMarkdown(markdown, dialect | QTextDocument.MarkdownFeature.MarkdownNoHTML)
        self.moveCursor(QTextCursor.MoveOperation.Start)  # it is at the end, where a long document would be shown first

    def loadResource(self, kind: int, name: QUrl | str) -> object:
        """An image of the document. Never nothing: Qt would then look for a file of that name by itself."""
        path = self._images.get(name if isinstance(name, str) else name.toString())
        if kind != QTextDocument.ResourceType.ImageResource.value:
            return b" "
        image = QImage(str(path)) if path else QImage()
        if image.isNull():
            image = QImage(1, 1, QImage.Format.Format_ARGB32)
            image.fill(Qt.GlobalColor.transparent)
            return image
        width = max(320, self.viewport().width() - 60)
        smooth = Qt.TransformationMode.SmoothTransformation
        return image.scaledToWidth(width, smooth) if image.width() > width else image

    def headings(self) -> list[tuple[str, int]]:
        """(text, position) of each heading below the title."""
        return [(block.text(), block.position()) for block in self._blocks() if block.blockFormat().headingLevel() > 1]

    def show_position(self, position: int) -> None:
        """Scroll until the block at this position is at the top."""
        layout = self.document().documentLayout()
        top = layout.blockBoundingRect(self.document().findBlock(position)).top()
        self.verticalScrollBar().setValue(int(top))

    def _blocks(self) -> Iterable[QTextBlock]:
        block = self.document().begin()
        while block.isValid():
            yield block
            block = block.next()


def plain(*lines: str) -> str:
    """Lines as they are shown where nothing is taken for markup."""
    return "\n".join(map(visible, lines))


def plain_tip(*lines: str) -> str:
    """Lines as a tool tip, which Qt takes for markup if it looks like it: then as markup that shows the lines."""
    text = plain(*lines)
    if not Rich.mightBeRichText(text):
        return text
    return Rich.convertFromPlainText(text, Qt.WhiteSpaceMode.WhiteSpaceNormal)


def set_tip(target: QWidget | QAction, *lines: str) -> None:
    """Give a widget or a command its tool tip."""
    target.setToolTip(plain_tip(*lines))


def set_item_tip(item: QTableWidgetItem | None, *lines: str) -> None:
    """Give a cell of a table its tool tip."""
    if item is not None:
        item.setToolTip(plain_tip(*lines))


def label(*lines: str, role: str = "") -> PlainLabel:
    """A wrapped, selectable label; role: "title", "heading", "muted" or "warning" (see the style sheet)."""
    label = PlainLabel(*lines)
    label.setWordWrap(True)
    label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
    if role:
        label.setProperty("role", role)
    return label


def path_words(path: Path, *, role: str = "") -> QLabel:
    """As `words`, for a path: it may be broken after each folder."""
    made = label(role=role)
    QLabel.setText(made, plain(str(path)).replace(os.sep, os.sep + "\u200b"))
    return made


def paragraphs(text: str) -> tuple[str, ...]:
    """A long text of a pack as lines: it may have line breaks and tabs."""
    return tuple(text.expandtabs(4).split("\n"))


def card() -> tuple[QFrame, QVBoxLayout]:
    """A card and the column inside it."""
    frame = QFrame()
    frame.setObjectName("card")
    column = QVBoxLayout(frame)
    column.setContentsMargins(14, 12, 14, 12)
    column.setSpacing(6)
    return frame, column


def push_button(text: str, *, picture: QIcon | None = None, role: str = "") -> PlainButton:
    """A button; role: "primary", "chip", "filter" or "choice" (see the style sheet)."""
    button = PlainButton(text)
    if picture is not None:
        button.setIcon(picture)
        button.setIconSize(QSize(20, 20))
    if role:
        button.setProperty("role", role)
    return button


def icon_label(picture: QIcon, *, side: int) -> QLabel:
    """An icon that stands beside words, `side` points wide."""
    label = PlainLabel()
    label.setPixmap(picture.pixmap(QSize(side, side)))
    return label


class _WheelPassedOn(QObject):
    """The wheel over a widget turns the page that it stands on."""

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() != QEvent.Type.Wheel:
            return super().eventFilter(watched, event)
        event.ignore()
        return True


def pass_wheel_on(target: QWidget) -> None:
    """Keep what is set there as it is when somebody scrolls and the pointer comes over it."""
    target.installEventFilter(_WheelPassedOn(target))


def slider(percent: int) -> QSlider:
    """A slider from 0 to 100 %."""
    made = QSlider(Qt.Orientation.Horizontal)
    made.setRange(0, 100)
    made.setValue(percent)
    pass_wheel_on(made)
    return made


def number_box(low: int, high: int, value: int) -> QSpinBox:
    """A field for a whole number."""
    made = QSpinBox()
    made.setRange(low, high)
    made.setValue(value)
    pass_wheel_on(made)
    return made


def choice_box(choices: Iterable[tuple[str, Any]]) -> QComboBox:
    """A box to choose from texts, each with what it stands for."""
    box = QComboBox()
    # The usual one draws a menu, where `&` and tabs have a meaning, and reckons without the style's height of a line.
    box.setItemDelegate(QStyledItemDelegate(box))
    pass_wheel_on(box)
    for text, value in choices:
        box.addItem(plain(text), value)
    return box


def question_box(
    parent: QWidget,
    text: str,
    *more: str,
    answers: Mapping[str, Callable[[], object]],
    no: str,
    declined: Callable[[], object] = lambda: None,
) -> QMessageBox:
    """A question with further lines, and what each answer does.

    A key that was meant for something else answers `no`: it has the focus, and is what Escape means.
    """
    box = QMessageBox(QMessageBox.Icon.Question, "Fieldray", plain(text), parent=parent)
    box.setTextFormat(Qt.TextFormat.PlainText)
    box.setInformativeText(plain(*more))
    for words, act in answers.items():
        box.addButton(plain(words), QMessageBox.ButtonRole.AcceptRole).clicked.connect(lambda _=False, act=act: act())
    refusal = box.addButton(plain(no), QMessageBox.ButtonRole.RejectRole)
    refusal.clicked.connect(declined)
    box.setDefaultButton(refusal)
    box.setEscapeButton(refusal)
    box.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
    return box


def is_typing() -> bool:
    """Whether a person is in a field of text or in a dialog: what opens by itself waits until they have done."""
    return isinstance(QApplication.focusWidget(), QLineEdit) or QApplication.activeModalWidget() is not None


def name_surface(widget: QWidget, name: Surface) -> None:
    """Give a widget the ground of a page, a panel or the toolbar."""
    widget.setObjectName(name)
    widget.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)


class TallArea(QScrollArea):
    """A scroll area whose page is as high as its wrapped texts need at the width there is.

    Qt asks a page in a scroll area for its least height without regard to its width, and squeezes the texts.
    """

    def __init__(self) -> None:
        super().__init__()
        self.setWidgetResizable(True)

    def show_page(self, page: QWidget) -> None:
        """Take the page in."""
        self.setWidget(page)
        page.installEventFilter(self)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() == QEvent.Type.LayoutRequest:
            self._fit()
        return super().eventFilter(watched, event)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit()

    def _fit(self) -> None:
        page = self.widget()
        layout = page.layout() if page is not None else None
        if page is None or layout is None:
            return
        high = max(0, layout.totalHeightForWidth(self.viewport().width()))
        if page.minimumHeight() != high:
            page.setMinimumHeight(high)


def fit_dialog(dialog: QDialog, width: int, height: int) -> None:
    """Give a dialog this size, or what the screen and the window behind it leave."""
    room = dialog.screen().availableSize() - QSize(_FRAME, 2 * _FRAME)
    behind = dialog.parentWidget()
    if behind is not None:
        room = room.boundedTo(QSize(max(behind.width() - _FRAME, _LEAST_DIALOG), room.height()))
    dialog.resize(QSize(width, height).boundedTo(room))


def lay_out_dialog(dialog: QDialog, page: QWidget, buttons: QWidget, *, width: int) -> None:
    """A dialog as high as its page needs; where there is less room, the page is scrolled above the buttons."""
    area = TallArea()
    area.setFocusPolicy(Qt.FocusPolicy.NoFocus)
    area.show_page(page)
    column = QVBoxLayout(dialog)
    column.setContentsMargins(24, 20, 24, 16)
    column.setSpacing(12)
    column.addWidget(area, 1)
    column.addWidget(buttons)
    layout, sides = page.layout(), column.contentsMargins()
    high = layout.totalHeightForWidth(width - sides.left() - sides.right()) if layout is not None else 0
    around = sides.top() + sides.bottom() + column.spacing() + buttons.sizeHint().height()
    fit_dialog(dialog, width, max(high, page.sizeHint().height()) + around)


def scrolled(page: QWidget) -> QScrollArea:
    """A page in a scroll area that is as wide as the room there is."""
    area = QScrollArea()
    area.setWidgetResizable(True)
    area.setWidget(page)
    return area
