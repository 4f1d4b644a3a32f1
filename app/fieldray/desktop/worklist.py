"""The widgets of the work list: filter buttons with counts, search field, and the table of images."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final, Literal

from PySide6.QtCore import QPoint, QSize, Qt, Signal
from PySide6.QtGui import QAction, QFont, QFontMetrics, QPainter, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import (
    QAbstractItemView,
    QButtonGroup,
    QComboBox,
    QGridLayout,
    QHeaderView,
    QMenu,
    QSizePolicy,
    QTableView,
    QWidget,
)

from fieldray.backends import BACKENDS
from fieldray.desktop.style import Theme, icon, scaled_font
from fieldray.desktop.widgets import (
    PlainButton,
    choice_box,
    column_layout,
    make_label,
    push_button,
    row_layout,
    search_field,
    set_surface,
    set_tooltip,
)
from fieldray.desktop.worklist_delegate import (
    CLASS_COLUMN_PADDING,
    ICON_COLUMN_WIDTH,
    ROW_HEIGHT,
    SMALL_CLASS_COLUMN_PADDING,
    WorkListDelegate,
    demibold_font,
)
from fieldray.desktop.worklist_model import WorkListModel
from fieldray.desktop.worklist_rows import COLUMN_KEYS, WorkListRow
from fieldray.domain.finding import WORK_LIST_ORDER, Category
from fieldray.domain.history import ReadingFilter, ResultFilter
from fieldray.domain.model import Manifest
from fieldray.formatting import category_label, format_count, short_category_label
from fieldray.reasons import reason
from fieldray.translation import Translator

# Width of each column, and the width of the list from which the column is shown.
_WIDTHS: Final = {"image": 58, "date": 92, "view": 84, "score": 60, "backend": 96, "ms": 62, "status": 220}
_SHOWN_FROM: Final = {"image": 330, "score": 520, "date": 600, "view": 680, "backend": 780, "ms": 840, "status": 1020}
_MARGIN: Final = 24
_SHAPE: Final = 12  # size of a class's icon on its button
# Minimum width for a name or reason. With less space the name of a class is below its icon, and then left out.
_NAME: Final = 160
CATEGORIES_SHOWN_IF_PRESENT: Final = ("not_assessed", "not_an_image")
MIN_LIST_WIDTH: Final = 280
MIN_LIST_WIDTH_NARROW_WINDOW: Final = 198  # minimum: four buttons with icon and three digits
_VERY_LOW: Final = 300  # below this height, the filters by verdict and device are hidden
_LOW: Final = 480  # below this height, the buttons use fewer lines


def verdict_filter_box(translator: Translator, chosen: ReadingFilter, *, has_unread: bool = False) -> QComboBox:
    """Return a drop-down list that filters images by the reader's verdict.

    chosen      the filter that is selected first
    has_unread  whether the list also offers to show unread images only
    """
    choices = (
        (translator.text("Any verdict"), "any"),
        *(((translator.text("Unread"), "unread"),) if has_unread else ()),
        (translator.text("With a verdict"), "given"),
        (translator.text("Without a verdict"), "none"),
        (translator.text("Verdict: disagree"), "disagreed"),
    )
    return choice_box(choices, accessible_name=translator.text("Verdict"), selected=chosen)


def device_filter_box(translator: Translator, chosen: str) -> QComboBox:
    """Return a drop-down list that filters images by the device that ran the model.

    chosen  name of the device that is selected first; "" for any device
    """
    devices = ((translator.text(entry.title), entry.name) for entry in reversed(tuple(BACKENDS)))
    choices = ((translator.text("Any device"), ""), *devices)
    return choice_box(choices, accessible_name=translator.text("Device"), selected=chosen)


class FilterBar(QWidget):
    """The bar with the filters of the work list: a button for each class with its count, and the search field.

    If the list is not sorted by urgency, the bar also names the column by which it is sorted.
    """

    urgency_order_requested = Signal()

    def __init__(self, model: WorkListModel, translator: Translator, theme: Theme) -> None:
        super().__init__()
        self._model, self._translator = model, translator
        self._buttons: dict[Category | None, PlainButton] = {}
        self._words: dict[Category | None, str] = {}
        self._numbers: dict[Category | None, str] = {}
        self._is_low = False
        group = QButtonGroup(self)
        self._layout = layout = QGridLayout(self)
        layout.setContentsMargins(6, 8, 6, 8)
        layout.setHorizontalSpacing(2)  # so that seven buttons with two digits fit into 340 points
        layout.setVerticalSpacing(6)
        shown: tuple[Category | None, ...] = (None, *WORK_LIST_ORDER)
        for category in shown:
            button = push_button("", partial(model.change_filter, category=category), role="filter")
            if category:
                button.setIcon(icon(f"classes/{category}", theme, category))
                button.setIconSize(QSize(_SHAPE, _SHAPE))
            group.addButton(button)
            self._buttons[category] = button
        self.search = search_field(translator.text("Search name, patient ID, date, file"), model.wanted.text)
        self.search.textChanged.connect(self._search)
        self.verdicts = verdict_filter_box(translator, model.wanted.verdict, has_unread=True)
        self.verdicts.activated.connect(lambda _: model.change_filter(verdict=self.verdicts.currentData()))
        self.devices = device_filter_box(translator, model.wanted.backend)
        self.devices.activated.connect(lambda _: model.change_filter(backend=self.devices.currentData()))
        self.next_unread = push_button("", icon=icon("next-unread", theme), role="choice")
        self.next_unread.setCheckable(False)
        self.by_patient = push_button("", icon=icon("by-patient", theme), role="choice")
        self._finding = QWidget()
        row_layout(self._finding, (self.search, 1), self.next_unread, self.by_patient, spacing=6)
        self._choices = QWidget()
        row_layout(self._choices, (self.verdicts, 1), (self.devices, 1), spacing=6)
        for box in (self.verdicts, self.devices):
            box.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self._buttons[model.wanted.category].setChecked(True)
        for news in (model.counts_changed, model.switches.changed):
            news.connect(self.refresh)
        self.by_urgency = push_button("", self.urgency_order_requested.emit, role="choice")
        self.by_urgency.setCheckable(False)
        model.order_changed.connect(self._show_order)
        self.remark = make_label(role="warning")
        self._arranged: tuple[object, ...] = ()
        self._show_order()
        self.refresh()

    def refresh(self) -> None:
        """Show the current number of images in each class.

        The button of a rare class is shown only if an image has this class.
        """
        counts = self._model.class_counts()
        for category, button in self._buttons.items():
            number = counts[category] if category else self._model.total_image_count()
            word = whole = self._translator.text("All")
            if category is not None:
                whole = category_label(self._translator, category, self._model.manifest)
                word = short_category_label(self._translator, category, self._model.manifest)
            set_tooltip(button, whole)
            button.setAccessibleName(f"{whole}: {number}")
            self._words[category] = word
            self._numbers[category] = format_count(number)
        mark = reason("unsigned_operating_point_unknown")
        said = [self._translator.reason(mark)] if self._model.is_by_larger_output else []
        if self._model.additional_manifests:
            said.append(self._translator.text("Each image is sorted by its most urgent result."))
        self.remark.setText("\n".join(said))
        self._arrange()
        self._show_order()
        self.remark.setVisible(bool(said))
        self.by_patient.setChecked(self._model.switches.by_patient)

    def _search(self, text: str) -> None:
        """Search for a text in all classes, so that a filter by class does not hide a patient of the run."""
        begins = bool(text.strip()) and not self._model.wanted.text
        if begins:
            self._buttons[None].setChecked(True)
        self._model.change_filter(text=text.strip(), **({"category": None} if begins else {}))

    def _show_order(self) -> None:
        """Show the column by which the list is sorted, unless the list is sorted by urgency.

        A click sorts the list by urgency again.
        """
        title = self._model.sort_column_title
        text = self._translator.text("Sorted by the column {column}. Click to sort by urgency", column=title.lower())
        self.by_urgency.setText(text)
        self.by_urgency.setVisible(bool(title))

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._arrange()

    def clear_filters(self) -> None:
        """Clear the search and the filters by class, verdict and device."""
        self.search.clear()
        self._buttons[None].setChecked(True)
        for box in (self.verdicts, self.devices):
            box.setCurrentIndex(0)
        self._model.wanted = ResultFilter()
        self._model.change_filter()

    def adapt_to_list_height(self, height: int) -> None:
        """Use fewer lines for the bar if the work list is low.

        height  height of the work list in points
        """
        self._is_low = height < _LOW
        self._choices.setVisible(height >= _VERY_LOW)
        self._arrange()

    def _arrange(self) -> None:
        """Arrange the buttons: in one row with names of classes, else in rows of three.

        If there is less space, the buttons show only icon and count: in one row, else in rows of four.
        """
        counts = self._model.class_counts()
        shown = [
            category for category in self._buttons if category not in CATEGORIES_SHOWN_IF_PRESENT or counts[category]
        ]
        captions = {category: f"{self._words[category]}  {self._numbers[category]}" for category in shown}
        columns = len(shown) if self._fit_in_a_row(captions) else min(self._room_for(captions), 3)
        if columns < 3 or self._is_low:
            captions |= {category: self._numbers[category] for category in shown if category}
            without_total = captions | {None: self._words[None]}  # the toolbar shows the total, too
            if not self._fit_in_a_row(captions) and (
                self._fit_in_a_row(without_total) or self._room_for(captions) < min(self._room_for(without_total), 4)
            ):
                captions = without_total
            columns = min(max(self._room_for(captions), 1), 4)
            columns = len(shown) if self._fit_in_a_row(captions) else columns
        for category, text in captions.items():
            self._buttons[category].setText(text)
        if self._arranged == (columns, *shown):
            return
        self._arranged = (columns, *shown)
        for position, category in enumerate(shown):
            self._layout.addWidget(self._buttons[category], position // columns, position % columns)
        self._layout.addWidget(self._choices, len(self._buttons), 0, 1, columns)
        self._layout.addWidget(self._finding, len(self._buttons) + 1, 0, 1, columns)
        self._layout.addWidget(self.by_urgency, len(self._buttons) + 2, 0, 1, columns)
        self._layout.addWidget(self.remark, len(self._buttons) + 3, 0, 1, columns)
        for category, button in self._buttons.items():
            button.setVisible(category in shown)  # only now, because a widget without parent would be a window

    def _fit_in_a_row(self, captions: Mapping[Category | None, str]) -> bool:
        """Return whether buttons with these texts fit into one row. Each button is as wide as its text needs."""
        return sum(width + self._layout.horizontalSpacing() for width in self._widths(captions)) <= self._room()

    def _room_for(self, captions: Mapping[Category | None, str]) -> int:
        """Return how many buttons with these texts fit into one row. All buttons are as wide as the widest."""
        return self._room() // (max(self._widths(captions)) + self._layout.horizontalSpacing())

    def _room(self) -> int:
        """Return the width in points that one row of filter buttons may have, including a gap after each button."""
        margins = self._layout.contentsMargins()
        return self.width() - margins.left() - margins.right() + self._layout.horizontalSpacing()

    def _widths(self, captions: Mapping[Category | None, str]) -> list[int]:
        buttons = {self._buttons[category]: text for category, text in captions.items()}
        return [
            button.sizeHint().width()
            + button.fontMetrics().horizontalAdvance(text)
            - button.fontMetrics().horizontalAdvance(button.text())
            for button, text in buttons.items()
        ]


def class_column_width(translator: Translator, font: QFont, manifest: Manifest | None = None) -> int:
    """Return the width in pixels of the column with the class. Icon and name of every usual class fit.

    The names of rare classes may be cut.

    manifest  manifest of the pack with its own class names; None for the program's names
    """
    return _longest_class(translator, demibold_font(font), manifest) + CLASS_COLUMN_PADDING


def _longest_class(translator: Translator, font: QFont, manifest: Manifest | None) -> int:
    classes = (
        short_category_label(translator, category, manifest)
        for category in WORK_LIST_ORDER
        if category not in CATEGORIES_SHOWN_IF_PRESENT
    )
    return max(map(QFontMetrics(font).horizontalAdvance, classes))


class WorkListTable(QTableView):
    """The table of the work list.

    One whole row is selected. The selected row does not move on the screen while other rows arrive.
    """

    def __init__(self, model: WorkListModel, delegate: WorkListDelegate, translator: Translator) -> None:
        super().__init__()
        self._rows, self._translator = model, translator
        self.setModel(model)
        self.setItemDelegate(delegate)
        self._delegate = delegate
        self._hold_y: int | None = None
        self._chosen_columns: dict[str, bool] = {}
        self.class_column_width = self.below_width = ICON_COLUMN_WIDTH
        self.pack_widths = list[int]()
        self.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        self.setSelectionMode(QAbstractItemView.SelectionMode.SingleSelection)
        self.setVerticalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        self.setHorizontalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        self.setShowGrid(False)
        self.setWordWrap(False)
        self.setTabKeyNavigation(False)
        self._set_headers()
        model.layoutAboutToBeChanged.connect(self._remember_position)
        model.layoutChanged.connect(self._keep_position)
        model.list_changed.connect(self._say_if_empty)

    def fit_columns(self, width: int) -> None:
        """Show as many columns as fit into a width, unless a person chose the columns.

        Columns of additional packs follow the column with the score.

        width  width of the table in points
        """
        taken = self._fit_other_packs(width)
        for column, key in enumerate(COLUMN_KEYS):
            room = width if key == "image" else width - taken
            shown = self._chosen_columns.get(key, room >= _SHOWN_FROM.get(key, 0))
            self.setColumnHidden(column, not shown)
        self._delegate.date_below, self._delegate.score_below = (
            self.isColumnHidden(COLUMN_KEYS.index(key)) for key in ("date", "score")
        )
        others = (width for key, width in _WIDTHS.items() if not self.isColumnHidden(COLUMN_KEYS.index(key)))
        room = width - sum(others) - taken - _NAME
        wide = self.class_column_width
        if room < wide and not self._rows.is_by_larger_output:
            wide = self.below_width if room >= self.below_width else ICON_COLUMN_WIDTH
        self._delegate.class_below = wide == self.below_width < self.class_column_width
        self.setColumnWidth(COLUMN_KEYS.index("class"), wide)

    def _fit_other_packs(self, width: int) -> int:
        """Set the widths of the columns of additional packs, and return their sum.

        In a narrow table these columns show only icon and score.

        width  width of the table in points
        """
        widths, header, first = self.pack_widths, self.horizontalHeader(), COLUMN_KEYS.index("score") + 1
        if width < _NAME + _WIDTHS["image"] + _WIDTHS["score"] + self.class_column_width + sum(widths):
            widths = [ICON_COLUMN_WIDTH] * len(widths)
        for number, wide in enumerate(widths):
            self.setColumnWidth(len(COLUMN_KEYS) + number, wide)
            header.moveSection(header.visualIndex(len(COLUMN_KEYS) + number), first + number)
        return sum(widths)

    def resizeEvent(self, event: QResizeEvent) -> None:
        self.fit_columns(self.width())
        super().resizeEvent(event)

    def paintEvent(self, event: QPaintEvent) -> None:
        super().paintEvent(event)
        if text := self.accessibleDescription():
            area = self.viewport().rect().adjusted(_MARGIN, _MARGIN, -_MARGIN, -_MARGIN)
            flags = Qt.AlignmentFlag.AlignTop | Qt.AlignmentFlag.AlignHCenter | Qt.TextFlag.TextWordWrap
            QPainter(self.viewport()).drawText(area, flags, text)

    def _say_if_empty(self) -> None:
        rows = self._rows
        is_without_match = rows.is_fully_read and not rows.rowCount() and rows.total_image_count() > 0
        caption = self._translator.text("No image matches the search and the filters.")
        self.setAccessibleDescription(caption if is_without_match else "")
        self.viewport().update()

    def _set_headers(self) -> None:
        rows, columns = self.verticalHeader(), self.horizontalHeader()
        rows.hide()
        rows.setSectionResizeMode(QHeaderView.ResizeMode.Fixed)
        rows.setDefaultSectionSize(ROW_HEIGHT)
        for column, key in enumerate(COLUMN_KEYS):
            if key in _WIDTHS:
                self.setColumnWidth(column, _WIDTHS[key])
        columns.setSectionResizeMode(COLUMN_KEYS.index("patient"), QHeaderView.ResizeMode.Stretch)
        columns.setMinimumSectionSize(48)
        columns.setDefaultAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
        columns.setHighlightSections(False)
        columns.setTextElideMode(Qt.TextElideMode.ElideRight)
        columns.setSectionsClickable(True)
        columns.setSortIndicatorShown(True)
        columns.setSortIndicatorClearable(True)
        columns.setSortIndicator(*self._rows.sorted_by)
        columns.sortIndicatorChanged.connect(self._sort)
        columns.setContextMenuPolicy(Qt.ContextMenuPolicy.CustomContextMenu)
        columns.customContextMenuRequested.connect(self._choose_columns)

    def _sort(self, column: int, order: Qt.SortOrder) -> None:
        """Sort the list by a column. A column of an additional pack restores the order by the first pack's classes."""
        if column >= len(COLUMN_KEYS):
            self.horizontalHeader().setSortIndicator(-1, Qt.SortOrder.AscendingOrder)
        else:
            self._rows.sort(column, order)

    def _choose_columns(self, at: QPoint) -> None:
        menu = QMenu(self)
        for column, key in enumerate(COLUMN_KEYS):
            title = str(self.model().headerData(column, Qt.Orientation.Horizontal))
            action = QAction(title, menu)
            action.setCheckable(True)
            action.setChecked(not self.isColumnHidden(column))
            action.setEnabled(key not in ("patient", "class"))
            action.toggled.connect(lambda shown, chosen=key: self._choose(chosen, shown))
            menu.addAction(action)
        menu.popup(self.horizontalHeader().mapToGlobal(at))

    def _choose(self, key: str, shown: bool) -> None:
        self._chosen_columns[key] = shown
        self.fit_columns(self.width())

    def _remember_position(self) -> None:
        box = self.visualRect(self.currentIndex())
        seen = self.currentIndex().isValid() and self.viewport().rect().intersects(box)
        self._hold_y = box.y() if seen else None

    def _keep_position(self) -> None:
        if self._hold_y is not None:
            bar = self.verticalScrollBar()
            bar.setValue(bar.value() + self.visualRect(self.currentIndex()).y() - self._hold_y)


