"""Sticks as Windows lists them: device instance ids from the configuration manager (cfgmgr32)."""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Iterable
from typing import Final

from fieldray.inference.coral.usb import IDENTITIES, UsbDevice

_INSTANCE: Final = re.compile(r"USB\\VID_([0-9A-F]{4})&PID_([0-9A-F]{4})\\(.+)", re.IGNORECASE)
_FILTER_ENUMERATOR_PRESENT: Final = 0x00000001 | 0x00000100  # CM_GETIDLIST_FILTER_ENUMERATOR | ..._PRESENT
_SUCCESS: Final = 0


def find_devices() -> tuple[UsbDevice, ...]:
    """The Edge TPUs that are plugged in now; none where the list cannot be had."""
    return parse_instances(_usb_instances())


def parse_instances(instances: Iterable[str]) -> tuple[UsbDevice, ...]:
    """Sticks among instance ids as `USB\\VID_18D1&PID_9302\\5&2F1B...`.

    Interfaces of a device (`...&MI_00`) are no devices of their own. The port's speed is not in the id.
    """
    devices = []
    for instance in instances:
        match = _INSTANCE.fullmatch(instance)
        if match and (state := IDENTITIES.get((int(match[1], 16), int(match[2], 16)))):
            devices.append(UsbDevice(place=match[3], state=state))
    return tuple(sorted(devices, key=lambda edgetpu: edgetpu.place))


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
