"""Results of runs: one committed row an image.

The batch thread is the only one that writes results (`ResultStore`); every other thread reads through a
`ResultReader` of its own. A reader's verdict is a row of its own, so it is never in the way of a result.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from fieldray.domain.events import RunState
from fieldray.domain.finding import Category, Outcome
from fieldray.domain.run import Run, RunSpec, StoredResult, Verdict
from fieldray.reasons import Reason
from fieldray.store.rows import outcome_columns, outcome_of, reason_text, run_of, spec_text
from fieldray.store.schema import open_database, storage_problems

_SELECT = """SELECT results.*, verdicts.choice, verdicts.note FROM results
             LEFT JOIN verdicts ON verdicts.result_id = results.id """
_BATCH_ROWS = 256


class ResultReader:
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

    def runs(self) -> tuple[Run, ...]:
        """All runs, the newest first."""
        return tuple(run_of(row) for row in self._all("SELECT * FROM runs ORDER BY id DESC"))

    def run(self, run_id: int) -> Run:
        """One run. Raises KeyError if there is none."""
        rows = self._all("SELECT * FROM runs WHERE id = ?", run_id)
        if not rows:
            raise KeyError(run_id)
        return run_of(rows[0])

    def rows(self, run_id: int, *, after: int = 0, limit: int | None = None) -> Iterator[StoredResult]:
        """The results of a run whose row id is above `after`, in the order they were first saved."""
        left = -1 if limit is None else limit
        while left:
            count = _BATCH_ROWS if left < 0 else min(left, _BATCH_ROWS)
            query = _SELECT + "WHERE run_id = ? AND results.id > ? ORDER BY results.id LIMIT ?"
            found = self._all(query, run_id, after, count)
            yield from (_stored(row) for row in found)
            if len(found) < count:
                return
            after = found[-1]["id"]
            left = left if left < 0 else left - count

    def work_list(self, run_id: int) -> Iterator[StoredResult]:
        """The results of a run, what needs eyes first on top: abnormal, not sure, ..., the highest score first."""
        for row in self._all("SELECT id FROM results WHERE run_id = ? ORDER BY rank, score DESC, id", run_id):
            yield self.row(row["id"])

    def row(self, row_id: int) -> StoredResult:
        """One result. Raises KeyError if there is none."""
        rows = self._all(_SELECT + "WHERE results.id = ?", row_id)
        if not rows:
            raise KeyError(row_id)
        return _stored(rows[0])

    def counts(self, run_id: int) -> dict[Category, int]:
        """The number of images by category."""
        query = "SELECT category, COUNT(*) AS number FROM results WHERE run_id = ? GROUP BY category"
        return {row["category"]: row["number"] for row in self._all(query, run_id)}

    def last_row_id(self) -> int:
        """The highest row id given out so far, 0 in an empty file."""
        return int(self._all("SELECT COALESCE(MAX(id), 0) AS last FROM results")[0]["last"])

    def has_results(self, spec: RunSpec) -> bool:
        """Whether anything at all was done with this model and these settings."""
        query = "SELECT 1 FROM results WHERE model_sha256 = ? AND settings_hash = ? LIMIT 1"
        return bool(self._all(query, spec.model_sha256, spec.settings_hash))

    def earlier(self, spec: RunSpec, *, content_sha256: str, frame: int, up_to_row_id: int) -> Outcome | None:
        """What these bytes gave before with the same model and settings, if it did not fail; the newest."""
        query = """SELECT * FROM results WHERE content_sha256 = ? AND frame = ? AND model_sha256 = ?
                   AND settings_hash = ? AND status != 'failed' AND id <= ? ORDER BY id DESC LIMIT 1"""
        rows = self._all(query, content_sha256, frame, spec.model_sha256, spec.settings_hash, up_to_row_id)
        return outcome_of(rows[0]) if rows else None

    def _all(self, query: str, *values: object) -> list[sqlite3.Row]:
        with storage_problems(self.path):
            return self._connection.execute(query, values).fetchall()


class ResultStore(ResultReader):
    """Reads and writes results; one at a time in a program. Methods raise StorageProblem (disk_full, ...)."""

    def open_run(self, spec: RunSpec, *, fresh: bool = False) -> int:
        """Begin a run, or go on with the newest of the same request if it is not finished; its id."""
        key = _request_key(spec)
        newest = self._all("SELECT id, state FROM runs WHERE request_key = ? ORDER BY id DESC LIMIT 1", key)
        if newest and newest[0]["state"] != "finished" and not fresh:
            run_id = int(newest[0]["id"])
            self.set_state(run_id, "running")
            return run_id
        query = "INSERT INTO runs (request_key, spec, state, started_s) VALUES (?, ?, 'running', ?) RETURNING id"
        return int(self._all(query, key, spec_text(spec), time.time())[0]["id"])

    def set_state(self, run_id: int, state: RunState, *, reason: Reason | None = None) -> None:
        """Note how a run stands."""
        ended_s = None if state in ("running", "paused") else time.time()
        why = reason_text(reason) if reason else None
        self._all("UPDATE runs SET state = ?, reason = ?, ended_s = ? WHERE id = ?", state, why, ended_s, run_id)

    def save(self, run_id: int, outcome: Outcome, *, spec: RunSpec, is_resumed: bool = False) -> int:
        """Commit one outcome; its row id. The same image of the same run is written over and keeps its row."""
        columns = {
            "run_id": run_id,
            **outcome_columns(outcome),
            "pack_name": spec.pack_name,
            "model_sha256": spec.model_sha256,
            "settings_hash": spec.settings_hash,
            "is_resumed": int(is_resumed),
            "saved_s": time.time(),
        }
        changes = ", ".join(f"{name} = excluded.{name}" for name in columns if name not in ("run_id", "image_key"))
        query = f"""INSERT INTO results ({", ".join(columns)}) VALUES ({", ".join("?" * len(columns))})
                    ON CONFLICT (run_id, image_key) DO UPDATE SET {changes} RETURNING id"""
        return int(self._all(query, *columns.values())[0]["id"])

    def set_verdict(self, row_id: int, verdict: Verdict | None) -> None:
        """Keep the reader's verdict on a result, or take it back (None). Raises KeyError if there is no such row."""
        self.row(row_id)
        if verdict is None:
            self._all("DELETE FROM verdicts WHERE result_id = ?", row_id)
            return
        query = "INSERT OR REPLACE INTO verdicts (result_id, choice, note, given_s) VALUES (?, ?, ?, ?)"
        self._all(query, row_id, verdict.choice, verdict.note, time.time())


def _request_key(spec: RunSpec) -> str:
    request = json.dumps([sorted(spec.paths), spec.pack_name, spec.model_sha256, spec.settings_hash])
    return hashlib.sha256(request.encode()).hexdigest()


def _stored(row: sqlite3.Row) -> StoredResult:
    return StoredResult(
        row_id=row["id"],
        run_id=row["run_id"],
        outcome=outcome_of(row),
        is_resumed=bool(row["is_resumed"]),
        verdict=Verdict(choice=row["choice"], note=row["note"]) if row["choice"] else None,
    )
