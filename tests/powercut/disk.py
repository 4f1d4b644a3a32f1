"""A disk that loses its power: what may be on it afterwards, of all that was written to it before.

Two models. Under both, what was brought to the disk (`fsync`, `fdatasync`) is there, and of what was written since to a
file, any sectors may be there and others not, whatever their order; a file may be as long as any of it makes it, with
zeros between.

ordered      a file system with a journal of its names, as ext4, XFS, Btrfs, APFS and NTFS are: names change on the disk
             in the order in which they were changed, and whatever is brought to the disk takes all changes of names
             before it along.
unordered    the least that POSIX promises: names are changed on the disk in any order, and only what was done in a
             folder before that folder was brought to the disk is sure. A rename happens wholly or not at all.
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

# What `watched_disk.c` wrote down: the changes of a disk, in the order in which they happened over all processes.
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


# ---- what may be left of them

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
_Renaming = list[tuple[_Folder, str, _Node | None]]  # names in folders, and what they lead to from now on

State = Mapping[tuple[str, ...], bytes | None]  # by path; None is a folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Luck:
    """What a power cut leaves: each thing that was on its way with this chance, in sectors of this size."""

    chance: random.Random
    share: float
    sector: int = 4096

    def keeps(self) -> bool:
        """Whether the next thing is there."""
        return self.share >= 1 or (self.share > 0 and self.chance.random() < self.share)

    def first_of(self, count: int) -> int:
        """How many of the first things are there, where they are taken in order."""
        return count if self.share >= 1 else 0 if self.share <= 0 else self.chance.randint(0, count)


class Disk:
    """All changes so far; `states` of it after a power cut now."""

    def __init__(self, root: Path, model: Model) -> None:
        """As the folder `root` is, all of it on the disk."""
        self.model = model
        self._root = _Folder()
        self._by_number: dict[int, _Node] = {root.stat().st_ino: self._root}
        self._waiting: list[_Renaming] = []
        self._take(root, self._root)

    def apply(self, change: Change) -> None:
        """One change more."""
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
        """All of it, as a program sees it that is at work."""
        return dict(_tree(self._root, lambda folder: folder.now, lambda file: bytes(file.now)))

    def state(self, luck: Luck) -> State:
        """What may be there after a power cut."""
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

    # ---- inside

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
    """The content after a power cut."""
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
