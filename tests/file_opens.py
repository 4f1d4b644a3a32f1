"""Hears of every opening of a file, by whatever code: Linux's inotify."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Final

_OPENED: Final = 0x20  # IN_OPEN
_NONBLOCKING: Final = os.O_NONBLOCK if hasattr(os, "O_NONBLOCK") else 0


class FileOpens:
    """Watches one file. Close it after use."""

    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(None, use_errno=True)
        self._handle = library.inotify_init1(_NONBLOCKING)
        if self._handle < 0 or library.inotify_add_watch(self._handle, os.fsencode(path), _OPENED) < 0:
            raise OSError(ctypes.get_errno(), "inotify")

    def any(self) -> bool:
        """Whether it was opened since the last question."""
        try:
            return bool(os.read(self._handle, 4096))
        except BlockingIOError:
            return False

    def close(self) -> None:
        """Watch no longer."""
        os.close(self._handle)
