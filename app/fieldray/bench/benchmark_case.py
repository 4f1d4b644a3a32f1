"""What is measured: a model on a backend with its images, and how it is timed; every repetition has a fresh process."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fieldray.backends import BACKENDS
from fieldray.domain.model import InputSpec, Model
from fieldray.domain.study import ImageRef
from fieldray.errors import BackendProblem, UsageProblem
from fieldray.imaging.discover import discover
from fieldray.imaging.pool import DecoderPool
from fieldray.imaging.synthetic import write_studies
from fieldray.inference.backend import Backend, BackendKind, BackendOptions, system_kinds
from fieldray.processes.priority import Priority, give_priority
from fieldray.reasons import Reason, reason
from fieldray.settings import Settings

MOST_IMAGES: Final = 24  # different ones; a longer measurement repeats them
_TIMEOUT_S: Final = 60.0
_MEMORY_MB: Final = 2048


@dataclass(frozen=True, eq=False, slots=True)
class LoadedImage:
    """Where an image is, and the network's input made from it: (height, width, channels) uint8."""

    ref: ImageRef
    values: NDArray[np.uint8]


def one_decoder() -> DecoderPool:
    """One fresh decoding process."""
    return DecoderPool(1, timeout_s=_TIMEOUT_S, memory_limit_mb=_MEMORY_MB)


def find_images(folder: Path | None, *, count: int, drawn_in: Path) -> tuple[ImageRef, ...]:
    """Up to `count` images of a folder; without a folder they are drawn into `drawn_in`.

    Raises UsageProblem (nothing_to_screen) if the folder does not exist.
    """
    if folder is None:
        write_studies(drawn_in, count=count)
    wanted = (ref for ref in discover([folder or drawn_in]) if ref.problem is None)
    return tuple(itertools.islice(wanted, count))


def read_images(refs: Sequence[ImageRef], spec: InputSpec, decoders: DecoderPool) -> tuple[LoadedImage, ...]:
    """The readable ones, prepared for a network. Raises UsageProblem (nothing_to_measure) if none can."""
    results = ((ref, decoders.read(ref, spec).tensor) for ref in refs)
    images = tuple(LoadedImage(ref, tensor.values[0]) for ref, tensor in results if tensor)
    if not images:
        raise UsageProblem(reason("nothing_to_measure"))
    return images


Decoders = Callable[[], DecoderPool]
Notify = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """`repeats` fresh processes with `images` images each."""

    repeats: int
    images: int


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class BenchmarkCase:
    """A model on a backend. `name` is unique within a study; `details` collects what its backends say they are."""

    name: str
    model: Model
    kind: BackendKind
    priority: Priority = "normal"
    details: set[str] = field(default_factory=set)

    @contextlib.contextmanager
    def opened(self) -> Iterator[Backend]:
        """A fresh backend, ready to run its first image. Raises BackendProblem."""
        unavailable_reason = self.kind.unavailable_reason(self.model)
        if unavailable_reason:
            raise BackendProblem(unavailable_reason)
        backend = self.kind.open()
        try:
            backend.start(self.model)
            if not give_priority(backend.pid, self.priority):
                raise BackendProblem(reason("priority_denied"))
            self.details.add(backend.detail)
            yield backend
        finally:
            backend.close()


def on_every_backend(model: Model, *, threads: int) -> tuple[BenchmarkCase, ...]:
    """The model on each backend there could be, with this many threads on the CPU, nothing run before image 1."""
    options = BackendOptions(cores=threads, is_tuned=False, priority="normal")
    kinds = reversed(system_kinds(options))  # the last resort is what the others are compared with
    return tuple(BenchmarkCase(name=f"{model.pack_name} on {kind.name}", model=model, kind=kind) for kind in kinds)


def accelerator_cases(model: Model, *, max_clock: bool = False) -> tuple[BenchmarkCase, ...]:
    """The model on each device that does not share the CPU; with `max_clock`, also at the highest clock."""
    cases = [BenchmarkCase(name=kind.name, model=model, kind=kind) for kind in _accelerators(Settings())]
    if max_clock:
        fast = Settings({entry.clock_setting: "max" for entry in BACKENDS if entry.clock_setting})
        cases += [
            BenchmarkCase(name=f"{kind.name}, highest clock", model=model, kind=kind)
            for kind in _accelerators(fast)
            if kind.entry.clock_setting
        ]
    return tuple(cases)


def _accelerators(settings: Settings) -> list[BackendKind]:
    options = BackendOptions(settings=settings, is_tuned=False, priority="normal")
    return [kind for kind in system_kinds(options) if not kind.entry.shares_cpu]


def usable(cases: Sequence[BenchmarkCase]) -> tuple[tuple[BenchmarkCase, ...], dict[str, Reason]]:
    """The cases that can be opened now, and by name why the others cannot."""
    found, problems = [], {}
    for case in cases:
        try:
            with case.opened():
                found.append(case)
        except BackendProblem as problem:
            problems[case.name] = problem.reason
    return tuple(found), problems


def time_network(case: BenchmarkCase, images: Sequence[LoadedImage], *, count: int) -> list[float]:
    """Milliseconds of the network alone for `count` images, beginning with the first one of a fresh process.

    Raises BackendProblem.
    """
    with case.opened() as backend:
        return time_images(backend, images, count=count)


def time_images(backend: Backend, images: Sequence[LoadedImage], *, count: int, least_s: float = 0.0) -> list[float]:
    """Milliseconds of the network alone, one image at a time: `count` images, more until `least_s` seconds are over."""
    until_s = time.perf_counter() + least_s
    times_ms: list[float] = []
    for image in itertools.cycle(images):
        if len(times_ms) >= count and time.perf_counter() >= until_s:
            break
        times_ms.append(backend.run([image.values])[0].latency_ms)
    return times_ms


def time_files(case: BenchmarkCase, images: Sequence[LoadedImage], *, count: int, decoders: Decoders) -> list[float]:
    """Milliseconds from file to scores (reading, preprocessing, network), one image at a time, in fresh processes.

    Raises BackendProblem.
    """
    times_ms = []
    with decoders() as pool, case.opened() as backend:
        for image in itertools.islice(itertools.cycle(images), count):
            began_s = time.perf_counter()
            tensor = pool.read(image.ref, case.model.manifest.input).tensor
            # an image that can no longer be read (a drive was unplugged) still costs its time
            backend.run([tensor.values[0] if tensor else image.values])
            times_ms.append((time.perf_counter() - began_s) * 1000)
    return times_ms


def time_stream(case: BenchmarkCase, images: Sequence[LoadedImage], *, count: int) -> list[float]:
    """Milliseconds per image in batches as large as the backend takes, `count` batches, messages included.

    Raises BackendProblem.
    """
    times_ms: list[float] = []
    with case.opened() as backend:
        values = itertools.cycle([image.values for image in images])
        for _ in range(count):
            batch = list(itertools.islice(values, backend.capacity))
            began_s = time.perf_counter()
            backend.run(batch)
            times_ms.append((time.perf_counter() - began_s) * 1000 / len(batch))
    return times_ms
