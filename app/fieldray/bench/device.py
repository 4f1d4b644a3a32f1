"""Timing of benchmark cases in interleaved rounds, and the report of `bench device`.

command       measures
bench device  each pack on each backend, with and without reading the file; the first images are reported separately
bench host    the gain from threads, number format and other devices on this computer
bench load    the slowdown while other programs work (module `load`)

Method 3 of V. Taran's dissertation (2022) found that the best host runs a network up to 8.66 times as fast as the worst
host. Settings that a command can change are measured against the simplest variant. Other settings are only listed in
the report.

Every repetition runs in fresh processes, so that iteration 1 includes the start-up cost. The repetitions of all
compared cases are interleaved, so that other load on the machine affects all cases equally.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from fieldray.bench.benchmark_case import (
    BenchmarkCase,
    BenchmarkReport,
    BulletList,
    LoadedImage,
    MeasurementSize,
    Table,
    TimingSummary,
    accelerator_cases,
    cpu_case,
    open_one_worker,
    paired_time_ratio,
    rotate_left,
    summarise_times,
    time_images,
)
from fieldray.bench.machine import NO_LOAD, LoadLevel, MeasuredLoad, measure_cpu_load, running_cpu_load
from fieldray.domain.model import BackendName, Model
from fieldray.domain.run import LineHandler
from fieldray.reasons import Reason, reason
from fieldray.workers.pool import WorkerPool

NETWORK_ONLY_SCOPE: Final = "network alone"
FILE_TO_SCORES_SCOPE: Final = "file to scores"


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Measurement:
    """The times of one case in one scope under one load, in milliseconds by repetition.

    scope               NETWORK_ONLY_SCOPE or FILE_TO_SCORES_SCOPE
    level               the load made by the benchmark
    joules_and_seconds  (joules, seconds) of the CPU for each repetition, where the system counts energy
    measured_loads      CPU load measured before each repetition, while the program itself was idle
    """

    case: BenchmarkCase
    scope: str = NETWORK_ONLY_SCOPE
    level: LoadLevel = NO_LOAD
    times_ms_by_repetition: list[list[float]] = field(default_factory=list)
    joules_and_seconds: list[tuple[float, float]] = field(default_factory=list)
    measured_loads: list[MeasuredLoad] = field(default_factory=list)

    @property
    def summary(self) -> TimingSummary:
        """Statistics of the measured times over all repetitions."""
        return summarise_times(self.times_ms_by_repetition)

    @property
    def json_values(self) -> dict[str, Any]:
        """All values of the measurement for the JSON file, by name."""
        return {
            "case": self.case.name,
            "backend": self.case.kind.name,
            "pack": self.case.model.pack_name,
            "model_sha256": self.case.model.model_sha256,
            "scope": self.scope,
            "ran_on": sorted(self.case.backend_descriptions),
            **asdict(self.summary),
            "first_ratio": self.summary.first_image_time_ratio,
            "times_ms": self.times_ms_by_repetition,
        }

    def speed_up_over_first_case(self, measured: Iterable[Measurement]) -> float:
        """Return how many times as fast this case is as the first case in `measured` with the same scope and load."""
        base = next(one for one in measured if (one.scope, one.level) == (self.scope, self.level))
        return 1 / paired_time_ratio(self.times_ms_by_repetition, base.times_ms_by_repetition)


class EnergyMeter:
    """Reads the energy counters (RAPL) of the CPU packages from Linux's powercap tree, on Intel and AMD.

    `problem` is the reason why no energy can be read, or None.
    """

    def __init__(self, tree: Path = Path("/sys/class/powercap")) -> None:
        self.problem: Reason | None = None
        # The count of a package includes its sub-zones (intel-rapl:0:1). The zone psys counts more than the CPU.
        found = (name.parent for name in sorted(tree.glob("intel-rapl:*/name")) if name.parent.name.count(":") == 1)
        self._packages = [zone for zone in found if (zone / "name").read_text().startswith("package")]
        self._counted_uj()

    def _counted_uj(self) -> list[int]:
        try:
            if found := [int((zone / "energy_uj").read_text()) for zone in self._packages]:
                return found
            self.problem = reason("energy_not_counted")
        except PermissionError:
            self.problem = reason("energy_denied", path=self._packages[0] / "energy_uj")
        except (OSError, ValueError) as error:
            self.problem = reason("unreadable", detail=error)
        return []

    @contextlib.contextmanager
    def measure_energy(self, joules_and_seconds: list[tuple[float, float]]) -> Iterator[None]:
        """Measure the energy of the CPU during the block, and append (joules, seconds) to `joules_and_seconds`.

        If the counters cannot be read, nothing is appended, and `problem` then gives the reason.
        """
        began_s, before_uj = time.perf_counter(), self._counted_uj()
        yield
        if self.problem is None and (after_uj := self._counted_uj()):
            ranges_uj = [int((zone / "max_energy_range_uj").read_text()) for zone in self._packages]
            drawn_uj = (
                (after - before) % most for before, after, most in zip(before_uj, after_uj, ranges_uj, strict=True)
            )
            joules_and_seconds.append((sum(drawn_uj) / 1e6, time.perf_counter() - began_s))


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class MeasurementOptions:
    """Options of `measure_cases`: scopes, loads, and how the times are taken.

    scopes              the parts of the work that are timed: NETWORK_ONLY_SCOPE, FILE_TO_SCORES_SCOPE or both
    load_levels         the loads under which images are timed
    load_process_count  number of processes that make the load, one for each core
    load_measurement_s  seconds for which each load runs alone, and is measured, before images are timed
    min_duration_s      minimum time in seconds of a repetition in NETWORK_ONLY_SCOPE
    open_workers        function that starts the worker processes that read files
    energy_meter        counts the energy of the CPU; None for no count
    """

    scopes: Sequence[str] = (NETWORK_ONLY_SCOPE, FILE_TO_SCORES_SCOPE)
    load_levels: Sequence[LoadLevel] = (NO_LOAD,)
    load_process_count: int = 1
    load_measurement_s: float = 0.0
    min_duration_s: float = 0.0
    open_workers: Callable[[], WorkerPool] = open_one_worker
    energy_meter: EnergyMeter | None = None


def measure_cases(
    cases: Mapping[BenchmarkCase, Sequence[LoadedImage]],
    effort: MeasurementSize,
    *,
    notify: LineHandler,
    options: MeasurementOptions = MeasurementOptions(),
) -> tuple[Measurement, ...]:
    """Time every case on its images, in each scope and under each load, with interleaved repetitions.

    cases   the images on which each case is timed
    effort  number of repetitions, and number of images in each repetition
    notify  receives a line of progress at the start of each round

    Raises BackendProblem if a backend fails, OSError if a process that makes load cannot start.
    """
    levels, scopes, cores, meter = options.load_levels, options.scopes, options.load_process_count, options.energy_meter
    timed = partial(
        time_case,
        image_count=effort.image_count,
        min_duration_s=options.min_duration_s,
        make_workers=options.open_workers,
    )
    found = {
        (case, level, scope): Measurement(case=case, scope=scope, level=level)
        for case in cases
        for level in levels
        for scope in scopes
    }
    for repetition in range(effort.repetition_count):
        for level in rotate_left(levels, repetition):
            under_load = f", {level.name}" if len(levels) > 1 else ""
            notify(f"repetition {repetition + 1} of {effort.repetition_count}{under_load}")
            with running_cpu_load(level, cores=cores) as processes:
                load = measure_cpu_load(processes, cores=cores, duration_s=options.load_measurement_s)
                for case, scope in itertools.product(rotate_left(cases, repetition), scopes):
                    one = found[case, level, scope]
                    one.measured_loads.append(load)
                    with meter.measure_energy(one.joules_and_seconds) if meter else contextlib.nullcontext():
                        one.times_ms_by_repetition.append(timed(case, cases[case], scope))
    return tuple(found.values())


def time_case(
    case: BenchmarkCase,
    images: Sequence[LoadedImage],
    scope: str,
    *,
    image_count: int,
    min_duration_s: float = 0.0,
    make_workers: Callable[[], WorkerPool] = open_one_worker,
) -> list[float]:
    """Time `image_count` images of a case one after another, in fresh processes. Returns milliseconds for each image.

    scope           NETWORK_ONLY_SCOPE: the network alone. FILE_TO_SCORES_SCOPE: reading, preparing, messages between
                    the processes, and the network
    min_duration_s  minimum duration in seconds, for NETWORK_ONLY_SCOPE only
    make_workers    function that starts the worker processes that read files, for FILE_TO_SCORES_SCOPE only

    Raises BackendProblem.
    """
    if scope == NETWORK_ONLY_SCOPE:
        with case.open_backend() as backend:
            return time_images(backend, images, image_count=image_count, min_duration_s=min_duration_s)
    times_ms = list[float]()
    with make_workers() as pool, case.open_backend() as backend:
        for image in itertools.islice(itertools.cycle(images), image_count):
            began_s = time.perf_counter()
            tensor = pool.read_network_input(image.ref, case.model.manifest.input)
            # an image that can no longer be read (a drive was unplugged) still costs its time
            backend.run(tensor.values[0] if tensor else image.network_input)
            times_ms.append((time.perf_counter() - began_s) * 1000)
    return times_ms


_FIGURE_COLUMNS: Final = ("", "1st", "2nd", "3+ mean", "stdev", "p50", "p95", "p99", "1st / 3+", "images")


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendCosts:
    """Power in watts and price in US dollars by backend, as the user gave them on the command line.

    If the power was also measured, the measured power counts.
    """

    power_w_by_backend: Mapping[BackendName, float] = field(default_factory=dict)
    price_usd_by_backend: Mapping[BackendName, float] = field(default_factory=dict)


def device_report(
    measured: Sequence[Measurement],
    *,
    problems: Mapping[str, Reason],
    image_phrase: str,
    costs: BackendCosts = BackendCosts(),
    more_sentences: Sequence[str] = (),
) -> BenchmarkReport:
    """Make the report of `bench device`.

    problems        the reason why a case could not be measured, by case name
    image_phrase    phrase that names the measured images
    costs           power and price of the backends, as the user gave them
    more_sentences  additional sentences for the end of the report
    """
    notes = [f"Run on {image_phrase}, in a fresh process for each repetition."]
    if any(one.joules_and_seconds for one in measured):
        notes.append(
            "W of the CPU: of its packages while it was measured, with the start of processes and all else that ran."
        )
    rows = [_data(one, measured, costs) for one in measured]
    details = {one.case.name: ", ".join(sorted(one.case.backend_descriptions)) for one in measured}
    notes += [f"{name}: {detail}." for name, detail in details.items()]
    notes += [f"Not measured: {name}. {why.text}" for name, why in problems.items()]
    return BenchmarkReport(
        file_stem="bench-device",
        title="Fieldray: time and rate of each backend",
        blocks=(
            timing_table((f"{one.case.name}, {one.scope}", one.summary) for one in measured),
            _rates(rows),
            BulletList("How it was measured, and what was not", (*notes, *more_sentences)),
        ),
        json_values={
            "images": image_phrase,
            "measurements": rows,
            "not_measured": {name: why.text for name, why in problems.items()},
        },
    )


def timing_table(named: Iterable[tuple[str, TimingSummary]]) -> Table:
    """Make a table of time statistics from pairs (name, summary), one row for each pair."""
    rows = tuple((name, *_figure_cells(summary)) for name, summary in named)
    return Table("Milliseconds per image; iterations 1, 2 and 3+ apart", _FIGURE_COLUMNS, rows)


def _figure_cells(summary: TimingSummary) -> tuple[str, ...]:
    times_ms = (summary.first_ms, summary.second_ms, summary.mean_ms, summary.stdev_ms)
    shares_ms = (summary.p50_ms, summary.p95_ms, summary.p99_ms)
    cells = (f"{value:.2f}" for value in (*times_ms, *shares_ms))
    return (*cells, f"{summary.first_image_time_ratio:.2f}", str(summary.images))


def _rates(rows: Sequence[Mapping[str, Any]]) -> Table:
    columns = ("", "FPS min", "FPS avg", "FPS max", "times as fast", "W", "FPS / W", "FPS / USD")
    return Table(
        "Images per second, from the third image on; times as fast as the first", columns, tuple(map(_rate, rows))
    )


def _rate(row: Mapping[str, Any]) -> tuple[str, ...]:
    power_w = "not measured" if row["power_w"] is None else f"{row['power_w']:.3g} ({row['power_is']})"
    fps = (f"{row[name]:.2f}" for name in ("fps_min", "fps_avg", "fps_max", "times_as_fast"))
    per_costs = ("" if row[name] is None else f"{row[name]:.3g}" for name in ("fps_per_w", "fps_per_usd"))
    return (f"{row['case']}, {row['scope']}", *fps, power_w, *per_costs)


def _data(one: Measurement, measured: Sequence[Measurement], costs: BackendCosts) -> dict[str, Any]:
    """Return one measurement with its speed-up, power and price as values for the JSON file.

    Energy is measured only for the CPU, because the counters do not include an attached device. For an attached device
    the power in `costs` counts.
    """
    joules, seconds = map(sum, zip(*one.joules_and_seconds, strict=True)) if one.joules_and_seconds else (0.0, 0.0)
    is_measured = bool(seconds) and one.case.kind.entry.computes_on_cpu
    power_w = joules / seconds if is_measured else costs.power_w_by_backend.get(one.case.kind.name)
    price_usd, fps = costs.price_usd_by_backend.get(one.case.kind.name), one.summary.fps_avg
    return {
        **one.json_values,
        "times_as_fast": one.speed_up_over_first_case(measured),
        "power_w": power_w,
        "power_is": None if power_w is None else "measured" if is_measured else "typed in",
        "fps_per_w": fps / power_w if power_w else None,
        "fps_per_usd": fps / price_usd if price_usd else None,
    }


NOT_MEASURED_SENTENCES: Final = (
    "The USB port of a device cannot be changed by a command: plug it into a USB 2 port, then into a USB 3 port, "
    "and compare two runs of bench device.",
    "The power plan and the governor belong to the system: change them, then compare two runs.",
    "Another operating system needs another installation. The dissertation found a factor of up to 8.66 between "
    "hosts, from system, USB port and clock together.",
)


def cases_on_this_computer(
    model: Model, *, cores: int, float_file: bytes | None, max_clock: bool
) -> tuple[BenchmarkCase, ...]:
    """Return a case for each way to run a model on this computer; the simplest way comes first.

    cores       maximum number of threads
    float_file  the network in floating point, or None if the pack has only a quantised network
    max_clock   whether a device with an adjustable clock is also timed at its highest clock
    """
    found = [cpu_case(model, 2**power) for power in range(cores.bit_length())]
    if float_file is not None:
        in_float = cpu_case(replace(model, files={"litert": float_file}, golden=None))
        found.append(replace(in_float, name=f"{in_float.name}, floating point"))
    return (*found, *accelerator_cases(model, max_clock=max_clock))
