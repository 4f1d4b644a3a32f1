"""A cache of rows of the work list, and the columns of the work list.

A row, with thumbnail and heat map, is read from the results database when the row is first shown.
"""

from __future__ import annotations

import itertools
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Literal, get_args

from PySide6.QtCore import QObject, Signal

from fieldray.desktop.background import BackgroundTasks
from fieldray.desktop.verdicts import VerdictSubject
from fieldray.domain.finding import Category, Finding, Outcome, ScreenedOutcome, leading_finding, notes_of, reason_of
from fieldray.domain.history import WorkListColumnName
from fieldray.domain.image import ImageHeader
from fieldray.domain.model import Manifest
from fieldray.domain.run import StoredImage, StoredResult, Verdict
from fieldray.errors import FieldrayError
from fieldray.formatting import (
    backend_name,
    category_label,
    file_name,
    format_dicom_date,
    format_number,
    format_person_name,
    score_text,
    unsigned_notice,
    view_and_laterality_label,
)
from fieldray.reasons import Reason
from fieldray.translation import Translator

_states = itertools.count()
_ROWS_CHANNEL: Final = "rows"
_MAX_CACHED_ROWS: Final = 256
_MAX_WAITING_REQUESTS: Final = 3


class RowCache(QObject):
    """A cache of the rows of the work list that were read last.

    While other code uses a row object, the cache returns that object and never a second copy.

    rows_read     emitted when rows were read
    rows_missing  emitted when requested rows are no longer in the database; they are not requested again
    row_replaced  emitted with the old row object of a result that has changed
    """

    rows_read = Signal()
    rows_missing = Signal()
    row_replaced = Signal(object)  # the old WorkListRow of a changed result

    def __init__(self, background: BackgroundTasks, parent: QObject) -> None:
        super().__init__(parent)
        self._background, self._board = background, background.notice_board
        self.manifests: Sequence[Manifest | None] = ()  # manifests of the run's packs, by position
        self._kept: deque[WorkListRow] = deque(maxlen=_MAX_CACHED_ROWS)
        self._alive: weakref.WeakValueDictionary[int, WorkListRow] = weakref.WeakValueDictionary()
        self._waiting: deque[Sequence[int]] = deque(maxlen=_MAX_WAITING_REQUESTS)
        self._is_reading = False
        self._outdated: set[int] = set()  # images screened again while their rows were being read
        self._gone: set[int] = set()

    def clear(self, manifests: Sequence[Manifest | None]) -> None:
        """Remove all rows from the cache. Rows that are read later belong to a run with these packs.

        manifests  manifest of each pack of the run; None for a pack that is not available
        """
        self.manifests, self._is_reading = manifests, False
        self._background.discard_channel_tasks(_ROWS_CHANNEL)
        for rows in (self._kept, self._alive, self._waiting, self._outdated, self._gone):
            rows.clear()

    def row_in_memory(self, row_id: int) -> WorkListRow | None:
        """Return the row of an image if it is in memory; None otherwise. The database is not read."""
        return self._alive.get(row_id)

    def row_of_result(self, result_id: int) -> WorkListRow | None:
        """Return the row with a stored result if it is in memory; None otherwise. The database is not read."""
        rows = list(self._alive.values())
        return next((one for row in rows for one in row.result_rows if one.result_id == result_id), None)

    def request_rows(self, row_ids: Sequence[int]) -> None:
        """Read rows from the database in the background. A new request replaces a request that waits."""
        if row_ids not in self._waiting:
            self._waiting.append(row_ids)
        if not self._is_reading:
            self._read()

    def row_of_image(self, image: StoredImage) -> WorkListRow:
        """Return the row of a stored image. If no row is in memory, a new row is made."""
        row = self._alive.get(image.row_id)
        if row is None:
            row, *others = (self._row_of(answer) for answer in image.results)
            row.additional_pack_rows = tuple(others)
            self._alive[image.row_id] = row
        return row

    def replace_rows_of_image(self, image: StoredImage) -> bool:
        """Replace an image's rows by rows with its new results. Returns whether the image's row is in memory."""
        is_held = image.row_id in self._alive  # most images are not in sight and need no row
        return self._replace(image.row_id, [self._row_of(answer) for answer in image.results] if is_held else ())

    def replace_result(self, old_row: WorkListRow, outcome: Outcome) -> bool:
        """Replace the row of a result by a row with a new outcome, after the image was screened again.

        Returns whether the image's row is in memory.
        """
        made = WorkListRow(
            old_row.row_id, outcome, old_row.manifest, run_id=old_row.run_id, result_id=old_row.result_id
        )
        made.pack_position = old_row.pack_position
        return self._replace(old_row.row_id, [made])

    def _row_of(self, answer: StoredResult) -> WorkListRow:
        manifest = self.manifests[answer.pack_position] if answer.pack_position < len(self.manifests) else None
        return WorkListRow(
            answer.row_id,
            answer.outcome,
            manifest,
            answer.verdict,
            answer.is_read,
            answer.run_id,
            result_id=answer.result_id,
            pack_position=answer.pack_position,
        )

    def _replace(self, row_id: int, answers: Sequence[WorkListRow]) -> bool:
        if self._is_reading:
            self._outdated.add(row_id)
        return self._renew(row_id, answers)

    def _renew(self, row_id: int, answers: Sequence[WorkListRow]) -> bool:
        """Replace the rows of an image whose results have changed. Returns whether the image's row is in memory.

        The old row object keeps its result. The old row object may be open in the window, and the visible result must
        not change by itself.
        """
        listed = self._alive.get(row_id)
        if listed is None:
            return False
        before = {one.pack_position: one for one in listed.result_rows}
        now = before | {one.pack_position: _kept_or(one, before.get(one.pack_position)) for one in answers}
        row, *others = (now[position] for position in sorted(now))
        row.additional_pack_rows = tuple(others)
        self._alive[row_id] = row
        self._kept.append(row)
        for position, one in before.items():
            if now[position] is not one:
                self.row_replaced.emit(one)
        return True

    def _read(self) -> None:
        wanted = dict.fromkeys(row_id for rows in self._waiting for row_id in rows)
        self._waiting.clear()
        missing = [row_id for row_id in wanted if self.row_in_memory(row_id) is None and row_id not in self._gone]
        if not missing:
            return
        self._is_reading = True
        self._background.run_with_services(
            lambda services: services.history.run_query(lambda query: query.images(missing)),
            channel=_ROWS_CHANNEL,
            done=lambda found: self._has_read(missing, found),
            failed=self._not_read,
        )

    def _has_read(self, asked: Sequence[int], found: Sequence[StoredImage]) -> None:
        for image in found:
            if image.row_id not in self._outdated:  # an outdated row is read again when painted
                # Another window may have screened the image again.
                self._renew(image.row_id, [self._row_of(answer) for answer in image.results])
                self._kept.append(self.row_of_image(image))
        gone = set(asked) - {image.row_id for image in found}
        self._gone |= gone
        self._end_reading()
        self.rows_read.emit()
        if gone:
            self.rows_missing.emit()

    def _not_read(self, error: FieldrayError) -> None:
        self._end_reading()
        self._board.post_error("list", error)

    def _end_reading(self) -> None:
        self._is_reading = False
        self._outdated.clear()
        self._read()


