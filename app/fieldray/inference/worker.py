"""A backend whose network runs in a child process, so that native code may crash, hang or be killed.

This module defines the messages to and from the child process. The code of the child is in `service`. There is no
message that ends the child: the child ends when the parent closes the child's input.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from fieldray.backends import CPU, BackendEntry
from fieldray.domain.model import Model
from fieldray.errors import BackendProblem, FieldrayError
from fieldray.inference.backend import BackendKind, BackendOptions, NetworkOutput, model_file_for
from fieldray.inference.litert import MEMORY_LIMIT_MB, NetworkSpec, model_process
from fieldray.process_environment import Priority, set_priority, usable_cores
from fieldray.processes.child import Child, ChildDied, ChildFunction, ChildTimeout
from fieldray.reasons import Reason, reason

log = logging.getLogger(__name__)

Q = TypeVar("Q")
A = TypeVar("A")


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class DelegateSpec:
    """The way in which a child process opens a device for TensorFlow Lite. The device stays open until the child ends.

    opener_class_name  "module:name" of the class that opens the device. The class is called with `options`, the bytes
                       of the network file and a `Runtime`, and raises BackendProblem. The objects of the class have two
                       attributes: `delegate` for the interpreter, and `detail`, the device in a few words
    options            a JSON object for the opener
    failure_code       code of the reason to report if the device fails to run an image
    """

    opener_class_name: str
    options: Mapping[str, Any]
    failure_code: str = "inference"


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class OpenRequest:
    """A request to load a network.

    file      the bytes of the network file
    threads   number of threads on the CPU
    delegate  how to open the device; None for the CPU
    """

    file: NDArray[np.uint8]
    spec: NetworkSpec
    threads: int
    delegate: DelegateSpec | None = None


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class InferRequest:
    """A request to run the loaded network on one image (height, width, channels) uint8."""

    values: NDArray[np.uint8]


OPEN_NETWORK: Final = ChildFunction("open", OpenRequest, str)  # returns runtime and device, for the log and status line
RUN_NETWORK: Final = ChildFunction("run", InferRequest, NetworkOutput)

_OUT_OF_MEMORY: Final = "std::bad_alloc"  # C++ prints this for an exception that was not caught


class ExitExplainer(Protocol):
    """The interface of a function that returns the reason why a child process ended.

    The argument `is_model_loaded` says whether the model had been loaded.
    """

    def __call__(self, error: ChildDied | ChildTimeout, *, is_model_loaded: bool, timeout_s: float) -> Reason: ...


def explain_exit(error: ChildDied | ChildTimeout, *, is_model_loaded: bool, timeout_s: float) -> Reason:  # noqa: ARG001
    """Return the reason why a child process ended, judged by the error alone.

    is_model_loaded  whether the model had been loaded before
    timeout_s        the exceeded time limit in seconds, for a `ChildTimeout`
    """
    if isinstance(error, ChildTimeout):
        return reason("worker_timeout", seconds=f"{timeout_s:g}")
    if _OUT_OF_MEMORY in error.last_stderr:
        return reason("model_memory", limit_mb=MEMORY_LIMIT_MB)
    return reason("worker_died")


class WorkerBackend:
    """A backend (see `backend.Backend`) that runs its network in a child process, with a time limit for each answer.

    entry     row of the device in `fieldray.backends`, which lists the roles of the files that the device can run
    threads   number of threads of the network on the CPU; None for one per core
    start_timeout_s, run_timeout_s
              seconds in which the child must load the network, and must run an image
    delegate  how the child opens the device; None for the CPU
    explain   called when the child has ended unexpectedly; returns the reason to show
    child     makes the child process, not started
    priority  scheduling priority of the child; unchanged if this user may not change it
    """

    def __init__(
        self,
        entry: BackendEntry,
        *,
        threads: int | None = None,
        start_timeout_s: float = 60.0,
        run_timeout_s: float = 20.0,
        delegate: DelegateSpec | None = None,
        explain: ExitExplainer = explain_exit,
        child: Callable[[], Child] = model_process,
        priority: Priority = "normal",
    ) -> None:
        self._entry = entry
        self._threads = threads or usable_cores()
        self._start_timeout_s = start_timeout_s
        self._run_timeout_s = run_timeout_s
        self._delegate = delegate
        self._explain = explain
        self._is_open = False
        self._child = child()
        self._priority: Priority = priority
        self.detail = ""

    @property
    def pid(self) -> int | None:
        """The child's process id while it runs."""
        return self._child.pid if self._child.is_running else None

    @property
    def is_alive(self) -> bool:
        """Whether the child process is running."""
        return self._child.is_running

    def start(self, model: Model) -> None:
        """Start the child process, which loads the model's network file. Raises BackendProblem."""
        request = OpenRequest(
            file=np.frombuffer(model_file_for(self._entry, model), np.uint8),
            spec=NetworkSpec.from_manifest(model.manifest),
            threads=self._threads,
            delegate=self._delegate,
        )
        try:
            self._child.start()
        except OSError as error:
            raise BackendProblem(reason("start_failed", detail=error.strerror or str(error))) from error
        self.detail = self._ask(OPEN_NETWORK, request, timeout_s=self._start_timeout_s)
        self._is_open = True
        set_priority(self.pid, self._priority)  # only for images: a start with raised priority would slow the window

    def run(self, image: NDArray[np.uint8]) -> NetworkOutput:
        """Run the network, in the child process, on one image (height, width, channels) uint8.

        Raises BackendProblem.
        """
        return self._ask(RUN_NETWORK, InferRequest(values=image), timeout_s=self._run_timeout_s)

    def close(self) -> None:
        """End the child process in an orderly way."""
        self._child.close()

    def abort(self) -> None:
        """Kill the child process at once, from any thread."""
        self._child.kill()

    def _ask(self, call: ChildFunction[Q, A], request: Q, *, timeout_s: float) -> A:
        try:
            return call.ask(self._child, request, timeout_s=timeout_s)
        except (ChildDied, ChildTimeout) as error:
            if isinstance(error, ChildDied):
                log.warning("the model's process ended with %s: %s", error.exit_code, error.last_stderr)
            if not error.was_ready:
                raise BackendProblem(reason("start_failed", detail=str(error))) from error
            raise BackendProblem(self._explain(error, is_model_loaded=self._is_open, timeout_s=timeout_s)) from error
        except FieldrayError as error:
            raise BackendProblem(error.reason) from error


# ---- The CPU in a separate process, for measurements. The images of a run are screened in `workers`.


def cpu_kind(*, threads: int | None = None, priority: Priority = "normal") -> BackendKind:
    """Return the CPU as a kind of backend, which runs the pack's CPU file in a child process.

    threads   number of threads of the network; None for one per core
    priority  scheduling priority of the child process
    """
    return BackendKind(entry=CPU, open=partial(WorkerBackend, CPU, threads=threads, priority=priority))


def make_backend_kind(options: BackendOptions) -> BackendKind:
    """Return the CPU as a kind of backend, with threads and priority from the options."""
    return cpu_kind(threads=options.threads, priority=options.priority)
