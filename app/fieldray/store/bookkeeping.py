"""What is written along with results, in the same transaction: the work list, results taken over, and verdicts.

The work list has a narrow row for each image that is present in a run: a million results are sorted, searched and
counted without reading one of them.

A file that has not changed is known by a stamp that lies with its result (`imaging.source` makes them): the result is
taken over. An image that a pass did not see is gone, as far as the file system shows.

A verdict is a person's work and is never lost: it lies beside the row that was judged, and is copied to the row that
the same image with the same result has in another run or under another name. All copies have the time of the original.
Which one is the newest, their numbers say: the clock of a computer may jump. A row without a choice says that a person
read the image: it is copied like any other, and gives way to any other.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final

from fieldray.domain.finding import WORK_LIST_ORDER, Outcome, Screened, listed_score, why_of
from fieldray.domain.prior import person_key
from fieldray.domain.run import Verdict
from fieldray.formatting import file_name, person, view_label
from fieldray.store.rows import SAMPLED, verdict_columns
from fieldray.store.schema import VERSION, image_key

# Executes a statement with these values on the store that is being changed; what it gives.
Execute = Callable[..., Sequence[sqlite3.Row]]

KEY_BYTES: Final = 32
_GIVEN: Final = "id IN (SELECT value FROM json_each(:rows))"
_SEPARATOR: Final = os.fsencode(os.sep)
_MEMBER: Final = b"\0"
_FRAME: Final = b"\0\0"


# ---- the work list

_LISTED: Final = (
    "run_id, result_id, rank, score, backend, patient, patient_id, study_date, file, view, inference_ms, why, study, "
    "person"
)
LIST: Final = f"INSERT OR REPLACE INTO work_list ({_LISTED}) VALUES (?{', ?' * _LISTED.count(',')})"
UNLIST: Final = "DELETE FROM work_list WHERE run_id = ? AND result_id = ?"

UNLISTED: Final = """
    SELECT id FROM results WHERE id IN (SELECT value FROM json_each(?2))
    AND NOT EXISTS (SELECT 1 FROM work_list WHERE run_id = ?1 AND result_id = results.id)
"""
# Copies of rows of other runs are listed as those are.
_OF_LISTED: Final = ", ".join(f"listed.{name}" for name in _LISTED.split(", ")[2:])
COPY_LISTED: Final = f"""
    INSERT INTO work_list ({_LISTED})
    SELECT copy.run_id, copy.id, {_OF_LISTED}
    FROM results AS earlier JOIN work_list AS listed ON listed.run_id = earlier.run_id AND listed.result_id = earlier.id
    JOIN results AS copy ON copy.run_id = ?1 AND copy.image_key = earlier.image_key
    WHERE earlier.run_id != ?1 AND earlier.id IN (SELECT value FROM json_each(?2))
"""


def key_of(text: str) -> bytes:
    """A text as it is compared and searched, whatever its case. A name that is not valid Unicode has one, too."""
    return text.casefold().encode("utf-8", "surrogatepass")


def listed_row(run_id: int, row_id: int, outcome: Outcome) -> tuple[Any, ...]:
    """The row of a result in the work list."""
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
    WHERE run_id != :run_id AND {_GIVEN} RETURNING id, image_key, result_hash
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


def take_over(connection: sqlite3.Connection, run_id: int, row_ids: Sequence[int]) -> list[sqlite3.Row]:
    """Rows of a run itself become results of its present pass, rows of other runs are copied to it.

    The id, image_key and result_hash of each in the run, those of its own first.
    """
    about = {"run_id": run_id, "rows": json.dumps(row_ids), "now_s": time.time()}
    own = connection.execute(_SEEN, about).fetchall()
    connection.execute(_PRESENT, about)
    names = [row["name"] for row in connection.execute("PRAGMA table_info (results)") if row["name"] != "id"]
    values = [_OF_COPY.get(name, name) for name in names]
    copy = _COPY_ROWS.format(names=", ".join(names), values=", ".join(values))
    return own + connection.execute(copy, about).fetchall()


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
    """Whether there is something at the place that an image's key (`schema.image_key`) names: the file, or its zip.

    An object of a server (`s3:/...`) is not looked for.
    """
    path = key.partition(_MEMBER)[0]
    is_object = not os.path.isabs(path)  # noqa: PTH117 - of bytes
    return is_object or os.path.lexists(path)


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
        execute(UNLIST, run_id, row_id)
    execute(_TO_MOVED, run_id)


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


# ---- what a person says of images: verdicts, and that an image was read

_COPY_VERDICT: Final = """
    INSERT INTO verdicts (result_id, result_hash, choice, note, given_s, content_sha256, category, score)
