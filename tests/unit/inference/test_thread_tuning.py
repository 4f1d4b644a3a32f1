"""How many networks with how many threads: decided by what was measured, shown with networks of known speed."""

from __future__ import annotations

import threading
import time
from typing import Any, cast

import numpy as np
import pytest

from fieldray.inference.thread_tuning import ThreadConfiguration, tune_threads
from fieldray.processes.priority import usable_cores

IMAGE = np.zeros((8, 8, 1), np.uint8)
MINUTE_S = 60.0


class TimedNetwork:
    """Takes `seconds` an image; networks with the same `core` wait for each other."""

    def __init__(self, seconds: float, core: Any) -> None:
        self._seconds = seconds
        self._core = core

    def run(self, image: Any) -> None:
        with self._core:
            time.sleep(self._seconds)


def choice(seconds: Any, *, is_one_core: bool, cores: int = 2, budget_s: float = MINUTE_S) -> ThreadConfiguration:
    """`seconds` an image by threads; on machines where networks do or do not run side by side."""
    shared = threading.Lock()

    def load(threads: int) -> Any:
        return TimedNetwork(seconds[threads], shared if is_one_core else threading.Lock())

    return tune_threads(cast("Any", load), IMAGE, cores=cores, budget_s=budget_s)


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
    chosen = choice({1: 0.0, 2: 0.0}, is_one_core=False)
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
