"""Results of runs: one committed row per image.

Only the batch thread writes results (`ResultStore`); every other thread reads through a `ResultQuery` of its own. A
radiologist's verdict is a row of its own, so it never blocks a result.

A run that was interrupted is resumed in a further pass. Images that a whole pass did not see are no longer present:
their rows are kept and marked, and are left out of lists, counts and exports.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
import sqlite3
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Final, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from fieldray.domain.finding import Category, Outcome, ResultKind
from fieldray.domain.run import EarlierVerdict, Run, RunSpec, RunState, StoredResult, Verdict
from fieldray.errors import StorageProblem, UsageProblem
from fieldray.reasons import Reason, reason
from fieldray.store import bookkeeping
from fieldray.store.database import (
    StoreConnection,
    damage_noticed,
    durably,
    open_database,
    storage_problems,
    transaction,
)
from fieldray.store.locks import RunLocks, as_it_stands
from fieldray.store.pictures import Pictures, picture_row
from fieldray.store.rows import (
    checked,
    earlier_verdict_of,
    kind_of,
    outcome_columns,
    result_hash,
    run_of,
    spec_text,
    stored_of,
    verdict_of,
)
from fieldray.store.schema import image_key, image_text, reason_text

T = TypeVar("T")
SELECT = """SELECT results.*, runs.spec, verdicts.choice, verdicts.note, verdicts.id IS NOT NULL AS is_read
             FROM results JOIN runs ON runs.id = results.run_id
             LEFT JOIN verdicts ON verdicts.result_id = results.id
                                AND verdicts.result_hash = results.result_hash """
_BATCH_ROWS = 256
# For another program that holds the file (a backup, a check of viruses): what is to be written is there already, and a
# run whose row cannot be saved ends.
WRITE_WAIT_S: Final = 120.0
_NO_ROW = 2**63  # SQLite has no number as large as this


class ResultQuery:
    """Reads results; for one thread. All methods raise StorageProblem when the file cannot be read."""

    def __init__(self, path: Path, *, connect: Callable[[Path], StoreConnection] = open_database) -> None:
        self.path = path
        self._connect = connect
        self._opened: StoreConnection | None = None
        self._pictures = Pictures(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._pictures.close()
        if self._opened:
            self._opened.close()

    @property
    def _connection(self) -> StoreConnection:
        """Opened when it is first needed. Raises StorageProblem."""
        if self._opened is None:
            self._opened = self._connect(self.path)
            self._opened.row_factory = sqlite3.Row
        return self._opened

    @contextlib.contextmanager
    def at_one_moment(self) -> Iterator[None]:
        """What is read inside is as it was at one moment, also during a run."""
        self._all("BEGIN")
        try:
            yield
        finally:
            if self._connection.in_transaction:
                self._all("ROLLBACK")

    def runs(self) -> tuple[Run, ...]:
        """All runs, the newest first."""
        return self._made(self._run_of, self._all("SELECT * FROM runs ORDER BY id DESC"))

    def run(self, run_id: int) -> Run:
        """One run. Raises UsageProblem (history_no_run) if there is none."""
        rows = self._all("SELECT * FROM runs WHERE id = ?", run_id) if abs(run_id) < _NO_ROW else []
        if not rows:
            raise UsageProblem(reason("history_no_run", run=run_id))
        return self._made(self._run_of, rows)[0]

    def _run_of(self, row: sqlite3.Row) -> Run:
        return as_it_stands(self.path, run_of(row))

    def rows(self, run_id: int) -> Iterator[StoredResult]:
        """The results of a run that are present, in the order they were first saved."""
        query = SELECT + "WHERE run_id = ? AND absent_s IS NULL AND results.id > ? ORDER BY results.id LIMIT ?"
        after = 0
        while found := self._all(query, run_id, after, _BATCH_ROWS):
            yield from self._results(found)
            after = found[-1]["id"]

    def row(self, row_id: int) -> StoredResult:
        """One result. Raises KeyError if there is none."""
        if not (found := self.results([row_id])):
            raise KeyError(row_id)
        return found[0]

    def results(self, row_ids: Sequence[int], *, looks_inside: bool = True) -> tuple[StoredResult, ...]:
        """Those of these results that are still in the store, in this order.

        looks_inside  whether a mask that cannot be unpacked is noticed now and not when it is asked for
        """
        stored = self._stored(SELECT, row_ids)
        return self._results([stored[row_id] for row_id in row_ids if row_id in stored], looks_inside=looks_inside)

    def preview(self, content_sha256: str, *, frame: int) -> bytes | None:
        """The preview (JPEG) of an image; None where none was kept, or what was kept cannot be one."""
        return self._pictures.preview(bytes.fromhex(content_sha256), frame)

    def kinds(self, row_ids: Sequence[int]) -> tuple[ResultKind, ...]:
        """What is counted of the results in these rows."""
        return self._made(kind_of, self._all(bookkeeping.KINDS, rows=json.dumps(row_ids)))

    def kinds_seen(self, run_id: int) -> tuple[ResultKind, ...]:
        """What is counted of the results that the run's last pass saw, of each image once."""
        return self._made(kind_of, self._all(bookkeeping.KINDS_SEEN, run_id=run_id))

    def counts(self, run_id: int) -> dict[Category, int]:
        """The number of images by category."""
        query = "SELECT category, COUNT(*) AS number FROM results WHERE run_id = ? AND absent_s IS NULL GROUP BY 1"
        return {row["category"]: row["number"] for row in self._all(query, run_id)}

    def not_present(self, run_id: int) -> tuple[str, ...]:
        """The keys of the images that the run once saw and its last whole pass did not."""
        query = "SELECT image_key FROM results WHERE run_id = ? AND absent_s IS NOT NULL ORDER BY id"
        return self._made(lambda row: image_text(row["image_key"]), self._all(query, run_id))

    def verdict(self, row_id: int, outcome: Outcome) -> Verdict | None:
        """The verdict on this outcome in this row, even if the row holds another outcome by now."""
        query = "SELECT choice, note FROM verdicts WHERE result_id = ? AND result_hash = ? AND choice IS NOT NULL"
        rows = self._all(query, row_id, result_hash(outcome))
        return self._made(verdict_of, rows)[0] if rows else None

    def earlier_verdicts(self, run_id: int) -> tuple[EarlierVerdict, ...]:
        """Verdicts on a run's images on no result present in it: on other bytes, or in other runs. The oldest first."""
        return self._made(earlier_verdict_of, self._all(bookkeeping.EARLIER_VERDICTS, run_id=run_id))

    def last_row_id(self) -> int:
        """The highest row id given out so far, 0 in an empty file."""
        return int(self._all("SELECT COALESCE(MAX(id), 0) AS last FROM results")[0]["last"])

    def has_results(self, spec: RunSpec) -> bool:
        """Whether anything at all was done with this model and these settings."""
        query = """SELECT 1 FROM runs WHERE model_sha256 = ? AND settings_hash = ?
                   AND EXISTS (SELECT 1 FROM results WHERE run_id = runs.id) LIMIT 1"""
        return bool(self._all(query, spec.model_sha256, spec.settings_hash))

    def earlier(self, spec: RunSpec, *, content_sha256: str, frame: int, up_to_row_id: int) -> Outcome | None:
        """The newest outcome of these bytes with the same model and settings, unless it failed."""
        query = f"""{SELECT} WHERE results.content_sha256 = ? AND frame = ? AND model_sha256 = ? AND settings_hash = ?
                    AND status != 'failed' AND results.id <= ? ORDER BY results.id DESC LIMIT 1"""
        rows = self._all(
            query, bytes.fromhex(content_sha256), frame, spec.model_sha256, spec.settings_hash, up_to_row_id
        )
        return self._results(rows)[0].outcome if rows else None

    def stamped(self, run_id: int, first: bytes, *, limit: int) -> tuple[tuple[bytes, int, bytes | None], ...]:
        """Key, row and stamp of the images of a run from the key `first` on, at most so many, in their order."""
        rows = self._all(bookkeeping.STAMPED, run_id, first, limit)
        return self._made(lambda row: (checked(row)["image_key"], row["id"], row["stamp"]), rows)

    def _stored(self, query: str, row_ids: Sequence[int]) -> dict[int, sqlite3.Row]:
        """What a query says of these results, by row."""
        found = self._all(f"{query} WHERE results.id IN (SELECT value FROM json_each(?))", json.dumps(row_ids))
        return {row["id"]: row for row in found}

    def _all(self, query: str, *values: object, **named: object) -> list[sqlite3.Row]:
        with storage_problems(self.path):
            return self._connection.execute(query, named or values).fetchall()

    def _numbers(self, query: str, *values: object) -> NDArray[np.int64]:
        """A column of whole numbers (n,), which as rows would take twenty times the memory."""
        with storage_problems(self.path):
            return np.fromiter(map(itemgetter(0), self._connection.execute(query, values)), np.int64)

    def _results(self, rows: Sequence[sqlite3.Row], *, looks_inside: bool = True) -> tuple[StoredResult, ...]:
        """Rows of `SELECT` as results, with their thumbnails."""
        kept = self._pictures.thumbnails((row["content_sha256"], row["frame"]) for row in rows)

        def made(row: sqlite3.Row) -> StoredResult:
            return stored_of(row, kept.get((row["content_sha256"], row["frame"])), looks_inside=looks_inside)

        return self._made(made, rows)

    def _made(self, make: Callable[[sqlite3.Row], T], rows: Sequence[sqlite3.Row]) -> tuple[T, ...]:
        """Rows as values."""
        with damage_noticed(self.path):
            return tuple(map(make, rows))


