"""The Coral USB Accelerator (Edge TPU) as a backend.

A child process runs the pack's compiled file, because the Edge TPU runtime may crash its process.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import struct
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

from fieldray.backends import EDGE_TPU
from fieldray.domain.model import Model
from fieldray.domain.run import Publish
from fieldray.errors import BackendProblem
from fieldray.inference.backend import BackendKind, BackendOptions, model_file_for
from fieldray.inference.coral_status import (
    QUERY_RUNTIME,
    ClockSpeed,
    EdgeTpuWatcher,
    FindDevices,
    HasBoard,
    QueryRuntime,
    RuntimeReport,
    find_coral_status,
    find_usb_devices,
    may_have_edgetpu_board,
    query_runtime,
)
from fieldray.inference.litert import Runtime
from fieldray.inference.operators import EDGETPU_OPERATOR
from fieldray.inference.worker import DelegateSpec, WorkerBackend
from fieldray.paths import data_folder
from fieldray.persistence import FileLock, LockHeldError
from fieldray.process_environment import Priority
from fieldray.processes.child import ChildDied, ChildTimeout, make_message_handler
from fieldray.reasons import Reason, reason

# The library built for "max" runs at the highest clock unless an option lowers it. The library built for "std" never
# runs at the highest clock.
_PERFORMANCE: Final = {"std": "High", "max": "Max"}
_ACCESS_VIOLATION: Final = 0xC0000005  # exit code of a Windows process that used forbidden memory
_LOCK_NAME: Final = "edgetpu-{index}.lock"  # one per Edge TPU, shared by all processes of this user
_OPENER: Final = "fieldray.inference.coral:ExclusiveEdgeTpu"
_NOT_HERE: Final = "edgetpu_not_here"
_PERMANENT: Final = frozenset(
    {
        _NOT_HERE,
        "coral_not_compiled",
        "coral_no_library",
        "coral_no_libusb",
        "coral_bad_library",
        "coral_wrong_abi",
        "coral_runtime_old",
    }
)


def edgetpu_kind(
    *,
    libraries: Sequence[str] = (),
    clock: ClockSpeed = "std",
    find_devices: FindDevices = find_usb_devices,
    has_board: HasBoard = may_have_edgetpu_board,
    publish: Publish | None = None,
    start_timeout_s: float = 20.0,
    run_timeout_s: float = 3.0,
    priority: Priority = "normal",
) -> BackendKind:
    """Return the kind of backend that runs on the first Edge TPU that no other process uses.

    Parameters
    ----------
    libraries
        Names of the Edge TPU runtime to try; by default the usual names on this system.
    clock
        Clock speed: "std" is the normal speed. "max" is the highest speed; it makes the Edge TPU hot enough to burn
        the skin, and is used only if a person asks for it.
    find_devices, has_board
        Functions that list the USB devices, and that return whether an Edge TPU board may be present.
    publish
        Receives the events of the Edge TPU; None to watch no Edge TPU.
    """
    ask = partial(query_runtime, libraries)

    def open_one() -> WorkerBackend:
        lock, performance = str(data_folder() / _LOCK_NAME), {"Performance": _PERFORMANCE[clock]}
        options = {"libraries": list(libraries), "options": performance, "lock": lock}
        return WorkerBackend(
            EDGE_TPU,
            threads=1,
            delegate=DelegateSpec(opener_class_name=_OPENER, options=options, failure_code="coral_run_failed"),
            explain=partial(explain_exit, find_devices),
            start_timeout_s=start_timeout_s,
            run_timeout_s=run_timeout_s,
            priority=priority,
        )

    watch = partial(EdgeTpuWatcher, find_devices=find_devices, ask=ask, has_board=has_board, clock=clock)
    return BackendKind(
        entry=EDGE_TPU,
        open=open_one,
        probe=lambda model: _device_problem(find_devices, ask, has_board) or _file_problem(model),
        watch=partial(watch, publish) if publish else None,
        permanent_problem_codes=_PERMANENT,
        absent_device_codes=frozenset({_NOT_HERE}),
    )


def make_backend_kind(options: BackendOptions) -> BackendKind:
    """Return the Edge TPU as a kind of backend, with the runtime that is installed on this computer."""
    clock = cast("ClockSpeed", options.settings["edgetpu_clock"])
    return edgetpu_kind(clock=clock, publish=options.publish, priority=options.priority)


def _file_problem(model: Model) -> Reason | None:
    """Return the reason why the pack cannot run on any Edge TPU, or None.

    The runtime does not report the reason: a file that is not compiled would silently run on the CPU.
    """
    try:
        if is_compiled_for_edgetpu(model_file_for(EDGE_TPU, model)):
            return None
    except BackendProblem:
        pass  # the pack has no file for the Edge TPU
    except ValueError as error:
        return reason("bad_model", detail=str(error))
    return reason("coral_not_compiled", pack=model.pack_name)


def _device_problem(find_devices: FindDevices, ask: QueryRuntime, has_board: HasBoard) -> Reason | None:
    """Return the reason not to start a process for the Edge TPU, or None.

    An Edge TPU on USB is not tested further, because the process tests the device by opening it.
    """
    devices = find_devices()
    if devices:
        return reason("coral_no_permission") if devices[0].is_writable is False else None
    return find_coral_status(ask=ask, find_devices=find_devices).reason if has_board() else reason(_NOT_HERE)


def explain_exit(
    find_devices: FindDevices, error: ChildDied | ChildTimeout, *, is_model_loaded: bool, timeout_s: float
) -> Reason:
    """Return the reason why the Edge TPU's process ended, judged by the error and the USB devices.

    find_devices     lists the Edge TPUs on USB
    error            how the process ended
    is_model_loaded  whether the model had been loaded before
    timeout_s        the exceeded time limit in seconds, for a `ChildTimeout`
    """
    if is_model_loaded and not find_devices():
        return reason("coral_unplugged")
    if isinstance(error, ChildTimeout):
        return reason("coral_no_answer", seconds=f"{timeout_s:g}")
    if error.exit_code in (_ACCESS_VIOLATION, -signal.SIGSEGV) and not is_model_loaded:
        return reason("coral_wrong_abi")
    return reason("coral_stopped")


# ---- The Edge TPU runtime library by its C interface (edgetpu_c.h), and as a TensorFlow Lite delegate.
#
# The library is loaded only in a child process, because it may end the process.

# Names of the library on each system, the most likely name first.
LIBRARY_NAMES_BY_SYSTEM: Final[Mapping[str, tuple[str, ...]]] = {
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


class _Entry(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("path", ctypes.c_char_p))


class EdgeTpuLibrary:
    """The loaded Edge TPU runtime.

    The constructor raises BackendProblem if no library in `names` can be loaded.
    """

    def __init__(self, names: Sequence[str] = ()) -> None:
        usual = LIBRARY_NAMES_BY_SYSTEM.get(sys.platform, LIBRARY_NAMES_BY_SYSTEM["linux"])
        self.name, self._library = _load(tuple(names) or usual)

    @property
    def runtime_version(self) -> int | None:
        """The version of the runtime: the number in the runtime's text "RuntimeVersion(N)"; None if unknown."""
        ask = self._library.edgetpu_version
        ask.restype = ctypes.c_char_p
        match = _VERSION.search((ask() or b"").decode(errors="replace"))
        return int(match[1]) if match else None

    def devices(self) -> tuple[str, ...]:
        """Return the Edge TPUs on USB ("usb") and the Edge TPU boards ("pci") that the runtime lists now."""
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
            return tuple("usb" if one.type else "pci" for one in entries[: count.value])
        finally:
            library.edgetpu_free_devices(entries)


