"""Deleting runs so that nothing of them is left in the store's files.

What is deleted is overwritten with zeros (`secure_delete`), the file is built again without it (VACUUM), and the log
of changes is taken over and cut to nothing: so it is with the results, and before them with the pictures that no result
needs any more. A copy that was made when the store was brought up to date goes first if it holds one of the runs, so
that a deletion that was interrupted can be repeated; so does one that was never completed. A damaged store that was set
aside is never touched; it is named instead.
"""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from fieldray.domain.history import Deletion, DeletionPlan
from fieldray.errors import StorageProblem, UsageProblem
from fieldray.persistence import HeldError, is_plain, require_plain
from fieldray.reasons import reason
from fieldray.store.copied import has_table, opened_to_read
from fieldray.store.database import files_of, open_database, storage_problems, transaction
from fieldray.store.exchanging import only_one_restore, restoring
from fieldray.store.locks import RunLocks
from fieldray.store.pictures import PictureKey, keep_only, pictures_path, size_of
from fieldray.store.wiping import build_again, wipe_from_now_on

_STORE: Final = b"SQLite format 3\0"
# A verdict is one even where the same result holds a copy of it in each of several runs.
_VERDICTS: Final = """
    SELECT COUNT(*) AS all_of_them, COALESCE(SUM(EXISTS (
        SELECT 1 FROM verdicts AS same JOIN results AS other ON other.id = same.result_id
        WHERE same.result_hash = found.result_hash AND same.given_s = found.given_s AND other.run_id NOT IN ({runs})
    )), 0) AS kept
    FROM (SELECT DISTINCT verdicts.result_hash, given_s FROM verdicts JOIN results ON results.id = result_id
          WHERE run_id IN ({runs})) AS found
"""


