"""What the operating system tells about Edge TPUs on USB, in one form for all systems."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

UsbState = Literal["bare", "ready"]
USB3_MBIT: Final = 5000

# (vendor, product): it starts as the first; once its firmware is loaded it vanishes and comes back as the second
IDENTITIES: Final[Mapping[tuple[int, int], UsbState]] = {(0x1A6E, 0x089A): "bare", (0x18D1, 0x9302): "ready"}


@dataclass(frozen=True, slots=True, kw_only=True)
class UsbDevice:
    """One Edge TPU.

    place           where it is plugged in, in the system's own words
    state           "bare" before its firmware was loaded
    port_mbit       480 for USB 2, 5000 or more for USB 3; None if unknown
    is_writable     whether this user may use it; None if unknown
    is_on_weak_hub  whether it hangs on a hub without its own power supply; None if unknown
    """

    place: str
    state: UsbState
    port_mbit: int | None = None
    is_writable: bool | None = None
    is_on_weak_hub: bool | None = None


FindDevices = Callable[[], tuple[UsbDevice, ...]]
