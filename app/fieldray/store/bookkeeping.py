"""Functions and SQL statements that keep the work list, results of unchanged files, and verdicts up to date.

The functions run in the transaction that stores a result. The table `work_list` has a short row for each image that is
present in a run. So a million results are sorted, searched and counted without reading a result.

The stamp stored with a result identifies the state of the image's file (`imaging.source` makes stamps). If the stamp
shows that the file is unchanged, the run uses the earlier result. A resumed run searches its folders again (a further
pass). An image that the last pass did not find counts as deleted.

A verdict is a person's work and is never lost. A verdict belongs to the judged result, and is copied to every equal
result of that image in another run or under another name. All copies have the time of the original. The newest verdict
is the one with the highest row number, because a computer's clock may jump. A row without a choice records that a
person read the image. Such a row is copied like a verdict, and any verdict replaces it.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import sqlite3
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final, NamedTuple

from fieldray.domain.finding import (
    WORK_LIST_ORDER,
    Outcome,
    ScreenedOutcome,
    most_urgent_pack_position,
    reason_of,
    score_for_sorting,
)
from fieldray.domain.intended_use import AGE_NOTE_CODE_BY_CONFIRMED
from fieldray.domain.patient import patient_key
from fieldray.domain.run import Verdict
from fieldray.formatting import file_name, format_person_name, view_and_laterality_label
from fieldray.store.rows import REUSED_BY_FILE_STAMP, outcome_of, pack_spec_of, verdict_columns
from fieldray.store.schema import SCHEMA_VERSION, image_key

# Executes an SQL statement with values on the open database, and returns its rows.
Execute = Callable[..., Sequence[sqlite3.Row]]

FILE_STAMP_KEY_BYTES: Final = 32
_GIVEN: Final = "id IN (SELECT value FROM json_each(:rows))"
_SEPARATOR: Final = os.fsencode(os.sep)
_MEMBER: Final = b"\0"
_FRAME: Final = b"\0\0"


# ---- the work list

_LISTED: Final = (
    "run_id, image_id, rank, score, backend, patient, patient_id, study_date, file, view, inference_ms, why, study, "
    "person"
)
INSERT_WORK_LIST_ROW: Final = f"INSERT OR REPLACE INTO work_list ({_LISTED}) VALUES (?{', ?' * _LISTED.count(',')})"
DELETE_WORK_LIST_ROW: Final = "DELETE FROM work_list WHERE run_id = ? AND image_id = ?"

SELECT_UNLISTED_IMAGES: Final = """
    SELECT id FROM images WHERE id IN (SELECT value FROM json_each(?))
    AND NOT EXISTS (SELECT 1 FROM work_list WHERE run_id = ? AND image_id = images.id)
"""
# An image copied from another run gets a copy of its row in the work list, if all results of both images are equal.
_OF_LISTED: Final = ", ".join(f"listed.{name}" for name in _LISTED.split(", ")[2:])
_HAS_ANOTHER: Final = """
    EXISTS (SELECT 1 FROM answers WHERE image_id = {}.id
            AND result_hash NOT IN (SELECT result_hash FROM answers WHERE image_id = {}.id))
"""
COPY_WORK_LIST_ROWS: Final = f"""
    INSERT INTO work_list ({_LISTED})
    SELECT copy.run_id, copy.id, {_OF_LISTED}
    FROM images AS earlier JOIN work_list AS listed ON listed.run_id = earlier.run_id AND listed.image_id = earlier.id
    JOIN images AS copy ON copy.run_id = ? AND copy.image_key = earlier.image_key
    WHERE earlier.run_id != ? AND earlier.id IN (SELECT value FROM json_each(?))
    AND NOT {_HAS_ANOTHER.format("earlier", "copy")} AND NOT {_HAS_ANOTHER.format("copy", "earlier")}
