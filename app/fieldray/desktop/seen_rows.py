"""The rows that are or were in sight, with thumbnails and maps: read in the background once they are asked for."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from PySide6.QtCore import QObject, QTimer, Signal

from fieldray.desktop.background import Background
from fieldray.desktop.notices import NoticeBoard
from fieldray.desktop.work_row import WorkRow
from fieldray.domain.finding import Outcome
from fieldray.domain.model import Manifest
from fieldray.domain.run import StoredResult

if TYPE_CHECKING:
    from fieldray.pipeline.work_list import WorkList

_CHANNEL: Final = "rows"
_MOST_KEPT: Final = 256
_MOST_WAITING: Final = 3


class SeenRows(QObject):
    """Keeps the rows that were asked for last. A row that somebody still holds is never there twice.

    `arrived` says that rows were read, `missed` that some are not in the store any more: they are not asked for again.
    """

    arrived = Signal()
    missed = Signal()

    def __init__(self, background: Background, board: NoticeBoard, parent: QObject) -> None:
        super().__init__(parent)
        self._background, self._board = background, board
        self._source: WorkList | None = None
        self.manifest: Manifest | None = None
        self._kept: OrderedDict[int, WorkRow] = OrderedDict()
        self._alive: weakref.WeakValueDictionary[int, WorkRow] = weakref.WeakValueDictionary()
        self._waiting: OrderedDict[int, Sequence[int]] = OrderedDict()
        self._is_reading = False
        self._outdated: set[int] = set()  # done again since they are being read
        self._gone: set[int] = set()
        self._soon = QTimer(self)
        self._soon.setSingleShot(True)
        self._soon.setInterval(0)
        self._soon.timeout.connect(self._read)

    def attach(self, source: WorkList) -> None:
        """The results are open."""
        self._source = source

    def clear(self, manifest: Manifest | None = None) -> None:
        """Forget all rows; those to come are of a run of this pack."""
        self.manifest, self._is_reading = manifest, False
        self._background.forget(_CHANNEL)
        for rows in (self._kept, self._alive, self._waiting, self._outdated, self._gone):
            rows.clear()

    def get(self, row_id: int) -> WorkRow | None:
        """A row, None while it is not read."""
        row = self._alive.get(row_id)
        if row is not None:
            self._keep(row)
        return row

    def want(self, row_ids: Sequence[int]) -> None:
        """Read these rows soon, all of them at once. Of what waits, only what was wanted last is read."""
        self._waiting[row_ids[0]] = row_ids
        self._waiting.move_to_end(row_ids[0])
        if len(self._waiting) > _MOST_WAITING:
            self._waiting.popitem(last=False)
        if not self._is_reading and not self._soon.isActive():
            self._soon.start()

    def row_of(self, stored: StoredResult) -> WorkRow:
        """The row of a stored result, which may be there already."""
        row = self._alive.get(stored.row_id)
        if row is None:
            row = WorkRow(stored.row_id, stored.outcome, self.manifest, stored.verdict)
            self._alive[stored.row_id] = row
        return row

    def replace(self, row_id: int, outcome: Outcome) -> bool:
        """The image was done again: whether its row is one of these."""
        row = self._alive.get(row_id)
        if row is not None:
            row.take(WorkRow(row_id, outcome, self.manifest))
        elif self._is_reading:
            self._outdated.add(row_id)
        return row is not None

    def _keep(self, row: WorkRow) -> None:
        self._kept[row.row_id] = row
        self._kept.move_to_end(row.row_id)
        if len(self._kept) > _MOST_KEPT:
            self._kept.popitem(last=False)

    def _read(self) -> None:
        source, wanted = self._source, dict.fromkeys(row_id for rows in self._waiting.values() for row_id in rows)
        self._waiting.clear()
        missing = [row_id for row_id in wanted if row_id not in self._alive and row_id not in self._gone]
        if source is None or not missing:
            return
        self._is_reading = True
        self._background.run(
            lambda: source.results(missing),
            channel=_CHANNEL,
            done=lambda found: self._has_read(missing, found),
            failed=self._not_read,
        )

    def _has_read(self, asked: Sequence[int], found: Sequence[StoredResult]) -> None:
        for stored in found:
            if stored.row_id not in self._outdated:  # it is read again when it is painted
                self._keep(self.row_of(stored))
        gone = set(asked) - {stored.row_id for stored in found}
        self._gone |= gone
        self._end_reading()
        self.arrived.emit()
        if gone:
            self.missed.emit()

    def _not_read(self, error: Exception) -> None:
        self._end_reading()
        self._board.post_error("list", error)

    def _end_reading(self) -> None:
        self._is_reading = False
        self._outdated.clear()
        if self._waiting:
            self._soon.start()
