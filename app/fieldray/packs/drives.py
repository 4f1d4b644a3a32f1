"""Which removable drives are there, what lies on one, and a watch that tells when that changes.

Each system has its own `DriveSource`: Linux is told by the kernel, Windows by its plug-and-play service with a look
each second behind it, macOS is looked at each second. Every two seconds the drives are looked at in any case: a drive
that was pulled out without being unmounted stays in the list of mounts, and only reading it tells.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from pathlib import Path
from typing import Final, Protocol

from fieldray.domain.events import Drive, DrivesChanged, Publish
from fieldray.errors import PackProblem
from fieldray.packs.naming import pack_folders
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


class LookedAt:
    """The part of a `DriveSource` that is looked at each second: `wake` before the wait, and the wait does not last."""

    def __init__(self) -> None:
        self._woken = threading.Event()

    def wait(self, timeout_s: float) -> None:
        """Return after `wake`, or after `timeout_s`, at most one second."""
        self._woken.wait(min(timeout_s, _LOOK_S))
        self._woken.clear()

    def wake(self) -> None:
        """End the wait; any thread may call."""
        self._woken.set()

    def close(self) -> None:
        """Nothing is lent."""


class MacVolumes(LookedAt):
    """What is mounted under /Volumes; the start-up volume stands there as a link and is left out."""

    def __init__(self, *, volumes: Path = Path("/Volumes")) -> None:
        super().__init__()
        self._volumes = volumes

    def drives(self) -> tuple[Drive, ...]:
        """See `DriveSource`."""
        with os.scandir(self._volumes) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        found = (look_at(self._volumes / name, name=name) for name in names)
        return tuple(drive for drive in found if drive is not None)


log = logging.getLogger(__name__)

_LOOK_AGAIN_S: Final = 2.0
_CLOSE_S: Final = 2.0


def system_source() -> DriveSource:
    """The source of the system this runs on."""
    if sys.platform == "win32":
        from fieldray.packs.drives_windows import WindowsDrives

        return WindowsDrives()
    if sys.platform == "darwin":
        return MacVolumes()
    from fieldray.packs.drives_linux import LinuxMounts

    return LinuxMounts()


def list_drives(source: DriveSource | None = None) -> tuple[Drive, ...]:
    """The removable drives there now, with the pack folders on them."""
    source = source or system_source()
    try:
        return source.drives()
    finally:
        source.close()


class DriveWatch:
    """Publishes `DrivesChanged` from a thread of its own: once after `start`, then after every change."""

    def __init__(self, publish: Publish, *, source: DriveSource | None = None) -> None:
        self._publish = publish
        self._source = source or system_source()
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="drive-watch", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def close(self) -> None:
        """Stop watching; waits at most 2 s, since a dying drive can hold a look at it for long. Call it once."""
        self._is_closing.set()
        self._source.wake()
        if self._thread.ident is not None:
            self._thread.join(_CLOSE_S)
        if not self._thread.is_alive():
            self._source.close()

    def _run(self) -> None:
        seen: tuple[Drive, ...] | None = None
        try:
            while not self._is_closing.is_set():
                drives = self._source.drives()
                if drives != seen:
                    seen = drives
                    self._publish(DrivesChanged(drives=drives))
                self._source.wait(_LOOK_AGAIN_S)
        except OSError:
            log.exception("drives are not watched any more")
