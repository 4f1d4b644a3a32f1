"""What the disk has to do with an error of SQLite, which has few words for it."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import tempfile
from pathlib import Path
from typing import Final

from fieldray.persistence import storage_problem
from fieldray.store.copied import opened_to_read

_FULL_BELOW_BYTES: Final = 2**18
_PART_BYTES: Final = 2**20
# By device and inode. Kept open: closing one would give up SQLite's locks on the file (sqlite.org/howtocorrupt.html).
_opened: Final[dict[tuple[int, int], int]] = {}


def is_full(folder: Path) -> bool:
    """Whether there is no room in a folder; a quota that is used up shows only where something is written."""
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(os.urandom(_FULL_BELOW_BYTES))
    except OSError as error:
        return storage_problem(error, folder).reason.code == "disk_full"
    return False


def code_of(error: sqlite3.Error) -> int:
    """SQLite's primary result code, 0 where the error is Python's own."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def is_unreadable(database: Path, log: Path) -> bool:
    """Whether what SQLite calls damage is a page that cannot be read, or could not a moment ago: it says the same."""
    try:
        for file in filter(Path.exists, (database, log)):
            _read_through(file)
        with contextlib.closing(opened_to_read(database)) as found:
            return bool(found.execute("PRAGMA integrity_check(1)").fetchone() == ("ok",))
    except sqlite3.Error:
        return False
    except OSError as error:
        return not isinstance(error, FileNotFoundError)


def _read_through(file: Path) -> None:
    """Raises OSError."""
    if os.name != "posix":
        with file.open("rb", buffering=0) as stream:
            while stream.read(_PART_BYTES):
                pass
        return
    status = file.stat()
    known = status.st_dev, status.st_ino
    if known not in _opened:
        _opened[known] = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    at = 0
    while part := os.pread(_opened[known], _PART_BYTES, at):
        at += len(part)
