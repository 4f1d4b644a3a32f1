"""A lock that ends with the process that holds it, however that ends.

The operating system's own file locks do that: no lock can be left behind by a process that was killed, so a file that
is merely there locks nothing. The text inside is only for the sentence that tells who holds it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

_LOCKED_BYTE: Final = 1024  # beyond the text: Windows lets nobody read a locked byte
_LONGEST: Final = 200


class HeldError(Exception):
    """Somebody else holds the lock; `holder` is what they wrote about themselves."""

    def __init__(self, holder: str) -> None:
        super().__init__(holder)
        self.holder = holder


class FileLock:
    """Held from birth until `release`, or the end of the process.

    holder    one line about who holds it, at most 200 characters of ASCII
    Raises HeldError if somebody else holds it, this process included; OSError if the file cannot be opened.
    """

    def __init__(self, path: Path, *, holder: str) -> None:
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
        try:
            _lock(self._handle)
        except OSError as error:
            text = os.read(self._handle, _LONGEST).decode("ascii", errors="replace").strip() or "?"
            os.close(self._handle)
            raise HeldError(text) from error
        os.ftruncate(self._handle, 0)
        os.write(self._handle, holder.encode("ascii", errors="replace")[:_LONGEST])

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
