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
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from fieldray.domain.events import RunState
from fieldray.domain.finding import Category, Outcome
from fieldray.domain.run import EarlierVerdict, ImageGist, Run, RunSpec, StoredResult, Verdict
from fieldray.errors import StorageProblem
from fieldray.reasons import Reason, reason
from fieldray.store import presence, verdicts
from fieldray.store.database import damage_noticed, open_database, storage_problems, transaction
from fieldray.store.locks import RunLocks
from fieldray.store.rows import (
    earlier_verdict_of,
    gist_of,
    image_key,
    image_text,
    outcome_columns,
    outcome_of,
    reason_text,
    result_hash,
    run_of,
    spec_text,
    verdict_columns,
    verdict_of,
)

T = TypeVar("T")

_SELECT = """SELECT results.*, verdicts.choice, verdicts.note FROM results
             LEFT JOIN verdicts ON verdicts.result_id = results.id
                                AND verdicts.result_hash = results.result_hash """
_BATCH_ROWS = 256
_NO_ROW = 2**63  # SQLite has no number as large as this
# What runs are compared by. The same image in both says nothing; one whose bytes were not read is known by its path.
_IDENTITY = "CASE content_sha256 WHEN '' THEN image_key ELSE CAST(content_sha256 || '#' || frame AS BLOB) END"
_GISTS = "SELECT category, findings, thumbnail FROM results WHERE absent_s IS NULL AND status != 'failed' "


