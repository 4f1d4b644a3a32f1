"""How many interpreters with how many threads: measured when a model is opened, because no rule knows.

One more thread makes one image faster, one more interpreter runs two images side by side; which pays depends on the
network's width, the cores and their vector units. Each configuration is timed for a few milliseconds.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fieldray.errors import BackendProblem
from fieldray.inference.litert import Network

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


def tune_threads(
    load: LoadNetwork, image: NDArray[np.uint8], *, cores: int, budget_s: float | None
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
    """
    if budget_s is None:
        return ThreadConfiguration((load(cores),), cores, 0.0)
    began = time.perf_counter()
    cores = min(cores, _MOST_CORES)
    lean = _timed((load(1),), 1, image)
    tried = [lean]
    if cores == 1 or lean.images_per_s > _FAST_IMAGES_PER_S:
        return lean
    with contextlib.suppress(BackendProblem, MemoryError):  # what does not fit into memory is not worth having
        if time.perf_counter() - began < budget_s:
            more = tuple(load(1) for _ in range(cores - 1))
            tried.append(_timed(lean.networks + more, 1, image))
        if time.perf_counter() - began < budget_s:
            tried.append(_timed((load(cores),), cores, image))
    best = max(tried, key=lambda configuration: configuration.images_per_s)
    return best if best.images_per_s > _WORTH * lean.images_per_s else lean


def _timed(networks: tuple[Network, ...], threads: int, image: NDArray[np.uint8]) -> ThreadConfiguration:
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
    return ThreadConfiguration(networks, threads, runs / elapsed_s)
