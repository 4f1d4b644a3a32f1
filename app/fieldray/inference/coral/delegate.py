"""What opens the Edge TPU in the child process: the Edge TPU runtime as a TensorFlow Lite delegate."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fieldray.errors import BackendProblem
from fieldray.file_lock import FileLock, HeldError
from fieldray.inference.coral.compiled import read_compiled
from fieldray.inference.coral.library import Device, EdgeTpuLibrary
from fieldray.inference.runtime import Runtime
from fieldray.reasons import reason


class OpenDelegate:
    """An Edge TPU that this process has to itself until it ends (`messages.OpenedDevice`).

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
        chosen = {**options["options"], "device": _device_option(devices, index)}
        try:
            self.delegate = runtime.load_delegate(library.name, chosen)
        except (ValueError, OSError) as error:
            self._lock.release()
            raise BackendProblem(reason("coral_open_failed")) from error


class DeviceLock:
    """One Edge TPU, one process: held from birth until `release`, or until the process ends, however it does.

    Raises BackendProblem("coral_busy") if another process holds it.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._lock = FileLock(path, holder=str(os.getpid()))
        except HeldError as error:
            raise BackendProblem(reason("coral_busy", process=error.holder)) from error

    def release(self) -> None:
        """Give it back; safe to call twice."""
        self._lock.release()


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
