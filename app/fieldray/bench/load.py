"""`bench load`: how much slower an image gets while other programs work, and which settings help.

The load levels are those of figures 4.24 to 4.28 of V. Taran's dissertation (2022): no load, a user at work (40 %),
60 % and 100 % on every core. Child processes of the command make the load. The operating system's counters measure the
load that was really reached. The time under load is compared with the time without load in the same round, because
other programs change little within a round.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from fieldray.bench.benchmark_case import (
    MAX_IMAGE_COUNT,
    BenchmarkCase,
    BenchmarkReport,
    BulletList,
    MeasurementSize,
    Table,
    accelerator_cases,
    cpu_case,
    find_images,
    find_usable_cases,
    open_one_worker,
    paired_time_ratio,
    read_images,
    report_header,
)
from fieldray.bench.device import NETWORK_ONLY_SCOPE, Measurement, MeasurementOptions, measure_cases, timing_table
from fieldray.bench.machine import LOAD_LEVELS, NO_LOAD, LoadLevel, MeasuredLoad
from fieldray.domain.model import BackendName, Model
from fieldray.domain.run import ProgressHandler
from fieldray.packs.library import PackLibrary
from fieldray.paths import data_folder, scratch_folder
from fieldray.persistence import require_regular_file, write_atomically
from fieldray.process_environment import usable_cores
from fieldray.processes.child import Child, ChildFunction, make_message_handler
from fieldray.processes.serving import announce_stage
from fieldray.reasons import Reason
from fieldray.typed_json import parse_json

# Each load runs alone for a second. Timing then lasts long enough for several bursts of a user's work.
LOAD_STUDY_OPTIONS: Final = MeasurementOptions(
    scopes=(NETWORK_ONLY_SCOPE,), load_levels=LOAD_LEVELS, load_measurement_s=1.0, min_duration_s=1.5
)


def load_study_cases(model: Model, *, cores: int) -> tuple[BenchmarkCase, ...]:
    """Return the cases that `bench load` compares, each with one model.

    The cases are: one CPU thread, all CPU threads, raised priority, lowered priority, and each accelerator.
    """
    plain = (cpu_case(model), cpu_case(model, cores))[: 1 + (cores > 1)]
    moved = (cpu_case(model, priority="raised"), cpu_case(model, priority="lowered"))
    return (*plain, *moved, *accelerator_cases(model))


# V. Taran, dissertation, KPI Kyiv 2022: increase of the mean time against no load, by backend and level
TimeIncreaseByBackendAndLevel = Mapping[tuple[BackendName, str], float]
DISSERTATION_TIME_INCREASES: Final[TimeIncreaseByBackendAndLevel] = {
    ("cpu", "60 %"): 0.132,
    ("cpu", "100 %"): 0.273,
    ("edgetpu", "100 %"): 0.04,
}
_QUIET: Final = 0.1  # share of the CPU that other programs may use, or by which a load may fall short


def load_study_report(
    cells: Sequence[Measurement], *, problems: Mapping[str, Reason], image_phrase: str
) -> BenchmarkReport:
    """Make the report of `bench load`.

    cells         a measurement of each case under each load level, and of each case without load
    problems      the reason why a case could not be measured, by case name
    image_phrase  phrase that names the measured images
    """
    disturbed = _disturbance(cells)
    marks = {} if disturbed else DISSERTATION_TIME_INCREASES  # disturbed figures are not compared with the dissertation
    notes = list[str]()
    for (backend, level), mark in marks.items():
        of_both = [one for one in cells if (one.case.kind.name, one.level.name) == (backend, level)]
        if of_both:
            least = min(of_both, key=partial(relative_time_increase, cells=cells))
            found = f"{signed_percent(relative_time_increase(least, cells))} ({least.case.name})"
            notes.append(
                f"The least increase of {backend} at {level} is {found}, the dissertation's {signed_percent(mark)}."
            )
    notes += [f"Run on {image_phrase}, in a fresh process for each repetition.", *disturbed]
    notes += [f"{name}: not measured. {why.text}" for name, why in problems.items()]
    return BenchmarkReport(
        file_stem="bench-load",
        title="Fieldray: time of an image while other programs work",
        blocks=(
            _increases(cells, marks),
            BulletList("What helps", tuple(notes)),
            timing_table((f"{one.case.name}, {one.level.name}", one.summary) for one in cells),
        ),
        json_values={
            "images": image_phrase,
            "cells": [_data(one, cells) for one in cells],
            "is_disturbed": bool(disturbed),
            "dissertation": [{"backend": key[0], "level": key[1], "increase": marks[key]} for key in marks],
            "not_measured": {name: why.text for name, why in problems.items()},
        },
    )


def relative_time_increase(cell: Measurement, cells: Sequence[Measurement]) -> float:
    """Return the relative increase of a case's time per image under load, compared with no load; 0.273 means +27.3 %.

    cell   the measurement under load
    cells  measurements, among them a measurement of the same case without load
    """
    (base,) = (one for one in cells if one.case is cell.case and one.level == NO_LOAD)
    return paired_time_ratio(cell.times_ms_by_repetition, base.times_ms_by_repetition) - 1


def median_cpu_load(cell: Measurement) -> MeasuredLoad:
    """Return the CPU load that was measured before the images of a case were timed: medians over the repetitions."""
    made, machine = ([getattr(load, name) for load in cell.measured_loads] for name in ("made", "machine"))
    return MeasuredLoad(made=statistics.median(made), machine=statistics.median(machine))


def _increases(cells: Sequence[Measurement], marks: TimeIncreaseByBackendAndLevel) -> Table:
    rows = tuple(
        (
            f"{cell.case.name}, {cell.level.name}",
            f"{median_cpu_load(cell).machine:.0%}",
            f"{cell.summary.mean_ms:.2f}",
            f"{cell.summary.p95_ms:.2f}",
            signed_percent(relative_time_increase(cell, cells)) if cell.level != NO_LOAD else "",
            signed_percent(marks.get((cell.case.kind.name, cell.level.name))),
        )
        for cell in cells
    )
    title = (
        "Mean time from the third image on, against no load; the share of the CPU that all programs used before it, as "
        "the system counted"
    )
    return Table(title, ("", "load", "mean ms", "p95 ms", "increase", "dissertation"), rows)


def _disturbance(cells: Sequence[Measurement]) -> list[str]:
    """Return warnings if other programs were busy without a load, or if a wanted load was not reached."""
    warnings = []
    others = max(median_cpu_load(cell).machine for cell in cells if cell.level == NO_LOAD)
    if others > _QUIET:
        warnings.append(
            f"This computer was not idle: other programs used {others:.0%} of its CPU while nothing was measured and "
            "no load was made, so these increases say little. Measure again with other programs closed."
        )
    # a user's load is irregular: one second of it may be far from the average
    made = {cell.level: median_cpu_load(cell).made for cell in cells if not cell.level.is_irregular}
    warnings += [
        f"The load of {level.name} fell short: it got {share:.0%} of the CPU."
        for level, share in made.items()
        if share < level.share - _QUIET
    ]
    return warnings


def signed_percent(share: float | None) -> str:
    """Format a share as a signed percentage, for example `+27.3 %`; empty for None."""
    return "" if share is None else f"{share * 100:+.1f} %"


def _data(cell: Measurement, cells: Sequence[Measurement]) -> dict[str, Any]:
    measured = {
        "level": asdict(cell.level),
        "load": asdict(median_cpu_load(cell)),
        "increase": relative_time_increase(cell, cells),
    }
    return {**cell.json_values, **measured}


# ---- The latest study of this computer. The window shows the study, and runs a new one in a separate process.

_KEPT: Final = "bench-load.json"
_STUDY_EFFORT: Final = MeasurementSize(repetition_count=3, image_count=MAX_IMAGE_COUNT)
_LONGEST_S: Final = 120.0  # time limit of one repetition under one load


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLoadCell:
    """The figures of one case under one load level, as stored in the study's file.

    case                       name of the case
    level                      the load that the benchmark made
    increase                   relative increase of an image's time under load, compared with no load. 0.273 means that
                               the time is 27.3 % longer
    mean_ms                    mean time of an image in milliseconds
    fps_min, fps_avg, fps_max  images per second: of the slowest image, over all images, of the fastest image
    """

    case: str
    backend: BackendName
    pack: str
    level: LoadLevel
    increase: float
    mean_ms: float
    fps_min: float
    fps_avg: float
    fps_max: float

    @property
    def dissertation_time_increase(self) -> float | None:
        """The increase that Taran's dissertation (2022) states for this backend and load; None if not stated."""
        return DISSERTATION_TIME_INCREASES.get((self.backend, self.level.name))


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLoadStudy:
    """A stored load study: date, figures, and whether other programs disturbed the measurement."""

    made: datetime.datetime
    is_disturbed: bool
    cells: tuple[StoredLoadCell, ...]

    @property
    def cells_to_show(self) -> tuple[StoredLoadCell, ...]:
        """The cells that a person is shown: for each backend, only the cells of the backend's first case."""
        first = {cell.backend: cell.case for cell in reversed(self.cells)}
        return tuple(cell for cell in self.cells if cell.case == first[cell.backend])