def library_load_problem(error: OSError, name: str) -> Reason:
    """Return the reason why the Edge TPU runtime could not be loaded, judged by the system's error message."""
    if isinstance(error.__cause__, OSError):  # in the installed program, only the cause has the message
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
            problems.append(library_load_problem(error, name))
            continue
        if not hasattr(library, "edgetpu_list_devices"):
            raise BackendProblem(reason("coral_bad_library", name=name))
        return name, library
    # A library that exists but cannot be loaded is a more useful reason than a missing library.
    specific = [problem for problem in problems if problem.code != "coral_no_library"]
    raise BackendProblem((specific or problems)[0])


class ExclusiveEdgeTpu:
    """Opens an Edge TPU for this process alone, until the process ends (an `opener` of `worker.DelegateSpec`).

    The constructor loads the Edge TPU runtime and opens the first Edge TPU that no other process uses. BackendProblem
    is raised if every Edge TPU is in use, or if the runtime is too old for the network file. `options` has three keys:

    libraries  names of the Edge TPU runtime to try
    options    options for the runtime's delegate, such as the clock
    lock       path of the file that reserves an Edge TPU, in which "{index}" stands for the Edge TPU's number
    """

    def __init__(self, options: Mapping[str, Any], file: bytes, runtime: Runtime) -> None:
        library = EdgeTpuLibrary(options["libraries"])
        devices = library.devices()
        if not devices:  # the parent process saw an Edge TPU a moment ago
            raise BackendProblem(reason("coral_not_listed"))
        version = library.runtime_version
        needed = minimum_runtime_version(file)
        if version is not None and needed is not None and needed > version:
            raise BackendProblem(reason("coral_runtime_old", needed=needed, found=version))
        self.detail = f"Edge TPU runtime {version if version is not None else '?'}"
        # Lock first: opening an Edge TPU that another process uses can disturb both processes.
        index, self._lock = _lock_one(options["lock"], len(devices))
        # The delegate's names: "usb:1" is the second Edge TPU on USB, "pci:0" the first board.
        chosen = {**options["options"], "device": f"{devices[index]}:{devices[:index].count(devices[index])}"}
        try:
            self.delegate = runtime.load_delegate(library.name, chosen)
        except (ValueError, OSError) as error:
            self._lock.release()
            raise BackendProblem(reason("coral_open_failed")) from error


