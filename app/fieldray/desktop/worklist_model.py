"""The work list's data: sorts, filters and searches 10,000 rows itself, and takes new ones in batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from PySide6.QtCore import QAbstractTableModel, QModelIndex, QObject, QPersistentModelIndex, Qt, QTimer, Signal

from fieldray.desktop.widgets import plain, plain_tip
from fieldray.desktop.work_row import WorkRow
from fieldray.domain.finding import WORK_LIST_ORDER, Category, notes_of
from fieldray.domain.history import VerdictFilter, has_verdict
from fieldray.domain.run import Verdict
from fieldray.domain.study import ImageRef
from fieldray.formatting import backend_name, category_word, date, file_name, number, person, view_label
from fieldray.translation import Translator

Index = QModelIndex | QPersistentModelIndex
ROW_ROLE: Final = Qt.ItemDataRole.UserRole + 1
_FLUSH_MS: Final = 120


@dataclass(frozen=True, eq=False, slots=True)
class Column:
    """One column: its title, the text of a cell, and what it sorts by."""

    key: str
    title: Callable[[Translator], str]
    text: Callable[[Translator, WorkRow], str]
    order: Callable[[WorkRow], Any]


def _score_text(translator: Translator, row: WorkRow) -> str:
    return number(translator, row.score, digits=2) if row.score >= 0 else "–"


def _time_text(translator: Translator, row: WorkRow) -> str:
    return number(translator, row.inference_ms, digits=1) if row.inference_ms >= 0 else "–"


def _status_text(translator: Translator, row: WorkRow) -> str:
    said = (row.reason,) if row.reason else notes_of(row.outcome)
    return " ".join(map(translator.reason, said)) if said else translator.text("Screened")


COLUMNS: Final[tuple[Column, ...]] = (
    Column("image", lambda t: t.text("Image"), lambda _, __: "", lambda row: row.row_id),
    Column(
        "patient",
        lambda t: t.text("Patient"),
        lambda _, row: person(row.header.patient_name) or file_name(row.outcome.ref),
        lambda row: (person(row.header.patient_name) or file_name(row.outcome.ref)).casefold(),
    ),
    Column(
        "date", lambda t: t.text("Date"), lambda t, row: date(t, row.header.study_date), lambda r: r.header.study_date
    ),
    Column(
        "view",
        lambda t: t.in_context("projection of a radiograph", "View"),
        lambda _, row: view_label(row.header),
        lambda r: view_label(r.header),
    ),
    Column("class", lambda t: t.text("Class"), lambda t, r: category_word(t, r.category), lambda row: row.urgency),
    Column("score", lambda t: t.text("Score"), _score_text, lambda row: row.score),
    Column("backend", lambda t: t.text("Run on"), lambda t, r: backend_name(t, r.backend), lambda row: row.backend),
    Column("ms", lambda t: t.text("ms"), _time_text, lambda row: row.inference_ms),
    Column("status", lambda t: t.text("Status"), _status_text, lambda row: row.reason.code if row.reason else ""),
)
KEYS: Final = tuple(column.key for column in COLUMNS)


class WorkListModel(QAbstractTableModel):
    """Rows of the run, as filtered and sorted. All methods belong to the window's thread."""

    counts_changed = Signal()
    verdicts_wanted = Signal()

    def __init__(self, translator: Translator, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._translator = translator
        self._by_id: dict[int, WorkRow] = {}
        self._shown: list[WorkRow] = []
        self._waiting: list[WorkRow] = []
        self._counts: Counter[Category] = Counter()
        self._category: Category | None = None
        self._search = ""
        self._verdict: VerdictFilter = "any"
        self._backend = ""
        self._sorted_by: tuple[int, Qt.SortOrder] | None = None
        self._flush_timer = QTimer(self)
        self._flush_timer.setInterval(_FLUSH_MS)
        self._flush_timer.setSingleShot(True)
        self._flush_timer.timeout.connect(self.flush)

    # ---- what is in it

    def add(self, row: WorkRow) -> None:
        """Take a row; it is shown with the next batch. A row with a known id takes the old one's place."""
        self._waiting.append(row)
        if not self._flush_timer.isActive():
            self._flush_timer.start()

    def flush(self) -> None:
        """Show what has come since the last batch."""
        arrived = {row.row_id: row for row in self._waiting}
        self._waiting.clear()
        known = arrived.keys() & self._by_id.keys()
        for row_id in known:
            self._replace(arrived.pop(row_id))
        self._by_id.update(arrived)
        self._counts.update(row.category for row in arrived.values())
        added = [row for row in arrived.values() if self._is_shown(row)]
        if added:
            start = len(self._shown)
            self.beginInsertRows(QModelIndex(), start, start + len(added) - 1)
            self._shown.extend(added)
            self.endInsertRows()
        if added or known:
            self._sort_shown()
        self.counts_changed.emit()

    def clear(self) -> None:
        """Forget all rows."""
        self.beginResetModel()
        self._flush_timer.stop()
        for rows in (self._by_id, self._shown, self._waiting, self._counts):
            rows.clear()
        self.endResetModel()
        self.counts_changed.emit()

    def set_verdict(self, row_id: int, verdict: Verdict | None) -> None:
        """Note the reader's verdict on a row."""
        row = self._by_id.get(row_id)
        if row is not None:
            row.verdict = verdict
            self._row_changed(row)

    def set_translator(self, translator: Translator) -> None:
        """Speak another language."""
        self.beginResetModel()
        self._translator = translator
        self.endResetModel()

    # ---- what is shown of it

    @property
    def category(self) -> Category | None:
        """The only class that is shown, None for all."""
        return self._category

    def counts(self) -> dict[Category, int]:
        """The number of images by class, whatever is filtered."""
        return {category: self._counts[category] for category in WORK_LIST_ORDER}

    def total(self) -> int:
        """The number of images, whatever is filtered."""
        return len(self._by_id)

    def rows_of_patient(self, patient_id: str) -> tuple[WorkRow, ...]:
        """The rows that give this Patient ID, whatever is filtered; none for an empty one."""
        number = patient_id.strip()
        rows = (*self._by_id.values(), *self._waiting)
        return tuple(row for row in rows if number and row.header.patient_id.strip() == number)

    def row_of_image(self, ref: ImageRef) -> WorkRow | None:
        """The row of the image at a place, None where it is not in the list."""
        place = (ref.path, ref.member, ref.frame)
        rows = (row for row in self._by_id.values() if row.outcome.ref.path == ref.path)
        refs = ((row, row.outcome.ref) for row in rows)
        return next((row for row, found in refs if (found.path, found.member, found.frame) == place), None)

    @property
    def verdict_filter(self) -> VerdictFilter:
        """Which results are shown, by the verdict on them."""
        return self._verdict

    @property
    def backend_filter(self) -> str:
        """The device whose results are shown, "" for all."""
        return self._backend

    def set_verdict_filter(self, wanted: VerdictFilter) -> None:
        """Show results with such a verdict. A row that gets another verdict stays until this is chosen again."""
        self._verdict = wanted
        if wanted != "any":
            self.verdicts_wanted.emit()
        self._filter()

    def set_backend_filter(self, backend: str) -> None:
        """Show only what this device ran, or all ("")."""
        self._backend = backend
        self._filter()

    def set_verdicts(self, verdicts: Mapping[int, Verdict]) -> None:
        """Note verdicts from the store on rows that have none here yet."""
        for row_id, verdict in verdicts.items():
            row = self._by_id.get(row_id)
            if row is not None and row.verdict is None:
                row.verdict = verdict
        self._filter()

    def set_category(self, category: Category | None) -> None:
        """Show only one class, or all (None)."""
        self._category = category
        self._filter()

    def set_search(self, text: str) -> None:
        """Show only rows with this text in name, number, date or file name."""
        self._search = text.strip().casefold()
        self._filter()

    def row_at(self, index: Index) -> WorkRow | None:
        """The row under an index, None for no index."""
        return self._shown[index.row()] if index.isValid() else None

    def index_of(self, row_id: int) -> QModelIndex:
        """Where a row is shown; invalid if it is not."""
        for position, row in enumerate(self._shown):
            if row.row_id == row_id:
                return self.index(position, 0)
        return QModelIndex()

    def study_start(self, position: int, step: int) -> int:
        """The first shown row of the next (step 1) or previous (-1) study in the shown order, or `position`."""
        number = position
        while 0 <= number < len(self._shown):
            if self._study(number) != self._study(position):
                return number
            number += step
        return position

    # ---- QAbstractTableModel

    def rowCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008 - Qt's own signature
        return 0 if parent.isValid() else len(self._shown)

    def columnCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008 - Qt's own signature
        return 0 if parent.isValid() else len(COLUMNS)

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        row = self.row_at(index)
        if row is None:
            return None
        if role == ROW_ROLE:
            return row
        if role == Qt.ItemDataRole.DisplayRole:
            return plain(COLUMNS[index.column()].text(self._translator, row))
        if role == Qt.ItemDataRole.ToolTipRole and row.reason:
            return plain_tip(self._translator.reason(row.reason))
        if role == Qt.ItemDataRole.AccessibleTextRole:
            column = COLUMNS[index.column()]
            return plain(column.text(self._translator, row) or column.title(self._translator))
        return None

    def headerData(self, section: int, orientation: Qt.Orientation, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if orientation == Qt.Orientation.Horizontal and role == Qt.ItemDataRole.DisplayRole:
            return COLUMNS[section].title(self._translator)
        return None

    def sort(self, column: int, order: Qt.SortOrder = Qt.SortOrder.AscendingOrder) -> None:
        """Sort by a column; -1 gives the default order back: what needs eyes first on top."""
        self._sorted_by = None if column < 0 else (column, order)
        self._sort_shown()

    # ---- inside

    def _is_shown(self, row: WorkRow) -> bool:
        if self._category is not None and row.category != self._category:
            return False
        if self._backend and row.backend != self._backend:
            return False
        if not has_verdict(row.verdict.choice if row.verdict else None, self._verdict):
            return False
        return not self._search or self._search in row.searched

    def _filter(self) -> None:
        self.flush()
        self.beginResetModel()
        self._shown = [row for row in self._by_id.values() if self._is_shown(row)]
        self._order()
        self.endResetModel()

    def _order(self) -> None:
        self._shown.sort(key=lambda row: row.urgency)
        if self._sorted_by:
            column, order = self._sorted_by
            self._shown.sort(key=COLUMNS[column].order, reverse=order == Qt.SortOrder.DescendingOrder)

    def _sort_shown(self) -> None:
        """Sort in place and keep every persistent index (the selection) on its row."""
        self.layoutAboutToBeChanged.emit()
        held = self.persistentIndexList()
        rows = [self._shown[index.row()] for index in held]
        self._order()
        wanted = {id(row) for row in rows}
        positions = {id(row): number for number, row in enumerate(self._shown) if id(row) in wanted}
        moved = [self.index(positions[id(row)], index.column()) for row, index in zip(rows, held, strict=True)]
        self.changePersistentIndexList(held, moved)
        self.layoutChanged.emit()

    def _replace(self, row: WorkRow) -> None:
        """Another outcome for an image that is listed already; its row object stays, so that indexes stay true."""
        known = self._by_id[row.row_id]
        self._counts[known.category] -= 1
        self._counts[row.category] += 1
        known.take(row)
        self._row_changed(known)

    def _row_changed(self, row: WorkRow) -> None:
        index = self.index_of(row.row_id)
        if index.isValid():
            self.dataChanged.emit(index, index.siblingAtColumn(len(COLUMNS) - 1))

    def _study(self, position: int) -> str:
        return self._shown[position].outcome.ref.study_key