@dataclass(eq=False, slots=True, weakref_slot=True)
class WorkListRow:
    """A row of the work list: the result of one pack for an image, with the data to show the result.

    A new result makes a new row object.

    row_id                row id of the image in the results database
    manifest              manifest of the pack, with texts and calibration; None if the pack is not available
    is_read               whether a person has read the image, with or without a verdict
    run_id                id of the run; None for an image of no run
    result_id             row id of the result in the results database; 0 for an image of no run
    pack_position         position of the pack in the run
    additional_pack_rows  rows of the packs after this pack; only in the row of the first listed pack
    finding               the finding that decides the class; None without a score
    row_object_number     unique number of this row object; the painted cells in the cache are found by it
    """

    row_id: int
    outcome: Outcome
    manifest: Manifest | None = None
    verdict: Verdict | None = None
    is_read: bool = False
    run_id: int | None = None
    result_id: int = 0
    pack_position: int = 0
    additional_pack_rows: tuple[WorkListRow, ...] = ()
    category: Category = field(init=False)
    finding: Finding | None = field(init=False)
    row_object_number: int = field(init=False)

    def __post_init__(self) -> None:
        self.row_object_number = next(_states)
        self.category = self.outcome.category
        self.finding = leading_finding(self.outcome)

    @property
    def result_rows(self) -> tuple[WorkListRow, ...]:
        """The rows with the results of all packs for the image; this row is the first."""
        return (self, *self.additional_pack_rows)

    def row_of_pack(self, pack_position: int) -> WorkListRow | None:
        """Return the row with the result of another pack of the run; None if that pack has no result for the image.

        pack_position  the pack's position in the run
        """
        return next((one for one in self.result_rows if one.pack_position == pack_position), None)

    @property
    def header(self) -> ImageHeader:
        """The header of the image that the row shows."""
        return self.outcome.ref.header

    @property
    def reason(self) -> Reason | None:
        """The reason why the image has no score, or why the image must be read first; None if neither applies."""
        return reason_of(self.outcome)


