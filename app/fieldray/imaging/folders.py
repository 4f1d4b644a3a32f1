"""Folders while they are searched: what is left to visit in them, and whether they are still there.

A drive may be pulled out, or a folder moved away, at any moment. What was listed and cannot be opened any more is then
the folder's loss, not that of every file in it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

_SYSTEM_NAMES: Final = frozenset(
    {"thumbs.db", "desktop.ini", "__macosx", "$recycle.bin", "system volume information", "lost+found"}
)


def is_system_name(name: str) -> bool:
    """Whether a file or folder of this name belongs to the system and not to the studies."""
    return name.startswith(".") or name.lower() in _SYSTEM_NAMES


class Folder:
    """A folder and the entries of it that are still to be visited: names, and whether each is a folder itself."""

    def __init__(self, path: Path, entries: Sequence[tuple[str, bool]] = ()) -> None:
        """Raises OSError."""
        self.path = path
        self._left = sorted(entries, reverse=True)
        self._device = os.stat(path).st_dev  # noqa: PTH116 - as in `is_lost`

    @classmethod
    def listed(cls, path: Path) -> Self:
        """With all its entries but the system's. A link is no folder here. Raises OSError."""
        with os.scandir(path) as entries:
            found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        return cls(path, [entry for entry in found if not is_system_name(entry[0])])

    def next_entry(self) -> tuple[Path, bool] | None:
        """The next in order of the names, None when there is none left."""
        if not self._left:
            return None
        name, is_folder = self._left.pop()
        return self.path / name, is_folder

    def is_lost(self) -> bool:
        """Whether it cannot be listed any more, or its drive is another: an empty mount point stays behind."""
        try:
            with os.scandir(self.path) as entries:
                next(entries, None)
            return os.stat(self.path).st_dev != self._device  # noqa: PTH116 - no path is normalised here
        except OSError:
            return True


class NamesInAnyCase:
    """Finds files in whatever case a copy gave their names; lists a folder once, however often it is asked."""

    def __init__(self) -> None:
        self._listed: dict[Path, dict[str, str]] = {}

    def find(self, folder: Path, name: str) -> Path:
        """The entry of that name, or of the same in other letters; where there is none, as it was asked for."""
        exact = folder / name
        if os.path.lexists(exact):
            return exact
        return folder / self._names(folder).get(name.casefold(), name)

    def _names(self, folder: Path) -> dict[str, str]:
        if folder not in self._listed:
            try:
                names = os.listdir(folder)  # noqa: PTH208 - names alone, not paths
            except OSError:  # no folder, or none that may be read: the name will not be found there
                names = []
            self._listed[folder] = {name.casefold(): name for name in reversed(names)}
        return self._listed[folder]
