"""The file of a database: creating, opening and replacing the file, and converting errors of SQLite.

A lock file next to the database (`database_file_lock`) protects the file. A process holds the lock briefly while it
opens the database. A process that creates, repairs or replaces the database holds the lock for the whole operation. A
new file appears only when it is complete. In SQLite's WAL mode, queries never wait for the writer, and a commit
survives a killed program. A damaged file is marked, and is not opened until it is repaired.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import stat
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from fieldray.errors import StorageProblem
from fieldray.paths import VERSION as PROGRAM_VERSION
from fieldray.persistence import (
    PRIVATE_FILE_MODE,
    LockHeldError,
    create_empty_file,
    replace_durably,
    storage_problem,
    temporary_path,
)
from fieldray.reasons import reason
from fieldray.store.schema import (
    TableStatements,
    program_version_number,
    schema_version_of,
)

# Receives the share of some work that is done, 0..1.
ProgressShareCallback = Callable[[float], None]

# Exceptions from decoding a row that this program cannot have written.
INVALID_ROW_ERRORS: Final = (ValueError, TypeError, LookupError, AttributeError)
COMPANION_SUFFIXES: Final = ("-wal", "-shm", "-journal")
_PAGE_BYTES: Final = 8192  # a result takes two kilobytes, of which pages of 4096 would waste much
_BUSY_TIMEOUT_S: Final = 30.0
_CHECKPOINT_TRIES: Final = 3
_DAMAGE: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
# Errors of the machine or the file system. All others are bugs of this program.
_ENVIRONMENT_NAMES: Final = "CANTOPEN IOERR LOCKED NOLFS NOMEM PERM PROTOCOL READONLY"
_ENVIRONMENT: Final = frozenset(getattr(sqlite3, f"SQLITE_{name}") for name in _ENVIRONMENT_NAMES.split())
# SQLite also reports these errors if the disk has no room for its index or log, or if a quota is used up.
_PERHAPS_FULL: Final = frozenset({sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN})
_FULL_BELOW_BYTES: Final = 2**18
_PART_BYTES: Final = 2**20
# Handles of files read without SQLite, by device and inode. Never closed, to keep SQLite's locks (see `is_open_here`).
_read_through: Final[dict[tuple[int, int], int]] = {}
# Held while a connection opens or closes, and while a database file is read without SQLite.
OPENING_LOCK: Final = threading.RLock()
_open_here: Final = weakref.WeakSet["StoreConnection"]()


# ---- open connections


class StoreConnection(sqlite3.Connection):
    """An open connection to a database file.

    path  path of the database file at the time of opening. Later, another file may have this path
    """

    path: Path
    _identity: tuple[int, int]
    _companions: list[tuple[int, int]]

    def remember_file_identity(self, path: Path) -> None:
        """Store the identity of the open file, by which `require_same_file_at_path` detects that the file was replaced.

        The caller holds `OPENING_LOCK`. Raises OSError.
        """
        self.path, self._identity, self._companions = path, _identity(path), _companions_at(path)
        _open_here.add(self)

    def close(self) -> None:
        """Close the connection to the database. Safe to call twice."""
        with OPENING_LOCK:
            super().close()
            _open_here.discard(self)

    def is_same_file(self, identity: tuple[int, int]) -> bool:
        """Return whether the file that this connection opened has this identity.

        identity  device and inode of a file
        """
        return self._identity == identity

    def require_same_file_at_path(self) -> None:
        """Raise StorageProblem (store_gone) if the file that this connection opened was moved, deleted or replaced.

        SQLite would not notice: it would continue with the old file and report success. The write-ahead log of the old
        file is renamed, because SQLite would apply that log to a new file. The log of a new file is left alone.
        """
        try:
            is_here = _identity(self.path) == self._identity
        except OSError:
            is_here = False
        if not is_here:
            with contextlib.suppress(OSError):  # another thread was faster
                if _companions_at(self.path) == self._companions:
                    quarantine_companions(self.path)
            raise StorageProblem(reason("store_gone", path=self.path))


def is_open_here(path: Path) -> bool:
    """Return whether this process has a file open as a database. The caller holds `OPENING_LOCK`. Raises OSError.

    A file that is open must not be opened a second time without SQLite. Closing the second file handle would release
    all locks of this process on the file (sqlite.org/howtocorrupt.html, section 2.2). Another program could then delete
    the write-ahead log.
    """
    identity = _identity(path)
    return any(connection.is_same_file(identity) for connection in _open_here)


def open_read_only(path: Path) -> sqlite3.Connection:
    """Open a read-only connection to a database file. Raises sqlite3.Error."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)


