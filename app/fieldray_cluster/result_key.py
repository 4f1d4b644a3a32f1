"""What makes one result the same as another: a key has all that decides it, the program's version with the rest.

Every result that a later start may take over (tasks of workflows, trials of sweeps, archives) is known by such a key.
Files count by what is in them, not by where they are: a label that was corrected is another input.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from fieldray.paths import VERSION
from fieldray_adapt.files import digest

_BLOCK: Final = 1 << 20


def result_key(*parts: object, version: str = VERSION) -> str:
    """The digest of what decides a result (see `digest`), and of the program's version."""
    return digest(version, *parts)


def state_of(path: Path) -> tuple[str, ...]:
    """What a file or folder is like: the content of a file; names, sizes and times of change of a folder's files.

    Raises FileNotFoundError, OSError.
    """
    if path.is_dir():
        found = sorted(file for file in path.rglob("*") if file.is_file())
        facts = ((file, file.stat()) for file in found)
        return (
            "folder",
            *(f"{file.relative_to(path).as_posix()} {one.st_size} {one.st_mtime_ns}" for file, one in facts),
        )
    with path.open("rb") as stream:
        return ("file", hashlib.file_digest(stream, "sha256").hexdigest())
