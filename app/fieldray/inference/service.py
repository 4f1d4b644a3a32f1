"""The child's side of inference: `handle` answers the messages of `messages`."""

from __future__ import annotations

import contextlib
import pkgutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from fieldray.errors import BackendProblem
from fieldray.inference.litert import Network, memory_problem
from fieldray.inference.messages import OpenDevice, OpenedDevice, OpenRequest, answer_message
from fieldray.inference.runtime import load_runtime
from fieldray.inference.thread_tuning import tune_threads
from fieldray.processes.wire import Message


class Service:
    """One model, opened once, on one or more networks side by side."""

    def __init__(self) -> None:
        self._networks: tuple[Network, ...] = ()
        self._threads: ThreadPoolExecutor | None = None
        self._device: OpenedDevice | None = None

    def handle(self, message: Message) -> Message:
        """Answer one message. Raises BackendProblem, or ValueError for a message out of order."""
        try:
            return self._answer(message)
        except MemoryError as error:
            raise (memory_problem() or error) from error

    def _answer(self, message: Message) -> Message:
        operation = message.body["operation"]
        if operation == "open":
            return self._open(OpenRequest.of(message))
        if operation == "run":
            return self._run(message)
        if operation == "warm":
            load_runtime(message.body["runtimes"])
            return Message({})
        raise ValueError(f"no operation {operation}")

    def close(self) -> None:
        """End the threads."""
        if self._threads:
            self._threads.shutdown()

    def _open(self, request: OpenRequest) -> Message:
        if self._networks:
            raise ValueError("opened already")
        runtime = load_runtime(request.runtimes)
        if request.delegate:
            open_device: OpenDevice = pkgutil.resolve_name(request.delegate.opener)
            self._device = open_device(request.delegate.options, request.file, runtime)
        delegate = self._device.delegate if self._device else None
        failure = request.delegate.failure if request.delegate else "inference"
        shape = request.spec.input
        chosen = tune_threads(
            lambda threads: Network(
                request.file, request.spec, runtime=runtime, threads=threads, delegate=delegate, failure=failure
            ),
            np.zeros((shape.height, shape.width, shape.channels), np.uint8),
            cores=request.cores,
            budget_s=request.budget_s,
        )
        self._networks = chosen.networks
        self._threads = ThreadPoolExecutor(len(self._networks))
        return Message(
            {
                "runtime": runtime.name,
                "version": runtime.version,
                "networks": len(self._networks),
                "threads": chosen.threads,
                "device": self._device.detail if self._device else "",
            }
        )

    def _run(self, message: Message) -> Message:
        images = message.arrays["images"]
        if self._threads is None or not 1 <= len(images) <= len(self._networks):
            raise ValueError(f"{len(images)} images for {len(self._networks)} networks")
        if len(images) == 1:  # no other thread for what this one can do
            return answer_message([self._networks[0].run(images[0])])
        pairs = zip(self._networks, images, strict=False)
        return answer_message(list(self._threads.map(lambda pair: pair[0].run(pair[1]), pairs)))


# A process that serves models needs the runtime in any case, and may be started before it is told which model.
with contextlib.suppress(BackendProblem):
    load_runtime()

handle = Service().handle
