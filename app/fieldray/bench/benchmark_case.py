"""What is measured: a model on a backend, run in a way; each repetition in a process of its own."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from fieldray.bench.images import LoadedImage
from fieldray.domain.model import Model
from fieldray.errors import BackendProblem
from fieldray.imaging.pool import DecoderPool
from fieldray.inference.backend import Backend, BackendKind, BackendOptions, system_kinds
from fieldray.processes.priority import Priority, give_priority
from fieldray.reasons import Reason, reason

Decoders = Callable[[], DecoderPool]


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class BenchmarkCase:
    """`name` tells it from the others of one study; `details` collects what its backends say they are."""

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


def usable(subjects: Sequence[BenchmarkCase]) -> tuple[tuple[BenchmarkCase, ...], dict[str, Reason]]:
    """Those that can be opened here and now, and why the others cannot, by name."""
    found, problems = [], {}
    for subject in subjects:
        try:
            with subject.opened():
                found.append(subject)
        except BackendProblem as problem:
            problems[subject.name] = problem.reason
    return tuple(found), problems


def time_network(subject: BenchmarkCase, images: Sequence[LoadedImage], *, count: int) -> list[float]:
    """Milliseconds of the network alone for `count` images, from the first one of a fresh process on.

    Raises BackendProblem.
    """
    with subject.opened() as backend:
        return time_images(backend, images, count=count)


def time_images(backend: Backend, images: Sequence[LoadedImage], *, count: int, least_s: float = 0.0) -> list[float]:
    """Milliseconds of the network alone, one image after another: `count` of them, more if `least_s` is not over."""
    until_s = time.perf_counter() + least_s
    times_ms: list[float] = []
    for image in itertools.cycle(images):
        if len(times_ms) >= count and time.perf_counter() >= until_s:
            break
        times_ms.append(backend.run([image.values])[0].latency_ms)
    return times_ms


def time_files(subject: BenchmarkCase, images: Sequence[LoadedImage], *, count: int, decoders: Decoders) -> list[float]:
    """Milliseconds from file to scores (reading, preprocessing, network), one after another, all processes fresh.

    Raises BackendProblem.
    """
    times_ms = []
    with decoders() as pool, subject.opened() as backend:
        for image in itertools.islice(itertools.cycle(images), count):
            began_s = time.perf_counter()
            tensor = pool.read(image.ref, subject.model.manifest.input).tensor
            # an image that was read before and now is not (pulled drive) still costs the time that it took
            backend.run([tensor.values[0] if tensor else image.values])
            times_ms.append((time.perf_counter() - began_s) * 1000)
    return times_ms


def time_stream(subject: BenchmarkCase, images: Sequence[LoadedImage], *, count: int) -> list[float]:
    """Milliseconds an image when the backend gets as many at once as it takes, `count` times, messages included.

    Raises BackendProblem.
    """
    times_ms: list[float] = []
    with subject.opened() as backend:
        values = itertools.cycle([image.values for image in images])
        for _ in range(count):
            batch = list(itertools.islice(values, backend.capacity))
            began_s = time.perf_counter()
            backend.run(batch)
            times_ms.append((time.perf_counter() - began_s) * 1000 / len(batch))
    return times_ms
