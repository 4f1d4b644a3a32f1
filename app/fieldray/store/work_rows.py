"""What results are sorted, found and counted by: a narrow row for each image that is present in a run.

A list of a million results is sorted and searched without reading one of them. Every change to a result is noted in the
transaction that makes it, and so are the counts by class.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

from fieldray.domain.finding import WORK_LIST_ORDER, Category, Outcome, Screened, listed_score, why_of
from fieldray.formatting import file_name, person, view_label
from fieldray.store.rows import category_of

_COLUMNS: Final = (
    "run_id, result_id, rank, score, backend, patient, patient_id, study_date, file, view, inference_ms, why, study"
)
_KNOWN: Final = f"SELECT {_COLUMNS} FROM work_list WHERE run_id = ? AND result_id = ?"
_SAVE: Final = f"INSERT OR REPLACE INTO work_list ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_COUNT: Final = """
    INSERT INTO work_counts (run_id, {category}) VALUES (?1, ?2)
    ON CONFLICT (run_id) DO UPDATE SET {category} = {category} + ?2
"""

_UNLISTED: Final = """
    SELECT id FROM results WHERE id IN (SELECT value FROM json_each(?2))
    AND NOT EXISTS (SELECT 1 FROM work_list WHERE run_id = ?1 AND result_id = results.id)
"""
# Copies of rows of other runs are listed as those are.
_OF_COPY: Final = ", ".join(f"listed.{name}" for name in _COLUMNS.split(", ")[2:])
_COPY: Final = f"""
    INSERT INTO work_list ({_COLUMNS})
    SELECT copy.run_id, copy.id, {_OF_COPY}
    FROM results AS earlier JOIN work_list AS listed ON listed.run_id = earlier.run_id AND listed.result_id = earlier.id
    JOIN results AS copy ON copy.run_id = ?1 AND copy.image_key = earlier.image_key
    WHERE earlier.id IN (SELECT value FROM json_each(?2)) RETURNING rank
"""

# Executes a statement with these values on the store that is being changed; what it gives.
Execute = Callable[..., Sequence[sqlite3.Row]]


def note(execute: Execute, run_id: int, row_id: int, outcome: Outcome) -> None:
    """List a result, or what a row that is listed holds now."""
    row, known = _row(run_id, row_id, outcome), execute(_KNOWN, run_id, row_id)
    if known and tuple(known[0]) == row:
        return
    execute(_SAVE, *row)
    _count(execute, run_id, outcome.category, 1)
    if known:
        _count(execute, run_id, category_of(known[0]["rank"]), -1)


def note_copies(execute: Execute, run_id: int, of: Sequence[int]) -> None:
    """List the rows of a run that were copied from these of other runs, where those are listed."""
    ranks = Counter(row["rank"] for row in execute(_COPY, run_id, json.dumps(of)))
    for rank, number in ranks.items():
        _count(execute, run_id, category_of(rank), number)


def unlisted(execute: Execute, run_id: int, row_ids: Sequence[int]) -> tuple[int, ...]:
    """Those of a run's rows that are not listed."""
    return tuple(row["id"] for row in execute(_UNLISTED, run_id, json.dumps(row_ids)))


def leave_out(execute: Execute, run_id: int, row_id: int) -> None:
    """List a result no more: its image is not present."""
    known = execute(_KNOWN, run_id, row_id)
    if known:
        execute("DELETE FROM work_list WHERE run_id = ? AND result_id = ?", run_id, row_id)
        _count(execute, run_id, category_of(known[0]["rank"]), -1)


def key_of(text: str) -> bytes:
    """A text as it is compared and searched, whatever its case. A name that is not valid Unicode has one, too."""
    return text.casefold().encode("utf-8", "surrogatepass")


def _count(execute: Execute, run_id: int, category: Category, more: int) -> None:
    execute(_COUNT.format(category=category), run_id, more)


def _row(run_id: int, row_id: int, outcome: Outcome) -> tuple[Any, ...]:
    header, file = outcome.ref.header, file_name(outcome.ref)
    score = listed_score(outcome.findings) if isinstance(outcome, Screened) else None
    study = hashlib.blake2b(outcome.ref.study_key.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return (
        run_id,
        row_id,
        WORK_LIST_ORDER.index(outcome.category),
        -1.0 if score is None else score,
        outcome.backend if isinstance(outcome, Screened) else "",
        key_of(person(header.patient_name) or file),
        key_of(header.patient_id.strip()),
        key_of(header.study_date),
        key_of(file),
        key_of(view_label(header)),
        outcome.inference_ms if isinstance(outcome, Screened) else -1.0,
        why.code if (why := why_of(outcome)) else "",
        int.from_bytes(study, signed=True),
    )
