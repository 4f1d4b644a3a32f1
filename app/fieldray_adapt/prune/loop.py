"""Adaptive iterative pruning (Taran 2022, chapter 3).

Each iteration removes the channels that are zero most often, retrains the network with the remaining weights, and
measures it. A law for each setting decides how many channels are removed, and how the network is retrained. The loop
ends by a stop rule.
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
from fieldray_adapt.prune.iterations import Iteration, IterationSettings, RunFolder
from fieldray_adapt.prune.plan import PruneRecipe, StopRules
from fieldray_adapt.prune.selection import ChannelScores, KeptChannels, PruningRule, select_channels
from fieldray_adapt.training.loop import Effort


class PruningTask(Protocol):
    """The interface by which the pruning loop measures, cuts and retrains a network."""

    def zero_shares(self, specification: Specification, weights: Weights) -> ChannelScores:
        """Return the average percentage of zeros (APoZ) of each channel on the calibration images, by channel set."""

    def cut(
        self, specification: Specification, weights: Weights, *, keep: KeptChannels
    ) -> tuple[Specification, Weights]:
        """Return the smaller network that has only the channels of `keep`, and its weights."""

    def retrain(self, specification: Specification, weights: Weights, *, effort: Effort, seed: int) -> Weights:
        """Retrain a network, and return its new weights. `effort` has the number of epochs, batch size and learning
        rate.
        """

    def quality(self, specification: Specification, weights: Weights) -> tuple[float, float]:
        """Return the network's quality (0..1, higher is better) and its loss, both on the validation part."""

    def seconds_per_image(self, specification: Specification, weights: Weights) -> float:
        """Return the time of inference for one image, in seconds."""

    def propose_batch_size(self, specification: Specification, weights: Weights) -> int | None:
        """Return the smallest candidate batch size whose training time per image is within a tenth of the shortest.

        None if there are no candidates.
        """


def smallest_adequate_iteration(rows: tuple[Iteration, ...], *, stop: StopRules) -> Iteration:
    """Return the iteration with the fewest parameters among those that have the quality that `stop` requires.

    The original network always counts as one of them.
    """
    kept = [row for row in rows if row.number == 0 or row.quality >= stop.lowest_quality]
    return min(kept, key=lambda row: row.parameters)


def prune(
    task: PruningTask,
    plan: PruneRecipe,
    *,
    folder: RunFolder,
    seed: int = 0,
    original: Callable[[], tuple[Specification, Weights]],
    progress: Callable[[Iteration], None] = lambda _: None,
) -> str:
    """Prune a network until a stop rule applies, or resume an interrupted run. Returns the name of the stop rule.

    Parameters
    ----------
    plan
        The laws and stop rules.
    seed
        Seed of the retraining; the number of the iteration is added.
    original
        Returns the network to prune. Called only if the run has no iterations yet.
    progress
        Receives each iteration once it is stored.
    """
    if not folder.iterations():
        specification, weights = original()
        row = _measure(task, specification, weights, number=0, begun=time.perf_counter())
        folder.add(row, specification, weights)
        progress(row)
    while (why := plan.stop.reason_to_stop(folder.iterations())) is None:
        progress(_iterate(task, plan, folder, seed=seed))
    return why


def _iterate(task: PruningTask, plan: PruneRecipe, folder: RunFolder, *, seed: int) -> Iteration:
    begun, rows = time.perf_counter(), folder.iterations()
    number, settings = len(rows), plan.next_settings(rows)
    specification, weights = folder.network(number - 1)
    rule = PruningRule(
        kind=plan.cut_kind,
        value=settings.cut_off,
        minimum_channels=round(settings.minimum_channels),
        largest_share=plan.largest_share,
        multiple=plan.multiple,
    )
    keep = select_channels(task.zero_shares(specification, weights), rule=rule)
    specification, weights = task.cut(specification, weights, keep=keep)
    before, _ = task.quality(specification, weights)
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
    quality, loss = task.quality(specification, weights)
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
