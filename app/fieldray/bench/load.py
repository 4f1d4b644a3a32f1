"""`bench load`: how much slower an image gets while other programs work, and what helps.

As figures 4.24 to 4.28 of the dissertation: no load, a user at work (40 %), 60 % and 100 % on every core. The load is
made by processes of the command's own, and what was really there is what the system's own counters say. Every cell is
measured in a fresh process; the repetitions of all cells are interleaved, and their ratios are taken within one round.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from fieldray.bench.benchmark_case import BenchmarkCase, time_images
from fieldray.bench.images import LoadedImage
from fieldray.bench.measurement import Effort, Notify
from fieldray.bench.parallel_load import LEVELS, Level, LoadMeter, MeasuredLoad, parallel_load
from fieldray.bench.timing_statistics import Summary, summarise
from fieldray.domain.model import Model
from fieldray.inference.coral.backend import edgetpu_kind
from fieldray.inference.cpu import cpu_kind

Thing = TypeVar("Thing")
_SETTLE_S: Final = 1.0
_LEAST_S: Final = 1.5  # long enough for several spells of a user's work


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Cell:
    """One subject under one level: milliseconds by repetition, and what was there each time.

    loads_alone   before the measurement, while the program did nothing but make the load
    loads         during the measurement
    """

    subject: BenchmarkCase
    level: Level
    repetitions: list[list[float]] = field(default_factory=list)
    loads_alone: list[MeasuredLoad] = field(default_factory=list)
    loads: list[MeasuredLoad] = field(default_factory=list)

    @property
    def summary(self) -> Summary:
        """Of all repetitions."""
        return summarise(self.repetitions)

    @property
    def load(self) -> MeasuredLoad:
        """During the measurement, medians over the repetitions."""
        return _median(self.loads)

    @property
    def alone(self) -> MeasuredLoad:
        """Before the measurement, medians over the repetitions."""
        return _median(self.loads_alone)


def _median(loads: Sequence[MeasuredLoad]) -> MeasuredLoad:
    made = statistics.median(load.made for load in loads)
    return MeasuredLoad(made=made, machine=statistics.median(load.machine for load in loads))


def load_cases(model: Model, *, cores: int) -> tuple[BenchmarkCase, ...]:
    """The ways to run a model that load may hurt more or less."""
    lean = cpu_kind(cores=1, budget_s=None)
    ways = [BenchmarkCase(name="cpu, 1 thread", model=model, kind=lean)]
    if cores > 1:
        ways.append(BenchmarkCase(name=f"cpu, {cores} threads", model=model, kind=cpu_kind(cores=cores, budget_s=None)))
    ways.append(BenchmarkCase(name="cpu, 1 thread, priority raised", model=model, kind=lean, priority="raised"))
    ways.append(BenchmarkCase(name="cpu, 1 thread, priority lowered", model=model, kind=lean, priority="lowered"))
    ways.append(BenchmarkCase(name="edgetpu", model=model, kind=edgetpu_kind(budget_s=None)))
    return tuple(ways)


def measure(
    subjects: Sequence[BenchmarkCase],
    images: Sequence[LoadedImage],
    effort: Effort,
    *,
    cores: int,
    notify: Notify,
    levels: Sequence[Level] = LEVELS,
    settle_s: float = _SETTLE_S,
    least_s: float = _LEAST_S,
) -> tuple[Cell, ...]:
    """Measure every subject under every level. Raises BackendProblem, OSError.

    settle_s   a load is left alone for so long, and measured, before images are run beside it
    least_s    a repetition takes at least so long, however fast its images are
    """
    cells = {(level, subject): Cell(subject=subject, level=level) for level in levels for subject in subjects}
    for repetition in range(effort.repeats):
        for level in rotated(levels, repetition):
            notify(f"repetition {repetition + 1} of {effort.repeats}, {level.name}")
            with parallel_load(level, cores=cores) as processes:
                alone = LoadMeter(processes, cores=cores)
                time.sleep(settle_s)
                measured = alone.read()
                for subject in rotated(subjects, repetition):
                    cell = cells[level, subject]
                    cell.loads_alone.append(measured)
                    with subject.opened() as backend:
                        meter = LoadMeter(processes, cores=cores)
                        cell.repetitions.append(time_images(backend, images, count=effort.images, least_s=least_s))
                        cell.loads.append(meter.read())
    return tuple(cells.values())


def rotated(things: Sequence[Thing], by: int) -> list[Thing]:
    """Begun with another one each time, so that no thing always comes after the same one."""
    start = by % len(things)
    return [*things[start:], *things[:start]]
