"""Backends, images and measurements with known times, for the tests of the benchmarks."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldray.backends import BackendEntry
from fieldray.bench.benchmark_case import BenchmarkCase, LoadedImage
from fieldray.bench.device import Measurement
from fieldray.bench.machine import LoadLevel, MeasuredLoad
from fieldray.domain.image import CoordinateMap, ImageRef, NetworkInput
from fieldray.domain.model import BackendName, InputSpec, Model
from fieldray.inference.backend import BackendKind, NetworkOutput
from fieldray.reasons import Reason
from tiny_models import tiny_model

IMAGES = tuple(
    LoadedImage(ImageRef(path=Path(f"{grey}.png")), np.full((64, 64, 1), grey, np.uint8)) for grey in (10, 20, 30)
)


@dataclass
class Record:
    """The calls of backends of one kind, in order: "name: start", "name: 10", ..., "name: close"."""

    name: str
    unavailable_reason: Reason | None = None
    events: list[str] = field(default_factory=list)

    def case(self, backend: BackendName = "cpu") -> BenchmarkCase:
        kind = BackendKind(
            entry=BackendEntry(
                name=backend,
                title=backend,
                file_roles=("litert",),
                backend_kind_function_path="",
                computes_on_cpu=backend == "cpu",
            ),
            open=lambda: Scripted(self),
            probe=lambda _: self.unavailable_reason,
        )
        return BenchmarkCase(name=self.name, model=tiny_model(), kind=kind)

    def note(self, what: object) -> None:
        self.events.append(f"{self.name}: {what}")


class Scripted:
    """Its first image takes 5 ms, the second 2 ms, every later one 1 ms."""

    pid = None
    is_alive = True
    detail = "scripted"

    def __init__(self, record: Record) -> None:
        self._record = record
        self._times_ms = [1.0, 2.0, 5.0]

    def start(self, model: Model) -> None:
        self._record.note("start")

    def run(self, image: NDArray[np.uint8]) -> NetworkOutput:
        self._record.note(image[0, 0, 0])
        latency_ms = self._times_ms.pop() if len(self._times_ms) > 1 else self._times_ms[0]
        scores = np.array([0.5], np.float32)
        return NetworkOutput(scores=scores, class_maps=None, features=None, latency_ms=latency_ms)

    def close(self) -> None:
        self._record.note("close")

    def abort(self) -> None:
        self._record.note("abort")


class ReadersOfNames:
    """Gives images of the grey level in a file's name; replaces `WorkerPool`."""

    def __init__(self, events: list[str] | None = None) -> None:
        self.events = events if events is not None else []

    def read_network_input(self, ref: ImageRef, spec: InputSpec) -> NetworkInput | None:
        self.events.append(f"read {ref.path.stem}")
        if not ref.path.stem.isdigit():
            return None
        values = np.full((1, spec.height, spec.width, 1), int(ref.path.stem), np.uint8)
        return NetworkInput(values=values, input_to_image=CoordinateMap(1, 0, 1, 0))

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.events.append("readers closed")


def cell(case: BenchmarkCase, level: LoadLevel, *means_ms: float, others: float = 0.0) -> Measurement:
    """A repetition of four images for each mean: iterations 1 and 2 take 50 ms, which must not count."""
    load = MeasuredLoad(made=level.share, machine=max(level.share, others))
    repetitions = [[50.0, 50.0, mean - 1, mean + 1] for mean in means_ms]
    return Measurement(case=case, level=level, times_ms_by_repetition=repetitions, measured_loads=[load])
