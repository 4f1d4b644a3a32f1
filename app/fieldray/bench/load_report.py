"""`bench load`, the report: the increase against no load, beside the dissertation's, and what helped most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from fieldray.bench.device_report import FIGURE_COLUMNS, figure_cells, iteration_chart
from fieldray.bench.load import Cell
from fieldray.bench.parallel_load import NO_LOAD, Level
from fieldray.bench.report import Chart, Points, Report, Series, Table
from fieldray.bench.timing_statistics import paired_ratio
from fieldray.domain.prediction import BackendName
from fieldray.reasons import Reason

# V. Taran, dissertation, KPI Kyiv 2022: increase of the mean time against no load, by backend and level
DISSERTATION: Final[Mapping[tuple[BackendName, str], float]] = {
    ("cpu", "60 %"): 0.132,
    ("cpu", "100 %"): 0.273,
    ("edgetpu", "100 %"): 0.04,
}
_QUIET: Final = 0.1  # share of the processor that others may use, or a load may miss


def load_report(cells: Sequence[Cell], *, problems: Mapping[str, Reason], images: str) -> Report:
    """Tables, pictures and figures; `cells` include every subject under no load."""
    names = tuple(dict.fromkeys(cell.subject.name for cell in cells))
    charts = [_chart(name, [cell for cell in cells if cell.subject.name == name]) for name in names]
    notes = [f"Run on {images}, in a fresh process for each repetition.", *_disturbance(cells)]
    notes += [f"{name}: not measured. {why.text}" for name, why in problems.items()]
    return Report(
        kind="bench-load",
        title="Fieldray: time of an image while other programs work",
        blocks=(
            _increases(cells),
            Points("What helps", (*_verdicts(cells), *notes)),
            _bars(cells),
            _times(cells),
            *charts,
        ),
        data={
            "images": images,
            "cells": [_data(cell, cells) for cell in cells],
            "dissertation": [
                {"backend": key[0], "level": key[1], "increase": DISSERTATION[key]} for key in DISSERTATION
            ],
            "not_measured": {name: why.text for name, why in problems.items()},
        },
    )


def increase(cell: Cell, cells: Sequence[Cell]) -> float:
    """Share by which the mean time grew against the same subject under no load; 0.273 is +27.3 %."""
    (base,) = (one for one in cells if one.subject is cell.subject and one.level == NO_LOAD)
    return paired_ratio(cell.repetitions, base.repetitions) - 1


def _increases(cells: Sequence[Cell]) -> Table:
    columns = ("", "load alone", "load beside", "all", "mean ms", "p95 ms", "increase", "dissertation")
    rows = tuple(
        (
            f"{cell.subject.name}, {cell.level.name}",
            f"{cell.alone.machine:.0%}",
            f"{cell.load.made:.0%}",
            f"{cell.load.machine:.0%}",
            f"{cell.summary.mean_ms:.2f}",
            f"{cell.summary.p95_ms:.2f}",
            percent(increase(cell, cells)) if cell.level != NO_LOAD else "",
            percent(DISSERTATION.get((cell.subject.kind.name, cell.level.name))),
        )
        for cell in _by_subject(cells)
    )
    title = (
        "Mean time from the third image on, against no load. Of the processor, as the system counted it: all programs "
        "before the measurement (load alone), the load during it (beside), all programs during it (all)"
    )
    return Table(title, columns, rows)


def _times(cells: Sequence[Cell]) -> Table:
    rows = tuple(
        (f"{cell.subject.name}, {cell.level.name}", *figure_cells(cell.summary)) for cell in _by_subject(cells)
    )
    return Table("Milliseconds an image, iterations 1, 2 and 3+ apart", FIGURE_COLUMNS, rows)


def _by_subject(cells: Sequence[Cell]) -> list[Cell]:
    names = list(dict.fromkeys(cell.subject.name for cell in cells))
    return sorted(cells, key=lambda cell: names.index(cell.subject.name))


def _verdicts(cells: Sequence[Cell]) -> list[str]:
    """For the heaviest level of each backend: the way with the least increase, and whether the mark is met."""
    heaviest = max((cell.level for cell in cells), key=lambda level: level.share)
    return [
        sentence
        for backend in dict.fromkeys(cell.subject.kind.name for cell in cells)
        if (sentence := _verdict(backend, heaviest, cells))
    ]


def _verdict(backend: BackendName, level: Level, cells: Sequence[Cell]) -> str | None:
    mark = DISSERTATION.get((backend, level.name))
    under_load = [cell for cell in cells if cell.level == level and cell.subject.kind.name == backend]
    if mark is None or level == NO_LOAD or not under_load:
        return None
    best = min(under_load, key=lambda cell: increase(cell, cells))
    grown = increase(best, cells)
    verdict = "below" if grown < mark else "not below"
    return (
        f"Under {level.name} parallel load the least increase is {percent(grown)} ({best.subject.name}): "
        f"{verdict} the dissertation's {percent(mark)} for {backend}."
    )


def _disturbance(cells: Sequence[Cell]) -> list[str]:
    """Warnings: others used the machine before any load was made, or the load could not be made in full."""
    warnings = []
    others = max(cell.alone.machine for cell in cells if cell.level == NO_LOAD)
    if others > _QUIET:
        warnings.append(
            f"This computer was not quiet: other programs used {others:.0%} of its processor while nothing was "
            "measured and no load was made, so these increases say little. Measure again with other programs closed."
        )
    # a user's load is uneven, so that a second of it may be far from its share
    made = {cell.level: cell.alone.made for cell in cells if not cell.level.is_irregular}
    warnings += [
        f"The load of {level.name} could not be made in full: it got {share:.0%} of the processor."
        for level, share in made.items()
        if share < level.share - _QUIET
    ]
    return warnings


def _bars(cells: Sequence[Cell]) -> Chart:
    levels = [level for level in dict.fromkeys(cell.level for cell in cells) if level != NO_LOAD]
    names = dict.fromkeys(cell.subject.name for cell in cells)
    backends = dict.fromkeys(cell.subject.kind.name for cell in cells)
    found = {(cell.subject.name, cell.level): increase(cell, cells) * 100 for cell in cells}
    return Chart(
        title="Increase of the mean time against no load",
        kind="bars",
        x_title="parallel load",
        y_title="percent",
        places=tuple(level.name for level in levels),
        series=(
            *(Series(name, tuple(found[name, level] for level in levels)) for name in names),
            *(Series(f"dissertation, {backend}", _told(backend, levels)) for backend in backends),
        ),
    )


def _told(backend: BackendName, levels: Sequence[Level]) -> tuple[float | None, ...]:
    told = (DISSERTATION.get((backend, level.name)) for level in levels)
    return tuple(None if share is None else share * 100 for share in told)


def _chart(name: str, cells: Sequence[Cell]) -> Chart:
    return iteration_chart(f"Time of each image: {name}", {cell.level.name: cell.repetitions for cell in cells})


def percent(share: float | None) -> str:
    """For example `+27.3 %`; empty for None."""
    return "" if share is None else f"{share * 100:+.1f} %"


def _data(cell: Cell, cells: Sequence[Cell]) -> dict[str, Any]:
    return {
        "subject": cell.subject.name,
        "backend": cell.subject.kind.name,
        "pack": cell.subject.model.pack_name,
        "ran_on": sorted(cell.subject.details),
        "level": asdict(cell.level),
        "load_alone": asdict(cell.alone),
        "load_beside": asdict(cell.load),
        "loads_beside": [asdict(load) for load in cell.loads],
        "increase": increase(cell, cells),
        **asdict(cell.summary),
        "times_ms": cell.repetitions,
    }