def _lock_one(pattern: str, count: int) -> tuple[int, FileLock]:
    """Reserve the first of `count` Edge TPUs that no other process uses, until this process ends.

    Returns the number of the Edge TPU, and its lock. Raises BackendProblem("coral_busy") if all are in use.
    """
    for index in range(count):
        try:
            return index, FileLock(Path(pattern.format(index=index)), holder=str(os.getpid()))
        except LockHeldError as error:
            if index == count - 1:
                raise BackendProblem(reason("coral_busy", process=error.holder)) from error
    raise ValueError("no Edge TPU to lock")


def _answer(libraries: Sequence[str]) -> RuntimeReport:
    """Load the Edge TPU runtime, and return its name, version and devices.

    libraries  names of the runtime to try; if empty, the usual names on this system

    Raises BackendProblem.
    """
    library = EdgeTpuLibrary(libraries)
    version, devices = library.runtime_version, library.devices()
    return RuntimeReport(library=library.name, runtime_version=version, devices=devices)


handle: Final = make_message_handler((QUERY_RUNTIME, _answer))  # runs in a child process that answers one question


# ---- Facts that edgetpu_compiler stored in a TensorFlow Lite file, read from the bytes without a runtime.
#
# The runtime does not report whether a file is compiled: a file that is not compiled silently runs on the CPU.
#
# libedgetpu, executable/executable.fbs: Package (0 min_runtime_version, 1 serialized_multi_executable), MultiExecutable
# (0 serialized_executables), Executable (6 parameters, 13 type).

EDGETPU_OPERATOR_NAME: Final = EDGETPU_OPERATOR.encode()
_PACKAGE: Final = b"DWN1"  # mark of the compiler's FlatBuffers table, behind the four bytes of its offset
_STAND_ALONE, _CACHING, _EXECUTION_ONLY = 0, 1, 2
_NEWEST_RUNTIME: Final = 1000  # a higher number means that the mark was no package


def is_compiled_for_edgetpu(file: bytes) -> bool:
    """Return whether a network file has an Edge TPU operator.

    Raises ValueError if the file is no TensorFlow Lite file.
    """
    if file[4:8] != b"TFL3":
        raise ValueError("not a TensorFlow Lite file")
    return EDGETPU_OPERATOR_NAME in file


def minimum_runtime_version(file: bytes) -> int | None:
    """Return the oldest Edge TPU runtime version that can run a compiled file; None if the file does not state it."""
    said = []
    for mark in re.finditer(_PACKAGE, file):
        with contextlib.suppress(struct.error):
            said.append(_number(file, _table(file, mark.start() - 4), 0, "<i"))
    return max((version for version in said if 0 < version < _NEWEST_RUNTIME), default=None)


def parse_edgetpu_options(options: bytes) -> tuple[int, int, int]:
    """Read the package that the Edge TPU compiler stores in the options of an Edge TPU operator.

    Returns (oldest runtime version that can run the file, bytes of weights kept on the chip, bytes sent for each
    image). Raises ValueError if the options contain no package of the Edge TPU compiler, or a damaged package.
    """
    start = options.find(_PACKAGE) - 4
    if start < 0:
        raise ValueError("the Edge TPU operator holds no DWN1 package")
    try:
        package = _table(options, start)
        first, count = _vector(options, _table(options, _vector(options, package, 1)[0]), 0)
        places = (place + _unpacked("<I", options, place) + 4 for place in range(first, first + 4 * count, 4))
        executables = [_table(options, place) for place in places]
        sizes = {_number(options, each, 13, "<h"): _vector(options, each, 6)[1] for each in executables}
        streamed = sizes.get(_EXECUTION_ONLY, sizes.get(_STAND_ALONE, 0))
        return _number(options, package, 0, "<i"), sizes.get(_CACHING, 0), streamed
    except struct.error as error:
        raise ValueError("the Edge TPU operator's package is damaged") from error


def _table(data: bytes, start: int) -> int:
    return start + _unpacked("<I", data, start)


def _number(data: bytes, table: int, field: int, form: str) -> int:
    place = _field_offset(data, table, field)
    return _unpacked(form, data, place) if place else 0


def _vector(data: bytes, table: int, field: int) -> tuple[int, int]:
    """Return offset and length of a FlatBuffers vector. Raises struct.error if the vector ends past the data."""
    place = _field_offset(data, table, field)
    if not place:
        return 0, 0
    start = _table(data, place)
    length = _unpacked("<I", data, start)
    if start + 4 + length > len(data):
        raise struct.error("a vector reaches past the end")
    return start + 4, length


def _field_offset(data: bytes, table: int, field: int) -> int:
    """Return the offset of a field of a FlatBuffers table; 0 if the table lacks the field."""
    fields, entry = table - _unpacked("<i", data, table), 4 + 2 * field
    offset = _unpacked("<H", data, fields + entry) if entry < _unpacked("<H", data, fields) else 0
    return table + offset if offset else 0


def _unpacked(form: str, data: bytes, place: int) -> int:
    if place < 0:
        raise struct.error("an offset that points before the data")
    return int(struct.unpack_from(form, data, place)[0])
