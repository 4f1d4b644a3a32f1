"""A model of a disk after a power cut: which of the earlier writes may be on it.

Under both models all synced data (`fsync`, `fdatasync`) are kept. Of later writes to a file, any sectors may be kept
and others lost, in any order. The length of the file is that of any kept write, with zeros for lost sectors.

ordered      a file system with a journal of names, like ext4, XFS, Btrfs, APFS and NTFS: names change on the disk in
             the order in which the program changed them. Every sync writes all earlier changes of names, too.
unordered    the minimum that POSIX guarantees: names change on the disk in any order. Only changes in a folder before
             a sync of that folder are sure. A rename happens completely or not at all.
"""

from __future__ import annotations

import itertools
import os
import random
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

# The log of `watched_disk.c`: changes of the disk by all processes, in their order.
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
    """One change of the disk.

    number  inode of the file or folder at that moment
    path    parts of the path below the place, empty for a file without a name
    other   the new path after a rename or link
    at      the position of a write, or the new length after a truncation
    """

    kind: Kind
    number: int
    at: int = 0
    path: tuple[str, ...] = ()
    other: tuple[str, ...] = ()
    data: bytes = b""


def read_changes(log: bytes, root: Path) -> list[Change]:
    """Return the changes in a log, with paths below `root`."""
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


# ---- the possible content after a power cut

Model = Literal["ordered", "unordered"]
MODELS: Final[tuple[Model, ...]] = ("ordered", "unordered")
SECTORS: Final = (512, 4096)


@dataclass(eq=False, slots=True)
class _File:
    on_disk: bytes = b""
    now: bytearray = field(default_factory=bytearray)
    waiting: list[Change] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class _Folder:
    on_disk: dict[str, _Node] = field(default_factory=dict)
    now: dict[str, _Node] = field(default_factory=dict)


_Node = _File | _Folder
_Renaming = list[tuple[_Folder, str, _Node | None]]  # changed names in folders, each with its new file, folder, or None

State = Mapping[tuple[str, ...], bytes | None]  # content by path; None is a folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Luck:
    """Random decisions of a power cut: `share` is the chance that an unsynced sector or change of a name is kept."""

    chance: random.Random
    share: float
    sector: int = 4096

    def keeps(self) -> bool:
        """Decide whether the next sector or change is kept."""
        return self.share >= 1 or (self.share > 0 and self.chance.random() < self.share)

    def first_of(self, count: int) -> int:
        """Decide how many of `count` changes are kept, where the order is fixed."""
        return count if self.share >= 1 else 0 if self.share <= 0 else self.chance.randint(0, count)


