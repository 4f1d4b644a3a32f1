"""A lock that ends with the process that holds it, however that ends.

The operating system's own file locks do that: no lock can be left behind by a process that was killed, so a file that
is merely there locks nothing. The text inside is only for the sentence that tells who holds it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

# Not through a link: what it leads to would be emptied.
_FLAGS: Final = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
_LOCKED_BYTE: Final = 1024  # beyond the text: Windows lets nobody read a locked byte
_LONGEST: Final = 200
_ASK_AGAIN_S: Final = 0.01
_HELD_ERRNO: Final = frozenset({errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK})  # flock; msvcrt.locking


class HeldError(Exception):
    """Somebody else holds the lock; `holder` is what they wrote about themselves."""

    def __init__(self, holder: str) -> None:
        super().__init__(holder)
        self.holder = holder


class FileLock:
    """Held from birth until `release`, or the end of the process.

    holder    one line about who holds it, at most 200 characters of ASCII; a disk without room for it locks as well
    wait_s    how long to wait for somebody else at most
    Raises HeldError if somebody else holds it, this process included; OSError if the file cannot be opened or its
    file system knows no locks.
    """

    def __init__(self, path: Path, *, holder: str, wait_s: float = 0.0) -> None:
        self._handle = os.open(path, _FLAGS, 0o600)
        try:
            self._take(until_s=time.monotonic() + wait_s)
            with contextlib.suppress(OSError):
                os.ftruncate(self._handle, 0)
                os.write(self._handle, holder.encode("ascii", errors="replace")[:_LONGEST])
        except BaseException:
            self.release()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def release(self) -> None:
        """Give it back; safe to call twice."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def _take(self, *, until_s: float) -> None:
        """The systems' own waiting knows no end, so the lock is asked for again and again."""
        while True:
            try:
                return _lock(self._handle)
            except OSError as error:
                if error.errno not in _HELD_ERRNO:
                    raise
                if time.monotonic() >= until_s:
                    raise HeldError(self._holder()) from error
            time.sleep(_ASK_AGAIN_S)

    def _holder(self) -> str:
        text = os.read(self._handle, _LONGEST).decode("ascii", errors="replace")
        return text.strip("\0 \n") or "?"


def _lock(handle: int) -> None:
    """Raises OSError: one of `_HELD_ERRNO` if it is locked."""
    if sys.platform == "win32":
        import msvcrt

        os.lseek(handle, _LOCKED_BYTE, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        os.lseek(handle, 0, os.SEEK_SET)
    else:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