"""
_OVER_READING: Final = """
    ON CONFLICT (result_id, result_hash) DO UPDATE
    SET choice = excluded.choice, note = excluded.note, given_s = excluded.given_s
    WHERE verdicts.choice IS NULL AND excluded.choice IS NOT NULL
"""

# Within a run: to the same bytes with the same outcome, and to a row that has no verdict of its own.
_TO_MOVED: Final = f"""{_COPY_VERDICT}
    SELECT moved.id, given.result_hash, choice, note, given_s, given.content_sha256, given.category, given.score
    FROM results AS gone JOIN verdicts AS given ON given.result_id = gone.id AND given.result_hash = gone.result_hash
    JOIN results AS moved ON moved.run_id = gone.run_id AND moved.result_hash = gone.result_hash
    WHERE gone.run_id = ? AND gone.absent_s IS NOT NULL AND moved.absent_s IS NULL AND moved.content_sha256 != x''
    {_OVER_READING}
"""

# Of the same image are verdicts on it, on its file by another name, and on the same bytes whose places are empty now.
# Two files with the same bytes that are both there stay two images, each with a verdict of its own. Where a result was
# lost in a damaged store, its place counts as empty.
_IS_MOVED: Final = """
    NOT EXISTS (SELECT 1 FROM verdicts AS same JOIN results AS judged ON judged.id = same.result_id
                WHERE same.result_hash = :result_hash AND same.given_s = verdicts.given_s
                      AND is_another(judged.image_key, :image_key))
"""
# From other runs to a row. Where the result was lost, its run is NULL here.
_TO_NEW_RUN: Final = f"""{_COPY_VERDICT}
    SELECT :row_id, verdicts.result_hash, choice, note, given_s, verdicts.content_sha256, verdicts.category,
           verdicts.score
    FROM verdicts LEFT JOIN results ON results.id = result_id
    WHERE verdicts.result_hash = :result_hash AND verdicts.content_sha256 != x'' AND run_id IS NOT :run_id
          AND (image_key = :image_key OR {_IS_MOVED})
    ORDER BY choice IS NULL, image_key IS :image_key DESC, verdicts.id DESC LIMIT 1
    {_OVER_READING}
"""

# From a row to those of the same image and result in later runs that have not ended: they may have come by it before.
_LATER: Final = """
    FROM verdicts JOIN results ON results.id = result_id JOIN runs ON runs.id > results.run_id AND ended_s IS NULL
    JOIN results AS later ON later.run_id = runs.id AND later.image_key = results.image_key
                          AND later.result_hash = verdicts.result_hash
    WHERE verdicts.result_id = :row_id AND verdicts.result_hash = :result_hash AND verdicts.content_sha256 != x''
"""
_TO_LATER_RUNS: Final = f"""{_COPY_VERDICT}
    SELECT later.id, verdicts.result_hash, choice, note, given_s, verdicts.content_sha256, verdicts.category,
           verdicts.score {_LATER} {_OVER_READING}
"""
# Before another one is given there: its copies go, and not what a person said in such a run.
_TAKE_BACK: Final = f"""
    DELETE FROM verdicts
    WHERE result_hash = :result_hash AND (result_id, given_s) IN (SELECT later.id, given_s {_LATER})
"""

# With all copies of it, in whatever run, and all that were given on the image before, or the next run would bring one
# back. One that was given after it in another run is not what is withdrawn here.
_WITHDRAW_ONE: Final = f"""
    DELETE FROM verdicts WHERE result_hash = :result_hash AND choice {{is_one}} AND EXISTS (
        SELECT 1 FROM verdicts AS given
        WHERE given.result_id = :row_id AND given.result_hash = :result_hash AND given.choice {{is_one}} AND (
            given.given_s = verdicts.given_s OR verdicts.id < given.id AND (
                :image_key IN (SELECT image_key FROM results WHERE id = verdicts.result_id)
                OR verdicts.content_sha256 != x'' AND {_IS_MOVED})))
