"""Which removable drives are there, and a watch that tells when that changes.

Each system has its own `DriveSource`: Linux is told by the kernel, Windows by its plug-and-play service with a look
each second behind it, macOS is looked at each second. Every two seconds the drives are looked at in any case: a drive
that was pulled out without being unmounted stays in the list of mounts, and only reading it tells.
"""

from __future__ import annotations

import logging
import sys
import threading
from typing import Final

from fieldray.domain.events import Drive, DrivesChanged, Publish
from fieldray.packs.drive_source import DriveSource

log = logging.getLogger(__name__)

_LOOK_AGAIN_S: Final = 2.0
_CLOSE_S: Final = 2.0


def system_source() -> DriveSource:
    """The source of the system this runs on."""
    if sys.platform == "win32":
        from fieldray.packs.drives_windows import WindowsDrives

        return WindowsDrives()
    if sys.platform == "darwin":
        from fieldray.packs.drive_source import MacVolumes

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
