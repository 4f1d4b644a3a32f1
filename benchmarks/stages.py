"""The program's stages, each alone: the whole cannot be faster than the slowest of them."""

from __future__ import annotations

import contextlib
import itertools
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from benchmarks.processes import cpu_s
from fieldray.bench.benchmark_case import LoadedImage
from fieldray.domain.model import InputSpec, Model
from fieldray.domain.study import ImageRef
from fieldray.inference.cpu import cpu_kind
from fieldray.workers.pool import Workers

_SPELL_S: Final = 1.0
_TIMEOUT_S: Final = 60.0
_MEMORY_MB: Final = 2048


@dataclass(eq=False, slots=True, kw_only=True)
class Stages:
    """Seconds per image, one entry per round.

    Attributes
    ----------
    reading_s
        Reading by all workers at once.
    network_s
        The network, one on each core.
    lean_s
        CPU seconds of one network with one thread.
    detail
        How the program runs the network.
    """

    reading_s: list[float] = field(default_factory=list)
    network_s: list[float] = field(default_factory=list)
    lean_s: list[float] = field(default_factory=list)
    detail: str = ""

    @property
    def slowest(self) -> list[float]:
        """The slower of the two, by round."""
        return [max(pair) for pair in zip(self.reading_s, self.network_s, strict=True)]

    @property
    def network_cpu_s(self) -> float:
        """CPU seconds of the network for one image, median."""
        return statistics.median(self.lean_s)


@contextlib.contextmanager
def stage_workers(count: int) -> Iterator[Workers]:
    """`count` of the program's workers."""
    with Workers(count, timeout_s=_TIMEOUT_S, memory_limit_mb=_MEMORY_MB) as pool:
        yield pool


def time_reading(refs: Sequence[ImageRef], spec: InputSpec, *, cores: int) -> tuple[float, tuple[LoadedImage, ...]]:
    """Seconds per image with one file per core read at once, and the network's input for each."""
    with stage_workers(cores) as pool, ThreadPoolExecutor(cores) as threads:

        def read(ref: ImageRef) -> LoadedImage | None:
            tensor = pool.tensor(ref, spec)
            return LoadedImage(ref, tensor.values[0]) if tensor else None

        for ref in refs[:: max(1, len(refs) // 12)]:  # the codecs are loaded at their first use, in each process
            list(threads.map(read, [ref] * cores))
        began_s = time.perf_counter()
        images = list(threads.map(read, refs))
        seconds = time.perf_counter() - began_s
    return seconds / len(refs), tuple(image for image in images if image)


def time_network(model: Model, images: Sequence[LoadedImage]) -> tuple[float, float | None, str]:
    """(seconds per image, CPU seconds per image, what ran it), with one thread. Raises BackendProblem."""
    backend = cpu_kind(threads=1).open()
    try:
        backend.start(model)
        values = itertools.cycle([image.values for image in images])
        backend.run(next(values))
        before_s, began_s, count = cpu_s(backend.pid or 0), time.perf_counter(), 0
        while (elapsed_s := time.perf_counter() - began_s) < _SPELL_S:
            backend.run(next(values))
            count += 1
        after_s = cpu_s(backend.pid or 0)
        spent_s = None if before_s is None or after_s is None else (after_s - before_s) / count
        return elapsed_s / count, spent_s, backend.detail
    finally:
        backend.close()


def add_round(stages: Stages, refs: Sequence[ImageRef], model: Model, *, cores: int) -> None:
    """Time each stage once. Raises BackendProblem."""
    reading_s, images = time_reading(refs, model.manifest.input, cores=cores)
    stages.reading_s.append(reading_s)
    lean_s, spent_s, stages.detail = time_network(model, images)
    stages.network_s.append(lean_s / cores)  # each worker has one
    stages.lean_s.append(lean_s if spent_s is None else spent_s)