def _connect(path: Path) -> StoreConnection:
    """Open a connection to a database file.

    Other programs cannot replace the open file. Raises OSError, sqlite3.Error.
    """
    if os.name == "posix" and stat.S_IMODE(path.stat().st_mode) != PRIVATE_FILE_MODE:
        path.chmod(PRIVATE_FILE_MODE)  # results name patients; SQLite gives its companions the same mode
    with OPENING_LOCK:
        connection = sqlite3.connect(
            path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False, factory=StoreConnection
        )
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute("PRAGMA temp_store = MEMORY")  # temporary tables hold names of patients
            schema_version_of(connection)  # SQLite holds its lock from the first reading on
            connection.remember_file_identity(path)
        except BaseException:
            connection.close()
            raise
    return connection


def create_database(path: Path, tables: TableStatements, version: int) -> StoreConnection:
    """Create a database file with these tables and this schema version, and open the file.

    Raises OSError, sqlite3.Error.
    """
    create_empty_file(path)
    with contextlib.closing(sqlite3.connect(path)) as empty:
        empty.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
        empty.execute("VACUUM")
    connection = _connect(path)
    try:
        _make_tables(connection, tables, version)
    except BaseException:
        connection.close()
        raise
    return connection


def _make_tables(connection: StoreConnection, tables: TableStatements, version: int) -> None:
    connection.execute("BEGIN IMMEDIATE")
    if schema_version_of(connection) == 0:  # otherwise another program made the tables while this one waited
        for statement in tables:
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {program_version_number(PROGRAM_VERSION)}")
        connection.execute(f"PRAGMA user_version = {version}")
    connection.execute("COMMIT")


def merge_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Merge the write-ahead log into the database file. Raises sqlite3.Error, for example on a full disk.

    Closing a connection merges the log as well, but leaves the log without an error on a full disk.
    """
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()


@contextlib.contextmanager
def transaction(connection: StoreConnection) -> Iterator[None]:
    """Run all statements of a `with` block in one transaction. Raises StorageProblem (store_gone), sqlite3.Error."""
    connection.require_same_file_at_path()
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # SQLite itself rolls back if the disk is full
            connection.execute("ROLLBACK")
        raise


@contextlib.contextmanager
def synchronous_writes(connection: sqlite3.Connection) -> Iterator[None]:
    """Make every commit within a `with` block wait for the disk (sqlite.org/pragma.html, synchronous)."""
    connection.execute("PRAGMA synchronous = FULL")
    try:
        yield
    finally:
        connection.execute("PRAGMA synchronous = NORMAL")


def enable_secure_delete(connection: sqlite3.Connection) -> None:
    """Make SQLite overwrite deleted content with zeros, for all later statements of a connection."""
    connection.execute("PRAGMA secure_delete = ON")


def vacuum(connection: sqlite3.Connection) -> bool:
    """Rebuild the database file without unused pages, and merge its write-ahead log.

    Returns whether both steps were completed. While another program reads the database, the log cannot be truncated. On
    a full disk, the file cannot be rebuilt. Deleted content is overwritten in either case.
    """
    is_small = True
    try:
        connection.execute("VACUUM")
    except sqlite3.OperationalError:
        is_small = False
    for _ in range(_CHECKPOINT_TRIES):
        try:
            (is_busy, *_rest) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except sqlite3.OperationalError:
            return False
        if not is_busy:
            return is_small
    return False


# ---- the files of a database, and their replacement


def pictures_path(database: Path) -> Path:
    """Return the path of the picture database (previews and thumbnails) that belongs to a results database."""
    return database.with_name(f"{database.stem}.pictures{database.suffix}")


def database_files(path: Path) -> tuple[Path, ...]:
    """Return the paths of all files that may belong to a database.

    These are the database, SQLite's additional files, and the file that marks a damaged database.
    """
    return (path, *companion_files(path), damage_mark_path(path))


def companion_files(path: Path) -> tuple[Path, ...]:
    """Return the paths of SQLite's additional files for a database: write-ahead log, shared memory, and journal."""
    return tuple(path.with_name(path.name + ending) for ending in COMPANION_SUFFIXES)