"""
_WITHDRAW: Final = _WITHDRAW_ONE.format(is_one="IS NOT NULL")
_UNREAD: Final = _WITHDRAW_ONE.format(is_one="IS NULL")
_READ: Final = f"""{_COPY_VERDICT}
    SELECT :row_id, :result_hash, NULL, '', :given_s, :content_sha256, :category, :score
    WHERE true {_OVER_READING}
"""

# Those on no result that is present in the run: on what its rows held before, or on what its images gave in other runs.
EARLIER_VERDICTS: Final = """
    SELECT verdicts.*, image_key FROM verdicts JOIN results ON results.id = result_id
    WHERE run_id = :run_id AND (verdicts.result_hash != results.result_hash OR absent_s IS NOT NULL)
       OR run_id NOT IN (SELECT other.id FROM runs JOIN runs AS other ON other.id = runs.id
                         OR other.together_id = runs.together_id WHERE runs.id = :run_id) AND EXISTS (
          SELECT 1 FROM results AS mine WHERE mine.run_id = :run_id AND mine.image_key = results.image_key
          AND mine.absent_s IS NULL AND mine.result_hash != verdicts.result_hash
          AND NOT EXISTS (SELECT 1 FROM verdicts AS own
                          WHERE own.result_id = mine.id AND own.result_hash = verdicts.result_hash
                                AND own.choice IS NOT NULL))
    GROUP BY image_key, verdicts.result_hash, choice, note, given_s HAVING choice IS NOT NULL ORDER BY verdicts.id
"""


class Bringing:
    """Brings verdicts to the rows of newer runs; keeps in mind which results were judged at all."""

    def __init__(self, execute: Execute) -> None:
        self._execute = execute
        self._judged: frozenset[bytes] = frozenset()
        self._version = -1

    def forget(self) -> None:
        """Another verdict is about to be given here."""
        self._version = -1

    def bring(self, run_id: int, row_id: int, result_hash: bytes, image_key: bytes) -> None:
        """The verdict that this result was given in another run."""
        (row,) = self._execute("PRAGMA data_version")  # another one where others wrote: perhaps a verdict
        if row["data_version"] != self._version:
            self._judged = frozenset(row["result_hash"] for row in self._execute("SELECT result_hash FROM verdicts"))
            self._version = row["data_version"]
        if result_hash in self._judged:
            about = {"result_hash": result_hash, "image_key": image_key}
            self._execute(_TO_NEW_RUN, row_id=row_id, run_id=run_id, **about)


def put_verdict(
    execute: Execute, row_id: int, verdict: Verdict | None, *, judged: Outcome, found: Verdict | None
) -> None:
    """Put a verdict in the place of the one that was found there, or withdraw that (None): the image was read then."""
    columns = {"result_id": row_id, **verdict_columns(judged, verdict), "given_s": time.time()}
    about = {"row_id": row_id, "result_hash": columns["result_hash"], "image_key": image_key(judged.ref)}
    if verdict is None or found == verdict:
        # Have a transaction write, even one that changes nothing. What a full disk refused may lie in the log all the
        # same: a verdict that was refused and then withdrawn would come back. Only what is written in its place keeps
        # it away.
        execute(f"PRAGMA user_version = {VERSION}")
    if verdict is None:
        execute(_WITHDRAW, **about)
        if found is not None:
            mark_read(execute, row_id, judged=judged, is_read=True)
    elif found != verdict:
        execute(_TAKE_BACK, **about)
        marks = ", ".join("?" * len(columns))
        execute(f"INSERT OR REPLACE INTO verdicts ({', '.join(columns)}) VALUES ({marks})", *columns.values())
        execute(_TO_LATER_RUNS, **about)


def mark_read(execute: Execute, row_id: int, *, judged: Outcome, is_read: bool) -> None:
    """Note that a person has read this outcome, or has not; where a verdict lies they have."""
    about = {**verdict_columns(judged), "row_id": row_id, "image_key": image_key(judged.ref)}
    if is_read:
        execute(_READ, given_s=time.time(), **about)
    execute(_TO_LATER_RUNS if is_read else _UNREAD, **about)
