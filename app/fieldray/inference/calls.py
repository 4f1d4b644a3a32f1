"""What a process that runs one network can be asked, and what it answers: both sides of the pipe use these calls.

There is no close: the child ends with its input.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fieldray.inference.backend import Answer
from fieldray.inference.litert import NetworkSpec
from fieldray.processes.rpc import Call


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class DelegateSpec:
    """How the child opens a device, until it ends.

    opener   names a class ("module:name") that opens it for options, a file's bytes and a Runtime, or raises
             BackendProblem; has the `delegate` for the interpreter and `detail`, what the device says of itself
    options  for it, as JSON
    failure  the code of the reason (with a `detail`) for an image that the device did not run
    """

    opener: str
    options: Mapping[str, Any]
    failure: str = "inference"


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Opening:
    """Load a file (its bytes) with so many threads; `delegate` opens a device, None for the CPU."""

    file: NDArray[np.uint8]
    spec: NetworkSpec
    threads: int
    delegate: DelegateSpec | None = None


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Run:
    """Run one image (height, width, channels) uint8."""

    values: NDArray[np.uint8]


OPEN: Final = Call("open", Opening, str)  # what the child opened, for the log and the status line
RUN: Final = Call("run", Run, Answer)
