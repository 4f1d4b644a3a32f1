"""Which removable drives are there, what lies on one, and a watch that tells when that changes.

The drives are looked at each second: a list of mounts or of letters costs microseconds, and a drive that was pulled out
without being unmounted stays in the list of mounts, so that only reading it tells.
"""

from __future__ import annotations

import ctypes
import logging
import os
import re
import string
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import psutil

from fieldray.domain.events import Drive, DrivesChanged, Publish
from fieldray.errors import PackProblem
from fieldray.packs.naming import pack_folders
from fieldray.packs.reading import guarded

log = logging.getLogger(__name__)

_LOOK_AGAIN_S: Final = 1.0
_CLOSE_S: Final = 2.0


def list_drives() -> tuple[Drive, ...]:
    """The removable drives there now, ordered by mount point, with the pack folders on them.

    One that cannot be read any more is left out. Raises OSError where the system does not tell.
    """
    if sys.platform == "win32":
        return drives_on_windows()
    return drives_on_mac() if sys.platform == "darwin" else drives_on_linux()


def look_at(mount_point: Path, *, name: str) -> Drive | None:
    """The drive mounted there with its pack folders; None when it has gone, no folders when it cannot be read."""
    try:
        folders = tuple(str(folder) for folder in guarded(pack_folders)(mount_point))
    except PackProblem as problem:
        if problem.reason.code == "drive_gone":
            return None
        folders = ()
    return Drive(mount_point=str(mount_point), name=name, pack_folders=folders)


def drives_on_mac(*, volumes: Path = Path("/Volumes")) -> tuple[Drive, ...]:
    """What is mounted under /Volumes; the start-up volume stands there as a link and is left out."""
    with os.scandir(volumes) as entries:
        names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    found = (look_at(volumes / name, name=name) for name in names)
    return tuple(drive for drive in found if drive is not None)


# ---- Linux
#
# Removable is what sits on a USB device or a device that calls itself removable, and, at the places where desktops and
# people mount media, also what has no device of its own (FUSE, loop, tmpfs).

_MEDIA_PLACE: Final = re.compile(r"/media/[^/]+(/[^/]+)?|/run/media/[^/]+/[^/]+|/mnt/[^/]+")
_DEVICELESS: Final = frozenset({"tmpfs", "fuse", "fuseblk"})


def drives_on_linux(
    *, mounted: Sequence[tuple[str, ...]] | None = None, system: Path = Path("/sys")
) -> tuple[Drive, ...]:
    """The drives among what is mounted, by a sysfs tree.

    mounted  device, mount point and file system of each, as `psutil` has them, which is asked without it
    """
    mounts = psutil.disk_partitions(all=True) if mounted is None else mounted
    found = {place: (device, file_system) for device, place, file_system, *_ in mounts}  # the topmost one stays
    places = sorted(place for place, mount in found.items() if is_removable(*mount, place, system=system))
    drives = (look_at(Path(place), name=Path(place).name) for place in places)
    return tuple(drive for drive in drives if drive is not None)


def is_removable(device: str, file_system: str, mount_point: str, *, system: Path) -> bool:
    """Whether a mount is of a removable drive; `system` is the sysfs tree."""
    is_loop = device.startswith("/dev/loop")
    link = system / "class" / "block" / Path(os.path.realpath(device)).name
    if device.startswith("/dev/") and not is_loop and link.exists():
        return _is_removable_device(link.resolve())
    return (file_system in _DEVICELESS or is_loop) and _MEDIA_PLACE.fullmatch(mount_point) is not None


def _is_removable_device(device: Path) -> bool:
    """Whether a block device is on USB, or it or (for a partition) its disk says that it is removable."""
    if any(re.fullmatch(r"usb[0-9]+", part) for part in device.parts):
        return True
    return any(_says_one(folder / "removable") for folder in (device, device.parent))


def _says_one(path: Path) -> bool:
    try:
        return path.read_text(encoding="ascii").strip() == "1"
    except (OSError, ValueError):
        return False


# ---- Windows
#
# Drives that call themselves fixed disks are not seen; their folder can be given by hand.

_REMOVABLE: Final = 2  # DRIVE_REMOVABLE, fileapi.h
_FAIL_CRITICAL_ERRORS: Final = 1  # SEM_FAILCRITICALERRORS: an empty card reader asks no questions on the screen


def drives_on_windows(kernel: Any = None) -> tuple[Drive, ...]:
    """The drives by kernel32."""
    system = kernel or ctypes.WinDLL("kernel32")  # type: ignore[attr-defined]
    system.SetThreadErrorMode(_FAIL_CRITICAL_ERRORS, None)
    roots = [letter + ":\\" for letter in letters(system.GetLogicalDrives())]
    removable = [root for root in roots if system.GetDriveTypeW(root) == _REMOVABLE]
    found = (look_at(Path(root), name=root[:2]) for root in removable)
    return tuple(drive for drive in found if drive is not None)


def letters(mask: int) -> tuple[str, ...]:
    """The drive letters of a bit mask, A in the lowest bit."""
    return tuple(letter for bit, letter in enumerate(string.ascii_uppercase) if mask >> bit & 1)


# ---- the watch


class DriveWatch:
    """Publishes `DrivesChanged` from a thread of its own: once after `start`, then after every change.

    look  at the drives there are
    """

    def __init__(self, publish: Publish, *, look: Callable[[], tuple[Drive, ...]] = list_drives) -> None:
        self._publish, self._look = publish, look
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="drive-watch", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def close(self) -> None:
        """Stop watching; waits at most 2 s, since a dying drive can hold a look at it for long."""
        self._is_closing.set()
        if self._thread.ident is not None:
            self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        seen: tuple[Drive, ...] | None = None
        try:
            while not self._is_closing.is_set():
                drives = self._look()
                if drives != seen:
                    seen = drives
                    self._publish(DrivesChanged(drives=drives))
                self._is_closing.wait(_LOOK_AGAIN_S)
        except OSError:
            log.exception("drives are not watched any more")