def _kept_or(row: WorkListRow, before: WorkListRow | None) -> WorkListRow:
    """Return the old row if its result is equal to that of the new row, else the new row.

    row     the new row
    before  the old row, or None
    """
    is_same = before is not None and VerdictSubject(row.result_id, row.outcome) == VerdictSubject(
        before.result_id, before.outcome
    )
    return before if before is not None and is_same else row


def pack_title(translator: Translator, manifest: Manifest | None) -> str:
    """Return a pack's name with its version, to tell the packs of a run apart; "Unknown pack" without a manifest."""
    return f"{translator.pack_text(manifest.names)} {manifest.version}" if manifest else translator.text("Unknown pack")


def image_title(translator: Translator, row_id: int, outcome: Outcome) -> str:
    """Return the title of an image in the work list: the patient's name, or the file name if there is no name.

    While names are hidden, the title is the row id of the image.
    """
    return translator.name_unless_hidden(
        format_person_name(outcome.ref.header.patient_name) or file_name(outcome.ref), row_id=row_id
    )


# ---- columns, and texts of the cells


@dataclass(frozen=True, eq=False, slots=True)
class WorkListColumn:
    """A column of the work list: its key, and functions for its title and for the text of a cell."""

    key: WorkListColumnName | Literal["pack"]
    title: Callable[[Translator], str]
    text: Callable[[Translator, WorkListRow], str]


def score_cell_text(translator: Translator, row: WorkListRow) -> str:
    """Return the text of a row's cell with the score and the threshold of the operating point."""
    return score_text(translator, row.finding.score, row.finding.point) if row.finding else "–"


def _class_text(translator: Translator, row: WorkListRow) -> str:
    word = category_label(translator, row.category, row.manifest)
    return (
        f"{word} ({unsigned_notice(translator)})" if row.finding and row.finding.is_decided_by_larger_output else word
    )


def result_text(translator: Translator, row: WorkListRow) -> str:
    """Return a pack's result for an image as text: the pack's name for the class, and the score with its threshold."""
    spoken = _class_text(translator, row)
    return f"{spoken}  {score_cell_text(translator, row)}" if row.finding else spoken


def _device_text(translator: Translator, row: WorkListRow) -> str:
    return backend_name(translator, row.outcome.backend) if isinstance(row.outcome, ScreenedOutcome) else ""


def _time_text(translator: Translator, row: WorkListRow) -> str:
    """Return the inference time of a row's image as text; a dash if the network did not run."""
    return (
        format_number(translator, row.outcome.inference_ms, digits=1)
        if isinstance(row.outcome, ScreenedOutcome)
        else "–"
    )


def _status_text(translator: Translator, row: WorkListRow) -> str:
    said = notes_of(row.outcome) or ((row.reason,) if row.reason else ())
    return " ".join(map(translator.reason, said)) if said else translator.text("Screened")


WORK_LIST_COLUMNS: Final[tuple[WorkListColumn, ...]] = (
    WorkListColumn("image", lambda t: t.text("Image"), lambda _, __: ""),
    WorkListColumn("patient", lambda t: t.text("Patient"), lambda t, row: image_title(t, row.row_id, row.outcome)),
    WorkListColumn("date", lambda t: t.text("Date"), lambda t, row: format_dicom_date(t, row.header.study_date)),
    WorkListColumn(
        "view",
        lambda t: t.in_context("projection of a radiograph", "Projection"),
        lambda _, row: view_and_laterality_label(row.header),
    ),
    WorkListColumn("class", lambda t: t.text("Class"), _class_text),
    WorkListColumn("score", lambda t: t.text("Score"), score_cell_text),
    WorkListColumn("backend", lambda t: t.text("Device"), _device_text),
    WorkListColumn("ms", lambda t: t.text("Time, ms"), _time_text),
    WorkListColumn("status", lambda t: t.text("Status"), _status_text),
)
COLUMN_KEYS: Final[tuple[WorkListColumnName, ...]] = get_args(WorkListColumnName)


def work_list_columns(packs: Sequence[Manifest | None]) -> tuple[WorkListColumn, ...]:
    """Return the columns of the work list of a run.

    packs  manifest of each pack of the run. If the run has several packs, each pack has its own columns, with the name
           of the pack in the title
    """
    if len(packs) < 2:
        return WORK_LIST_COLUMNS
    titles = [partial(pack_title, manifest=manifest) for manifest in packs]
    own = (replace(column, title=titles[0]) if column.key == "class" else column for column in WORK_LIST_COLUMNS)
    return *own, *(
        WorkListColumn("pack", title, partial(_text_of_pack, number)) for number, title in enumerate(titles[1:], 1)
    )


def _text_of_pack(position: int, translator: Translator, row: WorkListRow) -> str:
    other = row.row_of_pack(position)
    return result_text(translator, other) if other else "–"
