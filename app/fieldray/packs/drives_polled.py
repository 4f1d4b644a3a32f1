"""Drives that are looked at each second, where the system does not tell in a simple way."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Final

from fieldray.domain.events import Drive
from fieldray.packs.drive_contents import look_at

_LOOK_S: Final = 1.0


class Bell:
    """Wakes one waiting thread; rung before the wait, the wait does not last."""

    def __init__(self) -> None:
        self._rung = threading.Event()

    def wait(self, timeout_s: float) -> None:
        """Return when rung, or after `timeout_s`, at most one second."""
        self._rung.wait(min(timeout_s, _LOOK_S))
        self._rung.clear()

    def ring(self) -> None:
        """End the wait; any thread may call."""
        self._rung.set()


class MacVolumes:
    """What is mounted under /Volumes; the start-up volume stands there as a link and is left out."""

    def __init__(self, *, volumes: Path = Path("/Volumes")) -> None:
        self._volumes = volumes
        self._bell = Bell()

    def drives(self) -> tuple[Drive, ...]:
        """See `DriveSource`."""
        with os.scandir(self._volumes) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        found = (look_at(self._volumes / name, name=name) for name in names)
        return tuple(drive for drive in found if drive is not None)

    def wait(self, timeout_s: float) -> None:
        """See `DriveSource`."""
        self._bell.wait(timeout_s)

    def wake(self) -> None:
        """See `DriveSource`."""
        self._bell.ring()

    def close(self) -> None:
        """Nothing is lent."""
