"""The one loop of every training: epochs of steps, a running mean of the weights, a checkpoint after each epoch.

All randomness depends on (seed, epoch), so a training that was killed resumes exactly. Only the same training resumes:
if anything that it depends on has changed, it starts again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np

from fieldray.errors import UsageProblem
from fieldray.reasons import reason
from fieldray_adapt.engine import Checkpoint, Kept, Trainable
from fieldray_adapt.specification import Weights

Progress = Callable[[Mapping[str, Any]], None]
_AVERAGED_EVERY: Final = 4
"""Steps: taking the weights out of the framework costs a tenth of a step."""
_LONGEST_MEAN: Final = 0.98


class TrainingTask(Protocol):
    """What is trained: how the steps of an epoch are made, and what is looked at after each."""

    def steps(self, epoch: int) -> Iterator[float]:
        """Perform the steps of an epoch, counted from 0, one by one; the loss of each, before it."""

    def share(self, steps: int) -> float:
        """What the weights weigh in their running mean after so many steps since the beginning; 0 to leave it."""

    def validate(self, average: Weights, epoch: int) -> dict[str, Any]:
        """Figures of an epoch that has ended, with the averaged weights; the engine keeps its own."""


@dataclass(slots=True)
class TrainingState:
    """What a training has come to: averaged weights, figures by epoch, steps since the beginning."""

    average: Weights
    history: list[dict[str, Any]] = field(default_factory=list)
    steps: int = 0

    def resume(self, checkpoint: Checkpoint, engine: Trainable, *, key: str) -> bool:
        """Take over what a checkpoint keeps of this very training, engine included; whether there was something."""
        if kept := checkpoint.restore(engine, key=key):
            self.average, self.history, self.steps = dict(kept.arrays), kept.facts["history"], kept.facts["steps"]
        return kept is not None


def train_epochs(
    task: TrainingTask,
    engine: Trainable,
    state: TrainingState,
    *,
    until: int,
    epochs: int,
    facts: Mapping[str, Any],
    checkpoint: Checkpoint,
    key: str,
    progress: Progress,
) -> None:
    """Train from the epoch that `state` has come to up to, not including, `until`; of all there are `epochs`.

    `facts` stand in each row of the figures. Raises UsageProblem `training_diverged` when a loss is not a number (the
    checkpoint of the epoch before stays), StorageProblem when a checkpoint cannot be written.
    """
    for epoch in range(len(state.history), until):
        started, losses = time.monotonic(), list[float]()
        for loss in task.steps(epoch):
            losses.append(loss)
            if not math.isfinite(loss):
                raise UsageProblem(reason("training_diverged", epoch=epoch + 1, step=len(losses)))
            state.steps += 1
            if share := np.float32(task.share(state.steps)):
                _average(state.average, engine.weights(), share=share)
        row = {"epoch": epoch + 1, "epochs": epochs, **facts, "loss": float(np.mean(losses))}
        row |= task.validate(state.average, epoch)
        state.history.append(row | {"seconds": round(time.monotonic() - started, 3)})
        kept = Kept(facts={"history": state.history, "steps": state.steps}, arrays=state.average)
        checkpoint.save_if_due(engine, kept, key=key)
        progress(state.history[-1])


def _average(average: Weights, current: Weights, *, share: np.float32) -> None:
    for name, mean in average.items():
        np.add(mean, share * (current[name] - mean), out=mean)


def share_of_some(steps: int) -> float:
    """`TrainingTask.share` of a mean over some of the steps; young means forget faster, and leave no trace."""
    if steps % _AVERAGED_EVERY:
        return 0.0
    count = steps // _AVERAGED_EVERY
    return 1 - min(_LONGEST_MEAN, count / (count + 9))


def cosine_rate(highest: float, at: float, *, warm_up: float, end: float = 1.0, least: float = 0.002) -> float:
    """Learning rate at a time: from `least` on a linear rise up to `warm_up`, then a half cosine to 0 at the `end`."""
    if at < warm_up:
        return highest * max(at, least) / warm_up
    done = (at - warm_up) / max(end - warm_up, 1e-9)
    return highest * (1 + math.cos(math.pi * min(done, 1.0))) / 2