"""


def sort_key(text: str) -> bytes:
    """Return a text as case-folded bytes for sorting and searching. Also for text that UTF-8 cannot encode."""
    return text.casefold().encode("utf-8", "surrogatepass")


def work_list_row_values(run_id: int, row_id: int, outcome: Outcome) -> tuple[Any, ...]:
    """Return the values of an image's row in the table `work_list`.

    row_id   row of the image in the table `images`
    outcome  the most urgent result of the image
    """
    header, file = outcome.ref.header, file_name(outcome.ref)
    score = score_for_sorting(outcome.findings) if isinstance(outcome, ScreenedOutcome) else None
    return (
        run_id,
        row_id,
        WORK_LIST_ORDER.index(outcome.category),
        -1.0 if score is None else score,
        outcome.backend if isinstance(outcome, ScreenedOutcome) else "",
        sort_key(format_person_name(header.patient_name) or file),
        sort_key(header.patient_id.strip()),
        sort_key(header.study_date),
        sort_key(file),
        sort_key(view_and_laterality_label(header)),
        outcome.inference_ms if isinstance(outcome, ScreenedOutcome) else -1.0,
        why.code if (why := reason_of(outcome)) else "",
        _number_of(outcome.ref.patient_study_key),
        _number_of(patient_key(outcome.ref)),
    )


# Rows of `answers` with their image and the pack of their run, which are needed to read a result.
RESULTS_JOINED_WITH_IMAGES: Final = """
    (SELECT answers.*, image_key, content_sha256, frame, header, absent_s, run_packs.spec
     FROM answers LEFT JOIN images ON images.id = image_id LEFT JOIN runs ON runs.id = images.run_id
     LEFT JOIN run_packs ON run_packs.run_id = runs.id AND run_packs.position = answers.position)
"""


def fill_work_list(connection: sqlite3.Connection) -> None:
    """Add a row to the work list for every present image that has none. Images with an unreadable row are skipped."""
    query = f"""SELECT * FROM {RESULTS_JOINED_WITH_IMAGES} WHERE absent_s IS NULL
                AND image_id NOT IN (SELECT image_id FROM work_list) ORDER BY image_id, position"""
    for row_id, answers in itertools.groupby(connection.execute(query), lambda row: row["image_id"]):
        with contextlib.suppress(ValueError, TypeError, LookupError, AttributeError):  # reported on opening
            rows = list(answers)
            outcomes = [outcome_of(row, pack_spec_of(row["spec"]), checks_lung_mask=False) for row in rows]
            leading = outcomes[most_urgent_pack_position(outcomes)]
            connection.execute(INSERT_WORK_LIST_ROW, work_list_row_values(rows[0]["run_id"], row_id, leading))


def _number_of(text: str) -> int:
    """Return a 64-bit hash that identifies a text within a run."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), signed=True)


# ---- earlier results that are reused for unchanged files

INSERT_FILE_STAMP_KEY: Final = "INSERT OR IGNORE INTO secrets (purpose, value) VALUES ('stamps', ?)"
SELECT_FILE_STAMP_KEY: Final = "SELECT value FROM secrets WHERE purpose = 'stamps'"

# True for results that no later run uses. A failed image is tried again. A patient who was too young may be old enough.
NEVER_REUSED_CONDITION: Final = "(status = 'failed' OR IFNULL(answers.reason, '') LIKE '[\"born_too_late\"%')"
# The images of a run by key, and their results by position of the pack. Results to compute again have no stamp.
SELECT_FILE_STAMPS: Final = f"""
    SELECT images.id, image_key, answers.id AS answer_id, position,
           CASE WHEN {NEVER_REUSED_CONDITION} THEN NULL ELSE stamp END AS stamp
    FROM (SELECT id, image_key, stamp FROM images WHERE run_id = ? AND image_key >= ?
          ORDER BY image_key LIMIT ?) AS images
    JOIN answers ON image_id = images.id ORDER BY image_key, position
"""

# The number of results by pack, category, reason and notes.
_KINDS: Final = """
    SELECT position, category, reason, notes, COUNT(*) AS number
    FROM images JOIN answers ON answers.image_id = images.id WHERE {} GROUP BY 1, 2, 3, 4
"""
COUNT_RESULTS_OF_IMAGES: Final = _KINDS.format("images.id IN (SELECT value FROM json_each(:rows))")
COUNT_RESULTS_OF_LAST_RUN_PASS: Final = _KINDS.format(
    "images.run_id = :run_id AND absent_s IS NULL AND pass_number = (SELECT pass_number FROM runs WHERE id = :run_id)"
)

