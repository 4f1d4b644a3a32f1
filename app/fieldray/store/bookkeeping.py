"""What is written along with results, in the same transaction: the work list, and results taken over.

The work list has a narrow row for each image that is present in a run, and counts by class: a million results are
sorted, searched and counted without reading one of them.

A file that has not changed is known by a stamp that lies with its result (`imaging.source` makes them): the result is
taken over. An image that a pass did not see is gone, as far as the file system shows.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final

from fieldray.domain.finding import WORK_LIST_ORDER, Category, Outcome, Screened, listed_score, why_of
from fieldray.domain.prior import person_key
from fieldray.formatting import file_name, person, view_label
from fieldray.store.rows import SAMPLED, category_of
from fieldray.store.verdicts import TO_MOVED, Execute

KEY_BYTES: Final = 32
_GIVEN: Final = "id IN (SELECT value FROM json_each(:rows))"
_SEPARATOR: Final = os.fsencode(os.sep)
_MEMBER: Final = b"\0"
_FRAME: Final = b"\0\0"


# ---- the work list and its counts

_LISTED: Final = (
    "run_id, result_id, rank, score, backend, patient, patient_id, study_date, file, view, inference_ms, why, study, "
    "person"
)
_KNOWN_LISTED: Final = f"SELECT {_LISTED} FROM work_list WHERE run_id = ? AND result_id = ?"
_SAVE_LISTED: Final = f"INSERT OR REPLACE INTO work_list ({_LISTED}) VALUES (?{', ?' * _LISTED.count(',')})"
_COUNT_LISTED: Final = """
    INSERT INTO work_counts (run_id, {category}) VALUES (?1, ?2)
    ON CONFLICT (run_id) DO UPDATE SET {category} = {category} + ?2
"""

_UNLISTED: Final = """
    SELECT id FROM results WHERE id IN (SELECT value FROM json_each(?2))
    AND NOT EXISTS (SELECT 1 FROM work_list WHERE run_id = ?1 AND result_id = results.id)
"""
# Copies of rows of other runs are listed as those are.
_OF_LISTED: Final = ", ".join(f"listed.{name}" for name in _LISTED.split(", ")[2:])
_COPY_LISTED: Final = f"""
    INSERT INTO work_list ({_LISTED})
    SELECT copy.run_id, copy.id, {_OF_LISTED}
    FROM results AS earlier JOIN work_list AS listed ON listed.run_id = earlier.run_id AND listed.result_id = earlier.id
    JOIN results AS copy ON copy.run_id = ?1 AND copy.image_key = earlier.image_key
    WHERE earlier.id IN (SELECT value FROM json_each(?2)) RETURNING rank
"""


def list_result(execute: Execute, run_id: int, row_id: int, outcome: Outcome) -> None:
    """List a result, or what a row that is listed holds now."""
    row, known = _listed_row(run_id, row_id, outcome), execute(_KNOWN_LISTED, run_id, row_id)
    if known and tuple(known[0]) == row:
        return
    execute(_SAVE_LISTED, *row)
    _count(execute, run_id, outcome.category, 1)
    if known:
        _count(execute, run_id, category_of(known[0]["rank"]), -1)


def list_copies(execute: Execute, run_id: int, of: Sequence[int]) -> None:
    """List the rows of a run that were copied from these of other runs, where those are listed."""
    ranks = Counter(row["rank"] for row in execute(_COPY_LISTED, run_id, json.dumps(of)))
    for rank, number in ranks.items():
        _count(execute, run_id, category_of(rank), number)


def unlisted(execute: Execute, run_id: int, row_ids: Sequence[int]) -> tuple[int, ...]:
    """Those of a run's rows that are not listed."""
    return tuple(row["id"] for row in execute(_UNLISTED, run_id, json.dumps(row_ids)))


def unlist_result(execute: Execute, run_id: int, row_id: int) -> None:
    """List a result no more: its image is not present."""
    known = execute(_KNOWN_LISTED, run_id, row_id)
    if known:
        execute("DELETE FROM work_list WHERE run_id = ? AND result_id = ?", run_id, row_id)
        _count(execute, run_id, category_of(known[0]["rank"]), -1)


def key_of(text: str) -> bytes:
    """A text as it is compared and searched, whatever its case. A name that is not valid Unicode has one, too."""
    return text.casefold().encode("utf-8", "surrogatepass")


def _count(execute: Execute, run_id: int, category: Category, more: int) -> None:
    execute(_COUNT_LISTED.format(category=category), run_id, more)


