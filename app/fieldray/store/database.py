"""The database file: how it is made and opened, and what an error of it means.

A file with the tables of another version of the program is refused and left as it is. In WAL mode queries never wait
for the writer, and a commit survives a killed program. A new file appears complete. A damaged one is marked, and not
opened until `mending` set it aside.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from fieldray.errors import StorageProblem
from fieldray.persistence import (
    PRIVATE,
    HeldError,
    clear_abandoned,
    make_empty,
    make_private,
    require_plain,
    storage_problem,
    sync_folder,
    unfinished,
)
from fieldray.reasons import reason
from fieldray.store.copied import JOURNAL, journal, made_by, names_another_file, opened_to_read, schema
from fieldray.store.disk import code_of, is_full, is_unreadable
from fieldray.store.exchanging import free_name, is_being_exchanged, only_one
from fieldray.store.schema import PICTURES, RESULTS, VERSION, Tables

# Hears which share of some work is done, 0..1.
Tell = Callable[[float], None]

# What taking a row apart raises that no program of ours wrote.
NONSENSE: Final = (ValueError, TypeError, LookupError, AttributeError)
PAGE_BYTES: Final = 8192  # a result takes two kilobytes: of four, half would often stay empty
_BUSY_TIMEOUT_S: Final = 30.0
_ASK_AGAIN_S: Final = 0.05
_DAMAGE: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
# Errors of the machine or the file system. All others are bugs of this program.
_ENVIRONMENT_NAMES: Final = "CANTOPEN IOERR LOCKED NOLFS NOMEM PERM PROTOCOL READONLY"
_ENVIRONMENT: Final = frozenset(getattr(sqlite3, f"SQLITE_{name}") for name in _ENVIRONMENT_NAMES.split())
# SQLite says so of a disk without room for its index or its log, and of a quota that is used up.
_PERHAPS_FULL: Final = frozenset({sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN})


def open_database(path: Path, *, tables: Tables = RESULTS) -> WatchedConnection:
    """Open (and make if need be) the file at `path`; statements commit by themselves.

    Raises StorageProblem: database_other_version, database_damaged, store_in_use, disk_full, disk_failing, not_plain or
    not_writable; of statements later store_gone, once the file is no longer there.
    """
    with storage_problems(path):
        for file in files_of(path):
            require_plain(file)
        _disarm(path)
        if damage_mark(path).exists():
            raise StorageProblem(reason("database_damaged", path=path))
        make_private(path.parent)
        connection = _connected(path, tables)
        try:
            _require_ours(connection, path, tables)
            connection.watch(path)
        except BaseException:
            connection.close()
            raise
        return connection


def damage_mark(path: Path) -> Path:
    """The file that marks the database as damaged by its presence."""
    return path.with_name(path.name + ".damaged")


def _connected(path: Path, tables: Tables) -> WatchedConnection:
    """A connection to the file that has the name, made if need be, and that nobody puts another one in the place of."""
    until_s = time.monotonic() + _BUSY_TIMEOUT_S
    while True:
        if not path.exists():
            _make(path, tables)
        named = _identity(path)
        try:
            connection = _connect(path)
            try:
                version_of(connection)  # from now on nobody is alone with the file
                if named == _identity(path) and not is_being_exchanged(path):
                    return connection
            except BaseException:
                connection.close()
                raise
            connection.close()
        except (sqlite3.OperationalError, FileNotFoundError):
            if named == _identity(path):  # otherwise another file has the name by now, or none
                raise
        if time.monotonic() > until_s:
            raise StorageProblem(reason("store_in_use", path=path))
        time.sleep(_ASK_AGAIN_S)


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


def _make(path: Path, tables: Tables) -> None:
    """Make a new file. What a log of changes is left of one that is gone is set aside: it would be read as its own."""
    if not any(companion.exists() for companion in companions(path)):
        _make_new(path, tables)
        return
    with only_one(path, wait_s=_BUSY_TIMEOUT_S):
        if not path.exists():  # or another program has made it, and what is there is its own
            lose_companions(path)
            _make_new(path, tables)


def _make_new(path: Path, tables: Tables) -> None:
    """Make a new file under another name and rename it, unless another program has made one meanwhile."""
    clear_abandoned(path.parent)
    beside = unfinished(path)
    try:
        make_empty(beside)
        with contextlib.closing(sqlite3.connect(beside)) as empty:
            empty.execute(f"PRAGMA page_size = {PAGE_BYTES}")
            empty.execute("VACUUM")
        with contextlib.closing(_connect(beside)) as connection:
            begin(connection, tables)
            complete(connection)
        with contextlib.suppress(FileExistsError):
            _name(beside, path)
        sync_folder(path.parent)
    finally:
        for file in (beside, *companions(beside)):
            file.unlink(missing_ok=True)


def complete(connection: sqlite3.Connection) -> None:
    """Take the log of changes over into the file, so that it is whole without it. Raises sqlite3.Error.

    Closing does the same, but where the disk is full it says nothing and leaves the log.
    """
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()


def _name(beside: Path, path: Path) -> None:
    """Give a file its name. Raises FileExistsError if there is one already."""
    try:
        os.link(beside, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without links; Windows alone refuses to rename onto a file
        if not path.exists():
            beside.rename(path)


def begin(connection: sqlite3.Connection, tables: Tables) -> None:
    """Make the tables in an empty file."""
    with transaction(connection):
        if version_of(connection) == 0:  # or another program made them while this one waited
            for statement in tables:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {VERSION}")


def version_of(connection: sqlite3.Connection) -> int:
    """The version of the tables of a database, 0 for an empty one."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def _require_ours(connection: sqlite3.Connection, path: Path, tables: Tables) -> None:
    """Refuse a file of another version, and one that holds more, or something else, than this program makes.

    It may come from anywhere. A trigger or a column that is computed would be run with each of our statements, and
    could put another result in the place of ours. Raises StorageProblem: database_other_version, or database_damaged:
    then the rows are kept when it is set aside.
    """
    version, found = version_of(connection), schema(connection)
    if version == 0 and not found:  # an empty file, as a full disk leaves it
        begin(connection, tables)
        version, found = version_of(connection), schema(connection)
    if version > 0 and version != VERSION:
        raise StorageProblem(reason("database_other_version", path=path))
    if version != VERSION or found != made_by(tables):
        raise _damaged(path)


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
def durably(connection: sqlite3.Connection) -> Iterator[None]:
    """What is committed inside has reached the disk when the commit returns (sqlite.org/pragma.html)."""
    connection.execute("PRAGMA synchronous = FULL")
    try:
        yield
    finally:
        connection.execute("PRAGMA synchronous = NORMAL")


