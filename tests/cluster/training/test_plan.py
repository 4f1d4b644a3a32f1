"""How a training is divided: every batch is somebody's, once, and what cannot be divided is said."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldray.errors import UsageProblem
from fieldray_cluster.training.tasks import Plan


@given(
    mode=st.sampled_from(["sync-join", "sync-split", "async"]),
    workers=st.integers(1, 9),
    batches=st.integers(1, 40),
    size=st.integers(1, 30),
)
def test_every_sample_of_every_batch_is_taken_once(mode: Any, workers: int, batches: int, size: int) -> None:
    plan = Plan(workers=workers, mode=mode)
    taken = Counter[tuple[int, int]]()
    for worker in range(workers):
        for number in range(plan.numbers(batches, worker)):
            batch = plan.batch(batches, worker, number)
            if batch is not None:
                own = plan.part(size, worker)
                taken.update((batch, place) for place in range(own.start, own.stop))
    assert taken == Counter({(batch, place): 1 for batch in range(batches) for place in range(size)})


def test_workers_that_wait_all_have_the_same_number_of_turns() -> None:
    plan = Plan(workers=3, mode="sync-join")
    assert [plan.numbers(7, worker) for worker in range(3)] == [3, 3, 3] and plan.updates(7) == 3
    assert [plan.batch(7, worker, 2) for worker in range(3)] == [6, None, None]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"workers": 2}, "need a way to work together"),
        ({"workers": 2, "mode": "sync-join", "staleness": 3}, "Leave --staleness out"),
        ({"workers": 4, "mode": "async", "staleness": 2}, "up to 3 updates late"),
    ],
)
def test_what_cannot_be_is_a_sentence(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageProblem, match=said):
        Plan(**wrong)


@pytest.mark.parametrize(
    ("mode", "batches", "sizes", "said"),
    [
        ("sync-join", 3, (8,), "An epoch has 3 batches, too few for 4 workers"),
        ("async", 1, (8,), "An epoch has 1 batch, too few for 4 workers"),
        ("sync-split", 9, (8, 3), "A batch has 3 images"),
    ],
)
def test_more_workers_than_work_is_a_sentence(mode: Any, batches: int, sizes: tuple[int, ...], said: str) -> None:
    with pytest.raises(UsageProblem, match=said):
        Plan(workers=4, mode=mode).require_room(batches=batches, sizes=sizes)
    Plan(workers=3, mode=mode).require_room(batches=3, sizes=(8, 3))
