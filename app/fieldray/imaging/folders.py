"""Folders while they are searched."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Self

_SYSTEM_NAMES: Final = frozenset(
    {"thumbs.db", "ehthumbs.db", "desktop.ini", "autorun.inf", "__macosx"}
    | {"$recycle.bin", "system volume information", "lost+found"}
)


def is_system_name(name: str) -> bool:
    """Whether a file or folder of this name belongs to the system: it is not looked at, whatever it lies in."""
    return (name.startswith(".") and name not in (".", "..")) or name.lower() in _SYSTEM_NAMES


def parts_of(name: str) -> tuple[str, ...]:
    """The parts of a file's name in a zip file or a DICOMDIR, whichever stroke divides them, without empty ones."""
    return tuple(part for part in name.replace("\\", "/").split("/") if part not in ("", "."))


def mark(name: str, *, is_folder: bool) -> str:
    """A name, and whether it is a folder's."""
    return name + "/" if is_folder else name


class Folder:
    """A folder and its entries still to be visited: names, and whether each is a folder."""

    def __init__(self, path: Path, entries: Sequence[tuple[str, bool]] = ()) -> None:
        """Raises OSError."""
        self.path = path
        self.names = frozenset(mark(name, is_folder=is_folder) for name, is_folder in entries)
        self._left = sorted(entries, reverse=True)
        status = os.stat(path)  # noqa: PTH116 - as in `is_lost`
        self._device, self._number = status.st_dev, status.st_ino

    @functools.cached_property
    def real(self) -> str:
        """Its path without links."""
        return os.path.realpath(self.path)

    def is_inside_itself(self, way: Sequence[Folder]) -> bool:
        """Whether it is one of those on the way to it: a junction of Windows leads there, and is no link to Python."""
        known = (self._device, self._number)
        return any(known == (above._device, above._number) and self.real == above.real for above in way)

    @classmethod
    def listed(cls, path: Path) -> Self:
        """With all its entries but the system's. A link does not count as a folder. Raises OSError."""
        with os.scandir(path) as entries:
            found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        return cls(path, [entry for entry in found if not is_system_name(entry[0])])

    def next_entry(self) -> tuple[Path, bool] | None:
        """The next in order of the names, None when there is none left."""
        if not self._left:
            return None
        name, is_folder = self._left.pop()
        return self.path / name, is_folder

    def entries(self) -> Iterator[tuple[Path, bool]]:
        """All that are left."""
        return iter(self.next_entry, None)

    def is_lost(self) -> bool:
        """Whether it can no longer be listed, or is on another drive: unplugging leaves an empty mount point."""
        try:
            with os.scandir(self.path) as entries:
                next(entries, None)
            return os.stat(self.path).st_dev != self._device  # noqa: PTH116 - no path is normalised here
        except OSError:
            return True
