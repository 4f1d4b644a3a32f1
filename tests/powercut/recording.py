"""What `watched_disk.c` wrote down: the changes of a disk, in the order in which they happened over all processes."""

from __future__ import annotations

import itertools
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

Kind = Literal["create", "folder", "write", "cut", "sync", "rename", "exchange", "link", "remove", "told"]
_KINDS: Final[dict[str, Kind]] = {
    "C": "create",
    "D": "folder",
    "W": "write",
    "T": "cut",
    "S": "sync",
    "R": "rename",
    "X": "exchange",
    "L": "link",
    "U": "remove",
    "M": "told",
}
_HEAD: Final = struct.Struct("=4I2Q")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change.

    number  of the file or folder (its inode) at that moment
    path    as parts below the place, empty for a file without a name
    other   the new path of what was renamed or linked
    at      where it was written, or the new length of what was cut
    """

    kind: Kind
    number: int
    at: int = 0
    path: tuple[str, ...] = ()
    other: tuple[str, ...] = ()
    data: bytes = b""


def read_changes(log: bytes, root: Path) -> list[Change]:
    """The changes in a log, with paths below `root`."""
    found, start = [], 0
    while start < len(log):
        kind, path_length, other_length, data_length, number, at = _HEAD.unpack_from(log, start)
        ends = [start + _HEAD.size]
        for length in (path_length, other_length, data_length):
            ends.append(ends[-1] + length)
        path, other, data = (log[begin:end] for begin, end in itertools.pairwise(ends))
        parts, other_parts = _parts(path, root), _parts(other, root)
        found.append(Change(kind=_KINDS[chr(kind)], number=number, at=at, path=parts, other=other_parts, data=data))
        start = ends[-1]
    return found


def _parts(path: bytes, root: Path) -> tuple[str, ...]:
    return Path(os.path.normpath(os.fsdecode(path))).relative_to(root).parts if path else ()