class WorkList(QWidget):
    """The filter bar and the table of a run's images. `row_chosen` is emitted with the row that a person selects.

    opened  the row whose image is open in the window, and which is selected first; None for no row
    """

    row_chosen = Signal(object)

    def __init__(self, model: WorkListModel, opened: WorkListRow | None, translator: Translator, theme: Theme) -> None:
        super().__init__()
        set_surface(self, "panel")
        self.setMinimumWidth(MIN_LIST_WIDTH)
        self._model = model
        self._goal: int | Literal["first", "last"] | None = None
        model.awaits_row = False  # the old window may have waited for a row
        self._chosen = opened
        self._chosen_id = opened.row_id if opened else None
        self._named: object = ""  # packs whose class names determined the width; "" for none
        self._delegate = WorkListDelegate(translator, theme, self)
        self.filter_bar = FilterBar(model, translator, theme)
        self.table = WorkListTable(model, self._delegate, translator)
        self.table.setAccessibleName(translator.text("Work list"))
        self._translator = translator
        self._fit_classes()
        model.counts_changed.connect(self._fit_classes)
        header = self.table.horizontalHeader()
        self.filter_bar.urgency_order_requested.connect(
            lambda: header.setSortIndicator(-1, Qt.SortOrder.AscendingOrder)
        )
        column_layout(self, self.filter_bar, (self.table, 1), spacing=0)
        self.table.selectionModel().currentRowChanged.connect(self._report_chosen)
        model.modelReset.connect(self._after_reset)
        model.list_changed.connect(self._go)
        model.rows_loaded.connect(self._report_chosen)
        model.searched_image_found.connect(self.select_image)
        self._after_reset()

    def _fit_classes(self) -> None:
        """Make the class column as wide as the class names of the run's packs need."""
        packs = self._model.manifest, *self._model.additional_manifests
        if packs == self._named:
            return
        self._named, font = packs, self.table.font()
        self.table.class_column_width, *self.table.pack_widths = (
            class_column_width(self._translator, font, one) for one in packs
        )
        small = demibold_font(scaled_font(font, 0.87))
        self.table.below_width = (
            _longest_class(self._translator, small, self._model.manifest) + SMALL_CLASS_COLUMN_PADDING
        )
        self.table.fit_columns(self.table.width())

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self.filter_bar.adapt_to_list_height(self.height())

    def move_selection(self, row_step: int) -> None:
        """Move the selection by a number of rows: 1 selects the next image, -1 the previous image."""
        self._choose_row(self.table.currentIndex().row() + row_step)

    def select_next_study(self, direction: int) -> None:
        """Select the first image of another study.

        direction  1 for the next study, -1 for the previous study
        """
        here = max(self.table.currentIndex().row(), 0)
        self._model.find_neighbour_study(here, direction)

    def select_first_or_last(self, *, is_last: bool) -> None:
        """Select the first or the last image of the work list, as soon as that image is listed.

        is_last  True for the last image, False for the first image
        """
        self._go_to("last" if is_last else "first")

    def select_image(self, row_id: int, *, may_show_all: bool = False) -> None:
        """Select the image with this row id as soon as it is listed.

        may_show_all  whether filters are cleared if they hide the image
        """
        if may_show_all and not self._model.index_of(row_id).isValid():
            self.filter_bar.clear_filters()
        self._go_to(row_id)

    def _go_to(self, goal: int | Literal["first", "last"] | None) -> None:
        self._goal, self._model.awaits_row = goal, goal is not None
        self._go()

    def _go(self) -> None:
        """Select the requested row if it is listed.

        If the whole list was read and lacks the row, forget the request.
        """
        row, is_whole = self._row_of_goal(), self._model.is_fully_read
        if row is not None or is_whole:
            self._goal, self._model.awaits_row = None, False
        if row is not None:
            self._choose_row(row)

    def _row_of_goal(self) -> int | None:
        count = self._model.rowCount()
        if self._goal is None or not count:
            return None
        if self._goal == "first":
            return 0
        if self._goal == "last":
            return count - 1 if self._model.is_fully_read else None
        index = self._model.index_of(self._goal)
        return index.row() if index.isValid() else None

    def _choose_row(self, row: int) -> None:
        count = self._model.rowCount()
        if count:
            index = self._model.index(min(max(row, 0), count - 1), COLUMN_KEYS.index("patient"))
            self.table.setCurrentIndex(index)
            self.table.scrollTo(index)

    def _report_chosen(self) -> None:
        """Emit the selected row.

        None is emitted while the row is being read, so that nobody takes the previous image for the selected image.

        A newer result of the selected image is not emitted, because a person must open the newer result.
        """
        current = self.table.currentIndex()
        if not current.isValid():
            return
        before, self._chosen_id = self._chosen_id, self._model.row_id_at(current)
        row = self._model.row_at(current)
        self._model.prefetch_rows_around(current.row())
        if row is not self._chosen and (before != self._chosen_id or self._chosen is None):
            self._chosen = row
            self.row_chosen.emit(row)

    def _after_reset(self) -> None:
        """Restore the selection after a change of the filter: the selected image if it is listed, else the first row.

        Without a change of the filter, an image that leaves the list stays open, and no other image is selected. An
        empty list clears the selection.
        """
        known = self._model.index_of(self._chosen_id or 0)
        if known.isValid():
            self._choose_row(known.row())
            return
        self.table.scrollToTop()
        if self._model.run_id is None or self._model.total_image_count() == 0:
            self._chosen_id = None
            if self._chosen is not None:
                self._chosen = None
                self.row_chosen.emit(None)
        elif self._chosen_id is not None and self._goal is None and self._model.reads_other_list:
            self.select_first_or_last(is_last=False)
