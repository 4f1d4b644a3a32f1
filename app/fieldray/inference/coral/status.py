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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fieldray.backends import EDGE_TPU
from fieldray.domain.events import DeviceChanged, DeviceState
from fieldray.errors import BackendProblem, FieldrayError
from fieldray.inference.coral.compiled import read_compiled
from fieldray.inference.coral.usb import USB3_MBIT, FindDevices, UsbDevice, find_usb_devices
from fieldray.inference.litert import MEMORY_LIMIT_MB, Runtime
from fieldray.persistence import FileLock, HeldError
from fieldray.processes.child import Child, ChildDied, ChildTimeout
from fieldray.processes.rpc import Call, served
from fieldray.reasons import Reason, reason

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
    """An Edge TPU that this process has to itself until it ends (`calls.DelegateSpec`).

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
