"""Compare Šlampa's formulas with real training: a recipe's network on one and two workers of this computer.

Gradients are really computed, and weights are sent over the loopback interface. The formulas use only the times of a
gradient and of transfers. A worker does more work, and two workers on two cores slow each other down. So the time of a
worker's whole step without transfers is also measured, in as many workers as train at the same time. The report has the
predictions from both times.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from fieldray.bench.benchmark_case import BenchmarkReport, BulletList, Table
from fieldray_cluster.training.formulas import (
    CLUSTER_TRAINING_MODES,
    PARAMETER_SERVER_KINDS,
    ClusterTrainingMode,
    ParameterServerKind,
    TrainingMeasurements,
    estimate_training,
)
from fieldray_cluster.training.session import (
    choose_process_addresses,
    open_plan_client,
    open_registry,
    train_epochs_on_cluster,
)
from fieldray_cluster.training.shard import ShardState, WeightLayout
from fieldray_cluster.training.tasks import DividedTask, TrainingPlan
from fieldray_cluster.training.trainer import ClusterTimes, measure_cluster, measure_step_s, open_training_task

Notify = Callable[[str], None]
GOAL_ERROR: Final = 0.15
_WORKERS: Final = (1, 2)
_REPEATS: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingCase:
    """The duration of an epoch in seconds: measured (median, minimum, maximum), and predicted by the formulas.

    `gradient_s` is predicted from the time of a gradient, `step_s` from the time of a worker's whole step.
    """

    mode: ClusterTrainingMode
    server: ParameterServerKind
    workers: int
    measured_s: tuple[float, float, float]
    gradient_s: float
    step_s: float


def run_benchmark(recipe: Path, *, count: int, notify: Notify) -> BenchmarkReport:
    """Train `count` epochs in each mode, compare the durations of epochs with the formulas, and return the report."""
    notify("times of a gradient and of a transfer")
    costs = measure_cluster(recipe, TrainingPlan(), repeats=_REPEATS)
    with open_training_task(recipe) as task:
        steps_s = {workers: statistics.fmean(_steps_s(task, workers)) for workers in _WORKERS}
        found = list(_cases(task, costs, steps_s, count, notify))
    goals = [
        f"{name}: {sum(close)} of {len(close)} are within 15 % of the measured time."
        for name, close in (
            ("Predictions from the time of a gradient (tg)", [_is_close(one.gradient_s, one) for one in found]),
            ("Predictions from the time of a worker's step", [_is_close(one.step_s, one) for one in found]),
        )
    ]
    method = (
        f"Recipe {recipe.name}: {costs.batch_count} batches in an epoch, "
        f"{4e-6 * costs.weight_count:.2f} MB of weights. "
        f"Transfer over loopback (tc): {1000 * costs.transfer_s:.2f} ms. Gradient (tg): "
        f"{1000 * costs.gradient_s:.1f} ms.",
        "In a step, a worker sets the weights, computes the gradient, and copies the gradient to one vector. A "
        f"step takes {1000 * steps_s[1]:.1f} ms with one worker, and {1000 * steps_s[2]:.1f} ms with two workers. "
        "If a batch is split, only the gradient takes half the time.",
        "The time of an epoch is measured at the servers, from the end of the previous epoch: median, minimum, "
        f"maximum of {count - 1} epochs. The first epoch, which builds the networks, is left out. "
        "No images are validated.",
        "The predicted time is the mean of best and worst case.",
    )
    return BenchmarkReport(
        file_stem="real-training",
        title="Training with one and two workers: predicted and measured",
        blocks=(BulletList("Results", tuple(goals)), _table(found), BulletList("How it was measured", method)),
        json_values={"costs": asdict(costs), "steps_s": steps_s, "cases": [asdict(one) for one in found]},
    )


def _steps_s(task: DividedTask, workers: int) -> list[float]:
    """Return the seconds of a worker's step in each of `workers` processes that work at the same time."""
    plan = TrainingPlan(workers=workers, mode="sync-join")
    with open_plan_client(plan) as client:
        addresses = choose_process_addresses(open_registry(client), plan)[:workers]
        tasks = [client.submit(measure_step_s, task, _REPEATS, workers=[place], pure=False) for place in addresses]
        return [float(one.result()) for one in tasks]


def _cases(
    task: DividedTask, costs: ClusterTimes, steps_s: Mapping[int, float], count: int, notify: Notify
) -> Iterator[TrainingCase]:
    measured = TrainingMeasurements(
        gradient_s=costs.gradient_s, transfer_s=costs.transfer_s, batch_count=costs.batch_count, rounds_up_batches=True
    )
    for mode, server, workers in itertools.product(CLUSTER_TRAINING_MODES, PARAMETER_SERVER_KINDS, _WORKERS):
        notify(f"{mode} {server} {workers}")
        times_s = _epochs_s(task, TrainingPlan(workers=workers, mode=mode, server=server), count)
        predicted_s = estimate_training(measured, mode=mode, server=server, workers=workers).time_range.mean_s
        gradients = costs.batch_count if mode == "sync-split" else -(-costs.batch_count // workers)
        yield TrainingCase(
            mode=mode, server=server, workers=workers, gradient_s=predicted_s,
            step_s=predicted_s + gradients * (steps_s[workers] - costs.gradient_s),
            measured_s=(statistics.median(times_s), min(times_s), max(times_s)),
        )  # fmt: skip


def _epochs_s(task: DividedTask, plan: TrainingPlan, count: int) -> Sequence[float]:
    weights = task.open_replica().weights()
    layout = WeightLayout.from_weights(weights)
    with open_plan_client(plan) as client:
        state = ShardState.initial(layout.to_vector(weights))
        course = train_epochs_on_cluster(client, plan=plan, task=task, layout=layout, state=state)
        with contextlib.closing(course):
            ends = [epoch.ended_s for epoch in itertools.islice(course, count)]
    return [after - before for before, after in itertools.pairwise(ends)]


def _is_close(predicted_s: float, one: TrainingCase) -> bool:
    return abs(predicted_s / one.measured_s[0] - 1) <= GOAL_ERROR


def _table(found: Sequence[TrainingCase]) -> Table:
    rows: list[Any] = []
    for one in found:
        median, minimum, maximum = one.measured_s
        cells = [f"{one.mode}, {one.server}, {one.workers}", f"{median:.2f} ({minimum:.2f} to {maximum:.2f})"]
        for predicted_s in (one.gradient_s, one.step_s):
            cells += [f"{predicted_s:.2f}", f"{100 * (predicted_s / median - 1):+.1f} %"]
        rows.append(tuple(cells))
    columns = ("mode, server, workers", "measured s", "from tg: s", "error", "from a step: s", "error")
    return Table("Seconds of an epoch", columns, tuple(rows))
