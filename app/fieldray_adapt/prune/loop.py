"""Adaptive iterative pruning (Taran 2022, chapter 3).

Each iteration removes the channels that are zero most often, retrains the network from the remaining weights, and
measures the network. For each setting, such as the learning rate, a law gives the value in each iteration. The loop
ends when a stop rule applies.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from fieldray_adapt.networks.specification import (
    Specification,
    Weights,
    multiply_add_count,
    parameter_count,
)
from fieldray_adapt.prune.iterations import Iteration, IterationSettings, PruningRunFolder
from fieldray_adapt.prune.plan import PruneRecipe, StopRules
from fieldray_adapt.prune.selection import ChannelScores, KeptChannels, PruningRule, select_channels
from fieldray_adapt.training.loop import Effort


class PruningTask(Protocol):
    """The interface of an object that measures, cuts and retrains networks for the pruning loop."""

    def measure_zero_shares(self, specification: Specification, weights: Weights) -> ChannelScores:
        """Return the average percentage of zeros (APoZ) of each channel on the calibration images, by channel set."""

    def cut_channels(
        self, specification: Specification, weights: Weights, *, keep: KeptChannels
    ) -> tuple[Specification, Weights]:
        """Return the smaller network that has only the channels of `keep`, and the smaller network's weights."""

    def retrain(self, specification: Specification, weights: Weights, *, effort: Effort, seed: int) -> Weights:
        """Retrain a network, and return its new weights. `effort` has the number of epochs, batch size and learning
        rate.
        """

    def measure_quality_and_loss(self, specification: Specification, weights: Weights) -> tuple[float, float]:
        """Return a network's quality (0..1, higher is better) and loss, both on the validation images."""

    def seconds_per_image(self, specification: Specification, weights: Weights) -> float:
        """Return the time of inference for one image, in seconds."""

    def propose_batch_size(self, specification: Specification, weights: Weights) -> int | None:
        """Return the smallest candidate batch size with a training time per image at most 10 % above the shortest time.

        None if there are no candidate batch sizes.
        """


def smallest_adequate_iteration(rows: tuple[Iteration, ...], *, stop: StopRules) -> Iteration:
    """Return the iteration with the fewest parameters whose network has at least the quality `stop.lowest_quality`.

    If no pruned network has this quality, the original network is returned.
    """
    kept = [row for row in rows if row.number == 0 or row.quality >= stop.lowest_quality]
    return min(kept, key=lambda row: row.parameters)


def prune(
    task: PruningTask,
    plan: PruneRecipe,
    *,
    folder: PruningRunFolder,
    seed: int = 0,
    original: Callable[[], tuple[Specification, Weights]],
    progress: Callable[[Iteration], None] = lambda _: None,
) -> str:
    """Prune a network until a stop rule applies, or resume an interrupted run. Returns the name of the stop rule.

    Parameters
    ----------
    task
        Measures, cuts and retrains the network.
    plan
        The laws and stop rules.
    folder
        The folder that stores the iterations.
    seed
        Seed of the retraining, to which the number of the iteration is added.
    original
        A function that returns the network to prune. Called only if the run has no iterations.
    progress
        A function that is called with each iteration after the iteration is stored.
    """
    if not folder.iterations():
        specification, weights = original()
        row = _measure(task, specification, weights, number=0, begun=time.perf_counter())
        folder.add(row, specification, weights)
        progress(row)
    while (why := plan.stop.reason_to_stop(folder.iterations())) is None:
        progress(_iterate(task, plan, folder, seed=seed))
    return why


def _iterate(task: PruningTask, plan: PruneRecipe, folder: PruningRunFolder, *, seed: int) -> Iteration:
    begun, rows = time.perf_counter(), folder.iterations()
    number, settings = len(rows), plan.next_settings(rows)
    specification, weights = folder.network_after_iteration(number - 1)
    rule = PruningRule(
        cut_off_unit=plan.cut_kind,
        cut_off=settings.cut_off,
        minimum_channels=round(settings.minimum_channels),
        max_removed_share=plan.largest_share,
        channel_count_multiple=plan.multiple,
    )
    keep = select_channels(task.measure_zero_shares(specification, weights), rule=rule)
    specification, weights = task.cut_channels(specification, weights, keep=keep)
    before, _ = task.measure_quality_and_loss(specification, weights)
    effort = Effort(batch_size=round(settings.batch_size), epochs=settings.epochs, learning_rate=settings.learning_rate)
    weights = task.retrain(specification, weights, effort=effort, seed=seed + number)
    row = _measure(task, specification, weights, number=number, begun=begun, before=before, settings=settings)
    folder.add(row, specification, weights)
    return row


def _measure(
    task: PruningTask,
    specification: Specification,
    weights: Weights,
    *,
    number: int,
    begun: float,
    before: float | None = None,
    settings: IterationSettings | None = None,
) -> Iteration:
    quality, loss = task.measure_quality_and_loss(specification, weights)
    return Iteration(
        number=number,
        parameters=parameter_count(specification),
        multiply_adds=multiply_add_count(specification),
        quality_before=quality if before is None else before,
        quality=quality,
        loss=loss,
        seconds_per_image=task.seconds_per_image(specification, weights),
        batch_size_proposed=task.propose_batch_size(specification, weights) if number else None,
        wall_seconds=time.perf_counter() - begun,
        settings=settings,
    )
