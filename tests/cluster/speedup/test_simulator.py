"""Training played through, transfer by transfer, against the formulas."""

from __future__ import annotations

import random

import pytest

from fieldray_cluster.training.formulas import MODES, SERVERS, Measured, Mode, Server, estimated
from fieldray_cluster.training.placement import REFERENCE_NETWORKS
from fieldray_cluster.training.simulator import Links, simulated_s, transfers_of

CASES = 2000


def drawn_case(drawn: random.Random, *, slowest: float = 1.0) -> tuple[Measured, Mode, int]:
    workers = drawn.randint(1, 10)
    measured = Measured(
        gradient_s=10 ** drawn.uniform(-2, 1),
        transfer_s=10 ** drawn.uniform(-3, 1),
        batches=workers * drawn.randint(1, 6),
        slowest=slowest,
    )
    return measured, drawn.choice(MODES), workers


def both(measured: Measured, mode: Mode, server: Server, workers: int) -> tuple[float, float]:
    exclusive, shared = (
        simulated_s(measured, mode=mode, server=server, workers=workers, links=links)
        for links in ("exclusive", "shared")
    )
    return exclusive, shared


def test_in_two_thousand_random_cases_the_best_and_worst_cases_are_what_is_played_through() -> None:
    """Not only within the bounds: exclusive links give the best case exactly, shared ones the worst."""
    drawn = random.Random(19)
    for _ in range(CASES):
        measured, mode, workers = drawn_case(drawn)
        server = drawn.choice(SERVERS)
        span = estimated(measured, mode=mode, server=server, workers=workers).span
        exclusive_s, shared_s = both(measured, mode, server, workers)
        assert span.holds(exclusive_s) and span.holds(shared_s)
        assert exclusive_s == pytest.approx(span.best_s, rel=1e-9)
        assert shared_s == pytest.approx(span.worst_s, rel=1e-9)


def test_with_one_slow_worker_a_central_server_stays_within_the_bounds() -> None:
    drawn = random.Random(20)
    for _ in range(300):
        measured, mode, workers = drawn_case(drawn, slowest=drawn.uniform(1, 4))
        span = estimated(measured, mode=mode, server="central", workers=workers).span
        assert all(span.holds(time_s) for time_s in both(measured, mode, "central", workers))


def test_an_iteration_by_hand() -> None:
    # N = 2, tc = 2, tg = 5, exclusive: weights at 2 and 4, gradients ready at 7 and 9, given at 9 and 11.
    measured = Measured(gradient_s=5, transfer_s=2, batches=2)
    assert simulated_s(measured, mode="sync-join", server="central", workers=2) == pytest.approx(11)
    # Shared: weights at 4, gradients at 9, given at 13.
    assert simulated_s(measured, mode="sync-join", server="central", workers=2, links="shared") == pytest.approx(13)
    # Distributed: half of the weights each way, 1 + 5 + 1.
    assert simulated_s(measured, mode="sync-join", server="distributed", workers=2) == pytest.approx(7)
    # Split: the same transfers for each of two batches, half of the gradient time: 2 * (2 * 1 + 2.5).
    assert simulated_s(measured, mode="sync-split", server="distributed", workers=2) == pytest.approx(9)


@pytest.mark.parametrize("links", ["exclusive", "shared"])
def test_batches_are_whole(links: Links) -> None:
    # 3 batches on 2 distributed workers: one has 2 rounds of 1 + 5 + 1 s.
    measured = Measured(gradient_s=5, transfer_s=2, batches=3)
    assert simulated_s(measured, mode="async", server="distributed", workers=2, links=links) == pytest.approx(14)
    assert simulated_s(measured, mode="sync-join", server="distributed", workers=2, links=links) == pytest.approx(14)


@pytest.mark.parametrize("name", ["googlenet", "squeezenet", "resnet-34"])
@pytest.mark.parametrize("mode", MODES)
def test_whole_tensors_take_about_as_long_as_the_corrected_formula_says(name: str, mode: Mode) -> None:
    """An estimate and no bound: who has the weights early gives its gradient while others still get theirs."""
    tensors = REFERENCE_NETWORKS[name]()
    measured = Measured(gradient_s=0.8, transfer_s=0.2, batches=64, tensors=tensors)
    for workers in (2, 4, 8):
        expected_s = estimated(measured, mode=mode, server="distributed", workers=workers).span.mean_s
        exclusive_s, shared_s = both(measured, mode, "distributed", workers)
        assert shared_s == pytest.approx(expected_s, rel=0.2)
        assert 0.5 * expected_s < exclusive_s < 1.2 * expected_s


def test_one_tensor_that_is_nearly_the_whole_network_makes_its_server_a_central_one() -> None:
    """The corrected formula then counts getting and giving one after another, which full duplex does not."""
    measured = Measured(gradient_s=0.719, transfer_s=5.153, batches=128, tensors=REFERENCE_NETWORKS["vgg-16e"]())
    expected_s = estimated(measured, mode="sync-join", server="distributed", workers=8).span.mean_s
    exclusive_s, shared_s = both(measured, "sync-join", "distributed", 8)
    assert 0.5 * expected_s < exclusive_s < 0.75 * expected_s
    assert shared_s == pytest.approx(expected_s, rel=0.2)


def test_more_workers_than_batches_leave_some_idle() -> None:
    measured = Measured(gradient_s=5, transfer_s=2, batches=1)
    assert simulated_s(measured, mode="async", server="central", workers=3) == pytest.approx(9)


def test_transfers_are_counted_beforehand() -> None:
    measured = Measured(gradient_s=1, transfer_s=1, batches=12)
    assert transfers_of(measured, mode="async", server="central", workers=4) == 24
    assert transfers_of(measured, mode="async", server="distributed", workers=4) == 72
    assert transfers_of(measured, mode="sync-join", server="distributed", workers=4) == 24
    with pytest.raises(ValueError, match="one worker"):
        simulated_s(measured, mode="async", server="central", workers=0)
