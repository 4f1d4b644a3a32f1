"""Which removable drives are there, what lies on one, and a watch that tells when that changes.

Each system has its own `DriveSource`: Linux is told by the kernel, Windows by its plug-and-play service with a look
each second behind it, macOS is looked at each second. Every two seconds the drives are looked at in any case: a drive
that was pulled out without being unmounted stays in the list of mounts, and only reading it tells.
"""

from __future__ import annotations

import ctypes
import logging
import os
import re
import select
import string
import sys
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from fieldray.domain.events import Drive, DrivesChanged, Publish
from fieldray.errors import PackProblem
from fieldray.packs.naming import pack_folders
from fieldray.packs.reading import guarded

log = logging.getLogger(__name__)

_LOOK_S: Final = 1.0
_LOOK_AGAIN_S: Final = 2.0
_CLOSE_S: Final = 2.0


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


# ---- Linux
#
# The kernel marks /proc/self/mountinfo as urgent (POLLPRI) at every mount and unmount, see proc(5) and poll(2); no
# timer is needed. Removable is what sits on a USB device or a device that calls itself removable, and, at the
# places where desktops and people mount media, also what has no device of its own (FUSE, loop, tmpfs).

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


class LinuxMounts:
    """The drives by `mounts` (a mountinfo file) and `system` (a sysfs tree). Raises OSError where they are absent."""

    def __init__(self, *, mounts: Path = Path("/proc/self/mountinfo"), system: Path = Path("/sys")) -> None:
        self._system = system
        self._mounts = mounts.open("rb", buffering=0)
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._poll = select.poll()
        self._poll.register(self._mounts.fileno(), select.POLLPRI | select.POLLERR)
        self._poll.register(self._wake_read, select.POLLIN)

    def drives(self) -> tuple[Drive, ...]:
        """See `DriveSource`."""
        self._mounts.seek(0)
        mounts = {mount.mount_point: mount for mount in parse_mountinfo(self._mounts.read())}  # the topmost one stays
        mount_points = sorted(path for path, mount in mounts.items() if is_removable(mount, system=self._system))
        found = (look_at(Path(path), name=Path(path).name) for path in mount_points)
        return tuple(drive for drive in found if drive is not None)

    def wait(self, timeout_s: float) -> None:
        """See `DriveSource`."""
        for descriptor, _ in self._poll.poll(timeout_s * 1000):
            if descriptor == self._wake_read:
                os.read(self._wake_read, 4096)

    def wake(self) -> None:
        """See `DriveSource`."""
        os.write(self._wake_write, b".")

    def close(self) -> None:
        """See `DriveSource`."""
        self._mounts.close()
        os.close(self._wake_read)
        os.close(self._wake_write)


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
# `CM_Register_Notification` (cfgmgr32.h, Windows 8 and later) calls back when a volume comes or goes; unlike
# WM_DEVICECHANGE it needs no window. The letter may be there a moment later than the volume, and the service may
# refuse, so the letters are also looked at each second: `GetLogicalDrives` touches no drive and takes microseconds.
# Drives that call themselves fixed disks are not seen; their folder can be given by hand.

_REMOVABLE: Final = 2  # DRIVE_REMOVABLE, fileapi.h
_FAIL_CRITICAL_ERRORS: Final = 1  # SEM_FAILCRITICALERRORS: an empty card reader asks no questions on the screen
_VOLUME_INTERFACE: Final = uuid.UUID("53f5630d-b6bf-11d0-94f2-00a0c91efb8b")  # GUID_DEVINTERFACE_VOLUME, winioctl.h


class NotifyFilter(ctypes.Structure):
    """CM_NOTIFY_FILTER of cfgmgr32.h for a device interface class; its union is as long as WCHAR[200]."""

    _fields_ = (
        ("cbSize", ctypes.c_uint32),
        ("Flags", ctypes.c_uint32),
        ("FilterType", ctypes.c_uint32),
        ("Reserved", ctypes.c_uint32),
        ("ClassGuid", ctypes.c_uint8 * 16),
        ("unused", ctypes.c_uint8 * 384),
    )


def volume_filter() -> NotifyFilter:
    """The filter that asks for volumes that come and go."""
    wanted = NotifyFilter()
    wanted.cbSize = ctypes.sizeof(NotifyFilter)
    wanted.ClassGuid[:] = list(_VOLUME_INTERFACE.bytes_le)
    return wanted


class Kernel(Protocol):
    """The functions of kernel32 used here."""

    def GetLogicalDrives(self) -> int:  # noqa: N802
        """A bit for each letter that is there, A in the lowest."""

    def GetDriveTypeW(self, root: str) -> int:  # noqa: N802
        """The kind of the drive at a root such as "E:\\\\"."""

    def SetThreadErrorMode(self, mode: int, old: None) -> int:  # noqa: N802
        """What this thread does about a drive without a medium."""


class WindowsDrives(LookedAt):
    """The drives by kernel32 (`kernel`); `register` asks for a call at changes and returns how to end that."""

    def __init__(
        self,
        *,
        kernel: Kernel | None = None,
        register: Callable[[Callable[[], None]], Callable[[], None]] | None = None,
    ) -> None:
        super().__init__()
        self._kernel: Kernel = kernel or ctypes.WinDLL("kernel32")  # type: ignore[attr-defined]
        self._unregister = (register or register_for_volumes)(self.wake)

    def drives(self) -> tuple[Drive, ...]:
        """See `DriveSource`."""
        self._kernel.SetThreadErrorMode(_FAIL_CRITICAL_ERRORS, None)
        roots = [letter + ":\\" for letter in letters(self._kernel.GetLogicalDrives())]
        removable = [root for root in roots if self._kernel.GetDriveTypeW(root) == _REMOVABLE]
        found = (look_at(Path(root), name=root[:2]) for root in removable)
        return tuple(drive for drive in found if drive is not None)

    def close(self) -> None:
        """See `DriveSource`."""
        self._unregister()


def letters(mask: int) -> tuple[str, ...]:
    """The drive letters of a bit mask, A in the lowest bit."""
    return tuple(letter for bit, letter in enumerate(string.ascii_uppercase) if mask >> bit & 1)


def register_for_volumes(changed: Callable[[], None]) -> Callable[[], None]:
    """Have `changed` called, from a thread of the system, when a volume comes or goes; returns how to end that.

    Where the service refuses, nothing is called and ending it does nothing.
    """
    service: Any = ctypes.WinDLL("cfgmgr32")  # type: ignore[attr-defined]
    prototype = ctypes.WINFUNCTYPE(  # type: ignore[attr-defined]
        ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_uint32
    )

    def called(*_: object) -> int:
        changed()
        return 0

    callback, handle = prototype(called), ctypes.c_void_p()
    refused = service.CM_Register_Notification(ctypes.byref(volume_filter()), None, callback, ctypes.byref(handle))

    def unregister() -> None:
        """Keeps `callback` alive as long as the system may call it."""
        if not refused and callback:
            service.CM_Unregister_Notification(handle)

    return unregister


# ---- the watch


def system_source() -> DriveSource:
    """The source of the system this runs on."""
    if sys.platform == "win32":
        return WindowsDrives()
    return MacVolumes() if sys.platform == "darwin" else LinuxMounts()


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