def remove_files(path: Path) -> None:
    """Delete a database with its additional files. Raises OSError."""
    for file in database_files(path):
        file.unlink(missing_ok=True)


def link_or_copy(path: Path, copy: Path) -> None:
    """Make a hard link `copy` to a file. If no link can be made, copy the file. Raises OSError."""
    temporary = temporary_path(copy)
    try:
        try:
            os.link(path, temporary)
        except OSError:
            create_empty_file(temporary)
            shutil.copyfile(path, temporary)
        replace_durably(temporary, copy)
    finally:
        temporary.unlink(missing_ok=True)


def unused_path(path: Path, word: str, ending: str = "") -> Path:
    """Return an unused path next to `path` that contains a word and a number, such as `results.lost-1.sqlite`.

    The number is above that of all existing files with this word.

    word    the word before the number
    ending  suffix of one of SQLite's additional files, such as `-wal`; "" for the database
    """
    number = 1 + max(numbered_files(path, word, ending), default=0)
    return path.with_name(f"{path.stem}.{word}-{number}{path.suffix}{ending}")


def numbered_files(path: Path, word: str, ending: str = "") -> dict[int, Path]:
    """Return the existing files with names made by `unused_path`, by the number in the name.

    The file with the highest number is the newest. The parameters are those of `unused_path`.
    """
    begin, end = f"{path.stem}.{word}-", f"{path.suffix}{ending}"
    found = {file.name.removeprefix(begin).removesuffix(end): file for file in path.parent.glob(f"{begin}*{end}")}
    return {int(number): file for number, file in found.items() if number.isascii() and number.isdigit()}


def quarantine_companions(path: Path) -> None:
    """Rename SQLite's additional files of a database, so that SQLite does not apply them to another file.

    Raises OSError.
    """
    for companion, ending in zip(companion_files(path), COMPANION_SUFFIXES, strict=True):
        with contextlib.suppress(FileNotFoundError):
            companion.rename(unused_path(path, "lost", ending))


def _identity(path: Path) -> tuple[int, int]:
    """Return device and inode of a file, by which a replaced file is detected. Raises OSError."""
    status = path.lstat()
    return status.st_dev, status.st_ino


def _companions_at(path: Path) -> list[tuple[int, int]]:
    """Return device and inode of each of SQLite's additional files for a database. Raises OSError."""
    found = []
    for companion in companion_files(path):
        with contextlib.suppress(FileNotFoundError):  # another program deletes them when it closes the database
            found.append(_identity(companion))
    return found


# ---- errors, and damage


