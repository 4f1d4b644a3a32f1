"""The TensorFlow Lite runtime that is installed: LiteRT, else its predecessor."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fieldray.errors import BackendProblem
from fieldray.reasons import reason

RUNTIMES: Final = ("ai_edge_litert", "tflite_runtime")
# What a child process serves to run models.
SERVICE: Final = "fieldray.inference.service:handle"


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
