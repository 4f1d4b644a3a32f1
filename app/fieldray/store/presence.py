"""Which images of a run are no longer there, as its last whole pass and the file system show."""

from __future__ import annotations

import os
import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

# The images of a run, and whether its last pass saw them.
ROWS: Final = """
    SELECT results.id, image_key, stage, results.reason, results.pass_number = runs.pass_number AS is_seen
    FROM results JOIN runs ON runs.id = run_id WHERE run_id = ? AND absent_s IS NULL
"""
# The images that a run's last pass saw whose bytes it saw more than once.
TWINS: Final = """
    WITH seen AS (SELECT results.id, image_key, content_sha256, frame FROM results JOIN runs ON runs.id = run_id
                  WHERE run_id = ? AND results.pass_number = runs.pass_number AND content_sha256 != x'')
    SELECT id, image_key, content_sha256, frame FROM seen WHERE (content_sha256, frame) IN (
        SELECT content_sha256, frame FROM seen GROUP BY content_sha256, frame HAVING COUNT(*) > 1)
"""
_SEPARATOR: Final = os.fsencode(os.sep)
_MEMBER: Final = b"\0"
_FRAME: Final = b"\0\0"


def is_there(key: bytes) -> bool:
    """Whether there is something at the place that an image's key (`rows.image_key`) names: the file, or its zip."""
    return os.path.lexists(key.partition(_MEMBER)[0])


def is_another(key: bytes, other: bytes) -> bool:
    """Whether there is a file at the first place that is not, under a name by another way or case, the second one."""
    (path, *inside), (other_path, *other_inside) = key.split(_MEMBER), other.split(_MEMBER)
    try:
        return not (os.path.samefile(path, other_path) and inside == other_inside)  # noqa: PTH121
    except OSError:
        return is_there(key)


def emptied(rows: Sequence[sqlite3.Row], paths: Sequence[str]) -> tuple[bytes, ...]:
    """The given paths under which there once were images, and of which the pass saw none."""
    places = {os.fsencode(path).rstrip(_SEPARATOR) for path in paths}
    had, has = set(), set()
    for row in rows:
        key = row["image_key"]
        under = places.intersection((key, *(place for place, _ in _places_around(key))))
        had |= under
        has |= under if row["is_seen"] else set()
    return tuple(sorted(had - has))


def gone(rows: Sequence[sqlite3.Row], empty: Sequence[bytes]) -> set[int]:
    """The rows that a pass did not see, except those in folders and zip files that it could not read, or `empty`."""
    unread = {row["image_key"] for row in rows if row["is_seen"] and row["stage"] == "discover" and not _is_partly(row)}
    spared = unread.union(empty)
    return {row["id"] for row in rows if not row["is_seen"] and not _is_in_any(row["image_key"], spared)}


def moved(twins: Sequence[sqlite3.Row]) -> set[int]:
    """Of the rows with the same bytes, those whose file has gone since it was read while another one is there."""
    groups: defaultdict[tuple[bytes, int], list[sqlite3.Row]] = defaultdict(list)
    for row in twins:
        groups[row["content_sha256"], row["frame"]].append(row)
    left: set[int] = set()
    for group in groups.values():
        lost = {row["id"] for row in group if not is_there(row["image_key"])}
        left |= lost if len(lost) < len(group) else set()
    return left


def _is_partly(row: sqlite3.Row) -> bool:
    """Whether the row is about a zip file of which all but a few members were read."""
    return str(row["reason"]).startswith('["double_members"')


def _places_around(key: bytes) -> Iterator[tuple[bytes, bool]]:
    """Each folder and file that an image's key begins with, and whether the image is a frame of that very file.

    There are as many as the key has parts, however many places are asked about.
    """
    for end, byte in enumerate(key):
        if byte in _SEPARATOR + _MEMBER:
            yield key[:end], key.startswith(_FRAME, end)


def _is_in_any(key: bytes, places: AbstractSet[bytes]) -> bool:
    """Whether an image is inside one of these folders and zip files; a frame is not inside its own file."""
    around = [is_frame for place, is_frame in _places_around(key) if place in places]
    return bool(around) and not any(around)
