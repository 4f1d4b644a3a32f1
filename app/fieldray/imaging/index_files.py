"""The files that a DICOMDIR names: where they are, and which of them are not there."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from fieldray.imaging.folders import is_system_name, parts_of

_MOST_COMPONENTS: Final = 32  # of a name; the standard allows 8 (PS3.10 8.5)
_STEM: Final = "/"  # no name begins so
_ENDING: Final = re.compile(r"(?<=.)(\.[a-z][a-z0-9]{0,4})?(;[0-9]+)?$")  # an extension, and a version
_ALONE: Final = 3  # so many files are missing and none is there: the DICOMDIR was copied without them


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
