"""Is an Edge TPU there, can it be used, and if not, what has to be done?

The Edge TPU runtime's own list decides whether there is an Edge TPU. It is asked in a child process, because a library
that does not fit, or an Edge TPU that is pulled out meanwhile, ends the process that asks. What the system knows about
USB is added where there is any.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from fieldray.backends import EDGE_TPU
from fieldray.domain.run import DeviceChanged, DeviceState
from fieldray.errors import BackendProblem, FieldrayError
from fieldray.inference.coral.compiled import read_compiled
from fieldray.inference.litert import MEMORY_LIMIT_MB, Runtime
from fieldray.persistence import FileLock, HeldError
from fieldray.processes.child import Call, Child, ChildDied, ChildTimeout, served
from fieldray.reasons import Reason, reason

# ---- What the operating system lists on USB, in one form for Linux and Windows; nothing elsewhere.
#
# Sources: Linux, /sys (kernel documentation, ABI/stable/sysfs-bus-usb); Windows, device instance ids from the
# configuration manager (cfgmgr32).

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


# Linux

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


# Windows

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


# ---- The Edge TPU runtime library by its C interface (edgetpu_c.h), and as a TensorFlow Lite delegate.
#
# Only in a child process: it may stop the process.

# What the library is called on each system, likeliest first.
LIBRARY_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "linux": ("libedgetpu.so.1",),
    "darwin": (
        "libedgetpu.1.dylib",
        "/usr/local/lib/libedgetpu.1.dylib",
        "/opt/homebrew/lib/libedgetpu.1.dylib",
        "/opt/local/lib/libedgetpu.1.dylib",
    ),
    "win32": ("edgetpu.dll",),
}
_VERSION: Final = re.compile(r"RuntimeVersion\((\d+)\)")
_WINDOWS_NOT_A_PROGRAM: Final = 193  # ERROR_BAD_EXE_FORMAT
_NOT_A_LIBRARY: Final = ("invalid ELF", "file too short", "wrong ELF", "not a mach-o", "incompatible architecture")


@dataclass(frozen=True, slots=True)
class Device:
    """One entry of the library's list: `kind` is "usb" or "pci"."""

    kind: str
    path: str


class _Entry(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("path", ctypes.c_char_p))


class EdgeTpuLibrary:
    """A loaded library. Raises BackendProblem at birth when none of `names` can be loaded."""

    def __init__(self, names: Sequence[str] = ()) -> None:
        usual = LIBRARY_NAMES.get(sys.platform, LIBRARY_NAMES["linux"])
        self.name, self._library = _load(tuple(names) or usual)

    @property
    def runtime_version(self) -> int | None:
        """N of its "RuntimeVersion(N)"."""
        ask = self._library.edgetpu_version
        ask.restype = ctypes.c_char_p
        match = _VERSION.search((ask() or b"").decode(errors="replace"))
        return int(match[1]) if match else None

    def devices(self) -> tuple[Device, ...]:
        """The Edge TPUs and boards it can see now."""
        library = self._library
        library.edgetpu_list_devices.restype = ctypes.POINTER(_Entry)
        library.edgetpu_list_devices.argtypes = [ctypes.POINTER(ctypes.c_size_t)]
        library.edgetpu_free_devices.restype = None
        library.edgetpu_free_devices.argtypes = [ctypes.POINTER(_Entry)]
        count = ctypes.c_size_t()
        entries = library.edgetpu_list_devices(ctypes.byref(count))
        if not entries:
            return ()
        try:
            listed = ((one.type, one.path or b"") for one in entries[: count.value])
            return tuple(Device("usb" if kind else "pci", path.decode(errors="replace")) for kind, path in listed)
        finally:
            library.edgetpu_free_devices(entries)


def load_problem(error: OSError, name: str) -> Reason:
    """Why a library could not be loaded, from the loader's own words."""
    if isinstance(error.__cause__, OSError):  # the installed program's loader says only that it failed
        error = error.__cause__
    text = str(error)
    if "libusb" in text:
        return reason("coral_no_libusb")
    if getattr(error, "winerror", None) == _WINDOWS_NOT_A_PROGRAM or any(part in text for part in _NOT_A_LIBRARY):
        return reason("coral_bad_library", name=name)
    return reason("coral_no_library", name=name)


def _load(names: Sequence[str]) -> tuple[str, ctypes.CDLL]:
    problems = []
    for name in names:
        try:
            library = ctypes.CDLL(name)
        except OSError as error:
            problems.append(load_problem(error, name))
            continue
        if not hasattr(library, "edgetpu_list_devices"):
            raise BackendProblem(reason("coral_bad_library", name=name))
        return name, library
    # a library that is there but does not load says more than one that is absent
    specific = [problem for problem in problems if problem.code != "coral_no_library"]
    raise BackendProblem((specific or problems)[0])


