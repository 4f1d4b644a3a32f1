"""The files that a DICOMDIR names: where they are, and which of them are not there."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_MOST_COMPONENTS: Final = 32  # of a name; the standard allows 8 (PS3.10 8.5)
_ALONE: Final = 3  # so many files are missing and none is there: the DICOMDIR was copied without them


def file_named(folder: Path, components: Sequence[str], names: NamesInAnyCase) -> Path | None:
    """The file that a DICOMDIR names, in upper or lower case; None for anything but plain names (PS3.10 8.2)."""
    path = folder
    if len(components) > _MOST_COMPONENTS:
        return None
    for name in components:
        if name in ("", ".", "..") or set(name) & set('/\\:\0<>|"'):
            return None
        path = names.find(path, name)
    return path if components else None


class MissingFiles:
    """Files that are named and not there: a line each, or one for all of a DICOMDIR that lies there alone."""

    def __init__(self) -> None:
        self._held: list[Path] = []
        self._is_alone = True

    @property
    def all_of_them(self) -> int:
        """How many there are, if none is there of so many that one line says more than a line for each; else 0."""
        return len(self._held) if self._is_alone and len(self._held) >= _ALONE else 0

    def add(self, path: Path) -> None:
        """One more."""
        self._held.append(path)

    def told(self) -> Sequence[Path]:
        """Those that nobody was told of yet."""
        held, self._held, self._is_alone = self._held, [], False
        return held


class NamesInAnyCase:
    """Finds files whatever the case of their names; lists each folder once.

    A folder is asked for its own names: where the system takes any case, a file would have two otherwise.
    """

    def __init__(self) -> None:
        self._listed: dict[Path, dict[str, str]] = {}

    def find(self, folder: Path, name: str) -> Path:
        """The entry of that name, in another case if need be; the name as given if there is none."""
        names = self._names(folder)
        return folder / names.get(name, names.get(name.casefold(), name))

    def _names(self, folder: Path) -> dict[str, str]:
        if folder not in self._listed:
            try:
                names = os.listdir(folder)  # noqa: PTH208 - names alone, not paths
            except OSError:  # no folder, or none that may be read; not kept, since a DICOMDIR can name any number
                return {}
            self._listed[folder] = {name.casefold(): name for name in reversed(names)} | {name: name for name in names}
        return self._listed[folder]
