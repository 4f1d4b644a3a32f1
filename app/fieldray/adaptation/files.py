"""Files of a run folder: written whole or not at all, and as readable to others as the user's umask says."""

from __future__ import annotations

from pathlib import Path

from fieldray import persistence


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` to `path`. Raises StorageProblem (disk full, not writable)."""
    persistence.write_atomically(path, data, mode=persistence.SHARED)
