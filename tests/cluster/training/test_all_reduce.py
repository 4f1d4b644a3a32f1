"""Updates by sums of gradients, by one process: what is no number never becomes a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from fieldray.errors import UsageProblem
from fieldray_cluster.training.all_reduce import epochs_alone
from fieldray_cluster.training.lesson import Taken
from fieldray_cluster.training.plan import Plan
from fieldray_cluster.training.share import Layout, Rule, ShareState

LAYOUT = Layout(("one/bias",), ((3,),))
RULE = Rule(weight_decay=0.0)


@dataclass(frozen=True, kw_only=True)
class _Lesson:
    """Two epochs of two batches, whose gradients are told; a pupil too."""

    gradient: float = 1.0
    loss: float = 0.5
    weight: float = 1.0
    batches: int = 2
    epochs: int = 2
    sizes: tuple[int, ...] = (4,)
    arrays: Path = Path("lesson.npz")
    rule: Rule = RULE

    def rate(self, _epoch: int, _share: float) -> float:
        return 0.1

    def open(self) -> _Lesson:
        return self

    def weights(self) -> dict[str, np.ndarray]:
        return {}

    def set_weights(self, weights: Mapping[str, np.ndarray]) -> None:
        """The gradient does not depend on them."""

    def take(self, _epoch: int, _step: int, _part: Plan, _worker: int) -> Taken:
        return Taken({"one/bias": np.full(3, self.gradient, np.float32)}, self.loss, self.weight)

    def look(self, _epoch: int, _step: int) -> dict[str, float]:
        return {}


def _trained(lesson: _Lesson) -> list[ShareState]:
    start = ShareState.new(np.zeros(3, np.float32))
    return [one.state for one in epochs_alone(plan=Plan(), lesson=lesson, layout=LAYOUT, state=start)]


def test_epochs_follow_each_other() -> None:
    assert [state.steps for state in _trained(_Lesson())] == [2, 4]


def test_where_nothing_is_known_of_a_batch_nothing_is_learnt_of_it() -> None:
    states = _trained(_Lesson(weight=0.0))
    assert all(state.is_finite and not state.values.any() for state in states)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (_Lesson(loss=float("nan")), "epoch 1, step 1: the loss is not a number"),
        (_Lesson(gradient=float("nan")), "epoch 1: a weight is not a number"),
    ],
)
def test_what_is_no_number_ends_the_training(wrong: _Lesson, said: str) -> None:
    with pytest.raises(UsageProblem, match=said):
        _trained(wrong)
