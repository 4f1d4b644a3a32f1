"""Measure the size of the installed program, by part, such as Qt, Python and packs."""

from __future__ import annotations

import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

# The first matching pattern decides to which part a file belongs.
_PARTS: Final = (
    ("inference: LiteRT", ("ai_edge_litert/*",)),
    ("window: Qt and PySide6", ("PySide6/*", "shiboken6/*", "libxcb-*", "libxkb*")),
    ("arrays: NumPy", ("numpy/*", "numpy.libs/*")),
    ("reading: other codecs", ("imagecodecs*",)),
    ("reading: Pillow", ("PIL/*", "pillow.libs/*")),
    ("signatures: cryptography", ("cryptography/*", "_cffi_backend*")),
    ("Fieldray: packs", ("fieldray/_data/models/*",)),
    ("Fieldray: texts, icons, licences", ("fieldray/*",)),
    ("Python and the rest", ("*",)),
)
_PROGRAMS: Final = "programs with their Python modules"


def sizes_by_part(frozen: Path) -> dict[str, int]:
    """Return the size of each part of a frozen program in bytes, by name of the part."""
    total = {name: 0 for name, _ in _PARTS} | {_PROGRAMS: 0}
    for path in frozen.rglob("*"):
        if path.is_file() and not path.is_symlink():
            total[_part(path.relative_to(frozen).as_posix())] += path.stat().st_size
    return total


def sizes_table(frozen: Path) -> str:
    """Return the sizes of all parts of a frozen program as lines of text, in megabytes of 1,000,000 bytes."""
    parts = sizes_by_part(frozen)
    rows = [*parts.items(), ("all", sum(parts.values()))]
    return "".join(f"{name:<36}{size / 1e6:8.1f} MB\n" for name, size in rows)


def _part(path: str) -> str:
    inside = path.removeprefix("_internal/")
    if inside == path:
        return _PROGRAMS
    return next(name for name, patterns in _PARTS if any(fnmatchcase(inside, pattern) for pattern in patterns))


if __name__ == "__main__":
    sys.stdout.write(sizes_table(Path(sys.argv[1])))
