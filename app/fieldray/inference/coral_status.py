"""The status of the Edge TPU: whether an Edge TPU is connected and usable, and otherwise how to make it usable.

An Edge TPU is connected if the Edge TPU runtime lists a device. A child process queries the runtime, because an
incompatible library, or the removal of an Edge TPU during the query, crashes the querying process. On Linux and
Windows, the operating system's facts about the USB port are added.
"""

from __future__ import annotations

import ctypes
import logging
import os
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from fieldray.backends import EDGE_TPU
from fieldray.domain.run import DeviceChanged, DeviceState, Publish
from fieldray.errors import BackendProblem, FieldrayError
from fieldray.inference.litert import MEMORY_LIMIT_MB
from fieldray.processes.child import Child, ChildDied, ChildFunction, ChildTimeout
from fieldray.reasons import Reason, reason

log = logging.getLogger(__name__)

# ---- The USB devices that the operating system lists, on Linux and Windows only.
#
# Sources: Linux, /sys (kernel documentation, ABI/stable/sysfs-bus-usb); Windows, device instance ids from the
# configuration manager (cfgmgr32).

UsbState = Literal["uninitialised", "ready"]
USB3_MBIT: Final = 5000

# USB ids (vendor, product) of the Edge TPU before and after its firmware is loaded. Loading disconnects the Edge TPU.
STATE_BY_USB_ID: Final[Mapping[tuple[int, int], UsbState]] = {
    (0x1A6E, 0x089A): "uninitialised",
    (0x18D1, 0x9302): "ready",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class UsbDevice:
    """One Edge TPU on USB.

    port                 name of the USB port in the operating system
    state                "uninitialised" until the firmware was loaded
    port_mbit            480 for USB 2, 5000 or more for USB 3; None if unknown
    is_writable          whether this user may use the device; None if unknown
    is_on_unpowered_hub  whether the device is on a hub without a power supply; None if unknown
    """

    port: str
    state: UsbState
    port_mbit: int | None = None
    is_writable: bool | None = None
    is_on_unpowered_hub: bool | None = None


FindDevices = Callable[[], tuple[UsbDevice, ...]]
HasBoard = Callable[[], bool]


def find_usb_devices() -> tuple[UsbDevice, ...]:
    """Return the Edge TPUs that the system lists on USB now; empty on a system without a list of USB devices."""
    return parse_windows_instance_ids(_instances("USB")) if sys.platform == "win32" else find_usb_devices_on_linux()


def may_have_edgetpu_board() -> bool:
    """Return whether an Edge TPU board on PCI Express may be present, according to its driver.

    The result is also True on a system whose devices cannot be listed. If there is no board and no Edge TPU on USB, no
    process for the Edge TPU runtime needs to start.
    """
    if sys.platform == "win32":
        return any(_BOARD.match(instance) for instance in _instances("PCI"))
    return sys.platform != "linux" or has_edgetpu_board_on_linux()


# Linux

_DEVICES: Final = Path("/dev")
USB_SYSFS_FOLDER: Final = Path("/sys/bus/usb/devices")
USB_NODES_FOLDER: Final = Path("/dev/bus/usb")
_SELF_POWERED: Final = 0x40  # bit of bmAttributes, USB 2.0 specification, 9.6.3


def find_usb_devices_on_linux(
    *, sysfs: Path = USB_SYSFS_FOLDER, nodes: Path = USB_NODES_FOLDER
) -> tuple[UsbDevice, ...]:
    """Return the Edge TPUs on USB, sorted by port. Never raises.

    sysfs  folder in which Linux lists the USB devices
    nodes  folder of the device files
    """
    try:
        entries = sorted(sysfs.iterdir())
    except OSError:
        return ()
    # "2-1.4" is a device, "usb2" is a root hub, and "2-1:1.0" is an interface.
    devices = (entry for entry in entries if "-" in entry.name and ":" not in entry.name)
    return tuple(edgetpu for folder in devices if (edgetpu := _edgetpu(folder, nodes)))


def has_edgetpu_board_on_linux(*, devices: Path = _DEVICES) -> bool:
    """Return whether the driver of Edge TPU boards (Apex) lists a board."""
    return any(devices.glob("apex_*"))


def _edgetpu(folder: Path, nodes: Path) -> UsbDevice | None:
    state = STATE_BY_USB_ID.get((_number(folder / "idVendor", 16), _number(folder / "idProduct", 16)))
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
        is_on_unpowered_hub=_is_on_unpowered_hub(folder),
    )