def _listed_row(run_id: int, row_id: int, outcome: Outcome) -> tuple[Any, ...]:
    header, file = outcome.ref.header, file_name(outcome.ref)
    score = listed_score(outcome.findings) if isinstance(outcome, Screened) else None
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
        _number_of(outcome.ref.study_key),
        _number_of(person_key(outcome.ref)),
    )


def _number_of(text: str) -> int:
    """A number of 64 bits that no other text of a run has."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), signed=True)


# Runs of several packs that go over the same images together; what they were linked with before is alone.
LINK: Final = """
    UPDATE runs SET together_id = CASE WHEN id IN (SELECT value FROM json_each(:runs)) THEN :together END
    WHERE together_id IN (SELECT together_id FROM runs WHERE id IN (SELECT value FROM json_each(:runs)))
       OR id IN (SELECT value FROM json_each(:runs)) AND together_id IS NOT :together
"""


# ---- results taken over for files that have not changed

NEW_KEY: Final = "INSERT OR IGNORE INTO secrets (purpose, value) VALUES ('stamps', ?)"
KEY: Final = "SELECT value FROM secrets WHERE purpose = 'stamps'"

# The files of a run in the order of their names. What failed is tried again: it is known, and has no stamp.
STAMPED: Final = """
    SELECT id, image_key, CASE status WHEN 'failed' THEN NULL ELSE stamp END AS stamp FROM results
    WHERE run_id = ? AND image_key >= ? ORDER BY image_key LIMIT ?
"""

# What is counted of results, each kind once with its number.
_KINDS: Final = "SELECT category, reason, notes, COUNT(*) AS number FROM results WHERE {} GROUP BY 1, 2, 3"
KINDS: Final = _KINDS.format(_GIVEN)
KINDS_SEEN: Final = _KINDS.format(
    "run_id = :run_id AND absent_s IS NULL AND pass_number = (SELECT pass_number FROM runs WHERE id = :run_id)"
)

# Rows of the run itself are seen by its present pass. Indices are left alone where nothing in them changes.
_SEEN: Final = f"""
    UPDATE results SET is_resumed = {SAMPLED}, pass_number = (SELECT pass_number FROM runs WHERE id = :run_id)
    WHERE run_id = :run_id AND {_GIVEN} RETURNING id, image_key, result_hash
"""
_PRESENT: Final = f"UPDATE results SET absent_s = NULL WHERE absent_s IS NOT NULL AND run_id = :run_id AND {_GIVEN}"
# Rows of other runs become new ones of this run.
_COPY_ROWS: Final = f"""
    INSERT INTO results ({{names}}) SELECT {{values}} FROM results
    WHERE {_GIVEN} RETURNING id, image_key, result_hash
"""
_OF_COPY: Final = {
    "run_id": ":run_id",
    "pass_number": "(SELECT pass_number FROM runs WHERE id = :run_id)",
    "is_resumed": str(SAMPLED),
    "saved_s": ":now_s",
    "absent_s": "NULL",
}


def checked_key(value: object) -> bytes:
    """The key. Raises ValueError for what this program cannot have written."""
    if not isinstance(value, bytes) or len(value) != KEY_BYTES:
        raise ValueError("no key")
    return value


def see_again(connection: sqlite3.Connection, run_id: int, row_ids: Sequence[int]) -> list[sqlite3.Row]:
    """Rows of a run itself are results of its present pass: their id, image_key, result_hash."""
    about = {"run_id": run_id, "rows": json.dumps(row_ids)}
    seen = connection.execute(_SEEN, about).fetchall()
    connection.execute(_PRESENT, about)
    return seen


def copy_rows(connection: sqlite3.Connection, run_id: int, row_ids: Sequence[int]) -> list[sqlite3.Row]:
    """Make copies of rows of other runs, as `see_again` would tell of them."""
    names = [row["name"] for row in connection.execute("PRAGMA table_info (results)") if row["name"] != "id"]
    values = [_OF_COPY.get(name, name) for name in names]
    query = _COPY_ROWS.format(names=", ".join(names), values=", ".join(values))
    return connection.execute(query, {"run_id": run_id, "rows": json.dumps(row_ids), "now_s": time.time()}).fetchall()


# ---- images that are gone

# The images of a run, and whether its last pass saw them.
ROWS: Final = """
    SELECT results.id, image_key, stage, results.reason, results.pass_number = runs.pass_number AS is_seen
    FROM results JOIN runs ON runs.id = run_id WHERE run_id = ? AND absent_s IS NULL
