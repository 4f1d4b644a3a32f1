"""Files of a run folder, and those published in a folder that a person names.

Both are written whole or not at all, and are as readable to others as the user's umask says. What is published goes
through the door for outputs: it replaces an earlier output of its kind and nothing else.
"""

from __future__ import annotations

from pathlib import Path
from typing import cast

from fieldray import persistence
from fieldray.reports.outputs import Kind, require_free, write_own


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` to `path` in a run folder. Raises StorageProblem (disk full, not writable)."""
    persistence.write_atomically(path, data, mode=persistence.SHARED)


def publish(path: Path, data: bytes) -> None:
    """Write a `.json`, `.html` or `.tflite` file where a person said. Raises UsageProblem, StorageProblem."""
    write_own(path, _kind(path), data)


def require_publishable(*paths: Path) -> None:
    """Look before hours of work whether `publish` will do. Raises UsageProblem, StorageProblem."""
    for path in paths:
        require_free(path, _kind(path))


def _kind(path: Path) -> Kind:
    name = path.suffix.removeprefix(".")
    return cast("Kind", name) if name in ("html", "tflite") else "json"
