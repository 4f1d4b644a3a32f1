"""The basic widgets of all pages: labels, cards, buttons, choices, questions and tool tips.

Many texts of the window come from outside: names of files and drives, fields of images, texts of packs. This module
sets every text, and shows it as plain text. Markup, which could open files and addresses, has no effect. The sign `&`
makes no shortcut. Characters that hide or reorder text, or begin a line, are made visible. Several lines are passed as
several texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from PySide6.QtCore import QEvent, QObject, QSize, Qt, QUrl, Signal, SignalInstance
from PySide6.QtGui import QAction, QIcon, QImage, QShowEvent, QTextBlock, QTextCursor, QTextDocument
from PySide6.QtGui import Qt as Rich
from PySide6.QtWidgets import (
    QAbstractButton,
    QAbstractItemView,
    QApplication,
    QBoxLayout,
    QComboBox,
    QFileDialog,
    QFrame,
    QHBoxLayout,
    QHeaderView,
    QInputDialog,
    QLabel,
    QLayout,
    QLineEdit,
    QMessageBox,
    QPushButton,
    QScrollArea,
    QSlider,
    QSpinBox,
    QStyledItemDelegate,
    QSystemTrayIcon,
    QTableWidget,
    QTableWidgetItem,
    QTextBrowser,
    QVBoxLayout,
    QWidget,
)

from fieldray.desktop.style import Theme, icon
from fieldray.plain_text import escape_invisible_characters
from fieldray.translation import Translator

Surface = Literal["page", "panel", "toolbar"]
LayoutPart = (
    QWidget | QLayout | int | tuple[QWidget | QLayout, int]
)  # a number is an empty space that stretches; in a pair, the share of the space
BoxLayout = TypeVar("BoxLayout", bound=QBoxLayout)
Margins = tuple[int, int, int, int]  # left, top, right, bottom
NO_MARGINS: Final[Margins] = (0, 0, 0, 0)


class PlainLabel(QLabel):
    """A label that shows lines of plain text."""

    def __init__(self, *lines: str) -> None:
        super().__init__()
        self.setTextFormat(Qt.TextFormat.PlainText)
        self.setText(*lines)

    def setText(self, *lines: str) -> None:
        super().setText(without_markup(*lines))


class PlainButton(QPushButton):
    """A button that shows lines of plain text. The sign `&` is displayed unchanged and makes no shortcut."""

    def __init__(self, *lines: str) -> None:
        super().__init__()
        self.setText(*lines)

    def setText(self, *lines: str) -> None:
        super().setText(without_markup(*lines).replace("&", "&&"))


class DocumentView(QTextBrowser):
    """The view of a Markdown document of the program.

    No link can be opened, and no file is read except the given images.

    images  files of the images that the document may show, by their name in the document
    """

    def __init__(self, markdown: str, images: Mapping[str, Path]) -> None:
        super().__init__()
        self._images = dict(images)
        self.setOpenLinks(False)
        self.setOpenExternalLinks(False)
        dialect = QTextDocument.MarkdownFeature.MarkdownDialectGitHub
        self.document().setMarkdown(markdown, dialect | QTextDocument.MarkdownFeature.MarkdownNoHTML)
        self.moveCursor(QTextCursor.MoveOperation.Start)  # otherwise the end of a long document would be shown first

    def loadResource(self, kind: int, name: QUrl | str) -> object:
        """Return an image of the document. The value is never None, because Qt would then look for a file of that name.

        kind  kind of the resource, as Qt passes it
        name  name of the image in the document
        """
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
        """Return the headings below the title: the text of each heading, and its position for `scroll_to_position`."""
        return [(block.text(), block.position()) for block in self._blocks() if block.blockFormat().headingLevel() > 1]

    def scroll_to_position(self, position: int) -> None:
        """Scroll until the paragraph at a position is at the top of the view.

        position  number of letters before the paragraph in the displayed text
        """
        layout = self.document().documentLayout()
        top = layout.blockBoundingRect(self.document().findBlock(position)).top()
        self.verticalScrollBar().setValue(int(top))

    def _blocks(self) -> Iterable[QTextBlock]:
        block = self.document().begin()
        while block.isValid():
            yield block
            block = block.next()


def without_markup(*lines: str) -> str:
    """Join lines to a text that Qt displays without interpreting markup."""
    return "\n".join(map(escape_invisible_characters, lines))


def set_elided_text(button: PlainButton, *lines: str, max_width: int) -> None:
    """Show lines of text on a button. A line wider than `max_width` is cut and ends with `…`.

    lines      the lines of text, from top to bottom
    max_width  width for the text in pixels
    """
    metrics, right = button.fontMetrics(), Qt.TextElideMode.ElideRight
    button.setText(*(metrics.elidedText(without_markup(line), right, max_width) for line in lines))


def plain_tooltip_text(*lines: str) -> str:
    """Join lines to the text of a tool tip. Text that Qt would interpret as markup is escaped."""
    text = without_markup(*lines)
    if not Rich.mightBeRichText(text):
        return text
    return Rich.convertFromPlainText(text, Qt.WhiteSpaceMode.WhiteSpaceNormal)


def set_tooltip(target: QWidget | QAction | QTableWidgetItem, *lines: str) -> None:
    """Set the tool tip of a widget, an action or a cell of a table to these lines."""
    target.setToolTip(plain_tooltip_text(*lines))


def show_tray_message(tray_icon: QSystemTrayIcon, title: str, caption: str) -> None:
    """Show a notification of the operating system with the program's tray icon.

    Some systems interpret markup in notifications. So the text must come from the program, not from files.

    tray_icon  the tray icon
    title      title of the notification
    caption    text of the notification
    """
    tray_icon.showMessage(without_markup(title), without_markup(caption), tray_icon.icon())


def make_label(*lines: str, role: str = "") -> PlainLabel:
    """Return a label with line breaks, whose text can be selected.

    role  look of the label in the style sheet: "title", "heading", "muted", "warning", or "" for plain text
    """
    label = PlainLabel(*lines)
    label.setWordWrap(True)
    label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
    if role:
        label.setProperty("role", role)
    return label


def split_paragraphs(text: str) -> tuple[str, ...]:
    """Split a long text of a pack, which may contain line breaks and tabs, into lines."""
    return tuple(text.expandtabs(4).split("\n"))


def column_layout(
    parent: QWidget | None, *parts: LayoutPart, margins: Margins = NO_MARGINS, spacing: int | None = None
) -> QVBoxLayout:
    """Arrange widgets and layouts one below the other.

    parent   the widget that gets the layout; None for a layout inside another layout
    parts    widgets and layouts; a number is an empty space, and a pair is a widget with its stretch (see `LayoutPart`)
    margins  margins around the column in points
    spacing  space between the parts in points; None for the usual space
    """
    return _lay(QVBoxLayout(parent) if parent else QVBoxLayout(), parts, margins, spacing)


def row_layout(
    parent: QWidget | None, *parts: LayoutPart, margins: Margins = NO_MARGINS, spacing: int | None = None
) -> QHBoxLayout:
    """Arrange widgets and layouts side by side. The parameters are those of `column_layout`."""
    return _lay(QHBoxLayout(parent) if parent else QHBoxLayout(), parts, margins, spacing)


def _lay(layout: BoxLayout, parts: Iterable[LayoutPart], margins: Margins, spacing: int | None) -> BoxLayout:
    layout.setContentsMargins(*margins)
    if spacing is not None:
        layout.setSpacing(spacing)
    for each in parts:
        part, stretch = each if isinstance(each, tuple) else (each, 0)
        if isinstance(part, QWidget):
            layout.addWidget(part, stretch)
        elif isinstance(part, QLayout):
            layout.addLayout(part, stretch)
        else:
            layout.addStretch(part)
    return layout


def card(*parts: LayoutPart) -> QFrame:
    """Return a framed card that contains widgets and layouts one below the other."""
    frame = QFrame()
    frame.setObjectName("card")
    column_layout(frame, *parts, margins=(14, 12, 14, 12), spacing=6)
    return frame


def push_button(
    text: str,
    on_click: Callable[[], object] | None = None,
    *,
    icon: QIcon | None = None,
    role: str = "",
    accessible_name: str = "",
) -> PlainButton:
    """Make a button.

    on_click         function called after a click; None for no function
    role             look of the button in the style sheet: "primary", "chip", "filter" or "choice"; "" for a usual
                     button. Buttons with the roles "filter" and "choice" stay pressed after a click
    accessible_name  name for screen readers and tool tip, for a button without text
    """
    button = PlainButton(text)
    if on_click is not None:
        button.clicked.connect(lambda _=False: on_click())
    if icon is not None:
        button.setIcon(icon)
        button.setIconSize(QSize(20, 20))
    if role:
        button.setProperty("role", role)
    if accessible_name:
        button.setAccessibleName(accessible_name)
        set_tooltip(button, accessible_name)
    button.setFocusPolicy(Qt.FocusPolicy.TabFocus)  # a click leaves the focus where it is, mostly on the list
    button.setCheckable(role in ("filter", "choice"))
    return button


def connect_button(button: QAbstractButton, action: QAction) -> None:
    """Make a button trigger an action. A click does not move the focus to the button."""
    button.clicked.connect(action.trigger)
    button.setFocusPolicy(Qt.FocusPolicy.TabFocus)
    button.setAccessibleName(action.iconText())
    set_tooltip(button, action.toolTip())


def icon_label(icon: QIcon, *, side: int) -> QLabel:
    """Make a label that shows an icon.

    side  width and height of the icon in points
    """
    label = PlainLabel()
    label.setPixmap(icon.pixmap(QSize(side, side)))
    return label


class _WheelPassedOn(QObject):
    """Passes movements of the mouse wheel over a widget to the page that contains the widget."""

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() != QEvent.Type.Wheel:
            return super().eventFilter(watched, event)
        event.ignore()
        return True


def pass_wheel_to_page(target: QWidget) -> None:
    """Let the mouse wheel over a widget scroll the page instead of changing the widget's value."""
    target.installEventFilter(_WheelPassedOn(target))


