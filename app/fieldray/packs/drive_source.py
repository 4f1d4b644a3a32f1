"""What a system tells about drives, what lies on one, and the drives of macOS, which are looked at each second."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Final, Protocol

from fieldray.domain.events import Drive
from fieldray.errors import PackProblem
from fieldray.packs.listing import pack_folders
from fieldray.packs.reading import guarded

_LOOK_S: Final = 1.0


class DriveSource(Protocol):
    """What a system tells about drives. `wake` may be called from any thread, the rest from one."""

    def drives(self) -> tuple[Drive, ...]:
        """The removable drives there now, ordered by mount point; one that cannot be read any more is left out."""

    def wait(self, timeout_s: float) -> None:
        """Return when the drives may have changed, after `wake`, or after `timeout_s`."""

    def wake(self) -> None:
        """Let `wait` return."""

    def close(self) -> None:
        """Give back what the system lent."""


def look_at(mount_point: Path, *, name: str) -> Drive | None:
    """The drive mounted there with its pack folders; None when it has gone, no folders when it cannot be read."""
    try:
        folders = tuple(str(folder) for folder in guarded(pack_folders)(mount_point))
    except PackProblem as problem:
        if problem.reason.code == "drive_gone":
            return None
        folders = ()
    return Drive(mount_point=str(mount_point), name=name, pack_folders=folders)


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
