"""A connection that notices when its file is no longer the one at its path.

SQLite goes on with a file that was moved, deleted or replaced, and reports success: what is written then is lost.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any, Final

from fieldray.errors import StorageProblem
from fieldray.reasons import reason

COMPANIONS: Final = ("-wal", "-shm")
_Identity = tuple[int, int]


class WatchedConnection(sqlite3.Connection):
    """Every statement first looks whether the file is still there. Raises StorageProblem (store_gone) if it is not."""

    _path: Path | None = None
    _identity: _Identity | None = None
    _companions: tuple[_Identity | None, ...] = ()

    def watch(self, path: Path) -> None:
        """From now on. The file has been read, so that its companions are there, too."""
        self._identity = _identity(path)
        self._companions = tuple(_identity(companion) for companion in companions(path))
        self._path = path

    def execute(self, statement: str, values: Any = (), /) -> sqlite3.Cursor:
        """As SQLite's own, on the right file."""
        if self._path is not None and (self._identity is None or _identity(self._path) != self._identity):
            self._leave(self._path)
            raise StorageProblem(reason("store_gone", path=self._path))
        return super().execute(statement, values)

    def _leave(self, path: Path) -> None:
        """Put the companions out of the way: the next to open a file here would read them as changes to that one."""
        for companion, known in zip(companions(path), self._companions, strict=True):
            if known is not None and _identity(companion) == known:
                try:
                    companion.rename(free_name(path, "lost", companion.name.removeprefix(path.name)))
                except OSError:  # another thread was quicker
                    continue


def companions(path: Path) -> tuple[Path, ...]:
    """The files that SQLite keeps beside a database."""
    return tuple(path.with_name(path.name + ending) for ending in COMPANIONS)


def free_name(path: Path, word: str, companion: str = "") -> Path:
    """A name beside `path` that is not taken: `results.lost-1.sqlite` (with the ending of a companion)."""
    number = 1
    while (place := path.with_name(f"{path.stem}.{word}-{number}{path.suffix}{companion}")).exists():
        number += 1
    return place


def _identity(path: Path) -> _Identity | None:
    """Device and inode, None where nothing is."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
