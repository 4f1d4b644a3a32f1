"""Removable drives on Linux, by the kernel's list of mounts.

The kernel marks /proc/self/mountinfo as urgent (POLLPRI) at every mount and unmount, see proc(5) and poll(2); no
timer is needed. Removable is what sits on a USB device or a device that calls itself removable, and, at the
places where desktops and people mount media, also what has no device of its own (FUSE, loop, tmpfs).
"""

from __future__ import annotations

import os
import re
import select
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fieldray.domain.events import Drive
from fieldray.packs.drives import look_at

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
