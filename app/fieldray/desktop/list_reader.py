"""The rows of the work list that are or were in sight, with thumbnails and maps: read once they are asked for.

And the columns of the list, with the texts of its cells.
"""

from __future__ import annotations

import itertools
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Literal, get_args

from PySide6.QtCore import QObject, Signal

from fieldray.desktop.background import Background
from fieldray.desktop.verdicts import Judged
from fieldray.domain.finding import Category, Finding, Outcome, Screened, leading_finding, notes_of, why_of
from fieldray.domain.history import ListColumn
from fieldray.domain.image import ImageHeader
from fieldray.domain.model import Manifest
from fieldray.domain.run import StoredResult, Verdict
from fieldray.errors import FieldrayError
from fieldray.formatting import (
    backend_name,
    category_label,
    date,
    file_name,
    number,
    person,
    score_text,
    unsigned,
    view_label,
)
from fieldray.reasons import Reason
from fieldray.translation import Translator

_states = itertools.count()
_ROWS_CHANNEL: Final = "rows"
_MOST_KEPT: Final = 256
_MOST_WAITING: Final = 3
Beside = Sequence[tuple[int, Manifest | None]]  # runs of other packs over the same images


class SeenRows(QObject):
    """Keeps the rows that were read last. A row that somebody still holds is never there twice.

    `arrived` says that rows were read, `missed` that some are not in the store any more: they are not asked for again.
    """

    arrived = Signal()
    missed = Signal()
    replaced = Signal(object)  # a WorkRow whose image has another result now: a new WorkRow stands in the list for it

    def __init__(self, background: Background, parent: QObject) -> None:
        super().__init__(parent)
        self._background, self._board = background, background.board
        self.manifests: Mapping[int, Manifest | None] = {}  # of the packs, by run: those beside come after the own
        self._kept: deque[WorkRow] = deque(maxlen=_MOST_KEPT)
        self._alive: weakref.WeakValueDictionary[int, WorkRow] = weakref.WeakValueDictionary()
        self._waiting: deque[Sequence[int]] = deque(maxlen=_MOST_WAITING)
        self._is_reading = False
        self._outdated: set[int] = set()  # done again since they are being read
        self._gone: set[int] = set()

    def clear(self, manifests: Mapping[int, Manifest | None]) -> None:
        """Forget all rows; those to come are of a run, with what the runs of other packs say of its images."""
        self.manifests, self._is_reading = manifests, False
        self._background.forget(_ROWS_CHANNEL)
        for rows in (self._kept, self._alive, self._waiting, self._outdated, self._gone):
            rows.clear()

    def get(self, row_id: int) -> WorkRow | None:
        """A row of the list, None while it is not read with what other packs say."""
        row = self._alive.get(row_id)
        return row if row is not None and len(row.beside) >= len(self.manifests) - 1 else None

    def known(self, row_id: int) -> WorkRow | None:
        """A row of the list or of another pack that somebody holds."""
        return self._alive.get(row_id)

    def listed_with(self, row_id: int) -> int:
        """The number of the row of the list for a row of another pack; a row of the list is its own."""
        row = self._alive.get(row_id)
        return next((other.row_id for other in self._alive.values() if row in other.beside), row_id)

    def want(self, row_ids: Sequence[int]) -> None:
        """Read these rows, all of them at once. Of what waits, only what was wanted last is read."""
        if row_ids not in self._waiting:
            self._waiting.append(row_ids)
        if not self._is_reading:
            self._read()

    def row_of(self, stored: StoredResult) -> WorkRow:
        """The row of a stored result, which may be there already."""
        row = self._alive.get(stored.row_id)
        if row is None:
            manifest = self.manifests.get(stored.run_id)
            row = WorkRow(stored.row_id, stored.outcome, manifest, stored.verdict, stored.is_read, stored.run_id)
            self._alive[stored.row_id] = row
        return row

    def replace(self, row_id: int, outcome: Outcome) -> bool:
        """An image was done again: whether its row is one of these."""
        if self._is_reading:
            self._outdated.add(row_id)
        return self._renew(row_id, outcome)

    def _renew(self, row_id: int, outcome: Outcome) -> bool:
        """Put a new row in the place of one that holds another result of its image.

        The row before keeps its result: it may be open, and what a person sees of it must not change.
        """
        before = self._alive.get(row_id)
        if before is None or Judged(row_id, outcome) == Judged(row_id, before.outcome):
            return before is not None
        row = WorkRow(row_id, outcome, before.manifest, run_id=before.run_id, beside=before.beside)
        self._alive[row_id] = row
        self._kept.append(row)
        for other in list(self._alive.values()):
            if before in other.beside:
                other.beside = tuple(row if one is before else one for one in other.beside)
        self.replaced.emit(before)
        return True

    def _read(self) -> None:
        wanted = dict.fromkeys(row_id for rows in self._waiting for row_id in rows)
        self._waiting.clear()
        missing = [row_id for row_id in wanted if self.get(row_id) is None and row_id not in self._gone]
        if not missing:
            return
        self._is_reading = True
        beside = tuple(self.manifests)[1:]
        self._background.ask(
            lambda services: services.history.asked(lambda query: query.with_beside(missing, beside)),
            channel=_ROWS_CHANNEL,
            done=lambda found: self._has_read(missing, found),
            failed=self._not_read,
        )

    def _has_read(self, asked: Sequence[int], found: Sequence[StoredResult]) -> None:
        beside = tuple(self.manifests)[1:]
        others = {(stored.run_id, stored.outcome.ref.key): stored for stored in found if stored.run_id in beside}
        for stored in found:
            of_image = [others.get((run_id, stored.outcome.ref.key)) for run_id in beside]
            read = {one.row_id for one in (stored, *of_image) if one}
            if stored.run_id not in beside and read.isdisjoint(self._outdated):  # else it is read again when painted
                for one in (stored, *filter(None, of_image)):
                    self._renew(one.row_id, one.outcome)  # another window may have had the image done again
                row = self.row_of(stored)
                row.beside = tuple(self.row_of(other) if other else None for other in of_image)
                self._kept.append(row)
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
        self._read()