class OpenDelegate:
    """An Edge TPU that this process has to itself until it ends (`worker.DelegateSpec`).

    Raises BackendProblem at birth. `options` are: libraries, the names to try; options, those of the delegate; lock,
    the path of the Edge TPU's lock with "{index}" in it.
    """

    def __init__(self, options: Mapping[str, Any], file: bytes, runtime: Runtime) -> None:
        library = EdgeTpuLibrary(options["libraries"])
        devices = library.devices()
        if not devices:  # the parent saw one a moment ago
            raise BackendProblem(reason("coral_not_listed"))
        version = library.runtime_version
        needed = read_compiled(file).oldest_runtime
        if version is not None and needed is not None and needed > version:
            raise BackendProblem(reason("coral_runtime_old", needed=needed, found=version))
        self.detail = f"Edge TPU runtime {version if version is not None else '?'}"
        # the lock comes before the delegate, because opening an Edge TPU that another process uses can upset both
        index, self._lock = _lock_one(options["lock"], len(devices))
        # in the delegate's words: "usb:1" is the second of all on USB, "pci:0" the first board
        kind = devices[index].kind
        number = sum(device.kind == kind for device in devices[:index])
        chosen = {**options["options"], "device": f"{kind}:{number}"}
        try:
            self.delegate = runtime.load_delegate(library.name, chosen)
        except (ValueError, OSError) as error:
            self._lock.release()
            raise BackendProblem(reason("coral_open_failed")) from error


def _lock_one(pattern: str, count: int) -> tuple[int, FileLock]:
    """The first Edge TPU of `count` that no other process has, held until this one ends, however it does.

    Raises BackendProblem("coral_busy").
    """
    for index in range(count):
        try:
            return index, FileLock(Path(pattern.format(index=index)), holder=str(os.getpid()))
        except HeldError as error:
            if index == count - 1:
                raise BackendProblem(reason("coral_busy", process=error.holder)) from error
    raise ValueError("no Edge TPU to lock")


_SERVICE: Final = "fieldray.inference.coral.status:handle"
_TIMEOUT_S: Final = 5.0

LOOK_INTERVAL_S: Final = 0.2  # at the system's list of USB devices


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryAnswer:
    """What the Edge TPU runtime said: its name, version (None if it does not say) and the devices it sees."""

    library: str
    runtime_version: int | None
    devices: tuple[Device, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CoralStatus:
    """All that is known.

    reason           why no Edge TPU can be used, None if one can
    notes            what makes the Edge TPU slow or unreliable
    library_problem  why the Edge TPU runtime cannot be asked, also where there is no Edge TPU to ask for
    """

    usb: tuple[UsbDevice, ...]
    answer: LibraryAnswer | None
    reason: Reason | None
    notes: tuple[Reason, ...] = ()
    library_problem: Reason | None = None

    @property
    def state(self) -> DeviceState:
        """Of the first Edge TPU."""
        if self.usb:
            return self.usb[0].state
        return "ready" if self.answer and self.answer.devices else "absent"

    @property
    def event(self) -> DeviceChanged:
        """As the front ends hear it."""
        return DeviceChanged(
            backend=EDGE_TPU.name,
            state=self.state,
            port_mbit=self.usb[0].port_mbit if self.usb else None,
            runtime_version=self.answer.runtime_version if self.answer else None,
            reason=self.reason,
            notes=self.notes,
        )


def _answer(libraries: Sequence[str]) -> LibraryAnswer:
    """Load the library, under one of these names or its usual ones, and report what it sees. Raises BackendProblem."""
    library = EdgeTpuLibrary(libraries)
    version, devices = library.runtime_version, library.devices()
    return LibraryAnswer(library=library.name, runtime_version=version, devices=devices)


_ASK: Final = Call("ask", tuple[str, ...], LibraryAnswer)
handle: Final = served((_ASK, _answer))  # of a child that lives for one question

AskLibrary = Callable[[], LibraryAnswer]


def ask_library(libraries: Sequence[str] = (), *, timeout_s: float = _TIMEOUT_S) -> LibraryAnswer:
    """Ask the Edge TPU runtime, in a child process of its own. Raises BackendProblem."""
    child = Child(_SERVICE, memory_limit_mb=MEMORY_LIMIT_MB)
    try:
        child.start()
        return _ASK.ask(child, tuple(libraries), timeout_s=timeout_s)
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


def look(*, ask: AskLibrary = ask_library, find: FindDevices = find_usb_devices) -> CoralStatus:
    """Look once. Takes as long as a child process takes to start."""
    usb = find()
    try:
        answer = ask()
    except BackendProblem as problem:
        # who has no Edge TPU needs no runtime either
        why = problem.reason if usb else reason("edgetpu_not_here")
        return CoralStatus(usb=usb, answer=None, reason=why, notes=notes_on(usb), library_problem=problem.reason)
    not_listed = "coral_no_permission" if usb and usb[0].is_writable is False else "coral_not_listed"
    unlisted = None if answer.devices else reason(not_listed if usb else "edgetpu_not_here")
    return CoralStatus(usb=usb, answer=answer, reason=unlisted, notes=notes_on(usb))


def notes_on(usb: Sequence[UsbDevice]) -> tuple[Reason, ...]:
    """What makes the first Edge TPU slow or unreliable where it is plugged in."""
    if not usb:
        return ()
    edgetpu, notes = usb[0], []
    if edgetpu.port_mbit is not None and edgetpu.port_mbit < USB3_MBIT:
        notes.append(reason("coral_usb2"))
    if edgetpu.is_on_weak_hub:
        notes.append(reason("coral_weak_hub"))
    return tuple(notes)
