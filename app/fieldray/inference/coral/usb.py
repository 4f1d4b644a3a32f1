"""The Edge TPUs that the operating system lists on USB, in one form for Linux and Windows; none elsewhere.

Sources: Linux, /sys (kernel documentation, ABI/stable/sysfs-bus-usb); Windows, device instance ids from the
configuration manager (cfgmgr32).
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

UsbState = Literal["uninitialised", "ready"]
USB3_MBIT: Final = 5000

# (vendor, product): it starts as the first; once its firmware is loaded it vanishes and comes back as the second
IDENTITIES: Final[Mapping[tuple[int, int], UsbState]] = {(0x1A6E, 0x089A): "uninitialised", (0x18D1, 0x9302): "ready"}


@dataclass(frozen=True, slots=True, kw_only=True)
class UsbDevice:
    """One Edge TPU.

    port            where it is plugged in, as the system names it
    state           "uninitialised" before its firmware was loaded
    port_mbit       480 for USB 2, 5000 or more for USB 3; None if unknown
    is_writable     whether this user may use it; None if unknown
    is_on_weak_hub  whether it is on a hub without its own power supply; None if unknown
    """

    port: str
    state: UsbState
    port_mbit: int | None = None
    is_writable: bool | None = None
    is_on_weak_hub: bool | None = None


FindDevices = Callable[[], tuple[UsbDevice, ...]]


def find_usb_devices() -> tuple[UsbDevice, ...]:
    """The Edge TPUs on this machine's USB now, as the system lists them; none where the list cannot be had."""
    if sys.platform == "win32":
        return find_on_windows()
    return find_on_linux()


# ---- Linux

SYSFS: Final = Path("/sys/bus/usb/devices")
NODES: Final = Path("/dev/bus/usb")
_SELF_POWERED: Final = 0x40  # bit of bmAttributes, USB 2.0 specification, 9.6.3


def find_on_linux(*, sysfs: Path = SYSFS, nodes: Path = NODES) -> tuple[UsbDevice, ...]:
    """The Edge TPUs there are now, by port. Cheap; never raises for a device that was just pulled out."""
    try:
        entries = sorted(sysfs.iterdir())
    except OSError:
        return ()
    # "2-1.4" is a device; "usb2" a root hub, "2-1:1.0" an interface
    devices = (entry for entry in entries if "-" in entry.name and ":" not in entry.name)
    return tuple(edgetpu for folder in devices if (edgetpu := _edgetpu(folder, nodes)))


def _edgetpu(folder: Path, nodes: Path) -> UsbDevice | None:
    state = IDENTITIES.get((_number(folder / "idVendor", 16), _number(folder / "idProduct", 16)))
    if state is None:
        return None
    speed = _number(folder / "speed", 10)
    bus, device = _number(folder / "busnum", 10), _number(folder / "devnum", 10)
    node = nodes / f"{bus:03d}" / f"{device:03d}" if bus and device else None
    return UsbDevice(
        port=folder.name,
        state=state,
        port_mbit=speed or None,
        is_writable=os.access(node, os.W_OK) if node and node.exists() else None,
        is_on_weak_hub=_is_on_weak_hub(folder),
    )


def _is_on_weak_hub(folder: Path) -> bool | None:
    hub, _, port = folder.name.rpartition(".")
    if not hub or not port:
        return False  # in a port of the computer itself
    attributes = _number(folder.parent / hub / "bmAttributes", 16)
    return not attributes & _SELF_POWERED if attributes else None


def _number(path: Path, base: int) -> int:
    """The number in the file; 0 if there is no file or no number in it."""
    try:
        text = path.read_text(encoding="ascii")
        return int(text, base) if base != 10 else int(float(text))
    except (OSError, ValueError):
        return 0


# ---- Windows

_INSTANCE: Final = re.compile(r"USB\\VID_([0-9A-F]{4})&PID_([0-9A-F]{4})\\(.+)", re.IGNORECASE)
_FILTER_ENUMERATOR_PRESENT: Final = 0x00000001 | 0x00000100  # CM_GETIDLIST_FILTER_ENUMERATOR | ..._PRESENT
_SUCCESS: Final = 0


def find_on_windows() -> tuple[UsbDevice, ...]:
    """The Edge TPUs that are plugged in now; none where the list cannot be had."""
    return parse_instances(_usb_instances())


def parse_instances(instances: Iterable[str]) -> tuple[UsbDevice, ...]:
    """Edge TPUs among instance ids such as `USB\\VID_18D1&PID_9302\\5&2F1B...`.

    Interfaces of a device (`...&MI_00`) are no devices of their own. The port's speed is not in the id.
    """
    devices = []
    for instance in instances:
        match = _INSTANCE.fullmatch(instance)
        if match and (state := IDENTITIES.get((int(match[1], 16), int(match[2], 16)))):
            devices.append(UsbDevice(port=match[3], state=state))
    return tuple(sorted(devices, key=lambda edgetpu: edgetpu.port))


def split_multi_string(text: str) -> tuple[str, ...]:
    """The strings of a REG_MULTI_SZ: each ends with a NUL, the list with an empty one."""
    return tuple(part for part in text.split("\0") if part)


def _usb_instances() -> tuple[str, ...]:
    """CM_Get_Device_ID_List_SizeW, CM_Get_Device_ID_ListW (Windows SDK, cfgmgr32.h)."""
    if sys.platform != "win32":
        return ()
    manager = ctypes.WinDLL("cfgmgr32")
    length = ctypes.c_ulong()
    if manager.CM_Get_Device_ID_List_SizeW(ctypes.byref(length), "USB", _FILTER_ENUMERATOR_PRESENT) != _SUCCESS:
        return ()
    # one that is plugged in between the two calls makes the second one fail: the next look finds it
    buffer = ctypes.create_unicode_buffer(length.value)
    if manager.CM_Get_Device_ID_ListW("USB", buffer, length, _FILTER_ENUMERATOR_PRESENT) != _SUCCESS:
        return ()
    return split_multi_string(buffer[:])