# Mark images of the run as seen by its current pass. Rows that do not change are not written, which is faster.
_SEEN: Final = f"""
    UPDATE images SET pass_number = (SELECT pass_number FROM runs WHERE id = :run_id)
    WHERE run_id = :run_id AND {_GIVEN}
"""
_PRESENT: Final = f"UPDATE images SET absent_s = NULL WHERE absent_s IS NOT NULL AND run_id = :run_id AND {_GIVEN}"
_MARK_REUSED_BY_STAMP: Final = f"""
    UPDATE answers SET is_resumed = {REUSED_BY_FILE_STAMP}
    WHERE is_resumed != {REUSED_BY_FILE_STAMP} AND image_id IN (SELECT value FROM json_each(:rows))
"""
UPDATE_URGENCY_RANK: Final = f"""
    UPDATE images SET rank = (SELECT MIN(rank) FROM answers WHERE image_id = images.id)
    WHERE {_GIVEN} AND rank != (SELECT MIN(rank) FROM answers WHERE image_id = images.id)
"""
# Images whose rank is not that of their most urgent result, or that have no result.
SELECT_WRONG_URGENCY_RANK: Final = """
    SELECT 1 FROM images WHERE rank IS NOT (SELECT MIN(rank) FROM answers WHERE image_id = images.id) LIMIT 1
"""
# Copy images of other runs to this run, and results of other runs to these images.
_COPY_IMAGES: Final = f"""
    INSERT INTO images ({{names}}) SELECT {{values}} FROM images WHERE run_id != :run_id AND {_GIVEN}
    ON CONFLICT (run_id, image_key) DO UPDATE SET pass_number = excluded.pass_number, saved_s = excluded.saved_s,
        absent_s = NULL, stamp = excluded.stamp, content_sha256 = excluded.content_sha256, header = excluded.header
"""
_COPY_ANSWERS: Final = """
    INSERT OR REPLACE INTO answers ({names}) SELECT {values}
    FROM json_each(:taken) AS taken JOIN answers ON answers.id = taken.value
    JOIN images AS earlier ON earlier.id = answers.image_id
    JOIN images AS copy ON copy.run_id = :run_id AND copy.image_key = earlier.image_key
    WHERE answers.run_id != :run_id
"""
_TAKEN: Final = """
    SELECT answers.id, image_id, images.image_key, result_hash FROM json_each(:images) AS taken
    JOIN images AS earlier ON earlier.id = taken.value
    JOIN images ON images.run_id = :run_id AND images.image_key = earlier.image_key
    JOIN answers ON answers.image_id = images.id ORDER BY taken.key, position
"""
_OF_IMAGE: Final = {
    "run_id": ":run_id",
    "pass_number": "(SELECT pass_number FROM runs WHERE id = :run_id)",
    "saved_s": ":now_s",
    "absent_s": "NULL",
}
# Replaces the code of the note on an unknown age by the code for this run. In JSON, only a code follows `["` unescaped.
_WITH_AGES: Final = "replace(answers.notes, '[\"{}\",', '[\"{}\",')"
_OF_ANSWER: Final = {
    "notes": f"""CASE (SELECT json_extract(spec, '$.ages_confirmed') FROM runs WHERE id = :run_id)
                 WHEN 1 THEN {_WITH_AGES.format(AGE_NOTE_CODE_BY_CONFIRMED[False], AGE_NOTE_CODE_BY_CONFIRMED[True])}
                 ELSE {_WITH_AGES.format(AGE_NOTE_CODE_BY_CONFIRMED[True], AGE_NOTE_CODE_BY_CONFIRMED[False])} END""",
    "image_id": "copy.id",
    "run_id": ":run_id",
    "position": ":position",
    "is_resumed": str(REUSED_BY_FILE_STAMP),
    "saved_s": ":now_s",
}