def slider(percent: int) -> QSlider:
    """Return a slider from 0 to 100 %, set to `percent`."""
    made = QSlider(Qt.Orientation.Horizontal)
    made.setRange(0, 100)
    made.setValue(percent)
    made.setFocusPolicy(Qt.FocusPolicy.TabFocus)
    pass_wheel_to_page(made)
    return made


def number_box(low: int, high: int, value: int) -> QSpinBox:
    """Return a field for a whole number from `low` to `high`."""
    made = QSpinBox()
    made.setRange(low, high)
    made.setValue(value)
    pass_wheel_to_page(made)
    return made


def choice_box(choices: Iterable[tuple[str, Any]], *, accessible_name: str = "", selected: object = None) -> QComboBox:
    """Make a drop-down list.

    choices          text and value of each choice
    accessible_name  name for screen readers
    selected         the value that is selected first
    """
    box = QComboBox()
    # Qt's usual list interprets `&` and tabs, and ignores the line height of the style.
    box.setItemDelegate(QStyledItemDelegate(box))
    box.setAccessibleName(accessible_name)
    pass_wheel_to_page(box)
    for text, value in choices:
        box.addItem(without_markup(text), value)
    box.setCurrentIndex(max(box.findData(selected), min(box.count() - 1, 0)))
    return box


