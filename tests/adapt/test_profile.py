"""The first two iterations apart from the others, and the batch size that is proposed."""

from __future__ import annotations

import itertools

import pytest

from fieldray_adapt.engine import EngineSettings
from fieldray_adapt.networks import resnet50
from fieldray_adapt.profile import profile, propose_batch_size, time_iterations
from fieldray_adapt.specification import initial_weights


def test_start_up_cost_is_kept_apart() -> None:
    # the clock is read before and after each run: runs of 9, 4, 1, 3 and 2 seconds
    ticks = itertools.accumulate([0, 9, 0, 4, 0, 1, 0, 3, 0, 2])
    times = time_iterations(lambda: None, iterations=5, clock=lambda: next(ticks))
    assert times == {"first_ms": 9000, "second_ms": 4000, "later_ms": 2000}


def test_the_smallest_batch_near_the_fastest_is_proposed() -> None:
    per_image = {16: 2.0, 32: 1.05, 64: 1.0, 128: 1.2}
    rows = [{"mode": "training", "batch_size": size, "later_ms_per_image": ms} for size, ms in per_image.items()]
    assert propose_batch_size(rows) == 32
    assert propose_batch_size(rows[2:]) == 64


@pytest.mark.adapt
def test_a_network_is_profiled_at_each_size() -> None:
    network = resnet50(height=32, width=32, labels=2, blocks=(1,)).scaled(0.125)
    rows = profile(
        network,
        initial_weights(network, seed=0),
        batch_sizes=(2, 4),
        sides=(32, 48),
        settings=EngineSettings(loss="categorical", threads=1),
        iterations=3,
    )
    assert [(row["side"], row["batch_size"], row["mode"]) for row in rows] == [
        (side, size, mode) for side in (32, 48) for size in (2, 4) for mode in ("training", "inference")
    ]
    assert all(row["later_ms_per_image"] > 0 for row in rows)
