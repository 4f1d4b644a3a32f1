"""The database file: its tables, its version, and how an older file is brought up to date.

`PRAGMA user_version` is the number of migrations applied. A file of a newer program is refused; an older one is copied
to `<name>.v<version>.bak` before it is changed. In WAL mode queries never wait for the writer, and a commit survives a
killed program. A new file appears complete. A damaged one is marked, and not opened until `mending` set it aside.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from fieldray.errors import StorageProblem
from fieldray.persistence import PRIVATE, make_private, require_plain, storage_problem, unfinished
from fieldray.reasons import reason
from fieldray.store.copied import JOURNAL, journal, made_by, names_another_file, schema

Migration = tuple[str, ...]

_BUSY_TIMEOUT_S: Final = 30.0
_DAMAGE: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
# Errors of the machine or the file system. All others are bugs of this program.
_ENVIRONMENT_NAMES: Final = "BUSY CANTOPEN IOERR LOCKED NOLFS NOMEM PERM PROTOCOL READONLY"
_ENVIRONMENT: Final = frozenset(getattr(sqlite3, f"SQLITE_{name}") for name in _ENVIRONMENT_NAMES.split())
_FULL_BELOW_BYTES: Final = 2**18  # SQLite reports a disk without room for its index as a disk error

# One result row per image and run. What is sorted, filtered or looked up is a column; the rest is JSON. Texts that may
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
    # The category has one spelling for machines.
    (
        "UPDATE results SET category = 'unsure' WHERE category = 'not_sure'",
        "UPDATE verdicts SET category = 'unsure' WHERE category = 'not_sure'",
    ),
    # The lung fields, where a pack found them, and what a person should know of a result.
    (
        "ALTER TABLE results ADD COLUMN lungs TEXT",
        "ALTER TABLE results ADD COLUMN lung_shares BLOB",
        "ALTER TABLE results ADD COLUMN notes TEXT NOT NULL DEFAULT '[]'",
    ),
    # The history: what is shown of an image whose file is gone, once for all its results, and counts of all runs.
    (
        """CREATE TABLE previews (
            id INTEGER PRIMARY KEY,
            content_sha256 TEXT NOT NULL,
            frame INTEGER NOT NULL,
            jpeg BLOB NOT NULL,
            UNIQUE (content_sha256, frame)
        )""",
        "DROP INDEX results_by_rank",
        "CREATE INDEX results_by_rank ON results (run_id, rank, score, absent_s, backend)",
    ),
)


def open_database(path: Path, *, migrations: Sequence[Migration] = MIGRATIONS) -> WatchedConnection:
    """Open (and make or bring up to date) the file at `path`; statements commit by themselves.

    Raises StorageProblem: database_newer, database_damaged, disk_full, not_plain or not_writable; of statements later
    store_gone, once the file is no longer there.
    """
    with storage_problems(path):
        for file in (path, *companions(path), journal(path), damage_mark(path)):
            require_plain(file)
        _disarm(path)
        if damage_mark(path).exists():
            raise StorageProblem(reason("database_damaged", path=path))
        make_private(path.parent)
        if not path.exists():
            _make(path, migrations)
        connection = _connect(path)
        try:
            _require_ours(connection, path, migrations)
            _migrate(connection, path, migrations)
            connection.watch(path)
        except BaseException:
            connection.close()
            raise
        return connection


def damage_mark(path: Path) -> Path:
    """The file that marks the database as damaged by its presence."""
    return path.with_name(path.name + ".damaged")


def _connect(path: Path) -> WatchedConnection:
    if os.name == "posix" and stat.S_IMODE(path.stat().st_mode) != PRIVATE:
        path.chmod(PRIVATE)  # results name patients; SQLite gives its companions the same mode
    connection = sqlite3.connect(
        path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False, factory=WatchedConnection
    )
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA foreign_keys = ON")
    except BaseException:
        connection.close()
        raise
    return connection


def _make(path: Path, migrations: Sequence[Migration]) -> None:
    """Make a new file under another name and rename it, unless another program has made one meanwhile."""
    beside = unfinished(path)
    try:
        os.close(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE))
        with contextlib.closing(_connect(beside)) as connection:
            _migrate(connection, beside, migrations)
        with contextlib.suppress(FileExistsError):
            _name(beside, path)
    finally:
        for file in (beside, *companions(beside)):
            file.unlink(missing_ok=True)


def _name(beside: Path, path: Path) -> None:
    """Give a file its name. Raises FileExistsError if there is one already."""
    try:
        os.link(beside, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without links; Windows alone refuses to rename onto a file
        if not path.exists():
            beside.rename(path)


def _migrate(connection: sqlite3.Connection, path: Path, migrations: Sequence[Migration]) -> None:
    version = _version(connection)
    if version > len(migrations):
        raise StorageProblem(reason("database_newer", path=path))
    if version < len(migrations):
        if version:
            _copy(connection, path.with_name(f"{path.name}.v{version}.bak"))
        with transaction(connection):
            # Another process may have migrated while this one waited for the lock, so the version is read again.
            for number, statements in enumerate(migrations[_version(connection) :], start=_version(connection) + 1):
                for statement in statements:
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {number}")


def _version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def _require_ours(connection: sqlite3.Connection, path: Path, migrations: Sequence[Migration]) -> None:
    """Refuse a file that holds more, or something else, than this program makes: it may come from anywhere.

    A trigger or a column that is computed would be run with each of our statements, and could put another result in
    the place of ours. Raises StorageProblem (database_damaged): the rows are kept when it is set aside.
    """
    version = _version(connection)
    if 0 < version <= len(migrations) and schema(connection) != made_by(migrations[:version]):
        raise _damaged(path)


def _copy(connection: sqlite3.Connection, target: Path) -> None:
    """A whole copy, with what is still in the WAL, for this user alone."""
    beside = unfinished(target)
    try:
        os.close(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE))
        with contextlib.closing(sqlite3.connect(beside)) as copy:
            connection.backup(copy)
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All statements inside or none."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # SQLite itself rolls back if the disk is full
            connection.execute("ROLLBACK")
        raise


@contextlib.contextmanager
def storage_problems(path: Path, *, is_open: bool = False) -> Iterator[None]:
    """Turn errors of the machine into a StorageProblem that names the database's file.

    Other SQLite errors are bugs of this program and are not caught. A damaged file is marked; so is one that was opened
    properly (`is_open`) and has lost tables since.
    """
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the low byte is the primary result code
        if code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and _is_full(path.parent)):
            raise StorageProblem(reason("disk_full", path=path)) from error
        has_lost_tables = is_open and code == sqlite3.SQLITE_ERROR and not _has_our_schema(path)
        if code in _DAMAGE or _is_no_text(error) or has_lost_tables:
            raise _damaged(path) from error
        if code in _ENVIRONMENT:
            raise StorageProblem(reason("not_writable", path=path, detail=error)) from error
        raise
    except UnicodeDecodeError as error:  # SQLite's own complaint quotes a schema that is no text any more
        raise _damaged(path) from error
    except OSError as error:
        raise storage_problem(error, path) from error


@contextlib.contextmanager
def damage_noticed(path: Path) -> Iterator[None]:
    """Around turning rows into values: what this program cannot have written is damage. Raises StorageProblem."""
    try:
        yield
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise _damaged(path) from error


def _damaged(path: Path) -> StorageProblem:
    _mark(path)
    return StorageProblem(reason("database_damaged", path=path))


def _is_no_text(error: sqlite3.Error) -> bool:
    """Whether bytes that should be text are none: Python's own complaint, which has no code of SQLite's."""
    return not hasattr(error, "sqlite_errorcode") and str(error).startswith("Could not decode")


def _has_our_schema(path: Path) -> bool:
    """Whether the tables are still as this program makes them: then a statement that fails is a fault of ours."""
    try:
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as found:
            return schema(found) == made_by(MIGRATIONS)
    except (sqlite3.Error, OSError):
        return False


def _disarm(path: Path) -> None:
    """Set a journal aside that would have SQLite delete another file; what it was to undo may be half written."""
    if names_another_file(journal(path)):
        lose_journal(path)
        _mark(path)


def lose_journal(path: Path) -> None:
    """Move a journal to where no database has it for its own."""
    if journal(path).exists():
        journal(path).rename(free_name(path, "lost", JOURNAL))


def _mark(path: Path) -> None:
    with contextlib.suppress(OSError):
        os.close(os.open(damage_mark(path), os.O_WRONLY | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), PRIVATE))


def _is_full(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        return shutil.disk_usage(folder).free < _FULL_BELOW_BYTES
    return False


# ---- a connection that notices when its file is no longer the one at its path
# SQLite continues with a file that was moved, deleted or replaced, and reports success: what is written then is lost.


COMPANIONS: Final = ("-wal", "-shm")
_Identity = tuple[int, int]


class WatchedConnection(sqlite3.Connection):
    """Every statement first checks that the file is still there. Raises StorageProblem (store_gone) if it is not."""

    _path: Path | None = None
    _identity: _Identity | None = None
    _companions: tuple[_Identity | None, ...] = ()

    def watch(self, path: Path) -> None:
        """Watch from now on. The file has been read by then, so that its companions exist."""
        self._identity = _identity(path)
        self._companions = tuple(_identity(companion) for companion in companions(path))
        self._path = path

    def execute(self, statement: str, values: Any = (), /) -> sqlite3.Cursor:
        """As in SQLite, but only on the right file."""
        if self._path is not None and (self._identity is None or _identity(self._path) != self._identity):
            self._leave(self._path)
            raise StorageProblem(reason("store_gone", path=self._path))
        return super().execute(statement, values)

    def _leave(self, path: Path) -> None:
        """Move the companions away: the next to open a file here would read them as changes to that file."""
        for companion, known in zip(companions(path), self._companions, strict=True):
            if known is not None and _identity(companion) == known:
                try:
                    companion.rename(free_name(path, "lost", companion.name.removeprefix(path.name)))
                except OSError:  # another thread was faster
                    continue


def companions(path: Path) -> tuple[Path, ...]:
    """The files that SQLite keeps beside a database."""
    return tuple(path.with_name(path.name + ending) for ending in COMPANIONS)


def free_name(path: Path, word: str, companion: str = "") -> Path:
    """A free name beside `path`: `results.lost-1.sqlite`, plus the ending of a companion."""
    number = 1
    while (target := path.with_name(f"{path.stem}.{word}-{number}{path.suffix}{companion}")).exists():
        number += 1
    return target


def _identity(path: Path) -> _Identity | None:
    """Device and inode, or None if there is no file."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
