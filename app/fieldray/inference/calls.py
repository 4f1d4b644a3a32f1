"""What a process that runs one network can be asked, and what it answers: both sides of the pipe use these calls.

There is no close: the child ends with its input.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from fieldray.inference.backend import Answer
from fieldray.inference.litert import NetworkSpec, Runtime
from fieldray.processes.rpc import Call


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class DelegateSpec:
    """How the child opens a device: `opener` names a function ("module:function") that is called as `OpenDevice`.

    options  for it, as JSON
    failure  the code of the reason (with a `detail`) for an image that the device did not run
    """

    opener: str
    options: Mapping[str, Any]
    failure: str = "inference"


class OpenedDevice(Protocol):
    """A device that this process has opened, until it ends.

    delegate  for the runtime's interpreter
    detail    what the device says of itself, in a few words
    """

    @property
    def delegate(self) -> object: ...
    @property
    def detail(self) -> str: ...


class OpenDevice(Protocol):
    """Opens a device for a file. Raises BackendProblem."""

    def __call__(self, options: Mapping[str, Any], file: bytes, runtime: Runtime, /) -> OpenedDevice: ...


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Opening:
    """Load a file (its bytes) with so many threads; `delegate` opens a device, None for the CPU."""

    file: NDArray[np.uint8]
    spec: NetworkSpec
    runtimes: tuple[str, ...]
    threads: int
    delegate: DelegateSpec | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """What the child opened; `device` is empty for the CPU."""

    runtime: str
    version: str
    threads: int
    device: str

    @property
    def text(self) -> str:
        """For the log and the status line."""
        return f"{self.runtime} {self.version}, {self.device or f'1 x {self.threads}'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Warm:
    """Have a runtime imported, so that a later opening is quick."""

    runtimes: tuple[str, ...]


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Run:
    """Run one image (height, width, channels) uint8."""

    values: NDArray[np.uint8]


OPEN: Final = Call("open", Opening, Opened)
WARM: Final = Call("warm", Warm, Warm)
RUN: Final = Call("run", Run, Answer)
