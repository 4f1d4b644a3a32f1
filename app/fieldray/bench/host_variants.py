"""`bench host`, the measuring: what threads, runtime, number format and Edge TPU are worth on this computer.

Method 3 of the dissertation found up to 8.66 times between the best and the worst host. What can be changed by a
command is measured here, every way against the plainest one in interleaved repetitions; the rest is only told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from fieldray.bench.benchmark_case import BenchmarkCase, time_stream
from fieldray.bench.images import LoadedImage
from fieldray.bench.measurement import Effort, Notify
from fieldray.bench.report import Block, Chart, Points, Series, Table
from fieldray.bench.timing_statistics import paired_ratio, summarise
from fieldray.domain.model import Model
from fieldray.inference.coral.backend import edgetpu_kind
from fieldray.inference.cpu import cpu_kind
from fieldray.reasons import Reason

BASELINE: Final = "cpu, 1 thread"
_NOT_MEASURED: Final = (
    "The USB port of an Edge TPU cannot be changed by a command: plug it into a USB 2 and a USB 3 port and compare two "
    "runs of bench device.",
    "The power plan and the governor are the system's: change them, then compare two runs.",
    "Another operating system needs another installation. The dissertation found up to 8.66 times between hosts, "
    "system, USB port and clock together.",
)


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class HostVariant:
    """A way to run the model, and milliseconds an image by repetition, messages between processes included."""

    subject: BenchmarkCase
    repetitions: list[list[float]] = field(default_factory=list)


def ways(
    model: Model, *, cores: int, runtimes: Sequence[str], float_file: bytes | None, max_clock: bool
) -> tuple[BenchmarkCase, ...]:
    """The plainest way first. `float_file` is the same network in floating point, where there is one."""
    lean = cpu_kind(runtimes=tuple(runtimes[:1]), cores=1, budget_s=None)
    found = [BenchmarkCase(name=BASELINE, model=model, kind=lean)]
    threads = 2
    while threads <= cores:
        found.append(
            BenchmarkCase(name=f"cpu, {threads} threads", model=model, kind=cpu_kind(cores=threads, budget_s=None))
        )
        threads *= 2
    found.append(BenchmarkCase(name="cpu, as the program arranges it", model=model, kind=cpu_kind()))
    for name in runtimes[1:]:
        kind = cpu_kind(runtimes=(name,), cores=1, budget_s=None)
        found.append(BenchmarkCase(name=f"cpu, 1 thread, {name}", model=model, kind=kind))
    if float_file is not None:
        in_float = replace(model, files={"litert": float_file}, golden=None)
        found.append(BenchmarkCase(name="cpu, 1 thread, floating point", model=in_float, kind=lean))
    found.append(BenchmarkCase(name="edgetpu, standard clock", model=model, kind=edgetpu_kind(budget_s=None)))
    if max_clock:
        fast = edgetpu_kind(budget_s=None, clock="max")
        found.append(BenchmarkCase(name="edgetpu, highest clock", model=model, kind=fast))
    return tuple(found)


def measure(
    subjects: Sequence[BenchmarkCase], images: Sequence[LoadedImage], effort: Effort, *, notify: Notify
) -> tuple[HostVariant, ...]:
    """Measure each. Raises BackendProblem."""
    measured = tuple(HostVariant(subject=subject) for subject in subjects)
    for repetition in range(effort.repeats):
        notify(f"repetition {repetition + 1} of {effort.repeats}")
        for way in measured:
            way.repetitions.append(time_stream(way.subject, images, count=effort.images))
    return measured


def times_as_fast(way: HostVariant, measured: Sequence[HostVariant]) -> float:
    """Against the first of `measured`."""
    return 1 / paired_ratio(way.repetitions, measured[0].repetitions)


def blocks(measured: Sequence[HostVariant], *, problems: Mapping[str, Reason], images: str) -> tuple[Block, ...]:
    """What each way is worth, as table and picture, and what could not be measured."""
    columns = ("", "images / s", "ms per image", "times as fast", "ran on")
    rows = []
    for way in measured:
        summary = summarise(way.repetitions)
        figures = (f"{summary.fps_avg:.1f}", f"{summary.mean_ms:.2f}", f"{times_as_fast(way, measured):.2f}")
        rows.append((way.subject.name, *figures, ", ".join(sorted(way.subject.details))))
    told = [f"Run on {images}, in a fresh process for each repetition."]
    told += [f"{name}: {why.text}" for name, why in problems.items()]
    return (
        Table(f"What each way of running is worth, against {BASELINE}", columns, tuple(rows)),
        Chart(
            title="Images per second by way of running",
            kind="bars",
            x_title="the network and the messages around it, from the third image on",
            y_title="images per second",
            places=("",),
            series=tuple(Series(way.subject.name, (summarise(way.repetitions).fps_avg,)) for way in measured),
        ),
        Points("How it was measured, and what was not", (*told, *_NOT_MEASURED)),
    )


def data(measured: Sequence[HostVariant]) -> list[dict[str, Any]]:
    """The figures for a program."""
    return [
        {
            "name": way.subject.name,
            "times_as_fast": times_as_fast(way, measured),
            "ran_on": sorted(way.subject.details),
            "times_ms": way.repetitions,
        }
        for way in measured
    ]
