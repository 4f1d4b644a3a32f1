"""Another file in the place of a database: by one program at a time, and only while nobody else has it open.

Who exchanges a file takes a lock beside it and then makes sure that nobody has the file open (`only_one`, `alone`).
Who opens one has it open first and then looks at the lock (`is_being_exchanged`). So one of the two notices the other
whatever the order, on every system.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from fieldray.errors import StorageProblem
from fieldray.persistence import FileLock, HeldError, make_empty, replace_durably, unfinished
from fieldray.reasons import reason
from fieldray.store.disk import code_of

_WAIT_S: Final = 5.0  # for a program that has just looked at the version
_ASK_AGAIN_S: Final = 0.1


@contextlib.contextmanager
def only_one(path: Path, *, wait_s: float | None = None) -> Iterator[None]:
    """While inside, no other program of this version puts another file in the place of this one, or opens this one.

    Raises HeldError.
    """
    lock = FileLock(_lock_of(path), holder=str(os.getpid()), wait_s=_WAIT_S if wait_s is None else wait_s)
    try:
        yield
    finally:
        lock.remove()


def is_being_exchanged(path: Path) -> bool:
    """Whether somebody is inside `only_one` with this file. Raises OSError."""
    if not _lock_of(path).exists():
        return False
    try:
        with only_one(path, wait_s=0.0):  # what a program that was killed has left goes
            return False
    except HeldError:
        return True


def alone(path: Path) -> sqlite3.Connection:
    """A connection while nobody else has one: only then can the log of changes be given up.

    Raises StorageProblem (store_in_use), and sqlite3.Error where the disk refuses.
    """
    connection = sqlite3.connect(path, isolation_level=None)
    connection.row_factory = sqlite3.Row
    until_s = time.monotonic() + _WAIT_S
    try:
        while True:
            try:
                (mode,) = connection.execute("PRAGMA journal_mode = DELETE").fetchone()
                if mode == "delete":
                    return connection
            except sqlite3.OperationalError as error:
                if code_of(error) not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                    raise
            if time.monotonic() > until_s:
                raise StorageProblem(reason("store_in_use", path=path))
            time.sleep(_ASK_AGAIN_S)
    except BaseException:
        connection.close()
        raise


def keep_copy(path: Path, copy: Path) -> None:
    """Give a file a second name; where a file has only one, copy it. Raises OSError."""
    beside = unfinished(copy)
    try:
        try:
            os.link(path, beside)
        except OSError:
            make_empty(beside)
            shutil.copyfile(path, beside)
        replace_durably(beside, copy)
    finally:
        beside.unlink(missing_ok=True)


def free_name(path: Path, word: str, companion: str = "") -> Path:
    """A free name beside `path`, its number above the others: `results.lost-1.sqlite`, plus a companion's ending."""
    number = 1 + max(numbered(path, word, companion), default=0)
    return path.with_name(f"{path.stem}.{word}-{number}{path.suffix}{companion}")


def numbered(path: Path, word: str, companion: str = "") -> dict[int, Path]:
    """The files that have such names, by number: the highest is the last, whatever the clock said."""
    beginning, end = f"{path.stem}.{word}-", f"{path.suffix}{companion}"
    found = {
        place.name.removeprefix(beginning).removesuffix(end): place
        for place in path.parent.iterdir()
        if place.name.startswith(beginning) and place.name.endswith(end)
    }
    return {int(number): place for number, place in found.items() if number.isascii() and number.isdigit()}


def _lock_of(path: Path) -> Path:
    return path.with_name(path.name + ".upgrade")
