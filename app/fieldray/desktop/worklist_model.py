"""The Qt model of the work list: row ids of the listed images in order, and the contents of the visible rows.

Row ids and contents are read from the results database in a background thread. A new request replaces older requests.
Until the new list is read, the old list is shown. During a run the list is read again and again, in at most a tenth of
a thread's time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray
from PySide6.QtCore import QAbstractTableModel, QModelIndex, QObject, QPersistentModelIndex, Qt, QTimer, Signal

from fieldray.desktop.background import BackgroundTasks, Services
from fieldray.desktop.image_painting import DisplaySwitches
from fieldray.desktop.verdicts import SavingState, Verdicts, VerdictSubject
from fieldray.desktop.widgets import plain_tooltip_text, without_markup
from fieldray.desktop.worklist_rows import COLUMN_KEYS, WORK_LIST_COLUMNS, RowCache, WorkListRow, work_list_columns
from fieldray.domain.finding import WORK_LIST_ORDER, Category, Outcome
from fieldray.domain.history import (
    NEW_PATIENT,
    ResultFilter,
    ResultOrder,
    WorkListColumnName,
    WorkListRows,
    row_in_patient_group_at,
)
from fieldray.domain.model import Manifest
from fieldray.domain.run import StoredImage, Verdict
from fieldray.errors import FieldrayError
from fieldray.formatting import earlier_image_text, verdict_names
from fieldray.translation import LocalText, Translator

if TYPE_CHECKING:
    from fieldray.store.work_list import HistoryQuery

Index = QModelIndex | QPersistentModelIndex
ROW_ROLE: Final = Qt.ItemDataRole.UserRole + 1
VERDICT_ROLE: Final = ROW_ROLE + 1
PATIENT_GROUP_ROLE: Final = VERDICT_ROLE + 1
IS_EARLIER_IMAGE_ROLE: Final = PATIENT_GROUP_ROLE + 1
_PAGE: Final = 32
_MARGIN: Final = 8
_CHANNEL: Final = "list"
_AGAIN_MS: Final = 120
_REST: Final = 9  # the pause after reading the list lasts this many times as long as reading
_FIRST_ROWS: Final = 256
_NO_ROWS: Final[NDArray[np.int64]] = np.empty(0, np.int64)
_NO_GROUPS: Final[NDArray[np.uint8]] = np.empty(0, np.uint8)
_NONE_EARLIER: Final[NDArray[np.bool_]] = np.empty(0, np.bool_)


def verdict_state_text(translator: Translator, state: SavingState, verdict: Verdict | None) -> str:
    """Return a text about the reader's verdict on an image. If the verdict is not saved, the text says so."""
    if state == "saved" and verdict is not None:
        return translator.text("your verdict: {verdict}", verdict=verdict_names(translator)[verdict.choice])
    captions: dict[SavingState, str] = {
        "saved": translator.text("verdict saved"),
        "saving": translator.text("verdict being saved"),
        "not_saved": translator.text("verdict not saved"),
    }
    return captions[state]


