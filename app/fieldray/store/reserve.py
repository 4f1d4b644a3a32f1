"""A little room on the disk, kept for the last words of a run.

On a full disk not even *failed* could be written, and the run would be called running for ever.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from fieldray.persistence import write_atomically

_SIZE_BYTES: Final = 2**17  # a few pages, and room for SQLite's log index to grow once


@contextlib.contextmanager
def room_kept_back(database: Path) -> Iterator[None]:
    """While inside, a file beside the database reserves room. Raises StorageProblem (disk_full, not_writable)."""
    path = database.with_name(database.name + ".reserve")
    write_atomically(path, os.urandom(_SIZE_BYTES))  # random bytes: some file systems reserve no room for zeros
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
