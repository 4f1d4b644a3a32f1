"""The first two iterations apart from the others, and the batch size that is proposed."""

from __future__ import annotations

import itertools

import pytest

from fieldray_adapt.engine import EngineSettings
from fieldray_adapt.networks import resnet50
from fieldray_adapt.profile import IterationTimes, ProfileRow, profile, propose_batch_size, time_iterations
from fieldray_adapt.specification import initial_weights


def test_start_up_cost_is_kept_apart() -> None:
    # the clock is read before and after each run: runs of 9, 4, 1, 3 and 2 seconds
    ticks = itertools.accumulate([0, 9, 0, 4, 0, 1, 0, 3, 0, 2])
    times = time_iterations(lambda: None, iterations=5, clock=lambda: next(ticks))
    assert times == IterationTimes(first_s=9, second_s=4, later_s=2)


def test_too_few_iterations_tell_nothing() -> None:
    with pytest.raises(ValueError, match="at least 3"):
        time_iterations(lambda: None, iterations=2)


def _row(batch_size: int, seconds_per_image: float) -> ProfileRow:
    times = IterationTimes(first_s=9, second_s=9, later_s=seconds_per_image * batch_size)
    return ProfileRow(mode="training", batch_size=batch_size, side=28, times=times)


def test_the_smallest_batch_near_the_fastest_is_proposed() -> None:
    rows = [_row(16, 2.0), _row(32, 1.05), _row(64, 1.0), _row(128, 1.2)]
    assert propose_batch_size(rows) == 32
    assert propose_batch_size(rows, tolerance=0.0) == 64
    with pytest.raises(ValueError, match="empty"):
        propose_batch_size([])


@pytest.mark.adapt
def test_a_network_is_profiled_at_each_size() -> None:
    network = resnet50(height=32, width=32, labels=2, activation="softmax", blocks=(1,)).scaled(0.125)
    rows = profile(
        network,
        initial_weights(network, seed=0),
        batch_sizes=(2, 4),
        sides=(32, 48),
        settings=EngineSettings(loss="categorical", threads=1),
        iterations=3,
    )
    assert [(row.side, row.batch_size, row.mode) for row in rows] == [
        (side, size, mode) for side in (32, 48) for size in (2, 4) for mode in ("training", "inference")
    ]
    assert all(row.later_s_per_image > 0 for row in rows)