def search_field(caption: str, text: str = "") -> QLineEdit:
    """Return a field for a search text."""
    field = QLineEdit(text)
    field.setPlaceholderText(caption)
    field.setAccessibleName(caption)
    set_tooltip(field, caption)
    field.setClearButtonEnabled(True)
    return field


def ask_for_paths(
    parent: QWidget,
    title: str,
    mode: QFileDialog.FileMode,
    on_chosen: Callable[[list[Path]], object],
    translator: Translator,
    *,
    start_folder: str = "",
) -> None:
    """Let a person choose a folder, a file or several files in a dialog. Returns at once.

    on_chosen     function called with the chosen paths; not called if the person cancels
    start_folder  the folder that the dialog shows first; "" for the working folder
    """
    dialog = QFileDialog(parent, title, start_folder)
    dialog.setFileMode(mode)
    # Qt's translations lack these two texts.
    dialog.setLabelText(QFileDialog.DialogLabel.LookIn, translator.text("Look in:"))
    dialog.setLabelText(QFileDialog.DialogLabel.FileType, translator.text("Files of type:"))
    dialog.filesSelected.connect(lambda paths: on_chosen([Path(path) for path in paths]))
    dialog.open()


def ask_for_text(parent: QWidget, title: str, caption: str, on_text: Callable[[str], object]) -> None:
    """Ask a person in a dialog for one line of text.

    caption  text above the field
    on_text  function called with the text; not called for an empty text
    """
    dialog = QInputDialog(parent)
    dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
    dialog.setWindowTitle(title)
    dialog.setLabelText(caption)
    dialog.textValueSelected.connect(lambda text: on_text(text) if text.strip() else None)
    dialog.open()


