"""Lock files: for the results database, for each unfinished run, and for each session that shows results.

The lock file of a run exists while the run is unfinished. The process that works on the run holds the lock until the
run or the process ends. Before a process locks a run, the process takes the write lock of the database and checks that
the run is not finished. So no process locks a lock file that was just deleted.

The lock of a session keeps a backup from replacing the database during the session. A session identifies its results by
row numbers, which would be wrong in another database.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from fieldray.domain.run import Run
from fieldray.errors import StorageProblem
from fieldray.persistence import FileLock, LockHeldError, storage_problem
from fieldray.reasons import reason

_numbers: Final = itertools.count(1)
_WAIT_S: Final = 1.0  # another program may be testing whether a killed session left this file
_LOOK_S: Final = 0.1  # another program may be testing whether a killed run left this file
EXCLUSIVE_WAIT_S: Final = 5.0  # another program may read the database for a moment
_ASK_AGAIN_S: Final = 0.1


@contextlib.contextmanager
def database_file_lock(path: Path, *, wait_s: float) -> Iterator[None]:
    """Keep other processes from opening or replacing a database file during a `with` block.

    wait_s  maximum time in seconds to wait for another process that holds the lock

    Raises LockHeldError, OSError.
    """
    lock = FileLock(path.with_name(path.name + ".lock"), holder=str(os.getpid()), wait_s=wait_s)
    try:
        yield
    finally:
        lock.remove()


def require_exclusive_access(path: Path) -> None:
    """Require that no other program has a database file open, and then merge the file's write-ahead log.

    Raises StorageProblem (store_in_use), or sqlite3.Error if the disk fails.
    """
    until_s = time.monotonic() + EXCLUSIVE_WAIT_S
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        while True:
            try:
                if connection.execute("PRAGMA journal_mode = DELETE").fetchone() == ("delete",):
                    return
            except sqlite3.OperationalError as error:
                if not getattr(error, "sqlite_errorname", "").startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
                    raise
            if time.monotonic() > until_s:
                raise StorageProblem(reason("store_in_use", path=path))
            time.sleep(_ASK_AGAIN_S)


class SessionLock:
    """A lock that keeps a backup from replacing the results database while a session shows results.

    The lock is held from construction until `release_all` or the end of the process. If the folder cannot be written
    to, the lock is not held.

    problem  the reason why the lock file cannot be written, or None
    """

    def __init__(self, database: Path) -> None:
        self._lock: FileLock | None = None
        self.problem: StorageProblem | None = None
        try:
            database.parent.mkdir(parents=True, exist_ok=True)
            has_viewing_session(database)
            name = f"{database.name}.session-{os.getpid()}-{next(_numbers)}.lock"
            self._lock = FileLock(database.with_name(name), holder=str(os.getpid()), wait_s=_WAIT_S)
        except LockHeldError:
            return
        except OSError as error:
            self.problem = storage_problem(error, database.parent)

    def release(self) -> None:
        """Release the lock. Safe to call twice."""
        if self._lock:
            self._lock.remove()


def has_viewing_session(database: Path) -> bool:
    """Return whether any process has a session that shows results of this database (see `SessionLock`). Raises OSError.

    Lock files left by killed processes are deleted.
    """
    for path in database.parent.glob(f"{database.name}.session-*.lock"):
        try:
            FileLock(path, holder="", is_made=False).remove()
        except FileNotFoundError:
            continue
        except LockHeldError:
            return True
    return False


class RunLocks:
    """The locks of the runs on which this process works. Methods raise OSError if lock files cannot be written.

    process_holding_run  description of the process that held a run when `hold` returned False; None before
    """

    def __init__(self, database: Path) -> None:
        self._database = database
        self._held: dict[int, FileLock] = {}
        self.process_holding_run: str | None = None

    def hold(self, run_id: int) -> bool:
        """Lock a run.

        Returns False if another process works on the run; `process_holding_run` then describes that process.
        """
        if run_id in self._held:
            return True
        try:
            self._held[run_id] = FileLock(_run_lock(self._database, run_id), holder=str(os.getpid()), wait_s=_LOOK_S)
        except LockHeldError as error:
            self.process_holding_run = error.holder
            return False
        return True

    def release_finished_run(self, run_id: int) -> None:
        """Release the lock of a finished run, and delete its lock file.

        The caller has committed the state "finished".
        """
        lock = self._held.pop(run_id, None)
        if lock:
            lock.remove()

    def release_all(self) -> None:
        """Release the locks of all runs."""
        for lock in self._held.values():
            lock.release()
        self._held.clear()


def with_live_state(database: Path, run: Run) -> Run:
    """Return a run with its true state: "interrupted" if the run has not ended and no process holds its lock.

    If the system cannot find out whether a process holds the lock, the run is returned unchanged.
    """
    if run.state not in ("running", "paused"):
        return run
    try:
        FileLock(_run_lock(database, run.run_id), holder="", is_made=False).release()
    except FileNotFoundError:
        pass
    except (OSError, LockHeldError):
        return run
    return replace(run, state="interrupted")


def _run_lock(database: Path, run_id: int) -> Path:
    return database.with_name(f"{database.name}.run-{run_id}.lock")