class WorkListModel(QAbstractTableModel):
    """The data of the work list: the filtered and sorted rows of a run. Call all methods in the window's thread.

    While a new list is being read, the old list is shown.

    list_changed        emitted when a new list was read
    rows_loaded         emitted when rows that a view requested were read
    all_images_deleted  emitted when all images of the list were deleted
    reads_other_list    whether the list that is being read has another filter, search text or run
    awaits_row          whether a row will be selected as soon as it is listed
    """

    counts_changed = Signal()
    list_changed = Signal()
    rows_loaded = Signal()
    searched_image_found = Signal(int)
    all_images_deleted = Signal()
    order_changed = Signal()
    row_replaced = Signal(object)  # the old row object of a changed result

    def __init__(
        self,
        translator: Translator,
        background: BackgroundTasks,
        verdicts: Verdicts,
        switches: DisplaySwitches,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self._translator, self._verdicts, self.switches = translator, verdicts, switches
        self._background, self._board = background, background.notice_board
        self._rows = RowCache(background, self)
        self._ids, self._begins, self._columns = _NO_ROWS, _NO_GROUPS, WORK_LIST_COLUMNS
        self._is_earlier = _NONE_EARLIER
        self._counts: Mapping[Category, int] = {}
        self.reads_other_list = self.awaits_row = self._is_finding = False
        self.is_fully_read, self.is_by_larger_output = True, False
        self.run_id: int | None = None  # run of the listed rows
        self.wanted, self._order = ResultFilter(), ResultOrder(is_grouped_by_patient=switches.by_patient)
        self.sorted_by = -1, Qt.SortOrder.AscendingOrder  # arguments of `sort`
        self._is_reading = self._is_old = self._is_new = self._has_ended = False
        self._rests_until_s = 0.0
        self._again = QTimer(self, singleShot=True)
        self._again.timeout.connect(self._read)
        self._rows.rows_read.connect(self._rows_arrived)
        self._rows.rows_missing.connect(self.refresh)
        self._rows.row_replaced.connect(self.row_replaced)
        switches.changed.connect(self._switch)

    # ---- content

    def show_run(self, run_id: int | None, *manifests: Manifest | None) -> None:
        """Show the work list of a run. The first rows are shown at once, all other rows later.

        run_id     id of the run; None empties the list
        manifests  manifests of the run's packs, None for a pack that is not available; additional packs get a column
        """
        self.is_by_larger_output = any(one is not None and one.is_bare for one in manifests[:1])
        self._forget((manifests or (None,)) if run_id is not None else ())
        self.is_fully_read = run_id is None
        self._stop()
        self.run_id, self._is_new = run_id, True
        self._read()

    def stop_reading_rows(self) -> None:
        """Stop reading rows from the database, because the program closes. Visible rows are kept."""
        self._stop()
        self.run_id, self._has_ended = None, True

    def show_saved_image(self, image: StoredImage) -> None:
        """Handle an image that was saved: a new image, or a listed image with a new result."""
        if self._rows.replace_rows_of_image(image):
            self._row_changed(image.row_id)
        self.refresh()

    def show_new_result(self, row: WorkListRow, outcome: Outcome) -> None:
        """Show the new outcome of a row after its image was screened again."""
        if self._rows.replace_result(row, outcome):
            self._row_changed(row.row_id)
        self.refresh()

    def refresh(self) -> None:
        """Read the list again soon, because results may have been added or deleted."""
        self._is_old = True
        if self.run_id is not None and not self._is_reading and not self._again.isActive():
            self._again.start(max(_AGAIN_MS, round(1000 * (self._rests_until_s - time.monotonic()))))

    def handle_verdict_change(self, judged: VerdictSubject) -> None:
        """Handle a changed verdict on a result. Its row stays listed until a person changes the filter by verdict."""
        row = self._rows.row_of_result(judged.result_id)
        if row is None:
            return
        if self.wanted.verdict != "any" and self._verdicts.state_for(judged).pending_write is not None:
            self.wanted = replace(self.wanted, always_shown_row_ids=self.wanted.always_shown_row_ids | {row.row_id})
        if judged == VerdictSubject(row.result_id, row.outcome):
            row.verdict = self._verdicts.state_for(judged).stored
            row.is_read = row.is_read or row.verdict is not None
            self._row_changed(row.row_id)

    def handle_read_mark_change(self, row: WorkListRow) -> None:
        """Handle an image that became read or unread. Its row stays listed until a person changes the filter."""
        if self.wanted.verdict == "unread":
            self.wanted = replace(self.wanted, always_shown_row_ids=self.wanted.always_shown_row_ids | {row.row_id})
        self._row_changed(row.row_id)

    def set_translator(self, translator: Translator) -> None:
        """Change the language of the texts in the list."""
        self.beginResetModel()
        self._translator = translator
        self.endResetModel()

    # ---- filter and rows

    @property
    def is_up_to_date(self) -> bool:
        """Whether the list is up to date: all rows are read, and no image was saved since. True without a run."""
        return self.run_id is None or (self.is_fully_read and not (self._is_old or self._is_reading))

    @property
    def is_selecting_another_image(self) -> bool:
        """Whether another image may soon be selected, because the next image or a changed list is being read."""
        return self._is_finding or self.awaits_row or self.reads_other_list

    @property
    def manifest(self) -> Manifest | None:
        """The manifest of the first pack of the listed run; None if the pack is not available."""
        return self._rows.manifests[0] if self._rows.manifests else None

    @property
    def additional_manifests(self) -> tuple[Manifest | None, ...]:
        """The manifests of the run's additional packs, each of which has a column.

        None for a pack that is not available.
        """
        return tuple(self._rows.manifests[1:])

    def class_counts(self) -> dict[Category, int]:
        """Return the number of the run's images in each class. A filter has no effect."""
        return {category: self._counts.get(category, 0) for category in WORK_LIST_ORDER}

    def total_image_count(self) -> int:
        """Return the number of the run's images. A filter has no effect."""
        return sum(self._counts.values())

    def change_filter(self, **changes: Any) -> None:
        """Change some fields of the filter, and read the filtered list.

        changes  fields of `ResultFilter` with their new values

        Rows whose verdict has changed stay in the list until a person chooses a filter by verdict.
        """
        if "verdict" not in changes:
            self._filter(**changes)
            return
        self.reads_other_list = True
        # The channel runs tasks in order, so the list is filtered after verdicts that are being saved.
        self._background.run(
            lambda: None,
            channel="verdict",
            done=lambda _: self._filter(**changes, always_shown_row_ids=frozenset()),
        )

    def row_at(self, index: Index) -> WorkListRow | None:
        """Return the row at a Qt model index. None for an invalid index, and while the row is being read."""
        return self._row(index.row()) if index.isValid() else None

    def row_of_image(self, image: StoredImage) -> WorkListRow:
        """Return the `WorkListRow` of an image of this run, even if the filter hides the image."""
        return self._rows.row_of_image(image)

    def is_row_up_to_date(self, row: WorkListRow) -> bool:
        """Return whether a row belongs to this run and shows the newest result of its image."""
        known = self._rows.row_in_memory(row.row_id)
        return known is not None and any(one is row for one in known.result_rows)

    def row_in_memory(self, row_id: int) -> WorkListRow | None:
        """Return the row with this row id if it is in memory, listed or not. None otherwise."""
        return self._rows.row_in_memory(row_id)

    def listed_row_id_of_result(self, result_id: int) -> int | None:
        """Return the row id of the listed image to which a result belongs; None if the result is not in memory.

        result_id  row id of the result in the results database
        """
        row = self._rows.row_of_result(result_id)
        return row.row_id if row else None

    def prefetch_rows_around(self, position: int) -> None:
        """Read the rows before and after a selected row, because a person will probably select them next.

        position  position of the selected row in the list
        """
        for near in (position - _MARGIN, position + _MARGIN):
            if 0 <= near < len(self._ids):
                self._row(near)

    def row_id_at(self, index: Index) -> int | None:
        """Return the row id of the image at a Qt model index; None for an invalid index. The row need not be read."""
        return int(self._ids[index.row()]) if index.isValid() else None

    def index_of(self, row_id: int) -> QModelIndex:
        """Return the Qt model index of an image; an invalid index if the image is not listed.

        row_id  row id of the image in the results database
        """
        found = np.flatnonzero(self._ids == row_id)
        return self.index(int(found[0]), 0) if len(found) else QModelIndex()

    def find_neighbour_study(self, position: int, step: int) -> None:
        """Find the first listed image of the next or previous study, and emit `searched_image_found` with its row id.

        position  position in the list from which the search starts
        step      1 for the next study, -1 for the previous study
        """
        if 0 <= position < len(self._ids):
            self._find(lambda rows, run_id, row_ids: rows.next_study(run_id, row_ids, position, step))

    def find_unread_image(self, position: int) -> None:
        """Find the next image that nobody has read, and emit `searched_image_found` with its row id.

        The search begins below `position` and continues from the top of the list. A notice says if no image is unread.
        """
        self._find(
            lambda rows, run_id, row_ids: rows.next_unread(run_id, row_ids, position),
            none=lambda t: t.text("This list has no other unread image."),
        )

    def _find(
        self, look: Callable[[HistoryQuery, int, NDArray[np.int64]], int | None], *, none: LocalText | None = None
    ) -> None:
        run_id, row_ids = self.run_id, self._ids
        if run_id is None:
            return

        def found(row_id: int | None) -> None:
            self._is_finding = False
            if row_id is not None:
                self.searched_image_found.emit(row_id)
            elif none is not None:
                self._board.post("list", none)

        def not_found(error: FieldrayError) -> None:
            self._is_finding = False
            self._board.post_error("list", error)

        self._is_finding = True
        self._background.run_with_services(
            lambda services: services.history.run_query(lambda rows: look(rows, run_id, row_ids)),
            channel="study",
            newest_only=True,
            done=found,
            failed=not_found,
        )

    # ---- QAbstractTableModel

    def rowCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008 - Qt's own signature
        return 0 if parent.isValid() else len(self._ids)

    def columnCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008 - Qt's own signature
        return 0 if parent.isValid() else len(self._columns)

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        row = self.row_at(index)
        if row is None or role == ROW_ROLE:
            return row
        column, translator = self._columns[index.column()], self._translator
        state = (
            self._verdicts.saving_state_of(row.result_id, row.outcome, row.verdict) if column.key == "patient" else None
        )
        is_earlier = index.row() < len(self._is_earlier) and bool(self._is_earlier[index.row()])
        if role in (VERDICT_ROLE, PATIENT_GROUP_ROLE, IS_EARLIER_IMAGE_ROLE):
            own = {VERDICT_ROLE: state, IS_EARLIER_IMAGE_ROLE: is_earlier}
            return own[role] if role in own else row_in_patient_group_at(self._begins, index.row())
        if role == Qt.ItemDataRole.DisplayRole:
            return without_markup(column.text(translator, row))
        if role == Qt.ItemDataRole.ToolTipRole:
            said = [column.text(translator, row)] if column.key in ("patient", "pack") else []
            if state is not None:
                said.append(verdict_state_text(translator, state, row.verdict))
            if is_earlier and column.key == "patient":
                said.append(earlier_image_text(translator, row.header))
            if row.reason and column.key != "pack":
                said.append(translator.reason(row.reason))
            return plain_tooltip_text(*said) if said else None
        if role == Qt.ItemDataRole.AccessibleTextRole:
            said = [column.text(translator, row) or column.title(translator)]
            if column.key == "patient" and (state or not row.is_read):
                said.append(verdict_state_text(translator, state, row.verdict) if state else translator.text("unread"))
            group = row_in_patient_group_at(self._begins, index.row())
            if column.key == "patient" and group is not None and group.group_start_kind != NEW_PATIENT:
                said.append(translator.text("same patient as above"))
            if column.key == "patient" and is_earlier:
                said.append(earlier_image_text(translator, row.header))
            return without_markup(", ".join(said))
        return None

    def headerData(self, section: int, orientation: Qt.Orientation, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if orientation != Qt.Orientation.Horizontal:
            return None
        title = self._columns[section].title(self._translator)
        if role == Qt.ItemDataRole.ToolTipRole:
            return plain_tooltip_text(title)
        return without_markup(title) if role == Qt.ItemDataRole.DisplayRole else None

    def sort(self, column: int, order: Qt.SortOrder = Qt.SortOrder.AscendingOrder) -> None:
        """Sort the list by a column.

        column  number of the column; -1 restores the default order, the most urgent images first
        order   ascending or descending
        """
        self.sorted_by, is_descending = (column, order), order == Qt.SortOrder.DescendingOrder
        key: WorkListColumnName = "class" if column < 0 else COLUMN_KEYS[column]
        self._order = ResultOrder(key, column >= 0 and is_descending, self.switches.by_patient)
        self._read()
        self.order_changed.emit()

    @property
    def sort_column_title(self) -> str:
        """The title of the column by which the list is sorted; "" if it is sorted by urgency."""
        column, order = self.sorted_by
        is_by_urgency = column < 0 or (COLUMN_KEYS[column] == "class" and order == Qt.SortOrder.AscendingOrder)
        return "" if is_by_urgency else self._columns[column].title(self._translator)

    # ---- reading

    def _switch(self, names: Collection[str]) -> None:
        """Handle changed display switches: names hidden or shown, images grouped by patient or not.

        names  names of the changed switches
        """
        if "by_patient" in names:
            self._order = replace(self._order, is_grouped_by_patient=self.switches.by_patient)
            self._read()
        if "hide_patient" in names:
            self._all_changed()

    def _forget(self, manifests: Sequence[Manifest | None]) -> None:
        self.beginResetModel()
        self._ids, self._begins, self._counts, self.is_fully_read = _NO_ROWS, _NO_GROUPS, {}, True
        self._is_earlier = _NONE_EARLIER
        self._rows.clear(manifests)
        self._columns = work_list_columns(manifests)
        self.endResetModel()
        self.counts_changed.emit()

    def _filter(self, **changes: Any) -> None:
        self.wanted, self.reads_other_list = replace(self.wanted, **changes), True
        self.is_fully_read = self.run_id is None
        self._read()

    def _read(self) -> None:
        """Read the list with the current filter and order now. The result of an earlier request is discarded."""
        self._stop()
        run_id, wanted, order, limit = self.run_id, self.wanted, self._order, _FIRST_ROWS if self._is_new else None
        if run_id is None or self._has_ended:
            return

        def work(services: Services) -> tuple[WorkListRows, float]:
            began_s = time.perf_counter()
            return services.history.list_rows(run_id, wanted, order, limit=limit), time.perf_counter() - began_s

        self._is_reading, self._is_old = True, False
        self._background.run_with_services(
            work,
            channel=_CHANNEL,
            newest_only=True,
            done=lambda found: self._has_read(*found, limit=limit),
            failed=self._not_read,
        )

    def _stop(self) -> None:
        """Stop the running request before a new request is sent. The error of the stopped request is discarded."""
        self._again.stop()
        services = self._background.services
        if services is not None and self._is_reading:
            services.history.interrupt()
        self._background.discard_channel_tasks(_CHANNEL)
        self._is_reading = False

    def _has_read(self, found: WorkListRows, seconds: float, *, limit: int | None) -> None:
        self._is_reading, self._rests_until_s = False, time.monotonic() + _REST * seconds
        self._board.withdraw("list")
        self._is_new = False
        self._show_rows(found, is_whole=limit is None or len(found.row_ids) < limit)
        if self._is_reading:  # a new request was sent meanwhile
            return
        if not self.is_fully_read:
            self._read()
        elif self._is_old:
            self.refresh()

    def _not_read(self, error: FieldrayError) -> None:
        self._is_reading = self.reads_other_list = False
        self._board.post_error("list", error)

    def _show_rows(self, found: WorkListRows, *, is_whole: bool) -> None:
        """Show the list that was read: a new list, or the current list with other rows or another order.

        is_whole  whether the list has all rows
        """
        self.is_fully_read = is_whole
        self._begins, self._is_earlier = found.group_start_kinds, found.has_newer_image_of_patient
        if self.reads_other_list or len(found.row_ids) < len(self._ids):
            self.beginResetModel()
            self._ids = found.row_ids
            self.endResetModel()
        elif not np.array_equal(found.row_ids, self._ids):
            self._rearrange(found.row_ids)
        self.reads_other_list = False
        is_gone = self.total_image_count() > 0 and not any(found.counts.values())
        if found.counts != self._counts:
            self._counts = found.counts
            self.counts_changed.emit()
        self.list_changed.emit()
        if is_gone:
            self.all_images_deleted.emit()

    def _rearrange(self, row_ids: NDArray[np.int64]) -> None:
        """Insert rows and change their order. The selection stays on its row.

        row_ids  (n,) row ids of the new list, in order
        """
        before, after = len(self._ids), len(row_ids)
        if after > before:
            self.beginInsertRows(QModelIndex(), before, after - 1)
            self._ids = np.concatenate([self._ids, row_ids[before:]])
            self.endInsertRows()
        self.layoutAboutToBeChanged.emit()
        held = self.persistentIndexList()
        numbers = [int(self._ids[index.row()]) for index in held]
        self._ids = row_ids
        indices = {number: self.index_of(number) for number in set(numbers)}
        moved = [indices[number].siblingAtColumn(index.column()) for number, index in zip(numbers, held, strict=True)]
        self.changePersistentIndexList(held, moved)
        self.layoutChanged.emit()

    def _row(self, position: int) -> WorkListRow | None:
        """Return the row at a position if it is in memory.

        Otherwise request the row with its neighbours, and return None.
        """
        row = self._rows.row_in_memory(int(self._ids[position]))
        if row is None:
            start = position - position % _PAGE
            self._rows.request_rows(self._ids[max(0, start - _MARGIN) : start + _PAGE + _MARGIN].tolist())
        return row

    def _rows_arrived(self) -> None:
        self._all_changed()
        self.rows_loaded.emit()

    def _all_changed(self) -> None:
        if len(self._ids):
            self.dataChanged.emit(self.index(0, 0), self.index(len(self._ids) - 1, self.columnCount() - 1))

    def _row_changed(self, row_id: int) -> None:
        index = self.index_of(row_id)
        if index.isValid():
            self.dataChanged.emit(index, index.siblingAtColumn(self.columnCount() - 1))