class ReusedResults(NamedTuple):
    """The row ids of earlier results that a run uses for files that have not changed.

    image_row_ids   row ids in the table `images`, one for each file. A row belongs to this run or to an earlier run
    result_row_ids  for each pack, by its position in the run: row ids in the table `answers`, one for each image
    """

    image_row_ids: Sequence[int]
    result_row_ids: Sequence[Sequence[int]]


def valid_file_stamp_key(value: object) -> bytes:
    """Return a value from the database, if it is a valid secret key for stamps of files. Raises ValueError otherwise.

    A stamp shows whether a file is unchanged (see `imaging.source`).
    """
    if not isinstance(value, bytes) or len(value) != FILE_STAMP_KEY_BYTES:
        raise ValueError("no key")
    return value


def reuse_results(connection: sqlite3.Connection, run_id: int, reused: ReusedResults) -> list[sqlite3.Row]:
    """Use earlier results of unchanged files in a run.

    Images of this run are marked as seen in the current pass. Images of other runs are copied with their results.
    Returns a row (id, image_id, image_key, result_hash) for each result, in this run, of all these images.

    reused  the earlier results
    """
    about = {"run_id": run_id, "rows": json.dumps(reused.image_row_ids), "now_s": time.time()}
    for statement in (_SEEN, _PRESENT, _COPY_IMAGES.format(**_copied(connection, "images", _OF_IMAGE))):
        connection.execute(statement, about)
    copy = _COPY_ANSWERS.format(**_copied(connection, "answers", _OF_ANSWER))
    for position, answers in enumerate(reused.result_row_ids):
        connection.execute(copy, {**about, "position": position, "taken": json.dumps(answers)})
    found = connection.execute(_TAKEN, {"run_id": run_id, "images": json.dumps(reused.image_row_ids)}).fetchall()
    for statement in (_MARK_REUSED_BY_STAMP, UPDATE_URGENCY_RANK):
        connection.execute(statement, {"rows": json.dumps([row["image_id"] for row in found])})
    return found


def _copied(connection: sqlite3.Connection, table: str, of_copy: Mapping[str, str]) -> dict[str, str]:
    """Return "names", a table's columns, and "values", their SQL expressions in a copied row (some from `of_copy`)."""
    names = [row["name"] for row in connection.execute(f"PRAGMA table_info ({table})") if row["name"] != "id"]
    values = (of_copy.get(name, f"{table}.{name}") for name in names)
    return {"names": ", ".join(names), "values": ", ".join(values)}


# ---- images whose files are missing or were moved

# The images of a run, and whether its last pass saw them.
SELECT_SEEN_STATE_OF_IMAGES: Final = """
    SELECT images.id, image_key, stage, answers.reason, images.pass_number = runs.pass_number AS is_seen
    FROM images JOIN runs ON runs.id = images.run_id
    JOIN answers ON answers.id = (SELECT MIN(id) FROM answers WHERE image_id = images.id)
    WHERE images.run_id = ? AND absent_s IS NULL
"""
# The images of a run's last pass whose bytes occur more than once in that pass.
SELECT_IMAGES_OF_EQUAL_CONTENT: Final = """
    WITH seen AS (SELECT images.id, image_key, content_sha256, frame FROM images JOIN runs ON runs.id = run_id
                  WHERE run_id = ? AND images.pass_number = runs.pass_number AND content_sha256 != x'')
    SELECT id, image_key, content_sha256, frame FROM seen WHERE (content_sha256, frame) IN (
        SELECT content_sha256, frame FROM seen GROUP BY content_sha256, frame HAVING COUNT(*) > 1)
"""

_SAME_BYTES: Final = """
    SELECT other.id, other.image_key FROM images AS this JOIN images AS other
    ON (other.run_id, other.content_sha256, other.frame) = (this.run_id, this.content_sha256, this.frame)
    WHERE this.id = ? AND other.id != this.id AND this.content_sha256 != x'' AND other.absent_s IS NULL
"""