class Disk:
    """A disk after some changes. `state` gives a possible content after a power cut at this moment."""

    def __init__(self, root: Path, model: Model) -> None:
        """Begin with the content of the folder `root`, all of it synced."""
        self.model = model
        self._root = _Folder()
        self._by_number: dict[int, _Node] = {root.stat().st_ino: self._root}
        self._waiting: list[_Renaming] = []
        self._take(root, self._root)

    def apply(self, change: Change) -> None:
        """Apply one more change."""
        match change.kind:
            case "create" | "folder":
                node = self._by_number[change.number] = _File() if change.kind == "create" else _Folder()
                if change.path:
                    self._rename([(*self._name(change.path), node)])
            case "write" | "cut":
                self._write(change)
            case "sync":
                self._sync(self._by_number[change.number])
            case "rename" | "exchange":
                self._move(change)
            case "link":
                self._rename([(*self._name(change.other), self._by_number[change.number])])
            case "remove":
                self._rename([(*self._name(change.path), None)])
            case "told":
                pass

    def now(self) -> State:
        """Return the content that a running program sees."""
        return dict(_tree(self._root, lambda folder: folder.now, lambda file: bytes(file.now)))

    def state(self, luck: Luck) -> State:
        """Return a possible content after a power cut."""
        names: dict[int, dict[str, _Node]] = {}
        if self.model == "ordered":
            kept: Iterable[_Renaming] = self._waiting[: luck.first_of(len(self._waiting))]
        else:
            kept = [renaming for renaming in self._waiting if luck.keeps()]
        for renaming in kept:
            for folder, name, node in renaming:
                _enter(names.setdefault(id(folder), dict(folder.on_disk)), name, node)
        return dict(
            _tree(self._root, lambda folder: names.get(id(folder), folder.on_disk), lambda file: _left(file, luck))
        )

    # ---- changes

    def _take(self, place: Path, folder: _Folder) -> None:
        for path in sorted(place.iterdir()):
            node: _Node = _Folder() if path.is_dir() else _File(path.read_bytes(), bytearray(path.read_bytes()))
            self._by_number[path.stat().st_ino] = folder.now[path.name] = folder.on_disk[path.name] = node
            if isinstance(node, _Folder):
                self._take(path, node)

    def _name(self, path: tuple[str, ...]) -> tuple[_Folder, str]:
        folder = self._root
        for part in path[:-1]:
            found = folder.now[part]
            assert isinstance(found, _Folder)
            folder = found
        return folder, path[-1]

    def _rename(self, renaming: _Renaming) -> None:
        for folder, name, node in renaming:
            _enter(folder.now, name, node)
        self._waiting.append(renaming)

    def _move(self, change: Change) -> None:
        (folder, name), (other_folder, other_name) = self._name(change.path), self._name(change.other)
        left = other_folder.now[other_name] if change.kind == "exchange" else None
        self._rename([(folder, name, left), (other_folder, other_name, folder.now[name])])

    def _write(self, change: Change) -> None:
        file = self._by_number[change.number]
        assert isinstance(file, _File)
        _overwrite(file.now, change.at, change.data) if change.kind == "write" else _cut(file.now, change.at)
        file.waiting.append(change)

    def _sync(self, node: _Node) -> None:
        if isinstance(node, _File):
            node.on_disk = bytes(node.now)
            node.waiting.clear()
        waiting: list[_Renaming] = []
        for renaming in self._waiting:
            left = [] if self.model == "ordered" else [entry for entry in renaming if entry[0] is not node]
            for folder, name, found in renaming:
                if self.model == "ordered" or folder is node:
                    _enter(folder.on_disk, name, found)
            if left:
                waiting.append(left)
        self._waiting = waiting


def _enter(names: dict[str, _Node], name: str, node: _Node | None) -> None:
    names.pop(name, None)
    if node is not None:
        names[name] = node


def _tree(
    folder: _Folder,
    names: Callable[[_Folder], Mapping[str, _Node]],
    content: Callable[[_File], bytes],
    above: tuple[str, ...] = (),
) -> Iterator[tuple[tuple[str, ...], bytes | None]]:
    for name, node in names(folder).items():
        if isinstance(node, _Folder):
            yield (*above, name), None
            yield from _tree(node, names, content, (*above, name))
        else:
            yield (*above, name), content(node)


def _left(file: _File, luck: Luck) -> bytes:
    """Return a possible content of a file after a power cut."""
    left = bytearray(file.on_disk)
    for change in file.waiting:
        if change.kind == "cut":
            if luck.keeps():
                _cut(left, change.at)
            continue
        begin, end = change.at, change.at + len(change.data)
        for start in range(begin - begin % luck.sector, end, luck.sector):
            first, last = max(start, begin), min(start + luck.sector, end)
            if luck.keeps():
                _overwrite(left, first, change.data[first - begin : last - begin])
    return bytes(left)


def _overwrite(content: bytearray, at: int, data: bytes) -> None:
    if at > len(content):
        content.extend(bytes(at - len(content)))
    content[at : at + len(data)] = data


def _cut(content: bytearray, length: int) -> None:
    if length < len(content):
        del content[length:]
    else:
        content.extend(bytes(length - len(content)))
