"""`bench host`: what threads, runtime, number format and other devices gain on this computer.

Method 3 of the dissertation found a factor of up to 8.66 between the best and the worst host. What a command can
change is measured here, every variant against the simplest one in interleaved repetitions. The rest is only stated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from fieldray.bench.benchmark_case import (
    BenchmarkCase,
    Effort,
    LoadedImage,
    Notify,
    accelerator_cases,
    paired_ratio,
    summarise,
    time_stream,
)
from fieldray.bench.report import Block, Chart, Points, Series, Table
from fieldray.domain.model import Model
from fieldray.inference.cpu import cpu_kind
from fieldray.reasons import Reason

BASELINE: Final = "cpu, 1 thread"
_NOT_MEASURED: Final = (
    "The USB port of a device cannot be changed by a command: plug it into a USB 2 port, then into a USB 3 port, "
    "and compare two runs of bench device.",
    "The power plan and the governor belong to the system: change them, then compare two runs.",
    "Another operating system needs another installation. The dissertation found a factor of up to 8.66 between "
    "hosts, from system, USB port and clock together.",
)


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class HostVariant:
    """One way to run the model, and milliseconds per image by repetition, messages between processes included."""

    case: BenchmarkCase
    repetitions: list[list[float]] = field(default_factory=list)


def variants(
    model: Model, *, cores: int, runtimes: Sequence[str], float_file: bytes | None, max_clock: bool
) -> tuple[BenchmarkCase, ...]:
    """The ways to run a model, the simplest one first.

    Parameters
    ----------
    model
        The network to run.
    cores
        The largest number of threads.
    runtimes
        The installed runtimes, in order of use.
    float_file
        The same network in floating point, if there is one.
    max_clock
        Whether a device whose clock can be chosen runs at the highest one, too.
    """
    lean = cpu_kind(runtimes=tuple(runtimes[:1]), threads=1)
    found = [BenchmarkCase(name=BASELINE, model=model, kind=lean)]
    threads = 2
    while threads <= cores:
        found.append(BenchmarkCase(name=f"cpu, {threads} threads", model=model, kind=cpu_kind(threads=threads)))
        threads *= 2
    for name in runtimes[1:]:
        kind = cpu_kind(runtimes=(name,), threads=1)
        found.append(BenchmarkCase(name=f"cpu, 1 thread, {name}", model=model, kind=kind))
    if float_file is not None:
        in_float = replace(model, files={"litert": float_file}, golden=None)
        found.append(BenchmarkCase(name="cpu, 1 thread, floating point", model=in_float, kind=lean))
    return (*found, *accelerator_cases(model, max_clock=max_clock))


def measure(
    cases: Sequence[BenchmarkCase], images: Sequence[LoadedImage], effort: Effort, *, notify: Notify
) -> tuple[HostVariant, ...]:
    """Measure every variant. Raises BackendProblem."""
    measured = tuple(HostVariant(case=case) for case in cases)
    for repetition in range(effort.repeats):
        notify(f"repetition {repetition + 1} of {effort.repeats}")
        for variant in measured:
            variant.repetitions.append(time_stream(variant.case, images, count=effort.images))
    return measured


def times_as_fast(variant: HostVariant, measured: Sequence[HostVariant]) -> float:
    """How many times as fast as the first of `measured`."""
    return 1 / paired_ratio(variant.repetitions, measured[0].repetitions)


def blocks(measured: Sequence[HostVariant], *, problems: Mapping[str, Reason], images: str) -> tuple[Block, ...]:
    """A table and a chart of the gains, and what could not be measured."""
    columns = ("", "images / s", "ms per image", "times as fast", "ran on")
    rows = []
    for variant in measured:
        summary = summarise(variant.repetitions)
        figures = (f"{summary.fps_avg:.1f}", f"{summary.mean_ms:.2f}", f"{times_as_fast(variant, measured):.2f}")
        rows.append((variant.case.name, *figures, ", ".join(sorted(variant.case.details))))
    told = [f"Run on {images}, in a fresh process for each repetition."]
    told += [f"{name}: {why.text}" for name, why in problems.items()]
    return (
        Table(f"Gain of each variant against {BASELINE}", columns, tuple(rows)),
        Chart(
            title="Images per second by variant",
            kind="bars",
            x_title="network and messages between processes, from the third image on",
            y_title="images per second",
            categories=("",),
            series=tuple(Series(variant.case.name, (summarise(variant.repetitions).fps_avg,)) for variant in measured),
        ),
        Points("How it was measured, and what was not", (*told, *_NOT_MEASURED)),
    )


def data(measured: Sequence[HostVariant]) -> list[dict[str, Any]]:
    """The figures, for the JSON file."""
    return [
        {
            "name": variant.case.name,
            "times_as_fast": times_as_fast(variant, measured),
            "ran_on": sorted(variant.case.details),
            "times_ms": variant.repetitions,
        }
        for variant in measured
    ]