def store_load_study(report: BenchmarkReport) -> None:
    """Store a load study as the latest load study of this computer, without the time of each single image.

    Raises StorageProblem.
    """
    cells = [{key: cell[key] for key in cell if key != "times_ms"} for cell in report.json_values["cells"]]
    content = {**report_header(), **report.json_values, "cells": cells}
    write_atomically(data_folder() / _KEPT, json.dumps(content, indent=1).encode())


def read_load_study() -> StoredLoadStudy | None:
    """Return this computer's latest load study; None if no study is stored or the stored study is invalid.

    Raises StorageProblem.
    """
    path = data_folder() / _KEPT
    with contextlib.suppress(OSError, ValueError):
        require_regular_file(path)
        return parse_json(path.read_bytes(), StoredLoadStudy)
    return None


RUN_LOAD_STUDY: Final = ChildFunction("load", tuple[Path, str], StoredLoadStudy)


def run_load_study_in_child(folder: Path, signer: str, progress: ProgressHandler) -> StoredLoadStudy:
    """Run a load study of a pack on this computer in a separate process, and store the study.

    folder    the folder of the pack
    signer    fingerprint of the key by which the user accepted the pack
    progress  receives (done, total); to end the measurement early, `progress` raises an exception

    Raises the exceptions of `Call.run_in_child`.
    """
    return RUN_LOAD_STUDY.run_in_child(
        Child(f"{__name__}:handle"), (folder, signer), progress=progress, timeout_s=_LONGEST_S
    )


