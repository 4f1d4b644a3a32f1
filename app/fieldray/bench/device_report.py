"""`bench device`, the report: what one image costs on each backend with each pack, the first images apart."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from fieldray.bench.measurement import FILE, NETWORK, Measurement
from fieldray.bench.report import Block, Chart, Points, Report, Series, Table
from fieldray.bench.timing_statistics import START_UP, Summary, by_iteration
from fieldray.domain.prediction import BackendName
from fieldray.reasons import Reason

MOST_ITERATIONS: Final = 100  # of a picture; the figures count all
_TALLEST: Final = 5.0  # times the usual time that a picture shows
FIGURE_COLUMNS: Final = ("", "1st", "2nd", "3+ mean", "stdev", "p50", "p95", "p99", "1st / 3+", "images")


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What a backend draws and costs, where its user says so: watts and US dollars by backend."""

    power_w: Mapping[BackendName, float] = field(default_factory=dict)
    price_usd: Mapping[BackendName, float] = field(default_factory=dict)


def device_report(
    measurements: Sequence[Measurement], *, costs: Costs, problems: Mapping[str, Reason], images: str
) -> Report:
    """Tables, pictures and figures; `problems` says what could not be measured, `images` what was run on."""
    blocks: list[Block] = [_times(measurements), _rates(measurements, costs)]
    blocks += [_lines(scope, measurements) for scope in (NETWORK, FILE)]
    notes = [f"Run on {images}."]
    details = {one.subject.name: ", ".join(sorted(one.subject.details)) for one in measurements}
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
    """The cells of one line of the table of times, after its name."""
    times_ms = (summary.first_ms, summary.second_ms, summary.mean_ms, summary.stdev_ms)
    shares_ms = (summary.p50_ms, summary.p95_ms, summary.p99_ms)
    cells = (f"{value:.2f}" for value in (*times_ms, *shares_ms))
    return (*cells, f"{summary.first_ratio:.2f}", str(summary.images))


def per_cost(summary: Summary, cost: float | None) -> float | None:
    """Frames per second for each watt or dollar; None where the cost is not known."""
    return summary.fps_avg / cost if cost else None


def _times(measurements: Sequence[Measurement]) -> Table:
    rows = tuple((one.name, *figure_cells(one.summary)) for one in measurements)
    return Table("Milliseconds an image, iterations 1, 2 and 3+ apart", FIGURE_COLUMNS, rows)


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
    backend = one.subject.kind.name
    by_cost = (costs.power_w.get(backend), costs.price_usd.get(backend))
    return per_cost(one.summary, by_cost[0]), per_cost(one.summary, by_cost[1])


def _lines(scope: str, measurements: Sequence[Measurement]) -> Chart:
    chosen = [one for one in measurements if one.scope == scope]
    return iteration_chart(f"Time of each image, {scope}", {one.subject.name: one.repetitions for one in chosen})


def iteration_chart(title: str, repetitions: Mapping[str, Sequence[Sequence[float]]]) -> Chart:
    """Median time of each iteration, a line for each name; a start-up far above the rest is cut off."""
    medians = {name: by_iteration(times_ms) for name, times_ms in repetitions.items()}
    usual_ms = max(statistics.median(times_ms[START_UP:]) for times_ms in medians.values())
    count = min(MOST_ITERATIONS, *map(len, medians.values()))
    return Chart(
        title=title,
        kind="lines",
        x_title="iteration",
        y_title="milliseconds (median over the repetitions)",
        places=tuple(str(number) for number in range(1, count + 1)),
        series=tuple(Series(name, tuple(times_ms[:count])) for name, times_ms in medians.items()),
        top=_TALLEST * usual_ms,
    )


def _data(one: Measurement, costs: Costs) -> dict[str, Any]:
    per_w, per_usd = _per_costs(one, costs)
    return {
        "name": one.name,
        "backend": one.subject.kind.name,
        "pack": one.subject.model.pack_name,
        "model_sha256": one.subject.model.model_sha256,
        "scope": one.scope,
        "ran_on": sorted(one.subject.details),
        "fps_per_w": per_w,
        "fps_per_usd": per_usd,
        **asdict(one.summary),
        "first_ratio": one.summary.first_ratio,
        "times_ms": one.repetitions,
    }
