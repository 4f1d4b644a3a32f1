"""`bench device`: time per image of each pack on each backend, with and without reading; the first images apart.

Every repetition runs in fresh processes, so that iteration 1 really is the first. The repetitions of everything that
is compared are interleaved, so that other load on the machine falls on all of it alike.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from fieldray.bench.benchmark_case import (
    START_UP,
    BenchmarkCase,
    Effort,
    LoadedImage,
    Notify,
    OpenReaders,
    Summary,
    by_iteration,
    one_worker,
    summarise,
    time_files,
    time_network,
)
from fieldray.bench.report import Block, Chart, Points, Report, Series, Table
from fieldray.domain.model import BackendName
from fieldray.reasons import Reason

NETWORK: Final = "network alone"
FILE: Final = "file to scores"


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Measurement:
    """The times of one case in one scope (NETWORK or FILE), in milliseconds by repetition."""

    case: BenchmarkCase
    scope: str
    repetitions: list[list[float]] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The name in reports."""
        return f"{self.case.name}, {self.scope}"

    @property
    def summary(self) -> Summary:
        """The summary of all repetitions."""
        return summarise(self.repetitions)


def measure(
    cases: Mapping[BenchmarkCase, Sequence[LoadedImage]],
    effort: Effort,
    *,
    notify: Notify,
    readers: OpenReaders = one_worker,
) -> tuple[Measurement, ...]:
    """Measure every case on its images, with and without reading. Raises BackendProblem."""
    measurements = [Measurement(case=case, scope=scope) for case in cases for scope in (NETWORK, FILE)]
    for repetition in range(effort.repeats):
        notify(f"repetition {repetition + 1} of {effort.repeats}")
        for one in measurements:
            images = cases[one.case]
            if one.scope == NETWORK:
                times_ms = time_network(one.case, images, count=effort.images)
            else:
                times_ms = time_files(one.case, images, count=effort.images, readers=readers)
            one.repetitions.append(times_ms)
    return tuple(measurements)


MOST_ITERATIONS: Final = 100  # shown in a chart; the figures count all
_TALLEST: Final = 5.0  # multiples of the usual time that a chart shows
FIGURE_COLUMNS: Final = ("", "1st", "2nd", "3+ mean", "stdev", "p50", "p95", "p99", "1st / 3+", "images")


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Power and price by backend, in watts and US dollars, as the user states them."""

    power_w: Mapping[BackendName, float] = field(default_factory=dict)
    price_usd: Mapping[BackendName, float] = field(default_factory=dict)


def device_report(
    measurements: Sequence[Measurement], *, costs: Costs, problems: Mapping[str, Reason], images: str
) -> Report:
    """Tables and charts. `problems` says what could not be measured; `images` is a phrase for what was run on."""
    blocks: list[Block] = [_times(measurements), _rates(measurements, costs)]
    blocks += [_lines(scope, measurements) for scope in (NETWORK, FILE)]
    notes = [f"Run on {images}."]
    details = {one.case.name: ", ".join(sorted(one.case.details)) for one in measurements}
    notes += [f"{name}: {detail}." for name, detail in details.items()]
    notes += [f"Not measured: {name}. {why.text}" for name, why in problems.items()]
    blocks.append(Points("What was measured", tuple(notes)))
    return Report(
        kind="bench-device",
        title="Fieldray: time and rate of each backend",
        blocks=tuple(blocks),
        data={
            "images": images,
            "measurements": [_data(one, costs) for one in measurements],
            "not_measured": {name: why.text for name, why in problems.items()},
        },
    )


def figure_cells(summary: Summary) -> tuple[str, ...]:
    """The cells of one row of the table of times, after its name."""
    times_ms = (summary.first_ms, summary.second_ms, summary.mean_ms, summary.stdev_ms)
    shares_ms = (summary.p50_ms, summary.p95_ms, summary.p99_ms)
    cells = (f"{value:.2f}" for value in (*times_ms, *shares_ms))
    return (*cells, f"{summary.first_ratio:.2f}", str(summary.images))


def per_cost(summary: Summary, cost: float | None) -> float | None:
    """Images per second and watt or dollar; None where the cost is not known."""
    return summary.fps_avg / cost if cost else None


def _times(measurements: Sequence[Measurement]) -> Table:
    rows = tuple((one.name, *figure_cells(one.summary)) for one in measurements)
    return Table("Milliseconds per image; iterations 1, 2 and 3+ apart", FIGURE_COLUMNS, rows)


def _rates(measurements: Sequence[Measurement], costs: Costs) -> Table:
    rows = []
    for one in measurements:
        summary = one.summary
        cells = [f"{fps:.2f}" for fps in (summary.fps_min, summary.fps_avg, summary.fps_max)]
        cells += ["" if value is None else f"{value:.3g}" for value in _per_costs(one, costs)]
        rows.append((one.name, *cells))
    columns = ("", "FPS min", "FPS avg", "FPS max", "FPS / W", "FPS / USD")
    return Table("Images per second, from the third image on", columns, tuple(rows))


def _per_costs(one: Measurement, costs: Costs) -> tuple[float | None, float | None]:
    backend = one.case.kind.name
    by_cost = (costs.power_w.get(backend), costs.price_usd.get(backend))
    return per_cost(one.summary, by_cost[0]), per_cost(one.summary, by_cost[1])


def _lines(scope: str, measurements: Sequence[Measurement]) -> Chart:
    chosen = [one for one in measurements if one.scope == scope]
    return iteration_chart(f"Time of each image, {scope}", {one.case.name: one.repetitions for one in chosen})


def iteration_chart(title: str, repetitions: Mapping[str, Sequence[Sequence[float]]]) -> Chart:
    """Median time of each iteration, one line per name; a start-up far above the rest is cut off."""
    medians = {name: by_iteration(times_ms) for name, times_ms in repetitions.items()}
    usual_ms = max(statistics.median(times_ms[START_UP:]) for times_ms in medians.values())
    count = min(MOST_ITERATIONS, *map(len, medians.values()))
    return Chart(
        title=title,
        kind="lines",
        x_title="iteration",
        y_title="milliseconds (median over the repetitions)",
        categories=tuple(str(number) for number in range(1, count + 1)),
        series=tuple(Series(name, tuple(times_ms[:count])) for name, times_ms in medians.items()),
        top=_TALLEST * usual_ms,
    )


def _data(one: Measurement, costs: Costs) -> dict[str, Any]:
    per_w, per_usd = _per_costs(one, costs)
    return {
        "name": one.name,
        "backend": one.case.kind.name,
        "pack": one.case.model.pack_name,
        "model_sha256": one.case.model.model_sha256,
        "scope": one.scope,
        "ran_on": sorted(one.case.details),
        "fps_per_w": per_w,
        "fps_per_usd": per_usd,
        **asdict(one.summary),
        "first_ratio": one.summary.first_ratio,
        "times_ms": one.repetitions,
    }
