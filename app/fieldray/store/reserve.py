"""A little room on the disk, kept back for the last words of a run.

With a full disk not even *failed* could be written, and the run would be called running for ever.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from fieldray.persistence import write_atomically

_SIZE_BYTES: Final = 2**17  # a few pages, and a step of the index of the database's log


@contextlib.contextmanager
def room_kept_back(database: Path) -> Iterator[None]:
    """While inside, a file beside the database holds the room. Raises StorageProblem (disk_full, not_writable)."""
    path = database.with_name(database.name + ".reserve")
    write_atomically(path, os.urandom(_SIZE_BYTES))  # chance: some file systems keep no room for zeros
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