class RunDeleter:
    """Plans and does it; for one thread. Raises StorageProblem where the store cannot be read or written."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def plan(self, run_ids: Sequence[int]) -> DeletionPlan:
        """What would be deleted. Raises UsageProblem (history_no_run)."""
        with self._connection() as connection:
            return self._plan(connection, run_ids)

    def delete(self, run_ids: Sequence[int], *, agreed: DeletionPlan | None = None) -> Deletion:
        """Delete these runs: all or none, and no more than a person `agreed` to.

        Raises UsageProblem (history_no_run; history_in_use where somebody works on one of them; history_grown),
        StorageProblem.
        """
        before = size_of(self._path)
        with self._connection() as connection:
            wipe_from_now_on(connection)
            connection.execute("PRAGMA synchronous = FULL")  # what was told as deleted does not come back
            locks = RunLocks(self._path)
            try:
                with transaction(connection):
                    plan = self._plan(connection, run_ids)
                    if agreed and (plan.results > agreed.results or plan.verdicts > agreed.verdicts):
                        raise UsageProblem(reason("history_grown"))
                    started = self._hold(connection, locks, plan.run_ids)
                    _delete_rows(connection, _with_lost(connection, plan.run_ids))
                    pictures = keep_only(self._path, pictured(connection))
                    deleted, left = self._copies(started)
                for run_id in plan.run_ids:
                    locks.finish(run_id)
            finally:
                locks.release()
            is_wiped = build_again(connection) and pictures.is_wiped
        return Deletion(
            plan=plan,
            previews=pictures.deleted,
            freed_bytes=before - size_of(self._path),
            is_wiped=is_wiped,
            copies_deleted=tuple(map(str, deleted)),
            copies_left=tuple(map(str, left)),
        )

    # ---- inside

    @contextlib.contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        with contextlib.closing(open_database(self._path)) as connection, storage_problems(self._path, is_open=True):
            connection.row_factory = sqlite3.Row
            yield connection

    def _plan(self, connection: sqlite3.Connection, run_ids: Sequence[int]) -> DeletionPlan:
        wanted = tuple(dict.fromkeys(run_ids))
        runs = _listed(wanted)
        known = {row["id"] for row in connection.execute(f"SELECT id FROM runs WHERE id IN ({runs})")}
        for run_id in wanted:
            if run_id not in known:
                raise UsageProblem(reason("history_no_run", run=run_id))
        runs = _listed(_with_lost(connection, wanted))
        (results,) = connection.execute(f"SELECT COUNT(*) FROM results WHERE run_id IN ({runs})").fetchone()
        found = connection.execute(_VERDICTS.format(runs=runs)).fetchone()
        kept = int(found["kept"])
        return DeletionPlan(
            run_ids=wanted, results=int(results), verdicts=int(found["all_of_them"]) - kept, verdicts_kept=kept
        )

    def _hold(self, connection: sqlite3.Connection, locks: RunLocks, run_ids: Sequence[int]) -> dict[int, float]:
        """Lock every run that is not finished; when each began. A finished one is never worked on again."""
        query = f"SELECT id, state, started_s FROM runs WHERE id IN ({_listed(run_ids)})"
        rows = connection.execute(query).fetchall()
        for row in rows:
            if row["state"] != "finished" and not self._is_ours(locks, row["id"]):
                raise UsageProblem(reason("history_in_use", run=row["id"], process=locks.rival))
        return {row["id"]: row["started_s"] for row in rows}

    def _is_ours(self, locks: RunLocks, run_id: int) -> bool:
        try:
            return locks.hold(run_id)
        except OSError as error:
            raise StorageProblem(reason("not_writable", path=self._path, detail=error.strerror or error)) from error

    def _copies(self, started: dict[int, float]) -> tuple[list[Path], list[Path]]:
        """The older copies that held one of the runs and are deleted now, and files that may hold them still."""
        deleted, left = [], []
        whole = sorted(self._path.parent.glob(f"{self._path.name}.v*.bak"))
        for copy in (*whole, *filter(_is_unfinished, sorted(self._path.parent.glob(".*.new")))):
            if is_plain(copy) and _holds_none(copy, started):
                continue
            try:
                require_plain(copy)
                copy.unlink()
                deleted.append(copy)
            except (OSError, StorageProblem):
                left.append(copy)
        try:
            with only_one_restore(self._path, wait_s=0.0):
                for file in filter(Path.exists, files_of_restore(restoring(self._path))):
                    file.unlink()
                    deleted.append(file)
        except (OSError, HeldError):
            left += filter(Path.exists, files_of_restore(restoring(self._path)))
        for path, word in itertools.product((self._path, pictures_path(self._path)), ("damaged", "lost", "replaced")):
            left += sorted(path.parent.glob(f"{path.stem}.{word}-*{path.suffix}*"))
        return deleted, left


def files_of_restore(beside: Path) -> tuple[Path, ...]:
    """All that may lie on the disk for a backup that is being put back, or was when its program was killed."""
    older = beside.parent.glob(f"{beside.name}.v*.bak")
    return (*files_of(beside), *files_of(pictures_path(beside)), *older)


def _with_lost(connection: sqlite3.Connection, run_ids: Sequence[int]) -> Sequence[int]:
    """These runs; where they are all there are, also those that were lost and of which mending kept results."""
    if connection.execute(f"SELECT 1 FROM runs WHERE id NOT IN ({_listed(run_ids)}) LIMIT 1").fetchone():
        return run_ids
    lost = connection.execute("SELECT DISTINCT run_id FROM results WHERE run_id NOT IN (SELECT id FROM runs)")
    return (*run_ids, *(row["run_id"] for row in lost.fetchall()))


def _delete_rows(connection: sqlite3.Connection, run_ids: Sequence[int]) -> None:
    """Delete the runs with their results and verdicts."""
    runs = _listed(run_ids)
    connection.execute(f"DELETE FROM verdicts WHERE result_id IN (SELECT id FROM results WHERE run_id IN ({runs}))")
    connection.execute(f"DELETE FROM results WHERE run_id IN ({runs})")
    connection.execute(f"DELETE FROM runs WHERE id IN ({runs})")
    if connection.execute("SELECT 1 FROM results LIMIT 1").fetchone() is None:
        connection.execute("DELETE FROM verdicts")  # on results that were lost in a damaged store


def pictured(connection: sqlite3.Connection) -> Iterator[PictureKey]:
    """The images of all results, in ascending order: their pictures are needed."""
    query = "SELECT DISTINCT content_sha256, frame FROM results ORDER BY content_sha256, frame"
    return ((content, frame) for content, frame in connection.execute(query))


def _is_unfinished(file: Path) -> bool:
    """Whether a copy of a store was interrupted here. Its beginning may come last."""
    try:
        if not is_plain(file):
            return False
        with file.open("rb") as stream:
            return stream.read(len(_STORE)) in (_STORE, bytes(len(_STORE)))
    except OSError:
        return False


def _holds_none(copy: Path, started: dict[int, float]) -> bool:
    """Whether a copy can be read and has none of these runs."""
    try:
        with contextlib.closing(opened_to_read(copy, is_immutable=True)) as found:
            if not has_table(found, "runs"):
                return False
            known = dict(found.execute("SELECT id, started_s FROM runs").fetchall())
    except sqlite3.Error:
        return False
    return not any(known.get(run_id) == begun for run_id, begun in started.items())


def _listed(run_ids: Sequence[int]) -> str:
    """Numbers for a statement: there may be more than it takes parameters."""
    return ", ".join(str(int(run_id)) for run_id in run_ids)
