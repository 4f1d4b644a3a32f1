"""`bench load`: how much slower an image gets while other programs work, and what helps.

As in figures 4.24 to 4.28 of the dissertation: no load, a user at work (40 %), 60 % and 100 % on every core. The
command's own processes make the load, and the system's counters say how much of it was really there. Every cell is
measured in a fresh process; the repetitions of all cells are interleaved, and ratios are taken within one round.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from fieldray.bench.benchmark_case import (
    MOST_IMAGES,
    BenchmarkCase,
    Effort,
    LoadedImage,
    Points,
    Report,
    Summary,
    Table,
    accelerator_cases,
    find_images,
    one_worker,
    paired_ratio,
    read_images,
    summarise,
    time_images,
    usable,
    when_and_where,
)
from fieldray.bench.device import times_table
from fieldray.bench.machine import LEVELS, NO_LOAD, Level, LoadMeter, MeasuredLoad, parallel_load
from fieldray.domain.model import BackendName, Model
from fieldray.domain.run import Count, Say
from fieldray.inference.worker import cpu_kind
from fieldray.packs.library import PackLibrary
from fieldray.paths import scratch_folder, user_data
from fieldray.persistence import require_plain, write_atomically
from fieldray.processes.child import Call, Child, served
from fieldray.processes.serving import announce
from fieldray.reasons import Reason
from fieldray.surroundings import usable_cores
from fieldray.typed_json import decoded

Item = TypeVar("Item")
_SETTLE_S: Final = 1.0
_LEAST_S: Final = 1.5  # long enough for several bursts of a user's work


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Cell:
    """One case under one level.

    repetitions  milliseconds per image
    loads_alone  the load before each measurement, while the program did nothing else
    loads        the load during each measurement
    """

    case: BenchmarkCase
    level: Level
    repetitions: list[list[float]] = field(default_factory=list)
    loads_alone: list[MeasuredLoad] = field(default_factory=list)
    loads: list[MeasuredLoad] = field(default_factory=list)

    @property
    def summary(self) -> Summary:
        """The summary of all repetitions."""
        return summarise(self.repetitions)

    @property
    def load(self) -> MeasuredLoad:
        """The load during the measurement, medians over the repetitions."""
        return _median(self.loads)

    @property
    def alone(self) -> MeasuredLoad:
        """The load before the measurement, medians over the repetitions."""
        return _median(self.loads_alone)


def _median(loads: Sequence[MeasuredLoad]) -> MeasuredLoad:
    made = statistics.median(load.made for load in loads)
    return MeasuredLoad(made=made, machine=statistics.median(load.machine for load in loads))


def load_cases(model: Model, *, cores: int) -> tuple[BenchmarkCase, ...]:
    """The ways to run a model; load slows some of them more than others."""
    lean = cpu_kind(threads=1)
    cases = [BenchmarkCase(name="cpu, 1 thread", model=model, kind=lean)]
    if cores > 1:
        cases.append(BenchmarkCase(name=f"cpu, {cores} threads", model=model, kind=cpu_kind(threads=cores)))
    cases.append(BenchmarkCase(name="cpu, 1 thread, priority raised", model=model, kind=lean, priority="raised"))
    cases.append(BenchmarkCase(name="cpu, 1 thread, priority lowered", model=model, kind=lean, priority="lowered"))
    return (*cases, *accelerator_cases(model))


def measure(
    cases: Sequence[BenchmarkCase],
    images: Sequence[LoadedImage],
    effort: Effort,
    *,
    cores: int,
    notify: Say,
    levels: Sequence[Level] = LEVELS,
    settle_s: float = _SETTLE_S,
    least_s: float = _LEAST_S,
) -> tuple[Cell, ...]:
    """Measure every case under every level.

    Parameters
    ----------
    cases, images
        What is measured, and on what.
    effort
        The number of repetitions and of images.
    cores
        How many processes make the load.
    notify
        Hears what is being done.
    levels
        The loads.
    settle_s
        Each load runs alone for so many seconds, and is measured, before images run beside it.
    least_s
        A repetition takes at least so many seconds, however fast its images are.

    Raises
    ------
    BackendProblem, OSError
    """
    cells = {(level, case): Cell(case=case, level=level) for level in levels for case in cases}
    for repetition in range(effort.repeats):
        for level in rotated(levels, repetition):
            notify(f"repetition {repetition + 1} of {effort.repeats}, {level.name}")
            with parallel_load(level, cores=cores) as processes:
                alone = LoadMeter(processes, cores=cores)
                time.sleep(settle_s)
                measured = alone.read()
                for case in rotated(cases, repetition):
                    cell = cells[level, case]
                    cell.loads_alone.append(measured)
                    with case.opened() as backend:
                        meter = LoadMeter(processes, cores=cores)
                        cell.repetitions.append(time_images(backend, images, count=effort.images, least_s=least_s))
                        cell.loads.append(meter.read())
    return tuple(cells.values())


def rotated(items: Sequence[Item], by: int) -> list[Item]:
    """Start with another one each time, so that no item always comes after the same one."""
    start = by % len(items)
    return [*items[start:], *items[:start]]


# V. Taran, dissertation, KPI Kyiv 2022: increase of the mean time against no load, by backend and level
Marks = Mapping[tuple[BackendName, str], float]
DISSERTATION: Final[Marks] = {
    ("cpu", "60 %"): 0.132,
    ("cpu", "100 %"): 0.273,
    ("edgetpu", "100 %"): 0.04,
}
_QUIET: Final = 0.1  # share of the CPU that others may use, or that a load may miss


def load_report(cells: Sequence[Cell], *, problems: Mapping[str, Reason], images: str) -> Report:
    """Tables; `cells` include every case under no load."""
    disturbed = _disturbance(cells)
    marks = {} if disturbed else DISSERTATION  # such figures are compared with nothing
    notes = [f"Run on {images}, in a fresh process for each repetition.", *disturbed]
    notes += [f"{name}: not measured. {why.text}" for name, why in problems.items()]
    return Report(
        kind="bench-load",
        title="Fieldray: time of an image while other programs work",
        blocks=(
            _increases(cells, marks),
            Points("What helps", (*_verdicts(cells, marks), *notes)),
            times_table((f"{cell.case.name}, {cell.level.name}", cell.summary) for cell in _by_case(cells)),
        ),
        data={
            "images": images,
            "cells": [_data(cell, cells) for cell in cells],
            "is_disturbed": bool(disturbed),
            "dissertation": [{"backend": key[0], "level": key[1], "increase": marks[key]} for key in marks],
            "not_measured": {name: why.text for name, why in problems.items()},
        },
    )


def increase(cell: Cell, cells: Sequence[Cell]) -> float:
    """The share by which the mean time grew against the same case under no load; 0.273 is +27.3 %."""
    (base,) = (one for one in cells if one.case is cell.case and one.level == NO_LOAD)
    return paired_ratio(cell.repetitions, base.repetitions) - 1


def _increases(cells: Sequence[Cell], marks: Marks) -> Table:
    columns = ("", "load alone", "load beside", "all", "mean ms", "p95 ms", "increase", "dissertation")
    rows = tuple(
        (
            f"{cell.case.name}, {cell.level.name}",
            f"{cell.alone.machine:.0%}",
            f"{cell.load.made:.0%}",
            f"{cell.load.machine:.0%}",
            f"{cell.summary.mean_ms:.2f}",
            f"{cell.summary.p95_ms:.2f}",
            percent(increase(cell, cells)) if cell.level != NO_LOAD else "",
            percent(marks.get((cell.case.kind.name, cell.level.name))),
        )
        for cell in _by_case(cells)
    )
    title = (
        "Mean time from the third image on, against no load. Shares of the CPU as the system counted them: all "
        "programs before the measurement (load alone), the load during it (beside), all programs during it (all)"
    )
    return Table(title, columns, rows)


def _by_case(cells: Sequence[Cell]) -> list[Cell]:
    names = list(dict.fromkeys(cell.case.name for cell in cells))
    return sorted(cells, key=lambda cell: names.index(cell.case.name))


def _verdicts(cells: Sequence[Cell], marks: Marks) -> list[str]:
    """For each backend at the heaviest level: the case with the smallest increase, and whether the mark is met."""
    heaviest = max((cell.level for cell in cells), key=lambda level: level.share)
    return [
        sentence
        for backend in dict.fromkeys(cell.case.kind.name for cell in cells)
        if (sentence := _verdict(backend, heaviest, cells, marks))
    ]


def _verdict(backend: BackendName, level: Level, cells: Sequence[Cell], marks: Marks) -> str | None:
    mark = marks.get((backend, level.name))
    under_load = [cell for cell in cells if cell.level == level and cell.case.kind.name == backend]
    if mark is None or level == NO_LOAD or not under_load:
        return None
    best = min(under_load, key=lambda cell: increase(cell, cells))
    grown = increase(best, cells)
    verdict = "below" if grown < mark else "not below"
    return (
        f"Under {level.name} parallel load the smallest increase is {percent(grown)} ({best.case.name}): "
        f"{verdict} the dissertation's {percent(mark)} for {backend}."
    )


def _disturbance(cells: Sequence[Cell]) -> list[str]:
    """Warnings: other programs were busy before any load was made, or the load fell short."""
    warnings = []
    others = max(cell.alone.machine for cell in cells if cell.level == NO_LOAD)
    if others > _QUIET:
        warnings.append(
            f"This computer was not idle: other programs used {others:.0%} of its CPU while nothing was measured and "
            "no load was made, so these increases say little. Measure again with other programs closed."
        )
    # a user's load is uneven, so that a second of it may be far from its share
    made = {cell.level: cell.alone.made for cell in cells if not cell.level.is_irregular}
    warnings += [
        f"The load of {level.name} fell short: it got {share:.0%} of the CPU."
        for level, share in made.items()
        if share < level.share - _QUIET
    ]
    return warnings


def percent(share: float | None) -> str:
    """For example `+27.3 %`; empty for None."""
    return "" if share is None else f"{share * 100:+.1f} %"


def _data(cell: Cell, cells: Sequence[Cell]) -> dict[str, Any]:
    return {
        "case": cell.case.name,
        "backend": cell.case.kind.name,
        "pack": cell.case.model.pack_name,
        "ran_on": sorted(cell.case.details),
        "level": asdict(cell.level),
        "load_alone": asdict(cell.alone),
        "load_beside": asdict(cell.load),
        "loads_beside": [asdict(load) for load in cell.loads],
        "increase": increase(cell, cells),
        **asdict(cell.summary),
        "times_ms": cell.repetitions,
    }


# ---- The last study on this computer, which the window shows and has done again in a process of its own.

_KEPT: Final = "bench-load.json"
_STUDY_EFFORT: Final = Effort(repeats=3, images=MOST_IMAGES)
_LONGEST_S: Final = 120.0  # of one repetition under one load


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptCell:
    """One case under one level, as the file has it."""

    case: str
    backend: BackendName
    pack: str
    level: Level
    increase: float
    mean_ms: float
    fps_min: float
    fps_avg: float
    fps_max: float

    @property
    def published(self) -> float | None:
        """The dissertation's increase, None where it has none."""
        return DISSERTATION.get((self.backend, self.level.name))


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptStudy:
    """What was measured, when, and whether other programs were in the way."""

    made: datetime.datetime
    is_disturbed: bool
    cells: tuple[KeptCell, ...]

    @property
    def shown(self) -> tuple[KeptCell, ...]:
        """Of each backend the first case: as the program runs it."""
        first = {cell.backend: cell.case for cell in reversed(self.cells)}
        return tuple(cell for cell in self.cells if cell.case == first[cell.backend])


