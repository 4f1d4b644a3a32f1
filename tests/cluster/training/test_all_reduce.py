"""Updates by sums of gradients, by one process: what is no number never becomes a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from fieldray.errors import UsageProblem
from fieldray_cluster.training.session import Epoch, epoch_of
from fieldray_cluster.training.shard import Layout, Rule, ShardState
from fieldray_cluster.training.tasks import GradientResult, Plan
from fieldray_cluster.training.worker import reduced

LAYOUT = Layout(("one/bias",), ((3,),))
RULE = Rule(weight_decay=0.0)


@dataclass(frozen=True, kw_only=True)
class _Task:
    """Two epochs of two batches, whose gradients are told."""

    gradient: float = 1.0
    loss: float = 0.5
    weight: float = 1.0
    batches: int = 2
    epochs: int = 2
    sizes: tuple[int, ...] = (4,)
    arrays: Path = Path("arrays.npz")
    rule: Rule = RULE

    def rate(self, _epoch: int, _share: float) -> float:
        return 0.1

    def open(self) -> _Replica:
        return _Replica(self)


class _Replica:
    def __init__(self, task: _Task) -> None:
        self._task = task

    def weights(self) -> dict[str, np.ndarray]:
        return {}

    def set_weights(self, weights: Mapping[str, np.ndarray]) -> None:
        """The gradient does not depend on them."""

    def gradient(self, _epoch: int, _step: int, _part: Plan, _worker: int) -> GradientResult:
        gradient = {"one/bias": np.full(3, self._task.gradient, np.float32)}
        return GradientResult(gradient, self._task.loss, self._task.weight)


def _trained(task: _Task) -> list[Epoch]:
    """Two epochs by one worker, as a driver takes them."""
    state, found = ShardState.new(np.zeros(3, np.float32)), list[Epoch]()
    for number in (1, 2):
        state, facts = reduced(
            _Replica(task), task, Plan(), state, layout=LAYOUT, number=number, rank=0, summed=lambda vector: vector
        )
        found.append(epoch_of(number, state, [facts]))
    return found


def test_epochs_follow_each_other() -> None:
    assert [(epoch.state.steps, epoch.loss) for epoch in _trained(_Task())] == [(2, 0.5), (4, 0.5)]


def test_where_nothing_is_known_of_a_batch_nothing_is_learnt_of_it() -> None:
    states = [epoch.state for epoch in _trained(_Task(weight=0.0))]
    assert all(state.is_finite and not state.values.any() for state in states)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (_Task(loss=float("nan")), "epoch 1, step 1: the loss is not a number"),
        (_Task(gradient=float("nan")), "epoch 1: a weight is not a number"),
    ],
)
def test_what_is_no_number_ends_the_training(wrong: _Task, said: str) -> None:
    with pytest.raises(UsageProblem, match=said):
        _trained(wrong)