class ResultQuery:
    """Reads results; for one thread. All methods raise StorageProblem when the file cannot be read."""

    def __init__(self, path: Path, *, connect: Callable[[Path], sqlite3.Connection] = open_database) -> None:
        self.path = path
        self._connection = connect(path)
        self._connection.row_factory = sqlite3.Row

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    @contextlib.contextmanager
    def at_one_moment(self) -> Iterator[None]:
        """What is read inside is as it was at one moment, also while a run goes on."""
        self._all("BEGIN")
        try:
            yield
        finally:
            if self._connection.in_transaction:
                self._all("ROLLBACK")

    def runs(self) -> tuple[Run, ...]:
        """All runs, the newest first."""
        return self._made(run_of, self._all("SELECT * FROM runs ORDER BY id DESC"))

    def run(self, run_id: int) -> Run:
        """One run. Raises KeyError if there is none."""
        rows = self._all("SELECT * FROM runs WHERE id = ?", run_id) if abs(run_id) < _NO_ROW else []
        if not rows:
            raise KeyError(run_id)
        return self._made(run_of, rows)[0]

    def rows(self, run_id: int, *, after: int = 0, limit: int | None = None) -> Iterator[StoredResult]:
        """The results of a run that are present and above the row id `after`, in the order they were first saved."""
        left = -1 if limit is None else limit
        while left:
            count = _BATCH_ROWS if left < 0 else min(left, _BATCH_ROWS)
            query = _SELECT + "WHERE run_id = ? AND absent_s IS NULL AND results.id > ? ORDER BY results.id LIMIT ?"
            found = self._all(query, run_id, after, count)
            yield from self._made(stored_of, found)
            if len(found) < count:
                return
            after = found[-1]["id"]
            left = left if left < 0 else left - count

    def work_list(self, run_id: int) -> Iterator[StoredResult]:
        """The results of a run in the order of the work list (`WORK_LIST_ORDER`), the highest score first."""
        query = "SELECT id FROM results WHERE run_id = ? AND absent_s IS NULL ORDER BY rank, score DESC, id"
        ids = [row["id"] for row in self._all(query, run_id)]
        for start in range(0, len(ids), _BATCH_ROWS):
            wanted = ids[start : start + _BATCH_ROWS]
            found = self._all(_SELECT + f"WHERE results.id IN ({', '.join('?' * len(wanted))})", *wanted)
            stored = {row["id"]: row for row in found}
            yield from self._made(stored_of, [stored[row_id] for row_id in wanted])

    def row(self, row_id: int) -> StoredResult:
        """One result. Raises KeyError if there is none."""
        rows = self._all(_SELECT + "WHERE results.id = ?", row_id)
        if not rows:
            raise KeyError(row_id)
        return self._made(stored_of, rows)[0]

    def counts(self, run_id: int) -> dict[Category, int]:
        """The number of images by category."""
        query = """SELECT category, COUNT(*) AS number FROM results
                   WHERE run_id = ? AND absent_s IS NULL GROUP BY category"""
        return {row["category"]: row["number"] for row in self._all(query, run_id)}

    def gists(self, run_id: int, *, limit: int) -> tuple[ImageGist, ...]:
        """What a run is compared by, of the first `limit` images that did not fail."""
        return self._made(gist_of, self._all(_GISTS + "AND run_id = ? ORDER BY id LIMIT ?", run_id, limit))

    def earlier_gists(self, run: Run, *, limit: int) -> tuple[ImageGist, ...]:
        """The same of other images in earlier runs with the same model and settings, the newest `limit`."""
        query = f"""{_GISTS} AND model_sha256 = ? AND settings_hash = ? AND run_id < ? AND {_IDENTITY} NOT IN
                    (SELECT {_IDENTITY} FROM results WHERE run_id = ?) GROUP BY {_IDENTITY} ORDER BY id DESC LIMIT ?"""
        spec = run.spec
        return self._made(
            gist_of, self._all(query, spec.model_sha256, spec.settings_hash, run.run_id, run.run_id, limit)
        )

    def not_present(self, run_id: int) -> tuple[str, ...]:
        """The keys of the images that the run once saw and its last whole pass did not."""
        query = "SELECT image_key FROM results WHERE run_id = ? AND absent_s IS NOT NULL ORDER BY id"
        return self._made(lambda row: image_text(row["image_key"]), self._all(query, run_id))

    def verdict(self, row_id: int, outcome: Outcome) -> Verdict | None:
        """The verdict on this outcome in this row, even if the row holds another outcome by now."""
        query = "SELECT choice, note FROM verdicts WHERE result_id = ? AND result_hash = ?"
        rows = self._all(query, row_id, result_hash(outcome))
        return self._made(verdict_of, rows)[0] if rows else None

    def earlier_verdicts(self, run_id: int) -> tuple[EarlierVerdict, ...]:
        """The verdicts on the images of a run that are on no result present in it, the oldest first.

        They were given in this run or in another one, on other bytes or on what another pack found.
        """
        return self._made(earlier_verdict_of, self._named(verdicts.EARLIER, run_id=run_id))

    def last_row_id(self) -> int:
        """The highest row id given out so far, 0 in an empty file."""
        return int(self._all("SELECT COALESCE(MAX(id), 0) AS last FROM results")[0]["last"])

    def has_results(self, spec: RunSpec) -> bool:
        """Whether anything at all was done with this model and these settings."""
        query = "SELECT 1 FROM results WHERE model_sha256 = ? AND settings_hash = ? LIMIT 1"
        return bool(self._all(query, spec.model_sha256, spec.settings_hash))

    def earlier(self, spec: RunSpec, *, content_sha256: str, frame: int, up_to_row_id: int) -> Outcome | None:
        """The newest outcome of these bytes with the same model and settings, unless it failed."""
        query = """SELECT * FROM results WHERE content_sha256 = ? AND frame = ? AND model_sha256 = ?
                   AND settings_hash = ? AND status != 'failed' AND id <= ? ORDER BY id DESC LIMIT 1"""
        rows = self._all(query, content_sha256, frame, spec.model_sha256, spec.settings_hash, up_to_row_id)
        return self._made(outcome_of, rows)[0] if rows else None

    def _all(self, query: str, *values: object) -> list[sqlite3.Row]:
        with storage_problems(self.path, is_open=True):
            return self._connection.execute(query, values).fetchall()

    def _named(self, query: str, **values: object) -> list[sqlite3.Row]:
        with storage_problems(self.path, is_open=True):
            return self._connection.execute(query, values).fetchall()

    def _made(self, make: Callable[[sqlite3.Row], T], rows: Sequence[sqlite3.Row]) -> tuple[T, ...]:
        """Rows as values."""
        with damage_noticed(self.path):
            return tuple(map(make, rows))


