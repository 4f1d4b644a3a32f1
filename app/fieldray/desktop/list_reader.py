"""Reads which rows the work list has, in the background: the newest wish wins, and what is in sight stays until then.

During a run the list is read again and again, so seldom that it takes a tenth of a thread's time at most.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from PySide6.QtCore import QObject, QTimer, Signal

from fieldray.desktop.background import Background
from fieldray.desktop.notices import NoticeBoard
from fieldray.domain.work_list import Listed, ResultFilter, ResultOrder

if TYPE_CHECKING:
    from fieldray.pipeline.work_list import WorkList

_CHANNEL: Final = "list"
_COMPLETING: Final = "listing"
_AGAIN_MS: Final = 120
_REST: Final = 9  # times as long as it took
_FIRST_ROWS: Final = 256
_COMPLETED_ROWS: Final = 500


class ListReader(QObject):
    """Which results are wanted of which run, and in which order; `arrived` has them, and whether these are all."""

    arrived = Signal(object, bool)

    def __init__(self, background: Background, board: NoticeBoard, parent: QObject) -> None:
        super().__init__(parent)
        self._background, self._board = background, board
        self._source: WorkList | None = None
        self.run_id: int | None = None
        self.wanted, self.order = ResultFilter(), ResultOrder()
        self._is_reading = self._is_old = self._is_new = False
        self._rests_until_s = 0.0
        self._told = -1
        self._again = QTimer(self)
        self._again.setSingleShot(True)
        self._again.timeout.connect(self.read)

    def attach(self, source: WorkList) -> None:
        """The results are open."""
        self._source = source

    def open(self, run_id: int | None) -> None:
        """Read another run, its first rows before all the others; None for none."""
        self._again.stop()
        self._stop()
        self._background.forget(_COMPLETING)
        self._board.withdraw("listing")
        self.run_id, self._is_new = run_id, True
        if run_id is not None:
            self.read()

    def end(self) -> None:
        """The program closes: nothing is read any more."""
        self.open(None)
        self._source = None

    def refresh(self) -> None:
        """Something has changed: read the list again soon."""
        self._is_old = True
        if self.run_id is not None and not self._is_reading and not self._again.isActive():
            self._again.start(max(_AGAIN_MS, round(1000 * (self._rests_until_s - time.monotonic()))))

    def read(self) -> None:
        """Read the list as it is wanted now; what was being read is not wanted any more."""
        source, run_id, wanted, order = self._source, self.run_id, self.wanted, self.order
        if source is None or run_id is None:
            return
        self._again.stop()
        self._stop()
        limit = _FIRST_ROWS if self._is_new else None

        def work() -> tuple[Listed, float]:
            began_s = time.perf_counter()
            return source.listed(run_id, wanted, order, limit=limit), time.perf_counter() - began_s

        self._is_reading, self._is_old = True, False
        self._background.run(
            work,
            channel=_CHANNEL,
            newest_only=True,
            done=lambda found: self._has_read(*found, limit=limit),
            failed=self._not_read,
        )

    def _stop(self) -> None:
        """End what is being read before anything else is wanted: its answer, an error, is thrown away then."""
        if self._source is not None and self._is_reading:
            self._source.interrupt()
        self._background.forget(_CHANNEL)
        self._is_reading = False

    def _has_read(self, found: Listed, seconds: float, *, limit: int | None) -> None:
        self._is_reading, self._rests_until_s = False, time.monotonic() + _REST * seconds
        self._board.withdraw("list")
        are_all = limit is None or len(found.row_ids) < limit
        is_first, self._is_new = self._is_new, False
        self.arrived.emit(found, are_all and found.is_whole)
        if self._is_reading:  # whoever heard of it wants something else
            return
        if not are_all:
            self.read()
        elif self._is_old:
            self.refresh()
        if is_first and not found.is_whole:
            self._find_unlisted()

    def _not_read(self, error: Exception) -> None:
        self._is_reading = False
        self._board.post_error("list", error)

    # ---- a run of an older version of the program, of which the store has no list

    def _find_unlisted(self) -> None:
        source, run_id = self._source, self.run_id
        if source is None or run_id is None:
            return
        self._background.run(
            lambda: source.unlisted(run_id).tolist(),
            channel=_COMPLETING,
            newest_only=True,
            done=lambda row_ids: self._complete(row_ids, 0),
            failed=self._not_read,
        )

    def _complete(self, row_ids: Sequence[int], done: int) -> None:
        source, run_id, end = self._source, self.run_id, done + _COMPLETED_ROWS
        if source is None or run_id is None:
            return
        is_last = end >= len(row_ids)
        self._background.run(
            lambda: source.complete(run_id, row_ids[done:end], is_last=is_last),
            channel=_COMPLETING,
            newest_only=True,
            done=lambda _: self._has_completed(row_ids, end),
            failed=self._not_read,
        )

    def _has_completed(self, row_ids: Sequence[int], done: int) -> None:
        self.refresh()
        if done >= len(row_ids):
            self._board.withdraw("listing")
            return
        self._tell(100 * done // len(row_ids))
        self._complete(row_ids, done)

    def _tell(self, percent: int) -> None:
        if percent == self._told:
            return
        self._told = percent
        self._board.post(
            "listing",
            lambda t: t.text(
                "This run was saved by an older version of the program. Its list is being made: {percent} %",
                percent=percent,
            ),
        )
