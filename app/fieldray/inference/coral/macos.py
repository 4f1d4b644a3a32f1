"""Sticks as macOS lists them: the text of `ioreg -p IOUSB -l -w 0`."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from typing import Final

from fieldray.inference.coral.usb import IDENTITIES, UsbDevice

_COMMAND: Final = ("/usr/sbin/ioreg", "-p", "IOUSB", "-l", "-w", "0")
_PROPERTY: Final = re.compile(r'"(idVendor|idProduct|locationID|UsbLinkSpeed|Device Speed)" = (\d+)')
_SPEED_CLASSES: Final[Mapping[int, int]] = {0: 1, 1: 12, 2: 480, 3: 5000, 4: 10000}  # kUSBDeviceSpeed..., in Mbit/s


def find_devices() -> tuple[UsbDevice, ...]:
    """The Edge TPUs there are now; none where ioreg cannot be run."""
    try:
        listing = subprocess.run(_COMMAND, capture_output=True, text=True, errors="replace", timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    return parse_listing(listing.stdout)


def parse_listing(text: str) -> tuple[UsbDevice, ...]:
    """Sticks in ioreg's tree, where each device begins with a line that holds "+-o"."""
    devices = []
    for block in text.split("+-o ")[1:]:
        values = {name: int(value) for name, value in _PROPERTY.findall(block)}
        state = IDENTITIES.get((values.get("idVendor", 0), values.get("idProduct", 0)))
        if state:
            place = f"{values.get('locationID', 0):#010x}"
            devices.append(UsbDevice(place=place, state=state, port_mbit=_speed_mbit(values)))
    return tuple(sorted(devices, key=lambda edgetpu: edgetpu.place))


def _speed_mbit(values: Mapping[str, int]) -> int | None:
    if "UsbLinkSpeed" in values:  # bits per second, since macOS 11
        return values["UsbLinkSpeed"] // 1_000_000
    return _SPEED_CLASSES.get(values.get("Device Speed", -1))
