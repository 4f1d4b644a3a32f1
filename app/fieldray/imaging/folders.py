"""Folders while they are searched."""

from __future__ import annotations

import functools
import os
import re
from collections import Counter
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


# ---- the files that a DICOMDIR names


_MOST_COMPONENTS: Final = 32  # of a name; the standard allows 8 (PS3.10 8.5)
_STEM: Final = "/"  # no name begins so
_ENDING: Final = re.compile(r"(?<=.)(\.[a-z][a-z0-9]{0,4})?(;[0-9]+)?$")  # an extension, and a version


def file_named(folder: Path, components: Sequence[str], names: NamesInAnyCase) -> Path | None:
    """The file that a DICOMDIR names, in upper or lower case; None for anything but plain names (PS3.10 8.2).

    Discs were written whose index divides names by another stroke, or whose files have an extension that it leaves out.
    """
    path, parts = folder, parts_of("/".join(components))
    if len(parts) > _MOST_COMPONENTS:
        return None
    for name in parts:
        if name == ".." or set(name) & set(':\0<>|"'):
            return None
        path = names.find(path, name)
    is_elsewhere = components[:1] and components[0].startswith("/") and not os.path.lexists(path)
    return path if parts and not is_elsewhere else None


class NamesInAnyCase:
    """Finds files whatever the case of their names; lists each folder once.

    A folder is asked for its own names: where the system takes any case, a file would have two otherwise.
    """

    def __init__(self) -> None:
        self._listed: dict[Path, dict[str, str]] = {}

    def find(self, folder: Path, name: str) -> Path:
        """The entry of that name, in another case or with another extension; the name as given if there is none.

        An extension, or the version that some systems write behind a name, counts where one entry alone has the name
        without it.
        """
        names, stem = self._names(folder), _stem(name)
        return folder / (names.get(name) or names.get(name.casefold()) or names.get(_STEM + stem) or name)

    def _names(self, folder: Path) -> dict[str, str]:
        if folder not in self._listed:
            try:
                names = os.listdir(folder)  # noqa: PTH208 - names alone, not paths
            except OSError:  # no folder, or none that may be read; not kept, since a DICOMDIR can name any number
                return {}
            stems = [(_STEM + _stem(name), name) for name in names if not is_system_name(name)]
            often = Counter(stem for stem, _ in stems)
            self._listed[folder] = {stem: name for stem, name in stems if often[stem] == 1}
            self._listed[folder] |= {name.casefold(): name for name in reversed(names)}
            self._listed[folder] |= {name: name for name in names}
        return self._listed[folder]


def _stem(name: str) -> str:
    return _ENDING.sub("", name.casefold())
