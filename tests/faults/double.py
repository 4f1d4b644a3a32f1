"""An Edge TPU that is not there: the test double's library, built here, with its USB tree and its orders.

Everything the program looks at is a file in one folder, so a test can plug and unplug it like a real one.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, Final

from fieldray.domain.run import Publish
from fieldray.inference.backend import BackendKind
from fieldray.inference.coral import edgetpu_kind
from fieldray.inference.coral_status import UsbDevice, find_on_linux
from harness.machine import build

SOURCE: Final = Path(__file__).with_name("fake_edgetpu.c")
CONTROL_VARIABLE: Final = "FIELDRAY_FAKE_EDGETPU"
_PLACE: Final = "2-1"
_IDENTITIES: Final = {"ready": ("18d1", "9302"), "uninitialised": ("1a6e", "089a"), "held": ("18d1", "9302")}


def build_library(folder: Path) -> Path:
    """Compile `libedgetpu.so.1` into `folder`. Raises subprocess.CalledProcessError."""
    return build(SOURCE, folder / "libedgetpu.so.1", "-fvisibility=hidden", "-Wl,-soname,libedgetpu.so.1")


class DoubleEdgeTpu:
    """`library` is what `load_delegate` is given; children find the orders through this process's environment."""

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
        """Take the orders out of the environment again."""
        os.environ.pop(CONTROL_VARIABLE, None)

    def order(self, **orders: str | int) -> None:
        """Change how the library behaves from its next call on; see fake_edgetpu.c for the keys."""
        self._orders |= orders
        temporary = self._control.with_suffix(".new")
        temporary.write_text("".join(f"{key}={value}\n" for key, value in self._orders.items()))
        temporary.replace(self._control)

    def heal(self) -> None:
        """Forget all orders but those about where it is and whose results are marked."""
        self._orders = {key: value for key, value in self._orders.items() if key in ("edgetpu", "path", "mark")}
        self.order()

    def plug(self, edgetpu: str = "ready", *, speed_mbit: int = 5000) -> None:
        """Put it in: the USB tree shows it, then the library lists it."""
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
        """Pull it out: the library notices first, at whatever it is doing."""
        self.order(edgetpu="absent")
        for folder in self.sysfs.iterdir():
            gone = folder.with_name(f".{folder.name}")
            folder.rename(gone)
            shutil.rmtree(gone)

    def find(self) -> tuple[UsbDevice, ...]:
        """What the system would tell about it."""
        return find_on_linux(sysfs=self.sysfs, nodes=self.nodes)

    def kind(self, publish: Publish = lambda event: None, **options: Any) -> BackendKind:
        """What the engine knows of it."""
        libraries = [str(self.library)]
        return edgetpu_kind(libraries=libraries, find_devices=self.find, publish=publish, priority="raised", **options)