def _is_on_unpowered_hub(folder: Path) -> bool | None:
    hub, _, port = folder.name.rpartition(".")
    if not hub or not port:
        return False  # in a port of the computer itself
    attributes = _number(folder.parent / hub / "bmAttributes", 16)
    return not attributes & _SELF_POWERED if attributes else None


def _number(path: Path, base: int) -> int:
    """Return the number in a file; 0 if the file is missing or has no number."""
    try:
        text = path.read_text(encoding="ascii")
        return int(text, base) if base != 10 else int(float(text))
    except (OSError, ValueError):
        return 0


# Windows

_INSTANCE: Final = re.compile(r"USB\\VID_([0-9A-F]{4})&PID_([0-9A-F]{4})\\(.+)", re.IGNORECASE)
_BOARD: Final = re.compile(r"PCI\\VEN_1AC1&DEV_089A", re.IGNORECASE)
_FILTER_ENUMERATOR_PRESENT: Final = 0x00000001 | 0x00000100  # CM_GETIDLIST_FILTER_ENUMERATOR | ..._PRESENT
_SUCCESS: Final = 0


def parse_windows_instance_ids(instances: Iterable[str]) -> tuple[UsbDevice, ...]:
    """Return the Edge TPUs among Windows instance ids such as `USB\\VID_18D1&PID_9302\\5&2F1B...`.

    The id of an interface of a device (`...&MI_00`) is skipped. The ids do not state the port's speed.
    """
    devices = []
    for instance in instances:
        match = _INSTANCE.fullmatch(instance)
        if match and (state := STATE_BY_USB_ID.get((int(match[1], 16), int(match[2], 16)))):
            devices.append(UsbDevice(port=match[3], state=state))
    return tuple(sorted(devices, key=lambda edgetpu: edgetpu.port))


def split_multi_string(text: str) -> tuple[str, ...]:
    """Split a REG_MULTI_SZ value into its strings. Each string ends with NUL, and an empty string ends the list."""
    return tuple(part for part in text.split("\0") if part)


def _instances(enumerator: str) -> tuple[str, ...]:
    """Return the instance ids of the present devices of an enumerator, such as "USB".

    The Windows functions are CM_Get_Device_ID_List_SizeW and CM_Get_Device_ID_ListW (Windows SDK, cfgmgr32.h).
    """
    if sys.platform != "win32":
        return ()
    manager = ctypes.WinDLL("cfgmgr32")
    length = ctypes.c_ulong()
    if manager.CM_Get_Device_ID_List_SizeW(ctypes.byref(length), enumerator, _FILTER_ENUMERATOR_PRESENT) != _SUCCESS:
        return ()
    # If a device is plugged in between the two calls, the second call fails. The next query then finds the device.
    buffer = ctypes.create_unicode_buffer(length.value)
    if manager.CM_Get_Device_ID_ListW(enumerator, buffer, length, _FILTER_ENUMERATOR_PRESENT) != _SUCCESS:
        return ()
    return split_multi_string(buffer[:])


_SERVICE: Final = "fieldray.inference.coral:handle"
_TIMEOUT_S: Final = 5.0

POLL_INTERVAL_S: Final = 0.2  # between two readings of the system's list of USB devices


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeReport:
    """The report of the Edge TPU runtime: its name, its version (None if unknown) and its devices.

    Each device is "usb" or "pci".
    """

    library: str
    runtime_version: int | None
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CoralStatus:
    """The status of the Edge TPU.

    reason           the reason why no Edge TPU can be used; None if an Edge TPU can be used
    notes            reasons why the Edge TPU is slow or unreliable
    library_problem  the reason why the Edge TPU runtime cannot be queried, also on a computer without an Edge TPU
    """

    usb_devices: tuple[UsbDevice, ...]
    runtime: RuntimeReport | None
    reason: Reason | None
    notes: tuple[Reason, ...] = ()
    library_problem: Reason | None = None

    @property
    def state(self) -> DeviceState:
        """The state of the first Edge TPU; "absent" if there is no Edge TPU."""
        if self.usb_devices:
            return self.usb_devices[0].state
        return "ready" if self.runtime and self.runtime.devices else "absent"

    @property
    def device_changed_event(self) -> DeviceChanged:
        """The status of the Edge TPU as an event for window and command line."""
        return DeviceChanged(
            backend=EDGE_TPU.name,
            state=self.state,
            port_mbit=self.usb_devices[0].port_mbit if self.usb_devices else None,
            reason=self.reason,
            notes=self.notes,
        )


