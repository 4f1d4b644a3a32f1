"""Removable drives on Windows: by letter and kind, told of changes by the plug-and-play service.

`CM_Register_Notification` (cfgmgr32.h, Windows 8 and later) calls back when a volume comes or goes; unlike
WM_DEVICECHANGE it needs no window. The letter may be there a moment later than the volume, and the service may
refuse, so the letters are also looked at each second: `GetLogicalDrives` touches no drive and takes microseconds.
Sticks that call themselves fixed disks are not seen; their folder can be given by hand.
"""

from __future__ import annotations

import ctypes
import string
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

from fieldray.domain.events import Drive
from fieldray.packs.drives import LookedAt, look_at

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
