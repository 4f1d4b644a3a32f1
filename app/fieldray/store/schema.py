"""The database file: its tables, its version, and how an older file is brought up to date.

`PRAGMA user_version` is the number of migrations applied. A file of a newer program is refused; before an older one
is changed it is copied to `<name>.v<version>.bak`. The file is in WAL mode, so readers never wait for the writer;
a commit survives the program being killed at any moment.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from fieldray.errors import StorageProblem
from fieldray.reasons import reason

Migration = tuple[str, ...]

_BUSY_TIMEOUT_S: Final = 30.0

# One result row an image and run. What is sorted, filtered or looked up is a column; the rest is JSON. Texts that may
# hold file names are JSON in ASCII or bytes: a name that is not valid Unicode must not stop a run.
MIGRATIONS: Final[tuple[Migration, ...]] = (
    (
        """CREATE TABLE runs (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            request_key TEXT NOT NULL,
            spec TEXT NOT NULL,
            state TEXT NOT NULL,
            reason TEXT,
            started_s REAL NOT NULL,
            ended_s REAL
        )""",
        "CREATE INDEX runs_by_request ON runs (request_key, id)",
        """CREATE TABLE results (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            run_id INTEGER NOT NULL REFERENCES runs (id),
            image_key BLOB NOT NULL,
            status TEXT NOT NULL,
            category TEXT NOT NULL,
            rank INTEGER NOT NULL,
            score REAL,
            stage TEXT,
            reason TEXT,
            ref TEXT NOT NULL,
            content_sha256 TEXT NOT NULL,
            frame INTEGER NOT NULL,
            model_sha256 TEXT NOT NULL,
            settings_hash TEXT NOT NULL,
            pack_name TEXT NOT NULL,
            backend TEXT,
            decode_ms REAL NOT NULL,
            inference_ms REAL,
            findings TEXT NOT NULL,
            details TEXT NOT NULL,
            thumbnail BLOB,
            class_maps BLOB,
            is_resumed INTEGER NOT NULL,
            saved_s REAL NOT NULL,
            UNIQUE (run_id, image_key)
        )""",
        "CREATE INDEX results_by_content ON results (content_sha256, frame, model_sha256, settings_hash)",
        "CREATE INDEX results_by_rank ON results (run_id, rank, score)",
        """CREATE TABLE verdicts (
            result_id INTEGER PRIMARY KEY REFERENCES results (id),
            choice TEXT NOT NULL,
            note TEXT NOT NULL,
            given_s REAL NOT NULL
        )""",
    ),
    # A run is gone through in passes: what the last one did not see is absent. A verdict is on what was seen when it
    # was given (`result_hash`): it is shown while its row holds that result, and kept when the row holds another one.
    (
        "ALTER TABLE runs ADD COLUMN pass_number INTEGER NOT NULL DEFAULT 1",
        "ALTER TABLE results ADD COLUMN pass_number INTEGER NOT NULL DEFAULT 1",
        "ALTER TABLE results ADD COLUMN absent_s REAL",
        "ALTER TABLE results ADD COLUMN result_hash TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE verdicts RENAME TO old_verdicts",
        """CREATE TABLE verdicts (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            result_id INTEGER NOT NULL REFERENCES results (id),
            result_hash TEXT NOT NULL,
            choice TEXT NOT NULL,
            note TEXT NOT NULL,
            given_s REAL NOT NULL,
            content_sha256 TEXT NOT NULL,
            category TEXT NOT NULL,
            score REAL,
            UNIQUE (result_id, result_hash)
        )""",
        """INSERT INTO verdicts (result_id, result_hash, choice, note, given_s, content_sha256, category, score)
           SELECT result_id, result_hash, choice, note, given_s, content_sha256, category, score
           FROM old_verdicts JOIN results ON results.id = result_id""",
        "DROP TABLE old_verdicts",
        "DROP INDEX results_by_content",
        "CREATE INDEX results_by_content ON results (model_sha256, settings_hash, content_sha256, frame)",
    ),
)


def open_database(path: Path, *, migrations: Sequence[Migration] = MIGRATIONS) -> sqlite3.Connection:
    """Open (and make or bring up to date) the file at `path`; statements commit by themselves.

    Raises StorageProblem: database_newer, database_damaged, disk_full or not_writable.
    """
    with storage_problems(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)  # results name patients: for this user only
        connection = sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA foreign_keys = ON")
            _migrate(connection, path, migrations)
        except BaseException:
            connection.close()
            raise
        return connection


def _migrate(connection: sqlite3.Connection, path: Path, migrations: Sequence[Migration]) -> None:
    version = _version(connection)
    if version > len(migrations):
        raise StorageProblem(reason("database_newer", path=path))
    if version == len(migrations):
        return
    if version:
        _copy(connection, path.with_name(f"{path.name}.v{version}.bak"))
    with transaction(connection):
        # Another process may have done it while this one waited for the lock: read the version again inside.
        for number, statements in enumerate(migrations[_version(connection) :], start=_version(connection) + 1):
            for statement in statements:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {number}")


def _version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def _copy(connection: sqlite3.Connection, target: Path) -> None:
    """A whole copy, with what is still in the WAL."""
    copy = sqlite3.connect(target)
    try:
        connection.backup(copy)
    finally:
        copy.close()


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All statements inside or none."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # SQLite itself takes everything back where the disk is full
            connection.execute("ROLLBACK")
        raise


@contextlib.contextmanager
def storage_problems(path: Path) -> Iterator[None]:
    """Turn what the database or the file system raises inside into a StorageProblem that names the file."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the low byte is the primary result code
        if code == sqlite3.SQLITE_FULL:
            raise StorageProblem(reason("disk_full", path=path)) from error
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise StorageProblem(reason("database_damaged", path=path, detail=error)) from error
        raise StorageProblem(reason("not_writable", path=path, detail=error)) from error
    except OSError as error:
        raise StorageProblem(reason("not_writable", path=path, detail=error.strerror or error)) from error
