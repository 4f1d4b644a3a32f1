"""Each formula of Šlampa (2017) with numbers worked out by hand, and the golden table of predictions."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from fieldray_cluster.training.formulas import (
    SERVERS,
    Asynchronous,
    Measured,
    Mode,
    Server,
    Span,
    estimated,
    span_of,
    split_corrected_s,
)

MEASURED = Measured(gradient_s=5, transfer_s=2, batches=12)  # tg, tc and D
ITERATION = Asynchronous(measured=replace(MEASURED, batches=3), workers=3)  # D = N: one iteration
ASYNCHRONOUS = Asynchronous(measured=MEASURED, workers=3)  # D/N = 4


def training(workers: int, **other: float) -> Asynchronous:
    return Asynchronous(measured=replace(MEASURED, **other), workers=workers)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("formula", "found", "expected"),
    [
        ("4.2, so many iterations", Span(1, 1.5).times(12), Span(12, 18)),
        ("4.4, the last worker at best", ITERATION.best_worker_s, 2 * 2 + 2 + 5 + 2),
        ("4.5, the server at best", ITERATION.best_server_s, 4 * 2 + 5),
        ("4.6 to 4.10, an iteration", ITERATION.central, Span(13, 2 * 3 * 2 + 5)),
        ("4.11, its mean", ITERATION.central.mean_s, 15),
        ("4.13, the last worker at best", ASYNCHRONOUS.best_worker_s, 2 * 2 + 4 * (2 * 2 + 5)),
        ("4.14, the server at best", ASYNCHRONOUS.best_server_s, 13 * 2 + 5),
        ("4.15 to 4.19, all batches", ASYNCHRONOUS.central, Span(40, 4 * (2 * 3 * 2 + 5))),
        # With slow links the server decides: tc = 20 gives 2*20 + 4*(40 + 5) = 220 and 13*20 + 5 = 265.
        ("4.15 with slow links", training(3, transfer_s=20).central.best_s, 265),
        ("4.20, its mean", ASYNCHRONOUS.central.mean_s, 54),
        # 100 s alone; best 10 s and worst 30 s. The mean of the times gives 5, that of the speed-ups 6.67.
        ("4.22, of the mean of times", 100 / Span(10, 30).mean_s, 5),
        ("4.23, one machine", MEASURED.serial_s, 60),
        ("one worker waits for a central server", training(1, batches=1).central, Span(9, 9)),
        ("and has its own share at home", training(1, batches=1).distributed_s, 5),
        ("batches rounded up", training(5, is_whole=True).worst_s, 3 * (2 * 5 * 2 + 5)),
        # (8-1) + 2/8 * 3 = 7.75; 2/8 * (16 + 1) = 4.25
        ("fewer batches than workers", training(8, gradient_s=1, transfer_s=1, batches=2).central, Span(7.75, 4.25)),
        ("a split batch takes its share", split_corrected_s(6, workers=4), 1.5),
        ("a slow worker holds up the others", training(3, batches=3, slowest=2).central.best_s, 18),
        ("but not itself alone", training(1, batches=1, slowest=2).central.best_s, 9),
        # The server of 4.14 begins with the first gradient, which comes from a worker that is not slow.
        ("4.14 with a slow worker", training(3, slowest=2).best_server_s, 31),
        ("4.13 with a slow worker", training(3, slowest=2).best_worker_s, 60),
    ],
)
def test_a_formula_gives_what_was_worked_out_by_hand(formula: str, found: object, expected: object) -> None:
    assert found == expected, formula


def test_4_12_and_4_21_distributed_servers() -> None:
    assert ITERATION.distributed_s == pytest.approx(2 * 2 * 2 / 3 + 5)
    assert ASYNCHRONOUS.distributed_s == pytest.approx(4 * (2 * 2 * 2 / 3 + 5))


def test_a_synchronous_training_is_so_many_iterations() -> None:
    assert span_of(MEASURED, mode="sync-join", server="central", workers=3) == Span(4 * 13, 4 * 17)
    split = training(3, batches=3, gradient_s=5 / 3).central.times(12)
    assert span_of(MEASURED, mode="sync-split", server="central", workers=3) == split
    printed = span_of(MEASURED, mode="sync-split", server="central", workers=3, is_printed=True)
    assert printed == Span(12 * 13, 12 * 17)


def test_workers_need_not_divide_the_batches() -> None:
    assert training(3, batches=128).rounds == pytest.approx(42.666667)
    assert training(3, batches=128, is_whole=True).rounds == 43


def test_unequal_shares_of_the_weights_correct_4_12_and_4_21() -> None:
    # The machine with one half sends it to two others, 2 * 1/2 of 2 s, twice as long as 4.12 has it for a third.
    shares = (0.5, 0.3, 0.2)
    assert ITERATION.distributed_corrected_s(shares) == 2 * 2 + 5
    assert ASYNCHRONOUS.distributed_corrected_s(shares) == 4 * (2 * 2 + 5)
    # One without a share gets all of it: 1 - 0 exceeds 2 * 0.5.
    assert ITERATION.distributed_corrected_s((0.5, 0.5, 0.0)) == 2 * 2 + 5
    assert ITERATION.distributed_corrected_s((1 / 3,) * 3) == pytest.approx(ITERATION.distributed_s)
    with pytest.raises(ValueError, match="shares"):
        ITERATION.distributed_corrected_s((1.0,))


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        *(({name: time_s}, "times must be") for name in ("gradient_s", "transfer_s")
          for time_s in (0.0, -1.0, math.nan, math.inf)),
        *(({"slowest": factor}, "a factor of 1") for factor in (0.5, math.nan, math.inf)),
        ({"batches": 0}, "one batch or more"),
        ({"workers": 0}, "one worker or more"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_an_error(wrong: dict[str, float], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        training(int(wrong.pop("workers", 2)), **wrong)


# Šlampa (2017), table 6.1: seconds per gradient of a batch and per transfer of the weights.
TIMES = {
    "VGG-16E": (0.719, 5.153),
    "GoogLeNet": (0.763, 0.210),
    "SqueezeNet": (0.758, 0.033),
    "ResNet-34": (0.821, 0.811),
}
# Predicted speed-up on 1, 2, 4 and 8 workers for D = 128, evaluated independently from the same formulas; the networks
# in the order of the table before.
GOLDEN: list[tuple[Mode, Server, tuple[tuple[float, ...], ...]]] = [
    ("sync-join", "central", (
        (0.065, 0.077, 0.084, 0.088), (0.645, 1.019, 1.434, 1.802),
        (0.920, 1.736, 3.118, 5.181), (0.336, 0.449, 0.539, 0.599),
    )),
    *((mode, "distributed", (
        (1.0, 0.245, 0.340, 0.591), (1.0, 1.568, 2.831, 5.399),
        (1.0, 1.917, 3.755, 7.434), (1.0, 1.006, 1.612, 2.932),
    )) for mode in ("sync-join", "async")),
    ("sync-split", "central", (
        (0.065, 0.039, 0.021, 0.011), (0.645, 0.683, 0.490, 0.280),
        (0.920, 1.533, 1.876, 1.494), (0.336, 0.253, 0.150, 0.080),
    )),
    ("sync-split", "distributed", (
        (1.0, 0.130, 0.091, 0.079), (1.0, 1.290, 1.509, 1.648),
        (1.0, 1.840, 3.172, 4.970), (1.0, 0.672, 0.577, 0.539),
    )),
    ("async", "central", (
        (0.065, 0.089, 0.092, 0.092), (0.645, 1.094, 1.674, 2.082),
        (0.920, 1.768, 3.279, 5.709), (0.336, 0.504, 0.619, 0.644),
    )),
]  # fmt: skip


@pytest.mark.parametrize(("mode", "server", "networks"), GOLDEN)
def test_the_golden_table_to_three_decimals(
    mode: Mode, server: Server, networks: tuple[tuple[float, ...], ...]
) -> None:
    for (name, (gradient_s, transfer_s)), expected in zip(TIMES.items(), networks, strict=True):
        measured = Measured(gradient_s=gradient_s, transfer_s=transfer_s, batches=128)
        found = tuple(
            round(estimated(measured, mode=mode, server=server, workers=workers).speed_up, 3)
            for workers in (1, 2, 4, 8)
        )
        assert found == expected, name


def test_a_split_batch_as_printed_is_never_faster_than_one_machine() -> None:
    """With tg whole, as it is printed, every further worker makes an iteration longer."""
    measured = Measured(gradient_s=0.758, transfer_s=0.033, batches=128)
    for workers in range(1, 9):
        one = estimated(measured, mode="sync-split", server="central", workers=workers)
        # mean of (N+1)tc and 2N tc: (3N+1)tc/2
        expected = 0.758 / ((3 * workers + 1) * 0.033 / 2 + 0.758)
        assert one.printed_speed_up == pytest.approx(expected)
        assert one.printed_speed_up < 1


def test_the_speed_up_is_that_of_the_mean_time_and_its_bounds_those_of_the_cases() -> None:
    for server in SERVERS:
        one = estimated(MEASURED, mode="async", server=server, workers=3)
        assert one.speed_up == 60 / one.span.mean_s
        assert (one.lowest_speed_up, one.highest_speed_up) == (60 / one.span.worst_s, 60 / one.span.best_s)