def file_exists(key: bytes) -> bool:
    """Return whether the file of an image still exists. For an image in a zip file, this is the zip file.

    An object on a server (`s3:/...`) counts as existing.

    key  key of the image (`schema.image_key`)
    """
    path = key.partition(_MEMBER)[0]
    is_object = not os.path.isabs(path)  # noqa: PTH117 - of bytes
    return is_object or os.path.lexists(path)


def is_different_existing_file(key: bytes, other: bytes) -> bool:
    """Return whether the file of an image exists, and differs from the file of a second image.

    key    key of the image (`schema.image_key`)
    other  key of the second image. Two paths to one file, for example by a link, count as one file
    """
    (path, *inside), (other_path, *other_inside) = key.split(_MEMBER), other.split(_MEMBER)
    try:
        return not (os.path.samefile(path, other_path) and inside == other_inside)  # noqa: PTH121
    except OSError:
        return file_exists(key)


def paths_that_lost_all_images(rows: Sequence[sqlite3.Row], paths: Sequence[str]) -> tuple[bytes, ...]:
    """Return the paths of a run under which the last pass found no image, although an earlier pass had found images.

    rows   rows of the query `SELECT_SEEN_STATE_OF_IMAGES`
    paths  all paths of the run
    """
    folders = {os.fsencode(path).rstrip(_SEPARATOR) for path in paths}
    had, has = set(), set()
    for row in rows:
        key = row["image_key"]
        under = folders.intersection((key, *(folder for folder, _ in _folders_around(key))))
        had |= under
        has |= under if row["is_seen"] else set()
    return tuple(sorted(had - has))


def absent_image_ids(rows: Sequence[sqlite3.Row], empty_paths: Sequence[bytes]) -> set[int]:
    """Return the row ids of images that a run's last pass did not see.

    If a folder or zip file could not be read, its images are left out.

    rows         rows of the query `SELECT_SEEN_STATE_OF_IMAGES`
    empty_paths  paths under which the last pass found no image; the images under these paths are left out
    """
    unread = {row["image_key"] for row in rows if row["is_seen"] and row["stage"] == "discover" and not _is_partly(row)}
    spared = unread.union(empty_paths)
    return {row["id"] for row in rows if not row["is_seen"] and not _is_in_any(row["image_key"], spared)}


def moved_image_ids(equal_images: Sequence[sqlite3.Row]) -> set[int]:
    """Return the row ids of images whose file is gone, if another file of the run has equal content.

    equal_images  rows of the query `SELECT_IMAGES_OF_EQUAL_CONTENT`
    """
    groups: defaultdict[tuple[bytes, int], list[sqlite3.Row]] = defaultdict(list)
    for row in equal_images:
        groups[row["content_sha256"], row["frame"]].append(row)
    left: set[int] = set()
    for group in groups.values():
        lost = {row["id"] for row in group if not file_exists(row["image_key"])}
        left |= lost if len(lost) < len(group) else set()
    return left


def image_ids_moved_to(execute: Execute, row_id: int) -> set[int]:
    """Return the row ids of images whose file was moved or renamed to the path of the image `row_id`.

    The old path has no file any more, and the image's content is equal to that of the image `row_id`.

    row_id  row id of the image at the new path, in the same run
    """
    return {row["id"] for row in execute(_SAME_BYTES, row_id) if not file_exists(row["image_key"])}


def mark_images_absent(execute: Execute, run_id: int, row_ids: AbstractSet[int]) -> None:
    """Mark images of a run as no longer present.

    If another image of the run has equal file content and an equal result, the verdict is copied to that image.
    """
    for row_id in row_ids:
        execute("UPDATE images SET absent_s = ? WHERE id = ?", time.time(), row_id)
        execute(DELETE_WORK_LIST_ROW, run_id, row_id)
    execute(_TO_MOVED, run_id)


def copy_verdicts_of_swapped_files(execute: Execute, run_id: int, row_id: int | None = None) -> None:
    """Copy verdicts between images whose files have changed places, for example because two files exchanged names.

    Each verdict is copied to the image whose file now has the judged content.

    row_id  row id of the image that was saved last; None to examine all images of the run
    """
    execute(_TO_EXCHANGED, run_id=run_id, row_id=row_id)