def question_box(
    parent: QWidget,
    text: str,
    *more: str,
    answers: Mapping[str, Callable[[], object]],
    decline_text: str,
    on_decline: Callable[[], object] = lambda: None,
) -> QMessageBox:
    """Return a dialog with a question. Each answer is a button. The caller opens the dialog.

    more          further lines below the question
    answers       function of each answer, by the text of the button
    decline_text  text of the button that declines
    on_decline    function called when a person declines

    The button that declines has the focus, and Escape triggers it, so that a key pressed by mistake declines.
    """
    box = QMessageBox(QMessageBox.Icon.Question, "Fieldray", without_markup(text), parent=parent)
    box.setTextFormat(Qt.TextFormat.PlainText)
    box.setInformativeText(without_markup(*more))
    for caption, act in answers.items():
        box.addButton(without_markup(caption), QMessageBox.ButtonRole.AcceptRole).clicked.connect(
            lambda _=False, act=act: act()
        )
    refusal = box.addButton(without_markup(decline_text), QMessageBox.ButtonRole.RejectRole)
    refusal.clicked.connect(on_decline)
    box.setDefaultButton(refusal)
    box.setEscapeButton(refusal)
    box.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
    return box


def is_input_in_progress() -> bool:
    """Return whether a person is using a text field or a dialog.

    A question that would open by itself waits meanwhile.
    """
    return isinstance(QApplication.focusWidget(), QLineEdit) or QApplication.activeModalWidget() is not None


def set_surface(widget: QWidget, name: Surface) -> None:
    """Give a widget the background colour of a page, a panel or the toolbar."""
    widget.setObjectName(name)
    widget.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)


class Page(QScrollArea):
    """A page of the window: a title with a button back to the images, and below it the content, which scrolls."""

    back_clicked = Signal()

    def __init__(self, name: str, title: str, translator: Translator, theme: Theme, *buttons: QWidget) -> None:
        """Make a page.

        name     name of the page
        buttons  buttons at the right end of the title line
        """
        super().__init__()
        self.setAccessibleName(name)
        self._translator, self._theme = translator, theme
        page = QWidget()
        set_surface(page, "page")
        back = push_button(translator.text("Back to the images"), self.back_clicked.emit, icon=icon("back", theme))
        top = row_layout(None, back, (make_label(title, role="title"), 1), *buttons)
        self._column = column_layout(page, top, 1, margins=(24, 16, 24, 24), spacing=12)
        self.setWidgetResizable(True)
        self.setWidget(page)
        self._is_stale = False

    def refresh(self) -> None:
        """Show the current state of the program on the page."""

    def refresh_on_signals(self, *signals: SignalInstance) -> None:
        """Refresh the page whenever one of these signals is emitted.

        A hidden page is refreshed when it is shown next.
        """
        for signal in signals:
            signal.connect(self._note_news)

    def showEvent(self, event: QShowEvent) -> None:
        if self._is_stale:
            self._is_stale = False
            self.refresh()
        super().showEvent(event)

    def _note_news(self) -> None:
        if self.isVisible():
            self.refresh()
        else:
            self._is_stale = True


def remove_widgets(*widgets: QWidget | None) -> None:
    """Remove widgets from the window: hide them at once, and let Qt delete them later. A value None is ignored."""
    for widget in widgets:
        if widget is not None:
            widget.hide()
            widget.deleteLater()


def in_scroll_area(page: QWidget) -> QScrollArea:
    """Put a page into a scroll area that uses the available width."""
    area = QScrollArea()
    area.setWidgetResizable(True)
    area.setWidget(page)
    return area


# ---- a table of plain texts: disagreements of an audit, past runs, images of a comparison

TEXT_FIELD_MARGIN: Final = 8
_TABLE_HEIGHT: Final = 260


def read_only_table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], *, max_height: int = _TABLE_HEIGHT
) -> QTableWidget:
    """Make a read-only table whose rows can be activated. The last column fills the width.

    headings    headings of the columns
    rows        texts of the cells in each row
    max_height  maximum height of the table in points
    """
    table = QTableWidget(len(rows), len(headings))
    table.setHorizontalHeaderLabels([without_markup(heading) for heading in headings])
    for index, row in enumerate(rows):
        for column, text in enumerate(row):
            table.setItem(index, column, item := QTableWidgetItem(without_markup(text)))
        set_tooltip(item, row[-1])  # the cell may be cut
    table.setTextElideMode(Qt.TextElideMode.ElideMiddle)
    table.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
    table.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
    table.setTabKeyNavigation(False)
    table.setShowGrid(False)
    table.verticalHeader().hide()
    header = table.horizontalHeader()
    header.setSectionResizeMode(QHeaderView.ResizeMode.ResizeToContents)
    header.setMinimumSectionSize(header.sectionSizeHint(len(headings) - 1))
    header.setSectionResizeMode(len(headings) - 1, QHeaderView.ResizeMode.Stretch)
    header.setDefaultAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
    rows_height = sum(table.rowHeight(index) for index in range(len(rows)))
    table.setFixedHeight(min(rows_height + header.sizeHint().height() + TEXT_FIELD_MARGIN, max_height))
    return table