def _study(of: tuple[Path, str]) -> StoredLoadStudy:
    """Run a load study of a pack, store the study and return the stored study.

    of  the pack's folder, and the fingerprint of the signer's key
    """
    folder, signer = of
    model = PackLibrary(data_folder()).load(folder, allow_older=True, allow_legacy=True, signer=signer)
    cases, problems = find_usable_cases((load_study_cases(model, cores=1)[0], *accelerator_cases(model)))
    steps = itertools.count(1)

    def notify(_: str) -> None:
        announce_stage(f"{next(steps)}/{_STUDY_EFFORT.repetition_count * len(LOAD_LEVELS)}")

    with scratch_folder() as synthetic_folder, open_one_worker() as decoders:
        images = read_images(
            find_images(None, count=MAX_IMAGE_COUNT, synthetic_folder=synthetic_folder), model.manifest.input, decoders
        )
    options = replace(LOAD_STUDY_OPTIONS, load_process_count=usable_cores())
    cells = measure_cases(dict.fromkeys(cases, images), _STUDY_EFFORT, notify=notify, options=options)
    store_load_study(
        load_study_report(cells, problems=problems, image_phrase=f"{len(images)} images drawn by the program")
    )
    study = read_load_study()
    assert study is not None
    return study


handle: Final = make_message_handler((RUN_LOAD_STUDY, _study))
