"""Sticks as Linux shows them in /sys (kernel documentation, ABI/stable/sysfs-bus-usb)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from fieldray.inference.coral.usb import IDENTITIES, UsbDevice, UsbState

SYSFS: Final = Path("/sys/bus/usb/devices")
NODES: Final = Path("/dev/bus/usb")
_SELF_POWERED: Final = 0x40  # bit of bmAttributes, USB 2.0 specification, 9.6.3


def find_devices(*, sysfs: Path = SYSFS, nodes: Path = NODES) -> tuple[UsbDevice, ...]:
    """The Edge TPUs there are now, in the order of their places. Cheap; never raises for a device that just left."""
    try:
        entries = sorted(sysfs.iterdir())
    except OSError:
        return ()
    # "2-1.4" is a device; "usb2" a root hub, "2-1:1.0" an interface
    devices = (entry for entry in entries if "-" in entry.name and ":" not in entry.name)
    return tuple(edgetpu for folder in devices if (edgetpu := _edgetpu(folder, nodes)))


def _edgetpu(folder: Path, nodes: Path) -> UsbDevice | None:
    state = _state(folder)
    if state is None:
        return None
    speed = _number(folder / "speed", 10)
    bus, device = _number(folder / "busnum", 10), _number(folder / "devnum", 10)
    node = nodes / f"{bus:03d}" / f"{device:03d}" if bus and device else None
    return UsbDevice(
        place=folder.name,
        state=state,
        port_mbit=speed or None,
        is_writable=os.access(node, os.W_OK) if node and node.exists() else None,
        is_on_weak_hub=_is_on_weak_hub(folder),
    )


def _state(folder: Path) -> UsbState | None:
    vendor, product = _number(folder / "idVendor", 16), _number(folder / "idProduct", 16)
    return IDENTITIES.get((vendor, product))


def _is_on_weak_hub(folder: Path) -> bool | None:
    hub, _, port = folder.name.rpartition(".")
    if not hub or not port:
        return False  # in a port of the computer itself
    attributes = _number(folder.parent / hub / "bmAttributes", 16)
    return not attributes & _SELF_POWERED if attributes else None


def _number(path: Path, base: int) -> int:
    """What the file says; 0 if it is not there or says nothing sensible."""
    try:
        text = path.read_text(encoding="ascii")
        return int(text, base) if base != 10 else int(float(text))
    except (OSError, ValueError):
        return 0