@contextlib.contextmanager
def convert_sqlite_errors(path: Path) -> Iterator[None]:
    """Convert SQLite's errors in a `with` block to StorageProblem, if the disk or a damaged file caused them.

    A damaged file is marked. Other errors of SQLite are bugs of this program and are not converted.

    path  path of the database
    """
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # 0 for an error of Python's sqlite3 module
        if code == sqlite3.SQLITE_FULL or (code in _PERHAPS_FULL and _is_full(path.parent)):
            raise StorageProblem(reason("disk_full", path=path)) from error
        is_new_damage = code in _DAMAGE and not damage_mark_path(path).exists()
        if code == sqlite3.SQLITE_IOERR or (is_new_damage and _is_unreadable(path)):
            raise StorageProblem(reason("disk_failing", path=path, detail=error)) from error
        if code in _DAMAGE or (not code and str(error).startswith("Could not decode")):  # bytes that should be text
            raise mark_damaged(path) from error
        if code == sqlite3.SQLITE_BUSY:
            raise StorageProblem(reason("store_in_use", path=path)) from error
        if code in _ENVIRONMENT:
            raise StorageProblem(reason("not_writable", path=path, detail=error)) from error
        raise
    except UnicodeDecodeError as error:  # the message of SQLite's error quotes damaged bytes
        raise mark_damaged(path) from error
    except LockHeldError as error:
        raise StorageProblem(reason("store_in_use", path=path)) from error
    except OSError as error:
        raise storage_problem(error, path) from error


@contextlib.contextmanager
def mark_damaged_on_invalid_row(path: Path) -> Iterator[None]:
    """Mark a file as damaged if a `with` block reads an invalid row (`INVALID_ROW_ERRORS`). Raises StorageProblem."""
    try:
        yield
    except INVALID_ROW_ERRORS as error:
        raise mark_damaged(path) from error


def mark_damaged(path: Path) -> StorageProblem:
    """Mark a database file as damaged. Returns the exception for the caller to raise."""
    with contextlib.suppress(OSError):
        os.close(
            os.open(damage_mark_path(path), os.O_WRONLY | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), PRIVATE_FILE_MODE)
        )
    return _damage(path)


def damage_mark_path(path: Path) -> Path:
    """Return the path of the mark file. If this file exists, the database at `path` is damaged."""
    return path.with_name(path.name + ".damaged")


def require_no_damage_mark(path: Path) -> None:
    """Raise StorageProblem (database_damaged or pictures_damaged) if a database file is marked as damaged."""
    if damage_mark_path(path).exists():
        raise _damage(path)


def is_damage_problem(problem: StorageProblem) -> bool:
    """Return whether a problem is a damaged database file. A fault of the disk or the system is not."""
    return problem.reason.code in ("database_damaged", "pictures_damaged")


def _damage(path: Path) -> StorageProblem:
    is_of_pictures = ".pictures" in path.suffixes
    return StorageProblem(reason("pictures_damaged" if is_of_pictures else "database_damaged", path=path))


def _is_full(folder: Path) -> bool:
    """Return whether a folder has no room for another file.

    A file is written as a test, because a used-up quota shows only on writing.
    """
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(os.urandom(_FULL_BELOW_BYTES))
    except OSError as error:
        return storage_problem(error, folder).reason.code == "disk_full"
    return False


def _is_unreadable(database: Path) -> bool:
    """Return whether a database that SQLite reports as damaged may lie on a part of the disk that cannot be read.

    SQLite reports both causes as damage, even if the disk can be read again later.
    """
    try:
        for file in filter(Path.exists, (database, companion_files(database)[0])):
            _require_readable(file)
        with contextlib.closing(open_read_only(database)) as found:
            return bool(found.execute("PRAGMA integrity_check(1)").fetchone() == ("ok",))
    except sqlite3.Error:
        return False
    except OSError as error:
        return not isinstance(error, FileNotFoundError)


def _require_readable(file: Path) -> None:
    """Read a whole file as a test. Raises OSError if a part of the file cannot be read."""
    if os.name != "posix":
        with file.open("rb", buffering=0) as stream:
            while stream.read(_PART_BYTES):
                pass
        return
    known = _identity(file)
    if known not in _read_through:
        _read_through[known] = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    at = 0
    while part := os.pread(_read_through[known], _PART_BYTES, at):
        at += len(part)
