"""Šlampa's formulas against real training: a recipe's own network on one and two workers of this computer.

Nothing is shaped and nothing stands in: gradients are computed, weights travel by the program's channels over the
loopback. Two workers on two cores slow each other, which no formula knows, so the gradient is timed by one worker alone
and by two at the same time, and both predictions are shown.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from fieldray.adaptation.speedup.estimate import MODES, SERVERS, Measured, Mode, Server, estimated
from fieldray.bench.report import Points, Report, Table
from fieldray.cluster.training.cluster import opened
from fieldray.cluster.training.lesson import Lesson
from fieldray.cluster.training.measure import Costs, gradient_s, lesson_of, measure_costs
from fieldray.cluster.training.plan import Plan
from fieldray.cluster.training.session import encryption_of, epochs, places_of
from fieldray.cluster.training.share import Layout, ShareState

Notify = Callable[[str], None]
GOAL_ERROR: Final = 0.15
_WORKERS: Final = (1, 2)
_REPEATS: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Seconds of an epoch: measured (median, least, most), and predicted by each time of a gradient."""

    mode: Mode
    server: Server
    workers: int
    measured_s: tuple[float, float, float]
    alone_s: float
    together_s: float


def real_training_report(recipe: Path, *, count: int, notify: Notify) -> Report:
    """Train so many epochs in each mode, and set an epoch's time against the formulas."""
    notify("times of a gradient and of a transfer")
    costs = measure_costs(recipe, address=None, certificates=None, repeats=_REPEATS)
    with lesson_of(recipe) as lesson:
        alone_s, together_s = (statistics.fmean(_gradients_s(lesson, workers)) for workers in _WORKERS)
        found = list(_cases(lesson, costs, (alone_s, together_s), count, notify))
    goals = [
        f"Two workers, the gradient timed by {name}: {sum(close)} of {len(close)} pairs within 15 %."
        for name, close in (
            ("one alone", [_is_close(one.alone_s, one) for one in found if one.workers > 1]),
            ("two at once", [_is_close(one.together_s, one) for one in found if one.workers > 1]),
        )
    ]
    told = (
        f"Recipe {recipe.name}: {costs.batches} batches in an epoch, {4e-6 * costs.elements:.2f} MB of weights; tc "
        f"{1000 * costs.transfer_s:.2f} ms over the loopback, tg {1000 * alone_s:.1f} ms by one worker alone, "
        f"{1000 * together_s:.1f} ms by two at the same time ({together_s / alone_s:.2f} times as long).",
        f"An epoch's time is from the end of the one before to its own, at the servers: the median of {count - 1} with "
        "the least and the most; the first epoch, in which networks are built, is left out. No images are validated.",
        "Predicted: the mean of best and worst case, tg / N where a batch is split.",
    )
    return Report(
        kind="real-training",
        title="Divided training on one and two workers: predicted and measured",
        blocks=(Points("What came of it", tuple(goals)), _table(found), Points("How it was measured", told)),
        data={"costs": asdict(costs), "gradients_s": [alone_s, together_s], "cases": [asdict(one) for one in found]},
    )


def _gradients_s(lesson: Lesson, workers: int) -> list[float]:
    """The gradient's time in each of so many workers at the same time."""
    plan = Plan(workers=workers, mode="sync-join")
    with opened(plan) as client:
        places = places_of(client, plan)[:workers]
        tasks = [client.submit(gradient_s, lesson, _REPEATS, workers=[place], pure=False) for place in places]
        return [float(task.result()) for task in tasks]


def _cases(
    lesson: Lesson, costs: Costs, gradients_s: tuple[float, float], count: int, notify: Notify
) -> Iterator[Case]:
    alone, together = (
        Measured(gradient_s=time_s, transfer_s=costs.transfer_s, batches=costs.batches, is_whole=True)
        for time_s in gradients_s
    )
    for mode, server, workers in itertools.product(MODES, SERVERS, _WORKERS):
        notify(f"{mode} {server} {workers}")
        times_s = _epochs_s(lesson, Plan(workers=workers, mode=mode, server=server), count)
        predicted_s = [
            estimated(measured, mode=mode, server=server, workers=workers).span.mean_s
            for measured in (alone, together if workers > 1 else alone)
        ]
        yield Case(
            mode=mode, server=server, workers=workers, alone_s=predicted_s[0], together_s=predicted_s[1],
            measured_s=(statistics.median(times_s), min(times_s), max(times_s)),
        )  # fmt: skip


def _epochs_s(lesson: Lesson, plan: Plan, count: int) -> Sequence[float]:
    weights = lesson.open().weights()
    layout = Layout.of(weights)
    with opened(plan) as client:
        state = ShareState.new(layout.vector(weights))
        course = epochs(client, plan=plan, lesson=lesson, layout=layout, state=state, encryption=encryption_of(client))
        with contextlib.closing(course):
            ends = [epoch.ended for epoch in itertools.islice(course, count)]
    return [after - before for before, after in itertools.pairwise(ends)]


def _is_close(predicted_s: float, one: Case) -> bool:
    return abs(predicted_s / one.measured_s[0] - 1) <= GOAL_ERROR


def _table(found: Sequence[Case]) -> Table:
    rows: list[Any] = []
    for one in found:
        middle, least, most = one.measured_s
        cells = [f"{one.mode}, {one.server}, {one.workers}", f"{middle:.2f} ({least:.2f} to {most:.2f})"]
        for predicted_s in (one.alone_s, one.together_s):
            cells += [f"{predicted_s:.2f}", f"{100 * (predicted_s / middle - 1):+.1f} %"]
        rows.append(tuple(cells))
    columns = ("mode, server, N", "measured s", "tg alone: s", "error", "tg of two at once: s", "error")
    return Table("Seconds of an epoch", columns, tuple(rows))
