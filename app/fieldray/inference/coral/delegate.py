"""What opens the Edge TPU in the child process: the Edge TPU runtime as a TensorFlow Lite delegate."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fieldray.errors import BackendProblem
from fieldray.inference.coral.compiled import read_compiled
from fieldray.inference.coral.device_lock import DeviceLock
from fieldray.inference.coral.library import Device, EdgeTpuLibrary
from fieldray.inference.runtime import Runtime
from fieldray.reasons import reason


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegateSpec:
    """How to open an Edge TPU: libraries to try, options of the delegate, and the path of its lock ("{index}")."""

    libraries: tuple[str, ...]
    options: tuple[tuple[str, str], ...]
    lock: str

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> DelegateSpec:
        """As it was sent: `dataclasses.asdict`, through JSON."""
        options = tuple((str(key), str(value)) for key, value in body["options"])
        return cls(libraries=tuple(body["libraries"]), options=options, lock=str(body["lock"]))


class OpenDelegate:
    """An Edge TPU this process has to itself until it ends. Raises BackendProblem at birth.

    delegate  for the runtime's interpreter
    detail    the Edge TPU runtime's version, in a few words
    """

    def __init__(self, spec: DelegateSpec, file: bytes, runtime: Runtime) -> None:
        library = EdgeTpuLibrary(spec.libraries)
        devices = library.devices()
        if not devices:  # the parent saw one a moment ago
            raise BackendProblem(reason("coral_not_listed"))
        version = library.runtime_version
        needed = read_compiled(file).oldest_runtime
        if version is not None and needed is not None and needed > version:
            raise BackendProblem(reason("coral_runtime_old", needed=needed, found=version))
        self.detail = f"Edge TPU runtime {version if version is not None else '?'}"
        # the lock goes before the delegate: opening an Edge TPU that another process uses can upset both
        index, self._lock = _lock_one(spec.lock, len(devices))
        options = {**dict(spec.options), "device": _device_option(devices, index)}
        try:
            self.delegate = runtime.load_delegate(library.name, options)
        except (ValueError, OSError) as error:
            self._lock.release()
            raise BackendProblem(reason("coral_open_failed")) from error


def _lock_one(pattern: str, count: int) -> tuple[int, DeviceLock]:
    """The first Edge TPU of `count` that no other process has. Raises BackendProblem("coral_busy")."""
    for index in range(count - 1):
        with contextlib.suppress(BackendProblem):
            return index, DeviceLock(Path(pattern.format(index=index)))
    return count - 1, DeviceLock(Path(pattern.format(index=count - 1)))


def _device_option(devices: tuple[Device, ...], index: int) -> str:
    """In the delegate's words: "usb:1" is the second of all on USB, "pci:0" the first board."""
    kind = devices[index].kind
    return f"{kind}:{sum(device.kind == kind for device in devices[:index])}"
