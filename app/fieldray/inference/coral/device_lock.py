"""One Edge TPU, one process: a lock that ends with the process that holds it, however that ends."""

from __future__ import annotations

import os
from pathlib import Path

from fieldray.errors import BackendProblem
from fieldray.file_lock import FileLock, HeldError
from fieldray.reasons import reason


class DeviceLock:
    """Held from birth until `release`. Raises BackendProblem("coral_busy") if another process holds it."""

    def __init__(self, path: Path) -> None:
        try:
            self._lock = FileLock(path, holder=str(os.getpid()))
        except HeldError as error:
            raise BackendProblem(reason("coral_busy", process=error.holder)) from error

    def release(self) -> None:
        """Give it back; safe to call twice."""
        self._lock.release()
