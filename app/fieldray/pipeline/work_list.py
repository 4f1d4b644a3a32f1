"""The work list of the window: read from the store a page at a time, and never as a whole."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fieldray.domain.finding import Outcome
from fieldray.domain.history import Listed, ResultFilter, ResultOrder
from fieldray.domain.run import StoredResult, Verdict
from fieldray.domain.study import ImageRef
from fieldray.store.work_list import WorkListQuery


class WorkList:
    """Thread-safe; all methods but `interrupt` wait for the disk and raise StorageProblem."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._reading: WorkListQuery | None = None

    def listed(self, run_id: int, wanted: ResultFilter, order: ResultOrder, *, limit: int | None = None) -> Listed:
        """The rows of a run that are wanted, in that order. Raises what SQLite does once it is interrupted."""
        with WorkListQuery(self._database) as query:
            self._note(query)
            try:
                return query.listed(run_id, wanted, order, limit=limit)
            finally:
                self._note(None)

    def interrupt(self) -> None:
        """End the reading of rows that is under way: it is not wanted any more."""
        with self._lock:
            if self._reading is not None:
                self._reading.interrupt()

    def results(self, row_ids: Sequence[int]) -> tuple[StoredResult, ...]:
        """Those of these results that are in the store, with the verdicts on them."""
        with WorkListQuery(self._database) as query:
            return query.results(row_ids)

    def verdict(self, row_id: int, outcome: Outcome) -> Verdict | None:
        """The verdict on this outcome in this row, even if the row holds another outcome by now."""
        with WorkListQuery(self._database) as query:
            return query.verdict(row_id, outcome)

    def next_study(self, run_id: int, row_ids: NDArray[np.int64], position: int, step: int) -> int | None:
        """The first row of another study, going down (step 1) or up (-1) these rows from a position."""
        with WorkListQuery(self._database) as query:
            return query.next_study(run_id, row_ids, position, step)

    def next_unread(self, run_id: int, row_ids: NDArray[np.int64], position: int) -> int | None:
        """The row of the first result below a position that nobody has read, else of the first one above it."""
        with WorkListQuery(self._database) as query:
            return query.next_unread(run_id, row_ids, position)

    def of_patient(self, run_id: int, patient_id: str) -> tuple[StoredResult, ...]:
        """The images of a run that give this Patient ID, the newest results first."""
        with WorkListQuery(self._database) as query:
            return query.of_patient(patient_id, run_id=run_id)

    def find(self, run_id: int, ref: ImageRef) -> StoredResult | None:
        """The result of an image in a run."""
        with WorkListQuery(self._database) as query:
            return query.find(run_id, ref)

    def _note(self, query: WorkListQuery | None) -> None:
        with self._lock:
            self._reading = query
