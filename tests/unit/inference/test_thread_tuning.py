"""How many networks with how many threads: decided by what was measured, shown with networks of known speed."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from fieldray.inference.service import ThreadConfiguration, time_together, tune_threads
from fieldray.processes.priority import usable_cores

IMAGE = np.zeros((8, 8, 1), np.uint8)
MINUTE_S = 60.0


class SpeedyNetwork:
    """Would take `seconds` an image, if it were run."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.runs = 0

    def run(self, image: Any) -> None:
        self.runs += 1


def choice(seconds: Any, *, is_one_core: bool, cores: int = 2, budget_s: float = MINUTE_S) -> ThreadConfiguration:
    """`seconds` an image by threads; on machines where networks do or do not run side by side."""

    def measure(networks: Any, image: Any) -> float:
        return float((1 if is_one_core else len(networks)) / networks[0].seconds)

    load = cast("Any", lambda threads: SpeedyNetwork(seconds[threads]))
    return tune_threads(load, IMAGE, cores=cores, budget_s=budget_s, measure=measure)


def test_what_runs_side_by_side_is_counted_together() -> None:
    networks = SpeedyNetwork(0.0), SpeedyNetwork(0.0)
    assert time_together(cast("Any", networks), IMAGE) > 0
    assert min(network.runs for network in networks) >= 2  # the first run is not counted


def test_networks_side_by_side_where_cores_are_free() -> None:
    chosen = choice({1: 0.01, 2: 0.009}, is_one_core=False)
    assert (len(chosen.networks), chosen.threads) == (2, 1)


def test_threads_where_they_are_what_helps() -> None:
    chosen = choice({1: 0.02, 2: 0.005}, is_one_core=True)
    assert (len(chosen.networks), chosen.threads) == (1, 2)


def test_lean_where_neither_helps() -> None:
    chosen = choice({1: 0.01, 2: 0.01}, is_one_core=True)
    assert (len(chosen.networks), chosen.threads) == (1, 1)


@pytest.mark.parametrize("changes", [{"cores": 1}, {"budget_s": 0.0}])
def test_lean_where_nothing_else_may_be_tried(changes: Any) -> None:
    chosen = choice({1: 0.01, 2: 0.001}, is_one_core=False, **changes)
    assert (len(chosen.networks), chosen.threads) == (1, 1)


def test_lean_for_a_network_faster_than_its_messages() -> None:
    chosen = choice({1: 0.0001, 2: 0.0001}, is_one_core=False)
    assert (len(chosen.networks), chosen.threads) == (1, 1)


def test_without_a_budget_nothing_is_run() -> None:
    loaded: list[int] = []
    chosen = tune_threads(cast("Any", loaded.append), IMAGE, cores=8, budget_s=None)
    assert (loaded, len(chosen.networks), chosen.threads) == ([8], 1, 8)


def test_at_most_four_cores_are_used() -> None:
    chosen = choice({1: 0.01, 4: 0.01}, is_one_core=False, cores=64)
    assert len(chosen.networks) == 4


def test_this_machine_has_cores() -> None:
    assert usable_cores() >= 1
