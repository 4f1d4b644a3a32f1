"""Storage of preview images and thumbnails, in a second database next to the results database.

The picture database may be deleted at any time. No result is then lost, and viewers say that no picture was kept. So a
problem with the picture database is logged and never ends a run.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from fieldray.domain.finding import PREVIEW_SIDE, THUMBNAIL_SIDE, Outcome
from fieldray.errors import StorageProblem
from fieldray.store.database import (
    StoreConnection,
    convert_sqlite_errors,
    database_files,
    enable_secure_delete,
    is_damage_problem,
    pictures_path,
    remove_files,
    transaction,
    vacuum,
)
from fieldray.store.opening import open_database
from fieldray.store.schema import PICTURES_TABLES

log = logging.getLogger(__name__)

T = TypeVar("T")

_MAX_PREVIEW_BYTES: Final = PREVIEW_SIDE**2  # no preview JPEG is larger
_COLUMNS: Final = "content_sha256, frame, thumbnail, thumbnail_columns, preview"
_ADD: Final = f"""
    INSERT INTO pictures ({_COLUMNS}) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (content_sha256, frame) DO UPDATE
    SET thumbnail = excluded.thumbnail, thumbnail_columns = excluded.thumbnail_columns, preview = excluded.preview
    WHERE preview IS NULL AND excluded.preview IS NOT NULL
"""
_MAKE_NEEDED: Final = """
    CREATE TEMP TABLE needed (content BLOB, frame INTEGER, PRIMARY KEY (content, frame)) WITHOUT ROWID
"""
_DELETE_UNNEEDED: Final = """
    DELETE FROM pictures WHERE NOT EXISTS (SELECT 1 FROM needed WHERE content = content_sha256
                                                                  AND needed.frame = pictures.frame)
"""

# SHA-256 of the file, and frame.
PictureKey = tuple[bytes, int]
PictureRow = tuple[bytes, int, bytes | None, int, bytes | None]
Thumbnail = NDArray[np.uint8]


def database_size_bytes(database: Path) -> int:
    """Return the size in bytes of a results database and its picture database, including SQLite's additional files."""
    total = 0
    for file in (*database_files(database), *database_files(pictures_path(database))):
        with contextlib.suppress(FileNotFoundError):  # another program deletes companions when it closes the database
            total += file.stat().st_size
    return total


def picture_row(outcome: Outcome) -> PictureRow | None:
    """Return the row of the table `pictures` for an image; None if the outcome has no preview and no thumbnail.

    Pictures are stored in the orientation of the file.
    """
    facts, ref = outcome.facts, outcome.ref
    if not facts.content_sha256 or not (facts.preview or facts.thumbnail is not None):
        return None
    small = None if facts.thumbnail is None else ref.correction.inverse.apply_to_grey(facts.thumbnail)
    thumbnail = (None, 0) if small is None else (small.tobytes(), small.shape[1])
    return (bytes.fromhex(facts.content_sha256), ref.frame, *thumbnail, facts.preview or None)


def thumbnail_of(data: object, columns: object) -> Thumbnail | None:
    """Decode a thumbnail (height, width) uint8 from a database row; None for invalid data.

    data     the grey levels, row by row
    columns  width of the thumbnail in pixels
    """
    if not (isinstance(data, bytes) and isinstance(columns, int) and 0 < columns <= THUMBNAIL_SIDE):
        return None
    if not data or len(data) % columns or len(data) > columns * THUMBNAIL_SIDE:
        return None
    return np.frombuffer(data, np.uint8).reshape(-1, columns)


class Pictures:
    """Reads and writes the pictures of a results database, from one thread.

    The picture database is opened on first use.

    After a problem with the picture database, the methods return no more pictures.
    """

    def __init__(self, database: Path) -> None:
        self._path = pictures_path(database)
        self._connection: StoreConnection | None = None
        self._has_problem = False

    def close(self) -> None:
        """Close the picture database, if it is open."""
        connection, self._connection = self._connection, None
        if connection:
            connection.close()

    def add(self, rows: Sequence[PictureRow]) -> None:
        """Store all of these pictures or none. Pictures that are stored already are skipped."""

        def add(connection: StoreConnection) -> None:
            with transaction(connection):
                connection.executemany(_ADD, rows)

        if rows:
            self._try(add, None)

    def thumbnails(self, keys: Iterable[PictureKey]) -> dict[PictureKey, Thumbnail]:
        """Return the stored thumbnails of images, by key: SHA-256 of the file, and number of the frame."""
        contents = sorted({content for content, _ in keys if content})
        query = f"""SELECT content_sha256, frame, thumbnail, thumbnail_columns FROM pictures
                    WHERE content_sha256 IN ({", ".join("?" * len(contents))})"""
        found: dict[PictureKey, Thumbnail] = {}
        for content, frame, data, columns in self._all(query, contents) if contents else ():
            if (pixels := thumbnail_of(data, columns)) is not None:
                found[content, frame] = pixels
        return found

    def preview(self, content_sha256: bytes, frame: int) -> bytes | None:
        """Return the preview (JPEG) of an image; None if no valid preview is stored.

        content_sha256  SHA-256 (32 bytes) of the image file's content
        frame           number of the frame in the file
        """
        query = """SELECT preview FROM pictures WHERE content_sha256 = ? AND frame = ?
                   AND typeof(preview) = 'blob' AND length(preview) <= ?"""
        found = self._all(query, (content_sha256, frame, _MAX_PREVIEW_BYTES))
        return found[0][0] if found else None

    def _all(self, query: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        """Return the rows of a query; none if there is no picture database. A query never creates the database."""
        if self._connection is None and not self._path.exists():
            return []
        return self._try(lambda connection: connection.execute(query, values).fetchall(), [])

    def _try(self, work: Callable[[StoreConnection], T], otherwise: T) -> T:
        """Call `work` with the connection to the picture database, and return the result.

        A missing database is created.

        A problem with the database is logged, and `otherwise` is returned.
        """
        if self._has_problem:
            return otherwise
        try:
            with convert_sqlite_errors(self._path):
                self._connection = self._connection or open_database(self._path, tables=PICTURES_TABLES)
                return work(self._connection)
        except (StorageProblem, sqlite3.Error) as problem:
            log.warning("a problem with the picture database: %s", problem)
            self._has_problem = True
            self.close()
            return otherwise


# ---- maintenance, which raises problems instead of logging them


def delete_pictures_except(database: Path, needed: Iterable[PictureKey]) -> tuple[int, bool]:
    """Delete all pictures whose key is not in `needed`. A damaged picture database is deleted as a whole.

    Returns the number of deleted pictures, and whether the file was rebuilt without them (see `vacuum`). Raises
    StorageProblem.
    """
    path = pictures_path(database)
    if not path.exists():
        delete_pictures(database)  # SQLite's additional files of a deleted database
        return 0, True
    try:
        with contextlib.closing(open_database(path, tables=PICTURES_TABLES)) as connection, convert_sqlite_errors(path):
            enable_secure_delete(connection)
            connection.execute(_MAKE_NEEDED)
            with transaction(connection):
                connection.executemany("INSERT INTO needed VALUES (?, ?)", needed)
                deleted = connection.execute(_DELETE_UNNEEDED).rowcount
            return deleted, vacuum(connection)
    except StorageProblem as problem:
        if not is_damage_problem(problem):
            raise
        delete_pictures(database)
        return 0, True


def delete_pictures(database: Path) -> None:
    """Delete the picture database of a results database. Raises StorageProblem."""
    path = pictures_path(database)
    with convert_sqlite_errors(path):
        remove_files(path)
