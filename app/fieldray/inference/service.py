"""The child's side of inference: `handle` answers the messages of `messages`.

How many interpreters with how many threads is measured when a model is opened, because no rule knows. One more thread
makes one image faster, one more interpreter runs two images side by side; which pays depends on the network's width,
the cores and their vector units. Each configuration is timed for a few milliseconds.
"""

from __future__ import annotations

import contextlib
import pkgutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fieldray.errors import BackendProblem
from fieldray.inference.litert import Network, memory_problem
from fieldray.inference.messages import OpenDevice, OpenedDevice, OpenRequest, answer_message
from fieldray.inference.runtime import load_runtime
from fieldray.processes.wire import Message

_SPELL_S: Final = 0.02
_MOST_CORES: Final = 4  # beyond that decoding cannot keep up, and the clinician's programs need some
_WORTH: Final = 1.25  # more cores and memory must buy at least this much
_FAST_IMAGES_PER_S: Final = 1000.0  # a network faster than the messages around it gains nothing

LoadNetwork = Callable[[int], Network]


@dataclass(frozen=True, slots=True)
class ThreadConfiguration:
    """`networks` side by side, each with `threads`; the rate at which they were measured to run together."""

    networks: tuple[Network, ...]
    threads: int
    images_per_s: float


def time_together(networks: tuple[Network, ...], image: NDArray[np.uint8]) -> float:
    """Images per second of these networks side by side, over a few milliseconds."""

    def runs_in_a_spell(network: Network) -> int:
        count = 0
        while not count or time.perf_counter() - began < _SPELL_S:
            network.run(image)
            count += 1
        return count

    with ThreadPoolExecutor(len(networks)) as pool:
        list(pool.map(lambda network: network.run(image), networks))  # the first run of a network is a slow one
        began = time.perf_counter()
        runs = sum(pool.map(runs_in_a_spell, networks))
        elapsed_s = time.perf_counter() - began
    return runs / elapsed_s


def tune_threads(
    load: LoadNetwork,
    image: NDArray[np.uint8],
    *,
    cores: int,
    budget_s: float | None,
    measure: Callable[[tuple[Network, ...], NDArray[np.uint8]], float] = time_together,
) -> ThreadConfiguration:
    """Time one network with one thread, one per core, and one with a thread per core; the best if it is worth it.

    Parameters
    ----------
    load
        A network with so many threads.
    image
        (height, width, channels) uint8 to time with.
    budget_s
        No further configuration is tried after this; None: nothing is timed, one network gets a thread per core.
    measure
        Images per second of networks that run side by side.
    """
    if budget_s is None:
        return ThreadConfiguration((load(cores),), cores, 0.0)
    began = time.perf_counter()
    cores = min(cores, _MOST_CORES)
    first = load(1)
    lean = ThreadConfiguration((first,), 1, measure((first,), image))
    tried = [lean]
    if cores == 1 or lean.images_per_s > _FAST_IMAGES_PER_S:
        return lean
    with contextlib.suppress(BackendProblem, MemoryError):  # what does not fit into memory is not worth having
        if time.perf_counter() - began < budget_s:
            several = (first, *(load(1) for _ in range(cores - 1)))
            tried.append(ThreadConfiguration(several, 1, measure(several, image)))
        if time.perf_counter() - began < budget_s:
            wide = (load(cores),)
            tried.append(ThreadConfiguration(wide, cores, measure(wide, image)))
    best = max(tried, key=lambda configuration: configuration.images_per_s)
    return best if best.images_per_s > _WORTH * lean.images_per_s else lean


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
