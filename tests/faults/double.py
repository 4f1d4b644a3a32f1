"""The test double of the Edge TPU: a fake libedgetpu, a fake USB tree, and a file that controls the library.

The program sees only files in one folder, so a test can plug and unplug the device like a real one.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, Final

from fieldray.domain.run import Publish
from fieldray.inference.backend import BackendKind
from fieldray.inference.coral import edgetpu_kind
from fieldray.inference.coral_status import UsbDevice, find_usb_devices_on_linux
from harness.machine import build

SOURCE: Final = Path(__file__).with_name("fake_edgetpu.c")
CONTROL_VARIABLE: Final = "FIELDRAY_FAKE_EDGETPU"
_PLACE: Final = "2-1"
_IDENTITIES: Final = {"ready": ("18d1", "9302"), "uninitialised": ("1a6e", "089a"), "held": ("18d1", "9302")}


def build_library(folder: Path) -> Path:
    """Compile `libedgetpu.so.1` into `folder`. Raises subprocess.CalledProcessError."""
    return build(SOURCE, folder / "libedgetpu.so.1", "-fvisibility=hidden", "-Wl,-soname,libedgetpu.so.1")


class DoubleEdgeTpu:
    """A fake Edge TPU. `library` is for `load_delegate`. Child processes find the control file by the environment."""

    def __init__(self, folder: Path, library: Path) -> None:
        self.library = library
        self.sysfs = folder / "devices"
        self.nodes = folder / "nodes"
        self.sysfs.mkdir()
        self._control = folder / "orders"
        self._orders: dict[str, str | int] = {}
        os.environ[CONTROL_VARIABLE] = str(self._control)
        self.unplug()

    def close(self) -> None:
        """Remove the control file from the environment."""
        os.environ.pop(CONTROL_VARIABLE, None)

    def order(self, **orders: str | int) -> None:
        """Change the library's behaviour from its next call on; see fake_edgetpu.c for the keys."""
        self._orders |= orders
        temporary = self._control.with_suffix(".new")
        temporary.write_text("".join(f"{key}={value}\n" for key, value in self._orders.items()))
        temporary.replace(self._control)

    def heal(self) -> None:
        """End all faults. The device stays plugged or unplugged, and its results stay marked."""
        self._orders = {key: value for key, value in self._orders.items() if key in ("edgetpu", "path", "mark")}
        self.order()

    def plug(self, edgetpu: str = "ready", *, speed_mbit: int = 5000) -> None:
        """Plug the device in: first the USB tree shows it, then the library lists it."""
        vendor, product = _IDENTITIES[edgetpu]
        node = self.nodes / "002" / "004"
        node.parent.mkdir(parents=True, exist_ok=True)
        node.touch()
        node.chmod(0o666)
        folder = self.sysfs / _PLACE
        folder.mkdir(exist_ok=True)
        facts = {"idVendor": vendor, "idProduct": product, "speed": speed_mbit, "busnum": 2, "devnum": 4}
        for name, value in facts.items():
            (folder / name).write_text(f"{value}\n")
        self.order(edgetpu=edgetpu, path=f"/sys/bus/usb/devices/{_PLACE}")

    def unplug(self) -> None:
        """Pull the device out: first the library notices, even during a call, then the USB tree."""
        self.order(edgetpu="absent")
        for folder in self.sysfs.iterdir():
            gone = folder.with_name(f".{folder.name}")
            folder.rename(gone)
            shutil.rmtree(gone)

    def find(self) -> tuple[UsbDevice, ...]:
        """Return the devices in the fake USB tree."""
        return find_usb_devices_on_linux(sysfs=self.sysfs, nodes=self.nodes)

    def kind(self, publish: Publish = lambda event: None, **options: Any) -> BackendKind:
        """Return the backend with which an engine uses the fake device."""
        libraries = [str(self.library)]
        return edgetpu_kind(libraries=libraries, find_devices=self.find, publish=publish, priority="raised", **options)
