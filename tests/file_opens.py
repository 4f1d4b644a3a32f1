"""Detection of file openings by any code, by Linux's inotify."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Final

_OPENED: Final = 0x20  # IN_OPEN
_NONBLOCKING: Final = os.O_NONBLOCK if hasattr(os, "O_NONBLOCK") else 0


class FileOpens:
    """Watches one file. Must be closed after use."""

    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(None, use_errno=True)
        self._handle = library.inotify_init1(_NONBLOCKING)
        if self._handle < 0 or library.inotify_add_watch(self._handle, os.fsencode(path), _OPENED) < 0:
            raise OSError(ctypes.get_errno(), "inotify")

    def any(self) -> bool:
        """Return whether the file was opened since the last call."""
        try:
            return bool(os.read(self._handle, 4096))
        except BlockingIOError:
            return False

    def close(self) -> None:
        """Stop watching."""
        os.close(self._handle)
