"""`bench device`, the measuring: each backend and pack, with and without reading, in interleaved repetitions.

Every repetition runs in fresh processes, so that iteration 1 is really the first, and the repetitions of all that is
compared are interleaved, so that what else the machine does falls on all alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from fieldray.bench.benchmark_case import BenchmarkCase, Decoders, time_files, time_network
from fieldray.bench.images import LoadedImage, one_decoder
from fieldray.bench.timing_statistics import Summary, summarise

Notify = Callable[[str], None]
NETWORK: Final = "network alone"
FILE: Final = "file to scores"


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """`repeats` fresh processes of `images` images each."""

    repeats: int
    images: int


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Measurement:
    """The times of one subject in one scope (NETWORK or FILE), milliseconds by repetition."""

    subject: BenchmarkCase
    scope: str
    repetitions: list[list[float]] = field(default_factory=list)

    @property
    def name(self) -> str:
        """What the reports call it."""
        return f"{self.subject.name}, {self.scope}"

    @property
    def summary(self) -> Summary:
        """Of all repetitions."""
        return summarise(self.repetitions)


def measure(
    subjects: Mapping[BenchmarkCase, Sequence[LoadedImage]],
    effort: Effort,
    *,
    notify: Notify,
    decoders: Decoders = one_decoder,
) -> tuple[Measurement, ...]:
    """Measure every subject on its images, with and without reading. Raises BackendProblem."""
    measurements = [Measurement(subject=subject, scope=scope) for subject in subjects for scope in (NETWORK, FILE)]
    for repetition in range(effort.repeats):
        notify(f"repetition {repetition + 1} of {effort.repeats}")
        for one in measurements:
            images = subjects[one.subject]
            if one.scope == NETWORK:
                times_ms = time_network(one.subject, images, count=effort.images)
            else:
                times_ms = time_files(one.subject, images, count=effort.images, decoders=decoders)
            one.repetitions.append(times_ms)
    return tuple(measurements)