def _is_partly(row: sqlite3.Row) -> bool:
    """Return whether a row belongs to a zip file in which only some members could not be read."""
    return str(row["reason"]).startswith('["double_members"')


def _folders_around(key: bytes) -> Iterator[tuple[bytes, bool]]:
    """Yield each folder and file that contains an image, by its key, and whether the image is a frame of that file.

    The number of items depends on the length of the image's key only, not on the number of folders searched for.
    """
    for end, byte in enumerate(key):
        if byte in _SEPARATOR + _MEMBER:
            yield key[:end], key.startswith(_FRAME, end)


def _is_in_any(key: bytes, folders: AbstractSet[bytes]) -> bool:
    """Return whether an image is inside a folder or zip file of `folders`. A frame is not inside its own file."""
    around = [is_frame for folder, is_frame in _folders_around(key) if folder in folders]
    return bool(around) and not any(around)


# ---- verdicts, and the record that a person read an image

_COPY_VERDICT: Final = """
    INSERT INTO verdicts (answer_id, result_hash, choice, note, given_s, content_sha256, category, score)
"""
_OVER_READING: Final = """
    ON CONFLICT (answer_id, result_hash) DO UPDATE
    SET choice = excluded.choice, note = excluded.note, given_s = excluded.given_s
    WHERE verdicts.choice IS NULL AND excluded.choice IS NOT NULL
"""

# Copy verdicts within a run to images with equal bytes and an equal result, unless these have a verdict.
_TO_MOVED: Final = f"""{_COPY_VERDICT}
    SELECT moved.id, given.result_hash, choice, note, given_s, given.content_sha256, given.category, given.score
    FROM images AS gone JOIN answers AS judged ON judged.image_id = gone.id
    JOIN verdicts AS given ON given.answer_id = judged.id AND given.result_hash = judged.result_hash
    JOIN images AS there ON there.run_id = gone.run_id AND there.content_sha256 = gone.content_sha256
                         AND there.frame = gone.frame
    JOIN answers AS moved ON moved.image_id = there.id AND moved.position = judged.position
                          AND moved.result_hash = judged.result_hash
    WHERE gone.run_id = ? AND gone.absent_s IS NOT NULL AND there.absent_s IS NULL AND there.content_sha256 != x''
    {_OVER_READING}
"""

# Copy verdicts within a run to images that have the judged bytes, if the judged path has other bytes now, as after two
# files exchanged their names. `row_id` is the image that was saved last, NULL for all images of the run.
_TO_EXCHANGED: Final = f"""{_COPY_VERDICT}
    SELECT moved.id, given.result_hash, choice, note, given_s, given.content_sha256, given.category, given.score
    FROM verdicts AS given JOIN answers AS judged ON judged.id = given.answer_id
    JOIN images AS judged_image ON judged_image.id = judged.image_id
    JOIN images AS place ON place.run_id = :run_id AND place.image_key = judged_image.image_key
    JOIN images AS there ON there.run_id = :run_id AND there.content_sha256 = given.content_sha256
                         AND there.frame = place.frame
    JOIN answers AS moved ON moved.image_id = there.id AND moved.result_hash = given.result_hash
    WHERE given.content_sha256 != x'' AND place.content_sha256 NOT IN (x'', given.content_sha256)
          AND place.absent_s IS NULL AND there.absent_s IS NULL AND (:row_id IS NULL OR :row_id IN (place.id, there.id))
    ORDER BY choice IS NULL, given.id DESC
    {_OVER_READING}
"""

