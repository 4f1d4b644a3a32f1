"""A backend whose network lives in a child process: what is native may crash, hang or be killed there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fieldray.child import Child, ChildDied, ChildTimeout
from fieldray.domain.model import Model
from fieldray.errors import BackendProblem, FieldrayError
from fieldray.inference.arrangement import usable_cores
from fieldray.inference.backend import Answer
from fieldray.inference.litert import NetworkSpec
from fieldray.inference.messages import OpenRequest, answers_of, run_message
from fieldray.inference.runtime import RUNTIMES
from fieldray.reasons import reason
from fieldray.wire import Message

log = logging.getLogger(__name__)

_SERVICE: Final = "fieldray.inference.service:handle"


class WorkerBackend:
    """`backend.Backend` in a child process with a deadline on each answer.

    file       which of the model's files to run
    runtimes   which runtimes may be used, the first one found is (see `runtime.RUNTIMES`)
    cores      how many cores may be used at most; None for all of this machine's
    budget_s   how long arrangements may be timed when a model is opened
    """

    def __init__(
        self,
        file: Callable[[Model], bytes],
        *,
        runtimes: tuple[str, ...] = RUNTIMES,
        cores: int | None = None,
        budget_s: float = 0.25,
        start_timeout_s: float = 60.0,
        run_timeout_s: float = 20.0,
    ) -> None:
        self._file = file
        self._runtimes = runtimes
        self._cores = cores or usable_cores()
        self._budget_s = budget_s
        self._start_timeout_s = start_timeout_s
        self._run_timeout_s = run_timeout_s
        self._child = Child(_SERVICE)
        self._capacity = 1
        self._detail = ""

    @property
    def capacity(self) -> int:
        """How many images run side by side."""
        return self._capacity

    @property
    def detail(self) -> str:
        """Runtime, its version, and networks x threads."""
        return self._detail

    @property
    def pid(self) -> int | None:
        """The child's process id while it runs."""
        return self._child.pid if self._child.is_running else None

    @property
    def is_alive(self) -> bool:
        """Whether the child is there."""
        return self._child.is_running

    def start(self, model: Model) -> None:
        """Start the child, load the model's file and time it. Raises BackendProblem."""
        manifest = model.manifest
        spec = NetworkSpec(input=manifest.input, outputs=manifest.outputs, labels=len(manifest.labels))
        request = OpenRequest(
            file=self._file(model), spec=spec, runtimes=self._runtimes, cores=self._cores, budget_s=self._budget_s
        )
        try:
            self._child.start()
        except OSError as error:
            raise BackendProblem(reason("start_failed", detail=error.strerror or str(error))) from error
        opened = self._call(request.message(), timeout_s=self._start_timeout_s).body
        self._capacity = int(opened["networks"])
        self._detail = f"{opened['runtime']} {opened['version']}, {opened['networks']} x {opened['threads']}"

    def run(self, images: Sequence[NDArray[np.uint8]]) -> list[Answer]:
        """Run 1 to `capacity` images (height, width, channels) uint8. Raises BackendProblem."""
        answer = self._call(run_message(images), timeout_s=self._run_timeout_s)
        try:
            return answers_of(answer, count=len(images))
        except (ValueError, KeyError, TypeError) as error:
            log.exception("the model's process answered what no network can")
            raise BackendProblem(reason("wrong_answer")) from error

    def close(self) -> None:
        """Let the child end in order."""
        self._child.close()

    def abort(self) -> None:
        """Kill the child."""
        self._child.kill()

    def _call(self, message: Message, *, timeout_s: float) -> Message:
        try:
            return self._child.call(message, timeout_s=timeout_s)
        except ChildTimeout as error:
            raise BackendProblem(reason("worker_timeout", seconds=f"{timeout_s:g}")) from error
        except ChildDied as error:
            log.warning("the model's process ended with %s: %s", error.exit_code, error.last_words)
            raise BackendProblem(reason("worker_died")) from error
        except BackendProblem:
            raise
        except FieldrayError as error:
            raise BackendProblem(error.reason) from error
