"""The TensorFlow Lite runtime that is installed (LiteRT, else its predecessor), and the process it runs models in."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fieldray.errors import BackendProblem
from fieldray.processes.child import Child
from fieldray.reasons import reason

RUNTIMES: Final = ("ai_edge_litert", "tflite_runtime")
# What a child process serves to run models.
SERVICE: Final = "fieldray.inference.service:handle"

# How much memory that process may take.
#
# Measured on 64-bit Linux with LiteRT 2.3.0 as the peak of the address space (VmPeak in /proc/PID/status) after `open`
# and one `run`, with every number of threads tried on four cores, which is the most that are tried:
#
#     the packs that ship (3 and 5 MB)                       560 MB
#     ResNet50 of full width in float32, 224 x 224 (89 MB)  1139 MB
#
# That is 560 MB and less than seven times the file, because up to six copies of its weights are there at once. A file
# of 256 MB, the largest that a pack may have, needs 2.3 GB. For the Edge TPU there is one network, so that a third of
# that is left for libedgetpu, its threads and its copy of the file.
MEMORY_LIMIT_MB: Final = 2560


def model_process() -> Child:
    """A process that will run a model, not started."""
    return Child(SERVICE, memory_limit_mb=MEMORY_LIMIT_MB)


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """An imported runtime: `interpreter` and `load_delegate` are its class and function of the same names."""

    name: str
    version: str
    interpreter: Callable[..., Any]
    load_delegate: Callable[..., Any]


def load_runtime(names: Sequence[str] = RUNTIMES) -> Runtime:
    """Import the first of `names` (out of `RUNTIMES`) that is there. Raises BackendProblem("no_runtime")."""
    for name in names:
        if name not in RUNTIMES:
            raise ValueError(f"{name} is not one of {RUNTIMES}")
        try:
            package = importlib.import_module(name)
            module = importlib.import_module(f"{name}.interpreter")
        except (ImportError, OSError):
            continue
        return Runtime(
            name=name,
            version=str(getattr(package, "__version__", "?")),
            interpreter=module.Interpreter,
            load_delegate=module.load_delegate,
        )
    raise BackendProblem(reason("no_runtime"))
