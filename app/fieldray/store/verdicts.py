"""What a person says of images, as it lies in the store: verdicts, and that an image was read.

A verdict is a person's work and is never lost: it lies beside the row that was judged, and is copied to the row that
the same image with the same result has in another run or under another name. All copies have the time of the original.
Which one is the newest, their numbers say: the clock of a computer may jump. A row without a choice says that a person
read the image: it is copied like any other, and gives way to any other.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from typing import Final

from fieldray.domain.finding import Outcome
from fieldray.domain.run import Verdict
from fieldray.store.rows import verdict_columns
from fieldray.store.schema import VERSION, image_key

# Executes a statement with these values on the store that is being changed; what it gives.
Execute = Callable[..., Sequence[sqlite3.Row]]

_COPY_VERDICT: Final = """
    INSERT INTO verdicts (result_id, result_hash, choice, note, given_s, content_sha256, category, score)
"""
_OVER_READING: Final = """
    ON CONFLICT (result_id, result_hash) DO UPDATE
    SET choice = excluded.choice, note = excluded.note, given_s = excluded.given_s
    WHERE verdicts.choice IS NULL AND excluded.choice IS NOT NULL
"""

# Within a run: to the same bytes with the same outcome, and to a row that has no verdict of its own.
TO_MOVED: Final = f"""{_COPY_VERDICT}
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
EARLIER: Final = """
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


def put(execute: Execute, row_id: int, verdict: Verdict | None, *, judged: Outcome, found: Verdict | None) -> None:
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
            mark(execute, row_id, judged=judged, is_read=True)
    elif found != verdict:
        execute(_TAKE_BACK, **about)
        marks = ", ".join("?" * len(columns))
        execute(f"INSERT OR REPLACE INTO verdicts ({', '.join(columns)}) VALUES ({marks})", *columns.values())
        execute(_TO_LATER_RUNS, **about)


def mark(execute: Execute, row_id: int, *, judged: Outcome, is_read: bool) -> None:
    """Note that a person has read this outcome, or has not; where a verdict lies they have."""
    about = {**verdict_columns(judged), "row_id": row_id, "image_key": image_key(judged.ref)}
    if is_read:
        execute(_READ, given_s=time.time(), **about)
    execute(_TO_LATER_RUNS if is_read else _UNREAD, **about)