def keep(report: Report) -> None:
    """Keep a study as the last one on this computer, without the time of each image. Raises StorageProblem."""
    cells = [{key: cell[key] for key in cell if key != "times_ms"} for cell in report.data["cells"]]
    content = {**when_and_where(), **report.data, "cells": cells}
    write_atomically(user_data() / _KEPT, json.dumps(content, indent=1).encode())


def kept_study() -> KeptStudy | None:
    """The last study on this computer; None where there is none that makes sense. Raises StorageProblem."""
    path = user_data() / _KEPT
    with contextlib.suppress(OSError, ValueError):
        require_plain(path)
        return decoded(path.read_bytes(), KeptStudy)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The pack in this folder, signed by this key."""

    folder: Path
    signer: str


STUDY: Final = Call("load", Order, KeptStudy)


def study_apart(folder: Path, signer: str, progress: Count) -> KeptStudy:
    """Measure how a pack that a person has put to use runs here, and keep it.

    `progress` hears how far it is, and ends it by raising. Raises as `Call.apart`.
    """
    order = Order(folder=folder, signer=signer)
    return STUDY.apart(Child(f"{__name__}:handle"), order, progress=progress, timeout_s=_LONGEST_S)


def _study(order: Order) -> KeptStudy:
    model = PackLibrary(user_data()).load(order.folder, allow_older=True, allow_legacy=True, signer=order.signer)
    cases, problems = usable((load_cases(model, cores=1)[0], *accelerator_cases(model)))
    steps = itertools.count(1)

    def notify(_: str) -> None:
        announce(f"{next(steps)}/{_STUDY_EFFORT.repeats * len(LEVELS)}")

    with scratch_folder() as drawn_in, one_worker() as decoders:
        images = read_images(find_images(None, count=MOST_IMAGES, drawn_in=drawn_in), model.manifest.input, decoders)
    cells = measure(cases, images, _STUDY_EFFORT, cores=usable_cores(), notify=notify)
    keep(load_report(cells, problems=problems, images=f"{len(images)} images drawn by the program"))
    study = kept_study()
    assert study is not None
    return study


handle: Final = served((STUDY, _study))