@dataclass(eq=False, slots=True, weakref_slot=True)
class WorkRow:
    """One result of an image, with what the list needs to show it. An image that gets another result gets another row.

    manifest  the pack's, whose texts and calibration belong to the result
    is_read   whether a person has read it, with or without a verdict
    run_id    of its pack; None for an image of no run
    beside    what the other packs of the run say of the image, None where one says nothing
    finding   the one that decides the class, None without a score
    state     a number that no other row has
    """

    row_id: int
    outcome: Outcome
    manifest: Manifest | None = None
    verdict: Verdict | None = None
    is_read: bool = False
    run_id: int | None = None
    beside: tuple[WorkRow | None, ...] = ()
    category: Category = field(init=False)
    finding: Finding | None = field(init=False)
    state: int = field(init=False)

    def __post_init__(self) -> None:
        self.state = next(_states)
        self.category = self.outcome.category
        self.finding = leading_finding(self.outcome)

    @property
    def header(self) -> ImageHeader:
        return self.outcome.ref.header

    @property
    def reason(self) -> Reason | None:
        """Why the image has no score, or must be read first."""
        return why_of(self.outcome)


def pack_title(translator: Translator, manifest: Manifest | None) -> str:
    """What a pack is called where several say something of an image."""
    return f"{translator.pick(manifest.names)} {manifest.version}" if manifest else translator.text("Other pack")


def image_title(translator: Translator, row_id: int, outcome: Outcome) -> str:
    """What an image is called in the list: the patient's name, else that of the file; its number if both are hidden."""
    return translator.name(person(outcome.ref.header.patient_name) or file_name(outcome.ref), row_id=row_id)


# ---- The columns, and what stands in the cells.


@dataclass(frozen=True, eq=False, slots=True)
class Column:
    """One column: its title and the text of a cell."""

    key: ListColumn | Literal["pack"]
    title: Callable[[Translator], str]
    text: Callable[[Translator, WorkRow], str]


def score_cell(translator: Translator, row: WorkRow) -> str:
    """The score by its own threshold."""
    return score_text(translator, row.finding.score, row.finding.point) if row.finding else "–"


def _class_text(translator: Translator, row: WorkRow) -> str:
    word = category_label(translator, row.category, row.manifest)
    return f"{word} ({unsigned(translator)})" if row.finding and row.finding.is_by_larger else word


def beside_text(translator: Translator, row: WorkRow) -> str:
    """What a pack says of an image: the class by the pack's own words, and the score by its own threshold."""
    spoken = _class_text(translator, row)
    return f"{spoken}  {score_cell(translator, row)}" if row.finding else spoken


def _device_text(translator: Translator, row: WorkRow) -> str:
    return backend_name(translator, row.outcome.backend) if isinstance(row.outcome, Screened) else ""


def _time_text(translator: Translator, row: WorkRow) -> str:
    """Of the network alone, where it ran."""
    return number(translator, row.outcome.inference_ms, digits=1) if isinstance(row.outcome, Screened) else "–"


def _status_text(translator: Translator, row: WorkRow) -> str:
    said = notes_of(row.outcome) or ((row.reason,) if row.reason else ())
    return " ".join(map(translator.reason, said)) if said else translator.text("Screened")


COLUMNS: Final[tuple[Column, ...]] = (
    Column("image", lambda t: t.text("Image"), lambda _, __: ""),
    Column("patient", lambda t: t.text("Patient"), lambda t, row: image_title(t, row.row_id, row.outcome)),
    Column("date", lambda t: t.text("Date"), lambda t, row: date(t, row.header.study_date)),
    Column("view", lambda t: t.in_context("projection of a radiograph", "View"), lambda _, row: view_label(row.header)),
    Column("class", lambda t: t.text("Class"), _class_text),
    Column("score", lambda t: t.text("Score"), score_cell),
    Column("backend", lambda t: t.text("Run on"), _device_text),
    Column("ms", lambda t: t.text("ms"), _time_text),
    Column("status", lambda t: t.text("Status"), _status_text),
)
KEYS: Final[tuple[ListColumn, ...]] = get_args(ListColumn)


def columns_of(packs: Sequence[Manifest | None]) -> tuple[Column, ...]:
    """The columns; of several packs each is named, and all but the first have a column after the others."""
    if len(packs) < 2:
        return COLUMNS
    titles = [partial(pack_title, manifest=manifest) for manifest in packs]
    own = (replace(column, title=titles[0]) if column.key == "class" else column for column in COLUMNS)
    return *own, *(Column("pack", title, partial(_text_beside, number)) for number, title in enumerate(titles[1:]))


def _text_beside(number: int, translator: Translator, row: WorkRow) -> str:
    other = row.beside[number]
    return beside_text(translator, other) if other else "–"