"""
# The images that a run's last pass saw whose bytes it saw more than once.
TWINS: Final = """
    WITH seen AS (SELECT results.id, image_key, content_sha256, frame FROM results JOIN runs ON runs.id = run_id
                  WHERE run_id = ? AND results.pass_number = runs.pass_number AND content_sha256 != x'')
    SELECT id, image_key, content_sha256, frame FROM seen WHERE (content_sha256, frame) IN (
        SELECT content_sha256, frame FROM seen GROUP BY content_sha256, frame HAVING COUNT(*) > 1)
"""

_SAME_BYTES: Final = """
    SELECT other.id, other.image_key FROM results AS this JOIN results AS other
    ON (other.run_id, other.content_sha256, other.frame) = (this.run_id, this.content_sha256, this.frame)
    WHERE this.id = ? AND other.id != this.id AND this.content_sha256 != x'' AND other.absent_s IS NULL
"""


def is_there(key: bytes) -> bool:
    """Whether there is something at the place that an image's key (`schema.image_key`) names: the file, or its zip."""
    return os.path.lexists(key.partition(_MEMBER)[0])


def is_another(key: bytes, other: bytes) -> bool:
    """Whether there is a file at the first place that is not, under a name by another way or case, the second one."""
    (path, *inside), (other_path, *other_inside) = key.split(_MEMBER), other.split(_MEMBER)
    try:
        return not (os.path.samefile(path, other_path) and inside == other_inside)  # noqa: PTH121
    except OSError:
        return is_there(key)


def emptied(rows: Sequence[sqlite3.Row], paths: Sequence[str]) -> tuple[bytes, ...]:
    """The given paths under which there once were images, and of which the pass saw none."""
    folders = {os.fsencode(path).rstrip(_SEPARATOR) for path in paths}
    had, has = set(), set()
    for row in rows:
        key = row["image_key"]
        under = folders.intersection((key, *(folder for folder, _ in _folders_around(key))))
        had |= under
        has |= under if row["is_seen"] else set()
    return tuple(sorted(had - has))


def gone(rows: Sequence[sqlite3.Row], empty: Sequence[bytes]) -> set[int]:
    """The rows that a pass did not see, except those in folders and zip files that it could not read, or `empty`."""
    unread = {row["image_key"] for row in rows if row["is_seen"] and row["stage"] == "discover" and not _is_partly(row)}
    spared = unread.union(empty)
    return {row["id"] for row in rows if not row["is_seen"] and not _is_in_any(row["image_key"], spared)}


def moved(twins: Sequence[sqlite3.Row]) -> set[int]:
    """Of the rows with the same bytes, those whose file has gone since it was read while another one is there."""
    groups: defaultdict[tuple[bytes, int], list[sqlite3.Row]] = defaultdict(list)
    for row in twins:
        groups[row["content_sha256"], row["frame"]].append(row)
    left: set[int] = set()
    for group in groups.values():
        lost = {row["id"] for row in group if not is_there(row["image_key"])}
        left |= lost if len(lost) < len(group) else set()
    return left


def moved_to(execute: Execute, row_id: int) -> set[int]:
    """The rows of the same run with the same bytes as this one whose file is no longer there."""
    return {row["id"] for row in execute(_SAME_BYTES, row_id) if not is_there(row["image_key"])}


def leave_out(execute: Execute, run_id: int, row_ids: AbstractSet[int]) -> None:
    """Mark images as no longer present; a verdict on bytes that are present elsewhere moves with them."""
    for row_id in row_ids:
        execute("UPDATE results SET absent_s = ? WHERE id = ?", time.time(), row_id)
        unlist_result(execute, run_id, row_id)
    execute(TO_MOVED, run_id)


def _is_partly(row: sqlite3.Row) -> bool:
    """Whether the row is about a zip file of which all but a few members were read."""
    return str(row["reason"]).startswith('["double_members"')


def _folders_around(key: bytes) -> Iterator[tuple[bytes, bool]]:
    """Each folder and file that an image's key begins with, and whether the image is a frame of that very file.

    There are as many as the key has parts, however many places are asked about.
    """
    for end, byte in enumerate(key):
        if byte in _SEPARATOR + _MEMBER:
            yield key[:end], key.startswith(_FRAME, end)


def _is_in_any(key: bytes, folders: AbstractSet[bytes]) -> bool:
    """Whether an image is inside one of these folders and zip files; a frame is not inside its own file."""
    around = [is_frame for folder, is_frame in _folders_around(key) if folder in folders]
    return bool(around) and not any(around)
