"""Engines against each other on the pack's own file: alternating, each in a process of its own."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.engines import unavailable_reason
from fieldray.bench.images import LoadedImage
from fieldray.errors import FieldrayError
from fieldray.processes.child import Child, ChildDied, ChildTimeout
from fieldray.processes.wire import Message

_SERVICE: Final = "benchmarks.engines:handle"
_TIMEOUT_S: Final = 120.0
_SECONDS: Final = 1.0

Notify = Callable[[str], None]


@dataclass(eq=False, slots=True, kw_only=True)
class Entry:
    """An engine with so many networks side by side, each with so many threads; figures by round."""

    engine: str
    workers: int
    threads: int
    detail: str = ""
    problem: str = ""
    images_per_s: list[float] = field(default_factory=list)
    latency_ms: list[float] = field(default_factory=list)
    scores: NDArray[np.float32] | None = None

    @property
    def name(self) -> str:
        """For a table."""
        title = {"litert": "LiteRT", "openvino": "OpenVINO"}[self.engine]
        return f"{title}, {self.workers} x {self.threads} thread{'s' if self.threads > 1 else ''}"

    @property
    def rate(self) -> float:
        """Images a second, median."""
        return statistics.median(self.images_per_s)

    @property
    def latency(self) -> float:
        """Milliseconds of one image after another, median."""
        return statistics.median(self.latency_ms)

    @property
    def is_lean(self) -> bool:
        """One network with one thread."""
        return self.workers == self.threads == 1


def entries(*, cores: int) -> list[Entry]:
    """Each engine lean, with a thread a core, and with a network a core."""
    thread_configurations = dict.fromkeys([(1, 1), (1, cores), (cores, 1)])
    pairs = itertools.product(("litert", "openvino"), thread_configurations)
    return [Entry(engine=engine, workers=workers, threads=threads) for engine, (workers, threads) in pairs]


def race(
    model: bytes, inputs: Sequence[LoadedImage], *, cores: int, repeats: int, notify: Notify, seconds: float = _SECONDS
) -> tuple[Entry, ...]:
    """Measure each alternating; those that cannot run say why in `problem`."""
    images = np.stack([image.values for image in inputs])
    found = entries(cores=cores)
    for number in range(repeats):
        notify(f"engines, round {number + 1} of {repeats}")
        for entry in found:
            entry.problem = entry.problem or unavailable_reason(entry.engine)
            if not entry.problem:
                _run(entry, model, images, seconds)
    return tuple(found)


def fastest(measured: Sequence[Entry], engine: str = "") -> Entry | None:
    """The one with the highest rate, of one engine or of all."""
    ran = [one for one in measured if one.images_per_s and engine in ("", one.engine)]
    return max(ran, key=lambda one: one.rate, default=None)


def largest_difference(measured: Sequence[Entry]) -> float:
    """Between the scores of any two entries, in the output's own steps."""
    known = [one.scores for one in measured if one.scores is not None]
    return max((float(np.abs(one - known[0]).max()) for one in known), default=0.0)


def _run(entry: Entry, model: bytes, images: NDArray[np.uint8], seconds: float) -> None:
    child = Child(_SERVICE)
    body = {"ask": "open", "engine": entry.engine, "workers": entry.workers, "threads": entry.threads}
    try:
        child.start()
        opening = Message({**body, "seconds": seconds}, {"model": np.frombuffer(model, np.uint8)})
        entry.detail = child.call(opening, timeout_s=_TIMEOUT_S).body["detail"]
        answer = child.call(Message({"ask": "run"}, {"images": images}), timeout_s=_TIMEOUT_S)
        entry.images_per_s.append(answer.body["images_per_s"])
        entry.latency_ms.append(answer.body["latency_ms"])
        entry.scores = answer.arrays["scores"]
    except (ChildDied, ChildTimeout, FieldrayError, OSError) as error:
        entry.problem = str(error)
    finally:
        child.close()