class ResultStore(ResultQuery):
    """Reads and writes results; one at a time in a program. Methods raise StorageProblem (disk_full, ...)."""

    def __init__(self, path: Path, *, connect: Callable[[Path], StoreConnection] = open_database) -> None:
        super().__init__(path, connect=connect)
        self._connection.execute(f"PRAGMA busy_timeout = {round(1000 * WRITE_WAIT_S)}")
        self._connection.create_function("is_another", 2, bookkeeping.is_another)
        self._locks = RunLocks(path)
        self._verdicts = bookkeeping.Bringing(self._all)

    @property
    def rival(self) -> str | None:
        """The process that works on the run which `open_run` would have continued, None if there is none."""
        return self._locks.rival

    def close(self) -> None:
        """Close the connection and let others continue the run."""
        super().close()
        self._locks.release()

    def link(self, run_ids: Sequence[int]) -> None:
        """Note that these runs go over the same images together, and no other with them."""
        self._all(bookkeeping.LINK, runs=json.dumps(run_ids), together=run_ids[0] if len(run_ids) > 1 else None)

    def open_run(self, spec: RunSpec, *, fresh: bool = False) -> int:
        """Begin a run, or resume the newest of the same request if it is not finished; its id.

        A run that another program is working on is left alone. The second program gets a run of its own with all
        images, and takes over the results that the first one already has. So each has a complete list and cannot spoil
        the other's. Refusing would make a script fail because somebody left a window open.
        """
        key = hashlib.sha256(json.dumps(spec.work).encode()).hexdigest()
        with self._transaction():
            newest = self._all("SELECT id, state FROM runs WHERE request_key = ? ORDER BY id DESC LIMIT 1", key)
            is_open = newest and newest[0]["state"] != "finished" and not fresh
            if is_open and self._locks.hold(run_id := int(newest[0]["id"])):
                self._all("UPDATE runs SET pass_number = pass_number + 1 WHERE id = ?", run_id)
                self.set_state(run_id, "running")
                return run_id
            query = """INSERT INTO runs (request_key, spec, model_sha256, settings_hash, state, started_s)
                       VALUES (?, ?, ?, ?, 'running', ?) RETURNING id"""
            values = key, spec_text(spec), spec.model_sha256, spec.settings_hash, time.time()
            run_id = int(self._all(query, *values)[0]["id"])
            self._locks.hold(run_id)
            return run_id

    def finish(self, run_id: int) -> int:
        """Finish a run that has seen everything; the number of images that are no longer present.

        Images in a folder or zip file that could not be read stay as they were. So do those under a path where now
        nothing was found, most likely on a drive that is not plugged in: the run is not finished then and can be
        resumed. An image that was moved while the run was under way is present once, where it is now. A verdict on
        bytes that are present under another name moves with them.
        """
        with self._transaction():
            rows = self._all(bookkeeping.ROWS, run_id)
            empty = bookkeeping.emptied(rows, self.run(run_id).spec.paths)
            gone = bookkeeping.gone(rows, empty) | bookkeeping.moved(self._all(bookkeeping.TWINS, run_id))
            bookkeeping.leave_out(self._all, run_id, gone)
            self.set_state(run_id, "cancelled" if empty else "finished")
        if not empty:
            self._locks.finish(run_id)
        return len(gone)

    def leave_moved(self, run_id: int, row_id: int) -> set[int]:
        """While a run goes on: leave out the images that were moved to where the one in this row is; their rows."""
        with self._transaction():
            moved = bookkeeping.moved_to(self._all, row_id)
            bookkeeping.leave_out(self._all, run_id, moved)
        return moved

    def set_state(self, run_id: int, state: RunState, *, reason: Reason | None = None) -> None:
        """Note how a run stands."""
        ended_s = None if state in ("running", "paused") else time.time()
        why = reason_text(reason) if reason else None
        self._all("UPDATE runs SET state = ?, reason = ?, ended_s = ? WHERE id = ?", state, why, ended_s, run_id)

    def save(
        self, run_id: int, outcome: Outcome, *, spec: RunSpec, is_resumed: bool = False, keeps_preview: bool = True
    ) -> int:
        """Commit one outcome; its row id. An image that the run already has is overwritten and keeps its row.

        keeps_preview  whether preview and thumbnail of the image are kept beside it
        """
        return self.save_all(run_id, [outcome], spec=spec, is_resumed=is_resumed, keeps_preview=keeps_preview)[0]

    def replace(self, row_id: int, outcome: Outcome, *, run: Run, keeps_preview: bool = True) -> None:
        """Commit another outcome of the image in a row of a run that nobody works on.

        A verdict on the one before stays with that one. Raises UsageProblem (again_busy) where another program works on
        the run, StorageProblem (store_gone) where the row is of another image or another run by now.
        """
        if run.state != "finished" and not self._locks.hold(run.run_id):
            raise UsageProblem(reason("again_busy"))
        rows = self._all("SELECT image_key FROM results WHERE id = ? AND run_id = ?", row_id, run.run_id)
        if [row["image_key"] for row in rows] != [image_key(outcome.ref)] or self.run(run.run_id).spec != run.spec:
            raise StorageProblem(reason("store_gone", path=self.path))
        self.save(run.run_id, outcome, spec=run.spec, keeps_preview=keeps_preview)

    def save_all(
        self,
        run_id: int,
        outcomes: Sequence[Outcome],
        *,
        spec: RunSpec,
        is_resumed: bool = False,
        keeps_preview: bool = True,
    ) -> list[int]:
        """Commit these outcomes, all or none, each as `save` would: hundreds of commits cost as much as the rows."""
        rows = map(picture_row, outcomes if keeps_preview else ())
        self._pictures.add([row for row in rows if row])  # before the results: what is shown as saved has its pictures
        with self._transaction():
            return [self._save(run_id, outcome, spec=spec, is_resumed=is_resumed) for outcome in outcomes]

    def stamp_key(self) -> bytes:
        """The key of all stamps in this store, made when it is first asked for."""
        self._all(bookkeeping.NEW_KEY, secrets.token_bytes(bookkeeping.KEY_BYTES))
        (key,) = self._made(lambda row: bookkeeping.checked_key(row["value"]), self._all(bookkeeping.KEY))
        return key

    def take_over(self, run_id: int, earlier: Sequence[int]) -> tuple[int, ...]:
        """Commit earlier results as seen by the present pass of a run, all or none; their rows in it.

        earlier  rows of the run itself, which are the first ones then, and of other runs

        Raises StorageProblem (results_lost) where one is gone.
        """
        with self._transaction():
            rows = bookkeeping.take_over(self._connection, run_id, earlier)
            if len(rows) < len(earlier):
                raise StorageProblem(reason("results_lost", path=self.path, found=len(rows), saved=len(earlier)))
            for row in rows:
                self._verdicts.bring(run_id, row["id"], row["result_hash"], row["image_key"])
            self._all(bookkeeping.COPY_LISTED, run_id, json.dumps(earlier))
            row_ids = tuple(row["id"] for row in rows)
            unlisted = [row["id"] for row in self._all(bookkeeping.UNLISTED, run_id, json.dumps(row_ids))]
            for found in self.results(unlisted):
                self._list(run_id, found.row_id, found.outcome)
        return row_ids

    def _save(self, run_id: int, outcome: Outcome, *, spec: RunSpec, is_resumed: bool) -> int:
        columns = {
            "run_id": run_id,
            **outcome_columns(outcome, points=spec.operating_points),
            "is_resumed": int(is_resumed),
            "saved_s": time.time(),
            "absent_s": None,
            "stamp": outcome.facts.stamp or None,
        }
        changed = [name for name in (*columns, "pass_number") if name not in ("run_id", "image_key")]
        changes = ", ".join(f"{name} = excluded.{name}" for name in changed)
        query = f"""INSERT INTO results ({", ".join(columns)}, pass_number)
                    VALUES ({", ".join("?" * len(columns))}, (SELECT pass_number FROM runs WHERE id = ?))
                    ON CONFLICT (run_id, image_key) DO UPDATE SET {changes} RETURNING id"""
        row_id = int(self._all(query, *columns.values(), run_id)[0]["id"])
        self._verdicts.bring(run_id, row_id, columns["result_hash"], columns["image_key"])
        self._list(run_id, row_id, outcome)
        return row_id

    def _list(self, run_id: int, row_id: int, outcome: Outcome) -> None:
        """List a result, or what a row that is listed holds now."""
        self._all(bookkeeping.LIST, *bookkeeping.listed_row(run_id, row_id, outcome))

    def set_verdict(
        self, row_id: int, verdict: Verdict | None, *, judged: Outcome, over: Collection[Verdict | None] = (None,)
    ) -> Verdict | None:
        """Store the radiologist's verdict on a result, or withdraw it (None); what lies there when this returns.

        judged  the outcome that was seen. The row may hold another one by now: then the verdict is kept, but not shown
                with that one.
        over    what the person knows to lie there, None for no verdict. Another one is newer: it stays and is returned.

        A verdict survives a power cut once this returns: a result can be computed again, a verdict cannot. Raises
        StorageProblem (verdict_misplaced) where the row is of another image, as after a backup was put back.
        """
        with storage_problems(self.path), durably(self._connection), self._judging(row_id, judged):
            found = self.verdict(row_id, judged)
            if found != verdict and found not in over:
                return found
            bookkeeping.put_verdict(self._all, row_id, verdict, judged=judged, found=found)
        return verdict

    def set_read(self, row_id: int, *, judged: Outcome, is_read: bool) -> None:
        """Note that a person has read this outcome of an image in a row, or has not; where a verdict lies they have.

        Raises StorageProblem (verdict_misplaced) as `set_verdict`.
        """
        with self._judging(row_id, judged):
            bookkeeping.mark_read(self._all, row_id, judged=judged, is_read=is_read)

    @contextlib.contextmanager
    def _judging(self, row_id: int, judged: Outcome) -> Iterator[None]:
        """A transaction that says something of an image, if the row is of that one."""
        self._verdicts.forget()
        with self._transaction():
            rows = self._all("SELECT image_key FROM results WHERE id = ?", row_id)
            if not rows or rows[0]["image_key"] != image_key(judged.ref):
                raise StorageProblem(reason("verdict_misplaced", path=self.path))
            yield

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        with storage_problems(self.path), transaction(self._connection):
            yield