# A verdict belongs to an image if it was given on that image, on its file under another name, or on equal bytes at a
# path that is empty now. Two existing files with equal bytes stay two images, each with a verdict of its own. A path
# counts as empty if its result was lost in a damaged database, or if the run found other bytes there.
_IS_MOVED: Final = """
    NOT EXISTS (SELECT 1 FROM verdicts AS same JOIN answers AS judged ON judged.id = same.answer_id
                JOIN images AS place ON place.id = judged.image_id
                WHERE same.result_hash = :result_hash AND same.given_s = verdicts.given_s
                      AND is_another(place.image_key, :image_key)
                      AND NOT EXISTS (SELECT 1 FROM images AS now JOIN answers AS own ON own.id = :answer_id
                                      WHERE now.run_id = own.run_id AND now.image_key = place.image_key
                                            AND now.content_sha256 NOT IN (x'', same.content_sha256)))
"""
# Copy a verdict from another run to a result. If the judged result was lost, its run is NULL here.
_TO_NEW_RUN: Final = f"""{_COPY_VERDICT}
    SELECT :answer_id, verdicts.result_hash, choice, note, given_s, verdicts.content_sha256, verdicts.category,
           verdicts.score
    FROM verdicts LEFT JOIN answers ON answers.id = answer_id LEFT JOIN images ON images.id = image_id
    WHERE verdicts.result_hash = :result_hash AND verdicts.content_sha256 != x'' AND images.run_id IS NOT :run_id
          AND (image_key = :image_key OR {_IS_MOVED})
    ORDER BY choice IS NULL, image_key IS :image_key DESC, verdicts.id DESC LIMIT 1
    {_OVER_READING}
"""

# Equal results of an image in later runs that have not ended. These runs may have saved the result before the verdict
# was given.
_LATER: Final = """
    FROM verdicts JOIN answers ON answers.id = answer_id JOIN images ON images.id = answers.image_id
    JOIN runs ON runs.id > images.run_id AND ended_s IS NULL
    JOIN images AS there ON there.run_id = runs.id AND there.image_key = images.image_key
    JOIN answers AS later ON later.image_id = there.id AND later.result_hash = verdicts.result_hash
    WHERE verdicts.answer_id = :answer_id AND verdicts.result_hash = :result_hash AND verdicts.content_sha256 != x''
"""
_TO_LATER_RUNS: Final = f"""{_COPY_VERDICT}
    SELECT later.id, verdicts.result_hash, choice, note, given_s, verdicts.content_sha256, verdicts.category,
           verdicts.score {_LATER} {_OVER_READING}
"""
# Delete the copies of a verdict in later runs before the verdict is replaced. Verdicts that a person gave in a later
# run are kept.
_TAKE_BACK: Final = f"""
    DELETE FROM verdicts
    WHERE result_hash = :result_hash AND (answer_id, given_s) IN (SELECT later.id, given_s {_LATER})
"""

# Withdraw a verdict with all its copies in all runs, and with all earlier verdicts on the image. Otherwise the next run
# would copy an earlier verdict to its own result. A later verdict, given in another run, is kept.
_WITHDRAW_ONE: Final = f"""
    DELETE FROM verdicts WHERE result_hash = :result_hash AND choice {{is_one}} AND EXISTS (
        SELECT 1 FROM verdicts AS given
        WHERE given.answer_id = :answer_id AND given.result_hash = :result_hash AND given.choice {{is_one}} AND (
            given.given_s = verdicts.given_s OR verdicts.id < given.id AND (
                :image_key IN (SELECT image_key FROM images WHERE id = (
                    SELECT image_id FROM answers WHERE id = verdicts.answer_id))
                OR verdicts.content_sha256 != x'' AND {_IS_MOVED})))
"""
_WITHDRAW: Final = _WITHDRAW_ONE.format(is_one="IS NOT NULL")
_UNREAD: Final = _WITHDRAW_ONE.format(is_one="IS NULL")
_READ: Final = f"""{_COPY_VERDICT}
    SELECT :answer_id, :result_hash, NULL, '', :given_s, :content_sha256, :category, :score
    WHERE true {_OVER_READING}
"""