QUERY_RUNTIME: Final = ChildFunction("ask", tuple[str, ...], RuntimeReport)

QueryRuntime = Callable[[], RuntimeReport]


def query_runtime(libraries: Sequence[str] = (), *, timeout_s: float = _TIMEOUT_S) -> RuntimeReport:
    """Load the Edge TPU runtime in a child process, and return its version and devices.

    libraries  names of the runtime to try; if empty, the usual names on this system

    Raises BackendProblem if the runtime cannot be loaded or does not answer in time.
    """
    child = Child(_SERVICE, memory_limit_mb=MEMORY_LIMIT_MB)
    try:
        child.start()
        return QUERY_RUNTIME.ask(child, tuple(libraries), timeout_s=timeout_s)
    except ChildTimeout as error:
        raise BackendProblem(reason("coral_library_slow", seconds=f"{timeout_s:g}")) from error
    except ChildDied as error:
        raise BackendProblem(reason("coral_library_failed")) from error
    except OSError as error:
        raise BackendProblem(reason("start_failed", detail=error.strerror or str(error))) from error
    except FieldrayError as error:
        raise BackendProblem(error.reason) from error
    finally:
        child.close()


def find_coral_status(
    *, ask: QueryRuntime = query_runtime, find_devices: FindDevices = find_usb_devices
) -> CoralStatus:
    """Return the present status of the Edge TPU. A child process is started, which takes some time."""
    usb = find_devices()
    try:
        answer = ask()
    except BackendProblem as problem:
        # A computer without an Edge TPU needs no runtime.
        why = problem.reason if usb else reason("edgetpu_not_here")
        return CoralStatus(
            usb_devices=usb, runtime=None, reason=why, notes=usb_port_notes(usb), library_problem=problem.reason
        )
    not_listed = "coral_no_permission" if usb and usb[0].is_writable is False else "coral_not_listed"
    unlisted = None if answer.devices else reason(not_listed if usb else "edgetpu_not_here")
    return CoralStatus(usb_devices=usb, runtime=answer, reason=unlisted, notes=usb_port_notes(usb))


def usb_port_notes(usb: Sequence[UsbDevice]) -> tuple[Reason, ...]:
    """Return the reasons why the USB port makes the first Edge TPU slow or unreliable."""
    if not usb:
        return ()
    edgetpu, notes = usb[0], []
    if edgetpu.port_mbit is not None and edgetpu.port_mbit < USB3_MBIT:
        notes.append(reason("coral_usb2"))
    if edgetpu.is_on_unpowered_hub:
        notes.append(reason("coral_weak_hub"))
    return tuple(notes)


# ---- Watching for the connection and removal of an Edge TPU, in a thread of its own.
#
# `EdgeTpuWatcher` reads the system's list of USB devices a few times a second, which costs almost nothing. The Edge TPU
# runtime is queried only some time after a change. Its answer is a hint: only opening an Edge TPU shows whether it
# works.

ClockSpeed = Literal["std", "max"]
ConnectionChange = Literal["plugged", "unplugged", "flapping"]

MAX_CONNECTION_CHANGES: Final = 6  # nobody can make so many changes in `_FLAP_WINDOW_S` by hand
_FLAP_WINDOW_S: Final = 3.0
_CALM_S: Final = 3.0  # time without a change after which an unstable Edge TPU counts as stable
_FIRMWARE_GRACE_S: Final = 5.0  # an Edge TPU disconnects for a moment when its firmware is loaded