@contextlib.contextmanager
def storage_problems(path: Path, *, is_open: bool = False) -> Iterator[None]:
    """Turn errors of the machine into a StorageProblem that names the database's file.

    Other SQLite errors are bugs of this program and are not caught. A damaged file is marked; so is one that was opened
    properly (`is_open`) and has lost tables since.
    """
    try:
        yield
    except sqlite3.Error as error:
        code = code_of(error)
        if code == sqlite3.SQLITE_FULL or (code in _PERHAPS_FULL and is_full(path.parent)):
            raise StorageProblem(reason("disk_full", path=path)) from error
        if code == sqlite3.SQLITE_IOERR:
            raise StorageProblem(reason("disk_failing", path=path, detail=error)) from error
        if code in _DAMAGE and not damage_mark(path).exists() and is_unreadable(path, companions(path)[0]):
            raise StorageProblem(reason("disk_failing", path=path, detail=error)) from error
        has_lost_tables = is_open and code == sqlite3.SQLITE_ERROR and not _has_our_schema(path)
        if code in _DAMAGE or _is_no_text(error) or has_lost_tables:
            raise _damaged(path) from error
        if code == sqlite3.SQLITE_BUSY:
            raise StorageProblem(reason("store_in_use", path=path)) from error
        if code in _ENVIRONMENT:
            raise StorageProblem(reason("not_writable", path=path, detail=error)) from error
        raise
    except UnicodeDecodeError as error:  # SQLite's own error quotes a schema that is no text any more
        raise _damaged(path) from error
    except HeldError as error:
        raise StorageProblem(reason("store_in_use", path=path)) from error
    except OSError as error:
        raise storage_problem(error, path) from error


@contextlib.contextmanager
def damage_noticed(path: Path) -> Iterator[None]:
    """Around turning rows into values: what this program cannot have written is damage. Raises StorageProblem."""
    try:
        yield
    except NONSENSE as error:
        raise _damaged(path) from error


def _damaged(path: Path) -> StorageProblem:
    _mark(path)
    return StorageProblem(reason("database_damaged", path=path))


def is_damage(error: sqlite3.Error) -> bool:
    """Whether SQLite calls a file damaged."""
    return code_of(error) in _DAMAGE


def _is_no_text(error: sqlite3.Error) -> bool:
    """Whether bytes that should be text are none: Python's own error, which has no code of SQLite's."""
    return not hasattr(error, "sqlite_errorcode") and str(error).startswith("Could not decode")


def _has_our_schema(path: Path) -> bool:
    """Whether the tables are still as this program makes them: then a statement that fails is a fault of ours."""
    try:
        with contextlib.closing(opened_to_read(path)) as found:
            return schema(found) in (made_by(RESULTS), made_by(PICTURES))
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


def lose_companions(path: Path) -> None:
    """The same of what SQLite kept beside a database that is gone."""
    for companion in companions(path):
        if companion.exists():
            companion.rename(free_name(path, "lost", companion.name.removeprefix(path.name)))


def _mark(path: Path) -> None:
    with contextlib.suppress(OSError):
        os.close(os.open(damage_mark(path), os.O_WRONLY | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), PRIVATE))


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


def files_of(path: Path) -> tuple[Path, ...]:
    """All that may lie on the disk for a database."""
    return (path, *companions(path), journal(path), damage_mark(path))


def _identity(path: Path) -> _Identity | None:
    """Device and inode, or None if there is no file."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