# Verdicts that match no present result of a run. A person gave them on an earlier result of the run, or on a result of
# one of its images in another run.
SELECT_SUPERSEDED_VERDICTS: Final = """
    SELECT verdicts.*, image_key FROM verdicts JOIN answers ON answers.id = answer_id
    JOIN images ON images.id = answers.image_id
    WHERE images.run_id = :run_id AND (verdicts.result_hash != answers.result_hash OR absent_s IS NOT NULL)
       OR images.run_id != :run_id AND EXISTS (
          SELECT 1 FROM images AS place
          WHERE place.run_id = :run_id AND place.image_key = images.image_key AND place.absent_s IS NULL
          AND NOT EXISTS (SELECT 1 FROM answers AS mine LEFT JOIN verdicts AS own
                          ON own.answer_id = mine.id AND own.result_hash = verdicts.result_hash
                             AND own.choice IS NOT NULL
                          WHERE mine.image_id = place.id
                                AND (mine.result_hash = verdicts.result_hash OR own.id IS NOT NULL)))
    GROUP BY image_key, verdicts.result_hash, choice, note, given_s HAVING choice IS NOT NULL ORDER BY verdicts.id
"""


class VerdictCarryOver:
    """Copies verdicts to equal results in newer runs. The hashes of all judged results are cached, to be fast."""

    def __init__(self, execute: Execute) -> None:
        self._execute = execute
        self._judged: frozenset[bytes] = frozenset()
        self._version = -1

    def clear_judged_hashes(self) -> None:
        """Discard the cached hashes of judged results, because a verdict is about to be given."""
        self._version = -1

    def copy_verdict(self, run_id: int, result_id: int, result_hash: bytes, image_key: bytes) -> bool:
        """Copy a verdict from an equal result in another run to a new result, if there is such a verdict.

        run_id       run of the new result
        result_id    row of the new result
        result_hash  hash of the new result (`rows.result_hash`)
        image_key    key of the result's image (`schema.image_key`)

        Returns False if the new result certainly has no verdict.
        """
        (row,) = self._execute("PRAGMA data_version")  # changes if another program wrote, perhaps a verdict
        if row["data_version"] != self._version:
            self._judged = frozenset(row["result_hash"] for row in self._execute("SELECT result_hash FROM verdicts"))
            self._version = row["data_version"]
        if result_hash not in self._judged:
            return False
        about = {"result_hash": result_hash, "image_key": image_key}
        self._execute(_TO_NEW_RUN, answer_id=result_id, run_id=run_id, **about)
        return True


def store_verdict(
    execute: Execute, result_id: int, verdict: Verdict | None, *, judged: Outcome, stored_verdict: Verdict | None
) -> None:
    """Store a verdict on a result, or withdraw the stored verdict. After a withdrawal the image still counts as read.

    result_id       row of the result
    verdict         the new verdict; None withdraws the stored verdict
    judged          the outcome that the person judged
    stored_verdict  the verdict stored so far; None without one
    """
    columns = {"answer_id": result_id, **verdict_columns(judged, verdict), "given_s": time.time()}
    about = {"answer_id": result_id, "result_hash": columns["result_hash"], "image_key": image_key(judged.ref)}
    if verdict is None or stored_verdict == verdict:
        # This makes the transaction write, even if it changes nothing else. A verdict that a full disk refused may
        # still be in the write-ahead log, and would come back after its withdrawal. Only a later write prevents that.
        execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    if verdict is None:
        execute(_WITHDRAW, **about)
        if stored_verdict is not None:
            store_read_state(execute, result_id, judged=judged, is_read=True)
    elif stored_verdict != verdict:
        execute(_TAKE_BACK, **about)
        marks = ", ".join("?" * len(columns))
        execute(f"INSERT OR REPLACE INTO verdicts ({', '.join(columns)}) VALUES ({marks})", *columns.values())
        execute(_TO_LATER_RUNS, **about)


def store_read_state(execute: Execute, result_id: int, *, judged: Outcome, is_read: bool) -> None:
    """Record whether a person has read an outcome of a result. An outcome with a verdict always counts as read."""
    about = {**verdict_columns(judged), "answer_id": result_id, "image_key": image_key(judged.ref)}
    if is_read:
        execute(_READ, given_s=time.time(), **about)
    execute(_TO_LATER_RUNS if is_read else _UNREAD, **about)
