"""One stick, one process: a lock that ends with the process that holds it, however that ends.

The operating system's own file locks do that: no lock file can be left behind by a process that was killed. The
process id inside the file is only for the sentence that tells who has the stick.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from fieldray.errors import BackendProblem
from fieldray.reasons import reason

_LOCKED_BYTE: Final = 1024  # beyond the text: Windows lets nobody read a locked byte


class StickLock:
    """Held from birth until `release`. Raises BackendProblem("coral_busy") if another process holds it."""

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
        try:
            _lock(self._handle)
        except OSError as error:
            holder = os.read(self._handle, 20).decode("ascii", errors="replace").strip() or "?"
            os.close(self._handle)
            raise BackendProblem(reason("coral_busy", process=holder)) from error
        os.ftruncate(self._handle, 0)
        os.write(self._handle, str(os.getpid()).encode())

    def release(self) -> None:
        """Give it back; safe to call twice."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def _lock(handle: int) -> None:
    """Raises OSError if it is locked."""
    if sys.platform == "win32":
        import msvcrt

        os.lseek(handle, _LOCKED_BYTE, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        os.lseek(handle, 0, os.SEEK_SET)
    else:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
