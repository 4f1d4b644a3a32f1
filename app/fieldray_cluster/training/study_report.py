"""The report of a study of divided training: final figures over the seeds, and curves by epochs, samples and time."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from fieldray.bench.report import Chart, Points, Report, Series, Table
from fieldray_cluster.training.study import Course, Training, TrainingStudy

_PUBLISHED: Final = {("sync-join", 3): "8 %", ("async", 3): "12 %"}
_TIMES: Final = 12
_Way = tuple[str, int]


def study_report(study: TrainingStudy, courses: Sequence[Course]) -> Report:
    """What came of it, and whether the synchronous loss is below the asynchronous one."""
    networks = list(dict.fromkeys(course.training.network for course in courses))
    blocks: list[Any] = [
        Points("Is the synchronous loss below the asynchronous one?", tuple(_verdicts(courses, study)))
    ]
    for network in networks:
        own = [course for course in courses if course.training.network == network]
        blocks += [_finals(own), _against("samples", own), _against("time_s", own), *_charts(own)]
    blocks.append(Points("How it was measured", _HOW))
    data = {"courses": [{"training": asdict(course.training), "rows": list(course.rows)} for course in courses]}
    return Report(
        kind="training-study", title="Lung fields trained locally, synchronously, asynchronously", blocks=tuple(blocks),
        data=data,
    )  # fmt: skip


_HOW: Final = (
    "After S. Minukhin (2020), who trained a U-Net on nerves in neck ultrasound images; these are lungs in chest "
    "X-rays, small images and narrow networks. His figures are of another task: only the modes' order can be "
    "compared.",
    "An epoch of N workers has as many iterations of each as the local one, as published, so N times the samples. The "
    "tables at equal samples and equal time compare what is alike.",
    "Loss: the mean over the epoch's batches, of 1 - Dice and cross-entropy together. Verification loss: 1 - Dice of "
    "the foreground at a threshold of a half, on images of other patients, with averaged weights.",
    "Values are means over the seeds, with the least and the greatest. Time is this computer's, on which all workers "
    "share two cores: it says nothing of how fast several computers are.",
)


def _way(training: Training) -> _Way:
    return training.mode, training.workers


def _named(way: _Way) -> str:
    return "local" if way[0] == "local" else f"{way[0]}, {way[1]} workers"


def _by_way(courses: Sequence[Course]) -> dict[_Way, list[Course]]:
    found: dict[_Way, list[Course]] = {}
    for course in courses:
        found.setdefault(_way(course.training), []).append(course)
    return found


def _spread(values: Sequence[float], *, digits: int = 4) -> str:
    if len(values) < 2:
        return f"{values[0]:.{digits}f}"
    return f"{statistics.fmean(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def _verdicts(courses: Sequence[Course], study: TrainingStudy) -> Iterator[str]:
    """A sentence for each network and number of workers, by training loss and by verification loss."""
    networks = list(dict.fromkeys(course.training.network for course in courses))
    for network in networks:
        for workers in study.workers:
            ways = _by_way([one for one in courses if one.training.network == network])
            pairs = [(mode, ways.get((mode, workers))) for mode in study.modes if mode != "async"]
            late = ways.get(("async", workers))
            for mode, early in pairs:
                if not early or not late:
                    continue
                for name, value in (("training loss", _loss), ("verification loss", _verification)):
                    first, second = [value(one.rows[-1]) for one in early], [value(one.rows[-1]) for one in late]
                    below = sum(one < other for one, other in zip(first, second, strict=True))
                    yield (
                        f"{network}, {workers} workers, {name}: {mode} {_spread(first)}, async {_spread(second)}; "
                        f"{mode} is below in {below} of {len(first)} seeds: {_verdict(below, first, second)}."
                    )


def _verdict(below: int, first: Sequence[float], second: Sequence[float]) -> str:
    if below == len(first) and max(first) < min(second):
        return "reproduced, the ranges are apart"
    if statistics.fmean(first) < statistics.fmean(second):
        return "below in the mean, but the ranges overlap" if max(first) >= min(second) else "reproduced"
    return "NOT reproduced"


def _loss(row: Mapping[str, Any]) -> float:
    return float(row["loss"])


def _verification(row: Mapping[str, Any]) -> float:
    return 1 - float(row["dice"])


def _finals(courses: Sequence[Course]) -> Table:
    rows = []
    for way, own in _by_way(courses).items():
        last = [course.rows[-1] for course in own]
        late = [row["staleness_mean"] for row in last if "staleness_mean" in row]
        rows.append(
            (
                _named(way),
                _spread([_loss(row) for row in last]),
                _spread([_verification(row) for row in last]),
                _spread([float(row["dice"]) for row in last]),
                f"{last[0]['samples']}",
                _spread([course.rows[-1]["time_s"] / len(course.rows) for course in own], digits=2),
                f"{statistics.fmean(late):.2f}, {max(row['staleness_most'] for row in last)}" if late else "-",
                _PUBLISHED.get(way, "-"),
            )
        )
    columns = (
        "mode", "loss", "verification loss", "foreground Dice", "samples", "s per epoch", "updates late: mean, most",
        "published loss",
    )  # fmt: skip
    return Table(f"{courses[0].training.network}: after {courses[0].rows[-1]['epochs']} epochs", columns, tuple(rows))


def _against(unit: str, courses: Sequence[Course]) -> Table:
    """What every mode has when the one with the least of a unit has ended."""
    limit = min(course.rows[-1][unit] for course in courses)
    rows = []
    for way, own in _by_way(courses).items():
        reached = [[row for row in course.rows if row[unit] <= limit] for course in own]
        known = [found[-1] for found in reached if found]
        values = ("-", "-")
        if known:
            values = (_spread([_loss(row) for row in known]), _spread([float(row["dice"]) for row in known]))
        epochs = ", ".join(str(row["epoch"]) for row in known) or "-"
        rows.append((_named(way), *values, epochs))
    what = {"samples": f"{limit} samples", "time_s": f"{limit:.1f} s"}[unit]
    columns = ("mode", "loss", "foreground Dice", "last epoch within it, by seed")
    return Table(f"{courses[0].training.network}: after {what}", columns, tuple(rows))


def _charts(courses: Sequence[Course]) -> Iterator[Chart]:
    for title, value in (("loss", _loss), ("foreground Dice", lambda row: float(row["dice"]))):
        for unit, axis in (("epoch", "epochs"), ("samples", "samples"), ("time_s", "seconds")):
            yield _chart(courses, title=title, value=value, unit=unit, axis=axis)


def _chart(
    courses: Sequence[Course], *, title: str, value: Callable[[Mapping[str, Any]], float], unit: str, axis: str
) -> Chart:
    """The mean over the seeds of what the last epoch within each step of the axis had."""
    ways = _by_way(courses)
    most = max(course.rows[-1][unit] for course in courses)
    if unit == "epoch":
        steps = [float(number) for number in range(1, int(most) + 1)]
    else:
        steps = [most * (number + 1) / _TIMES for number in range(_TIMES)]
    series = tuple(
        Series(_named(way), tuple(_mean_at(own, unit, step, value) for step in steps)) for way, own in ways.items()
    )
    network = courses[0].training.network
    return Chart(
        title=f"{network}: {title} against {axis}", kind="lines", x_title=axis, y_title=title,
        categories=tuple(f"{step:.0f}" for step in steps), series=series,
    )  # fmt: skip


def _mean_at(
    courses: Sequence[Course], unit: str, step: float, value: Callable[[Mapping[str, Any]], float]
) -> float | None:
    if any(course.rows[-1][unit] < step and unit != "time_s" for course in courses):
        return None
    found = [[row for row in course.rows if row[unit] <= step] for course in courses]
    return statistics.fmean(value(rows[-1]) for rows in found) if all(found) else None