class ResultStore(ResultQuery):
    """Reads and writes results; one at a time in a program. Methods raise StorageProblem (disk_full, ...)."""

    def __init__(self, path: Path, *, connect: Callable[[Path], sqlite3.Connection] = open_database) -> None:
        super().__init__(path, connect=connect)
        self._connection.create_function("is_another", 2, presence.is_another)
        self._locks = RunLocks(path)
        self._judged: frozenset[str] = frozenset()

    @property
    def rival(self) -> str | None:
        """The process that works on the run which `open_run` would have continued, None if there is none."""
        return self._locks.rival

    def close(self) -> None:
        """Close the connection and let others continue the run."""
        super().close()
        self._locks.release()

    def open_run(self, spec: RunSpec, *, fresh: bool = False) -> int:
        """Begin a run, or resume the newest of the same request if it is not finished; its id.

        A run that another program is working on is left alone. The second program gets a run of its own with all
        images, and takes over the results that the first one already has. So each has a complete list and cannot spoil
        the other's. Refusing would make a script fail because somebody left a window open.
        """
        key = _request_key(spec)
        self._judged = frozenset(row["result_hash"] for row in self._all("SELECT result_hash FROM verdicts"))
        with self._transaction():
            newest = self._all("SELECT id, state FROM runs WHERE request_key = ? ORDER BY id DESC LIMIT 1", key)
            is_open = newest and newest[0]["state"] != "finished" and not fresh
            if is_open and self._locks.hold(newest[0]["id"]):
                return self._continue(int(newest[0]["id"]))
            query = "INSERT INTO runs (request_key, spec, state, started_s) VALUES (?, ?, 'running', ?) RETURNING id"
            run_id = int(self._all(query, key, spec_text(spec), time.time())[0]["id"])
            self._locks.hold(run_id)
            return run_id

    def _continue(self, run_id: int) -> int:
        self.set_state(run_id, "running")
        self._all("UPDATE runs SET pass_number = pass_number + 1 WHERE id = ?", run_id)
        return run_id

    def finish(self, run_id: int) -> int:
        """Finish a run that has seen everything; the number of images that are no longer present.

        Images in a folder or zip file that could not be read stay as they were. So do those under a path where now
        nothing was found, most likely on a drive that is not plugged in: the run is not finished then and can be
        resumed. An image that was moved while the run was under way is present once, where it is now. A verdict on
        bytes that are present under another name moves with them.
        """
        with self._transaction():
            query = """SELECT results.id, image_key, stage, results.reason,
                              results.pass_number = runs.pass_number AS is_seen
                       FROM results JOIN runs ON runs.id = run_id WHERE run_id = ? AND absent_s IS NULL"""
            rows = self._all(query, run_id)
            empty = presence.emptied(rows, self.run(run_id).spec.paths)
            gone = presence.gone(rows, empty) | presence.moved(self._all(presence.TWINS, run_id))
            for row_id in gone:
                self._all("UPDATE results SET absent_s = ? WHERE id = ?", time.time(), row_id)
            self._all(verdicts.TO_MOVED, run_id)
            self.set_state(run_id, "cancelled" if empty else "finished")
        if not empty:
            self._locks.finish(run_id)
        return len(gone)

    def set_state(self, run_id: int, state: RunState, *, reason: Reason | None = None) -> None:
        """Note how a run stands."""
        ended_s = None if state in ("running", "paused") else time.time()
        why = reason_text(reason) if reason else None
        self._all("UPDATE runs SET state = ?, reason = ?, ended_s = ? WHERE id = ?", state, why, ended_s, run_id)

    def save(
        self, run_id: int, outcome: Outcome, *, spec: RunSpec, is_resumed: bool = False, keeps_preview: bool = True
    ) -> int:
        """Commit one outcome; its row id. An image that the run already has is overwritten and keeps its row.

        keeps_preview  whether preview and thumbnail of the image are stored with it
        """
        has_preview = keeps_preview and outcome.facts.content_sha256 and outcome.facts.preview
        with self._transaction() if has_preview else contextlib.nullcontext():  # one commit costs less than two
            return self._save(run_id, outcome, spec=spec, is_resumed=is_resumed, keeps_preview=keeps_preview)

    def save_all(
        self,
        run_id: int,
        outcomes: Sequence[Outcome],
        *,
        spec: RunSpec,
        is_resumed: bool = False,
        keeps_preview: bool = True,
    ) -> None:
        """Commit these outcomes, all or none, each as `save` would: hundreds of commits cost as much as the rows."""
        with self._transaction():
            for outcome in outcomes:
                self._save(run_id, outcome, spec=spec, is_resumed=is_resumed, keeps_preview=keeps_preview)

    def _save(self, run_id: int, outcome: Outcome, *, spec: RunSpec, is_resumed: bool, keeps_preview: bool) -> int:
        columns = {
            "run_id": run_id,
            **outcome_columns(outcome),
            "pack_name": spec.pack_name,
            "model_sha256": spec.model_sha256,
            "settings_hash": spec.settings_hash,
            "is_resumed": int(is_resumed),
            "saved_s": time.time(),
            "absent_s": None,
            **({} if keeps_preview else {"thumbnail": None}),
        }
        preview = outcome.facts.preview if keeps_preview and outcome.facts.content_sha256 else b""
        if preview:
            about = outcome.facts.content_sha256, outcome.ref.frame, preview
            self._all("INSERT OR IGNORE INTO previews (content_sha256, frame, jpeg) VALUES (?, ?, ?)", *about)
        return self._save_row(run_id, columns)

    def _save_row(self, run_id: int, columns: Mapping[str, Any]) -> int:
        changes = ", ".join(f"{name} = excluded.{name}" for name in columns if name not in ("run_id", "image_key"))
        changes += ", pass_number = excluded.pass_number"
        query = f"""INSERT INTO results ({", ".join(columns)}, pass_number)
                    VALUES ({", ".join("?" * len(columns))}, (SELECT pass_number FROM runs WHERE id = ?))
                    ON CONFLICT (run_id, image_key) DO UPDATE SET {changes} RETURNING id"""
        row_id = int(self._all(query, *columns.values(), run_id)[0]["id"])
        if columns["result_hash"] in self._judged:
            about = {name: columns[name] for name in ("result_hash", "image_key")}
            self._named(verdicts.TO_NEW_RUN, row_id=row_id, run_id=run_id, **about)
        return row_id

    def set_verdict(self, row_id: int, verdict: Verdict | None, *, judged: Outcome) -> None:
        """Store the radiologist's verdict on a result, or withdraw it (None).

        judged  the outcome that was seen. The row may hold another one by now: then the verdict is kept, but not shown
                with that one.
        A verdict survives a power cut once this returns: a result can be computed again, a verdict cannot. Raises
        StorageProblem (verdict_misplaced) where the row is of another image, as after a backup was put back.
        """
        rows = self._all("SELECT image_key FROM results WHERE id = ?", row_id)
        if not rows or rows[0]["image_key"] != image_key(judged.ref):
            raise StorageProblem(reason("verdict_misplaced", path=self.path))
        with self._durably():
            if verdict is None:
                self._named(verdicts.WITHDRAW, row_id=row_id, result_hash=result_hash(judged))
            else:
                columns = {"result_id": row_id, **verdict_columns(verdict, judged), "given_s": time.time()}
                marks = ", ".join("?" * len(columns))
                query = f"INSERT OR REPLACE INTO verdicts ({', '.join(columns)}) VALUES ({marks})"
                self._all(query, *columns.values())

    @contextlib.contextmanager
    def _durably(self) -> Iterator[None]:
        """What is committed inside has reached the disk when the commit returns (sqlite.org/pragma.html)."""
        self._all("PRAGMA synchronous = FULL")
        try:
            yield
        finally:
            self._all("PRAGMA synchronous = NORMAL")

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        with storage_problems(self.path), transaction(self._connection):
            yield


def _request_key(spec: RunSpec) -> str:
    request = json.dumps(spec.work)
    return hashlib.sha256(request.encode()).hexdigest()


def stored_of(row: sqlite3.Row) -> StoredResult:
    """The result that a row of `results`, joined with its verdict, stands for."""
    return StoredResult(
        row_id=row["id"],
        run_id=row["run_id"],
        outcome=outcome_of(row),
        is_resumed=bool(row["is_resumed"]),
        verdict=verdict_of(row) if row["choice"] else None,
    )