class Debouncer:
    """Reduces repeated observations of the connected Edge TPUs to the changes that matter.

    The first change counts at once. An Edge TPU that repeatedly disconnects counts as absent until it is stable. An
    Edge TPU that disappears while its firmware is loaded counts as present for some seconds more.
    """

    def __init__(self) -> None:
        self._is_seen = False
        self._was_uninitialised = False
        self._counts = False
        self._is_flapping = False
        self._changes: deque[float] = deque(maxlen=MAX_CONNECTION_CHANGES)

    def observe(self, devices: tuple[UsbDevice, ...], now_s: float) -> ConnectionChange | None:
        """Record the devices that are present at `now_s` (monotonic clock).

        Returns "plugged" or "unplugged" for a connection or removal that counts, "flapping" when repeated
        disconnections begin, else None.
        """
        if bool(devices) != self._is_seen:
            self._is_seen = bool(devices)
            self._changes.append(now_s)
        if devices:
            self._was_uninitialised = devices[0].state == "uninitialised"
        if self._is_flapping:
            if now_s - self._changes[-1] < _CALM_S:
                return None
            self._is_flapping, self._counts = False, self._is_seen
            self._changes.clear()
            return "plugged" if self._is_seen else "unplugged"
        if len(self._changes) == MAX_CONNECTION_CHANGES and now_s - self._changes[0] < _FLAP_WINDOW_S:
            self._is_flapping, self._counts = True, False
            return "flapping"
        return self._settle(now_s)

    def _settle(self, now_s: float) -> ConnectionChange | None:
        if self._is_seen == self._counts:
            return None
        if not self._is_seen and self._was_uninitialised and now_s - self._changes[-1] < _FIRMWARE_GRACE_S:
            return None
        self._counts = self._is_seen
        return "plugged" if self._is_seen else "unplugged"


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchPace:
    """The pace of a device watch.

    interval_s     seconds between two readings of the device list
    query_delay_s  seconds from the connection of a device to the query of the Edge TPU runtime
    """

    interval_s: float = POLL_INTERVAL_S
    query_delay_s: float = 3.0


class EdgeTpuWatcher:
    """A thread that watches for the connection and removal of Edge TPUs.

    plugged    called when an Edge TPU is connected, to start the Edge TPU
    unplugged  called with the reason when the Edge TPU was removed
    ask        queries the Edge TPU runtime; may be slow. Not called if no Edge TPU can be present
    has_board  returns whether there may be an Edge TPU board
    clock      the Edge TPU's clock; with the clock "max", a person is warned whenever the device is connected
    """

    def __init__(
        self,
        publish: Publish,
        plugged: Callable[[], None],
        unplugged: Callable[[Reason], None],
        *,
        find_devices: FindDevices = find_usb_devices,
        ask: QueryRuntime = query_runtime,
        has_board: HasBoard = may_have_edgetpu_board,
        clock: ClockSpeed = "std",
        pace: WatchPace = WatchPace(),
    ) -> None:
        self._publish = publish
        self._plugged = plugged
        self._unplugged = unplugged
        self._find_devices = find_devices
        self._ask = ask
        self._has_board = has_board
        self._notes = (reason("coral_max_clock"),) if clock == "max" else ()
        self._pace = pace
        self._steady = Debouncer()
        self._devices: tuple[UsbDevice, ...] = ()
        self._ask_at_s: float | None = time.monotonic() + pace.query_delay_s / 3
        self._published: DeviceChanged | None = None
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="edgetpu-watch", daemon=True)

    def start(self) -> None:
        """Start the thread that watches for Edge TPUs."""
        self._thread.start()

    def close(self) -> None:
        """Stop the thread and wait for its end."""
        self._ends.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _watch(self) -> None:
        while not self._ends.is_set():
            try:
                self._check_devices()
            except Exception:
                log.exception("looking for the Edge TPU failed; the next look may not")
            self._ends.wait(self._pace.interval_s)

    def _check_devices(self) -> None:
        devices, now_s = self._find_devices(), time.monotonic()
        change = self._steady.observe(devices, now_s)
        if change:
            self._report(devices, change)
        if change == "flapping":
            self._ask_at_s = None
        elif change or (devices and devices != self._devices):
            self._ask_at_s = now_s + self._pace.query_delay_s
        self._devices = devices
        if self._ask_at_s is not None and now_s >= self._ask_at_s:
            self._ask_at_s = None
            self._publish_event(self._status(devices).device_changed_event)

    def _status(self, devices: tuple[UsbDevice, ...]) -> CoralStatus:
        if devices or self._has_board():
            return find_coral_status(ask=self._ask, find_devices=self._find_devices)
        return CoralStatus(usb_devices=(), runtime=None, reason=reason("edgetpu_not_here"))

    def _report(self, devices: tuple[UsbDevice, ...], change: ConnectionChange) -> None:
        log.info("the Edge TPU: %s", change)
        if change == "plugged":
            self._plugged()
            found = CoralStatus(usb_devices=devices, runtime=None, reason=None, notes=usb_port_notes(devices))
        else:
            why = reason("coral_flapping" if change == "flapping" else "coral_unplugged")
            self._unplugged(why)
            found = CoralStatus(usb_devices=(), runtime=None, reason=why)
        self._publish_event(found.device_changed_event)

    def _publish_event(self, event: DeviceChanged) -> None:
        if event.state != "absent":
            event = replace(event, notes=event.notes + self._notes)
        if event != self._published:
            self._published = event
            self._publish(event)
