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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

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

_ESCAPE: Final = re.compile(rb"\\([0-7]{3})")
_MEDIA_PLACE: Final = re.compile(r"/media/[^/]+(/[^/]+)?|/run/media/[^/]+/[^/]+|/mnt/[^/]+")
_DEVICELESS: Final = frozenset({"tmpfs", "fuse", "fuseblk"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """One line of mountinfo; `device` is "major:minor"."""

    mount_point: str
    device: str
    file_system: str
    source: str


def drives_on_linux(*, mounts: Path = Path("/proc/self/mountinfo"), system: Path = Path("/sys")) -> tuple[Drive, ...]:
    """The drives by a mountinfo file and a sysfs tree. Raises OSError where they are absent."""
    found = {mount.mount_point: mount for mount in parse_mountinfo(mounts.read_bytes())}  # the topmost one stays
    mount_points = sorted(path for path, mount in found.items() if is_removable(mount, system=system))
    drives = (look_at(Path(path), name=Path(path).name) for path in mount_points)
    return tuple(drive for drive in drives if drive is not None)


def parse_mountinfo(data: bytes) -> tuple[Mount, ...]:
    """The mounts of a mountinfo file, in its order (proc(5)); a line that makes no sense is left out.

    36 35 98:0 /root /mount\\040point rw,noatime shared:1 - ext3 /dev/root rw,errors=continue
    """
    mounts = []
    for line in data.splitlines():
        before, _, after = line.partition(b" - ")
        fixed, described = before.split(b" "), after.split(b" ")
        if len(fixed) >= 6 and len(described) >= 2:
            mounts.append(
                Mount(
                    mount_point=_unescaped(fixed[4]),
                    device=_unescaped(fixed[2]),
                    file_system=_unescaped(described[0]),
                    source=_unescaped(described[1]),
                )
            )
    return tuple(mounts)


def is_removable(mount: Mount, *, system: Path) -> bool:
    """Whether a mount is of a removable drive; `system` is the sysfs tree."""
    link = system / "dev" / "block" / mount.device
    if link.exists() and not mount.source.startswith("/dev/loop"):
        return _is_removable_device(link.resolve())
    is_deviceless = mount.file_system in _DEVICELESS or mount.source.startswith("/dev/loop")
    return is_deviceless and _MEDIA_PLACE.fullmatch(mount.mount_point) is not None


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


def _unescaped(field: bytes) -> str:
    return os.fsdecode(_ESCAPE.sub(lambda found: bytes([int(found[1], 8) & 0xFF]), field))


# ---- Windows
#
# Drives that call themselves fixed disks are not seen; their folder can be given by hand.

_REMOVABLE: Final = 2  # DRIVE_REMOVABLE, fileapi.h
_FAIL_CRITICAL_ERRORS: Final = 1  # SEM_FAILCRITICALERRORS: an empty card reader asks no questions on the screen


class Kernel(Protocol):
    """The functions of kernel32 used here."""

    def GetLogicalDrives(self) -> int:  # noqa: N802
        """A bit for each letter that is there, A in the lowest."""

    def GetDriveTypeW(self, root: str) -> int:  # noqa: N802
        """The kind of the drive at a root such as "E:\\\\"."""

    def SetThreadErrorMode(self, mode: int, old: None) -> int:  # noqa: N802
        """What this thread does about a drive without a medium."""


def drives_on_windows(kernel: Kernel | None = None) -> tuple[Drive, ...]:
    """The drives by kernel32."""
    system: Kernel = kernel or ctypes.WinDLL("kernel32")  # type: ignore[attr-defined]
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
