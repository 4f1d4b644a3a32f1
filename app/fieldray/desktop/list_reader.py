"""The rows of the work list that are or were in sight, with thumbnails and maps: read once they are asked for."""

from __future__ import annotations

import itertools
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from PySide6.QtCore import QObject, QTimer, Signal

from fieldray.desktop.background import Background
from fieldray.desktop.notices import NoticeBoard
from fieldray.domain.finding import Category, Finding, Outcome, Screened, leading_finding, why_of
from fieldray.domain.model import Manifest
from fieldray.domain.run import StoredResult, Verdict
from fieldray.domain.study import ImageHeader
from fieldray.errors import FieldrayError
from fieldray.formatting import file_name, person
from fieldray.reasons import Reason
from fieldray.translation import Translator

_states = itertools.count()
_ROWS_CHANNEL: Final = "rows"
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
        self.manifest: Manifest | None = None
        self._kept: OrderedDict[int, WorkRow] = OrderedDict()
        self._alive: weakref.WeakValueDictionary[int, WorkRow] = weakref.WeakValueDictionary()
        self._waiting: list[Sequence[int]] = []
        self._is_reading = False
        self._outdated: set[int] = set()  # done again since they are being read
        self._gone: set[int] = set()
        self._soon = QTimer(self, singleShot=True, interval=0)
        self._soon.timeout.connect(self._read)

    def clear(self, manifest: Manifest | None = None) -> None:
        """Forget all rows; those to come are of a run of this pack."""
        self.manifest, self._is_reading = manifest, False
        self._background.forget(_ROWS_CHANNEL)
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
        self._waiting = [*(others for others in self._waiting if others != row_ids), row_ids][-_MOST_WAITING:]
        if not self._is_reading and not self._soon.isActive():
            self._soon.start()

    def row_of(self, stored: StoredResult) -> WorkRow:
        """The row of a stored result, which may be there already."""
        row = self._alive.get(stored.row_id)
        if row is None:
            row = WorkRow(stored.row_id, stored.outcome, self.manifest, stored.verdict, stored.is_read)
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
        wanted = dict.fromkeys(row_id for rows in self._waiting for row_id in rows)
        self._waiting.clear()
        missing = [row_id for row_id in wanted if row_id not in self._alive and row_id not in self._gone]
        if not missing:
            return
        self._is_reading = True
        self._background.ask(
            lambda services: services.work_list.results(missing),
            channel=_ROWS_CHANNEL,
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

    def _not_read(self, error: FieldrayError) -> None:
        self._end_reading()
        self._board.post_error("list", error)

    def _end_reading(self) -> None:
        self._is_reading = False
        self._outdated.clear()
        if self._waiting:
            self._soon.start()


@dataclass(eq=False, slots=True, weakref_slot=True)
class WorkRow:
    """An outcome with what the list needs to sort, find and show it.

    manifest  the pack's, whose texts and calibration belong to the result
    is_read   whether a person has read it, with or without a verdict
    finding   the one that decides the class, None without a score
    state     a number that no other row has, nor this one once it took another outcome
    """

    row_id: int
    outcome: Outcome
    manifest: Manifest | None = None
    verdict: Verdict | None = None
    is_read: bool = False
    category: Category = field(init=False)
    finding: Finding | None = field(init=False)
    state: int = field(init=False)

    def __post_init__(self) -> None:
        self.state = next(_states)
        self.category = self.outcome.category
        self.finding = leading_finding(self.outcome)

    def take(self, newer: WorkRow) -> None:
        """The image was done again: the row stays, its outcome is the newer one, not judged and not read yet."""
        self.outcome, self.manifest, self.verdict = newer.outcome, newer.manifest, newer.verdict
        self.is_read = newer.is_read
        self.__post_init__()

    @property
    def header(self) -> ImageHeader:
        return self.outcome.ref.header

    @property
    def reason(self) -> Reason | None:
        """Why the image has no score, or must be read first."""
        return why_of(self.outcome)

    @property
    def score(self) -> float:
        """The deciding finding's score, -1 without one (sorts below all others)."""
        return self.finding.score if self.finding else -1.0

    @property
    def backend(self) -> str:
        return self.outcome.backend if isinstance(self.outcome, Screened) else ""

    @property
    def inference_ms(self) -> float:
        """Time of the network alone, -1 if it did not run."""
        return self.outcome.inference_ms if isinstance(self.outcome, Screened) else -1.0


def image_title(translator: Translator, row_id: int, outcome: Outcome, *, hides_patient: bool = False) -> str:
    """What an image is called in the list: the patient's name, else that of the file; its number if both are hidden."""
    if hides_patient:
        return translator.text("Image {number}", number=row_id)
    return person(outcome.ref.header.patient_name) or file_name(outcome.ref)
