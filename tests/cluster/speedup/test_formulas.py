"""Each formula of Šlampa (2017) by itself, with numbers worked out by hand, and the golden table of predictions."""

from __future__ import annotations

import math

import pytest

from fieldray_cluster.speedup.formulas import (
    Asynchronous,
    Iteration,
    Measured,
    Mode,
    Server,
    Span,
    computing_s,
    estimated,
    linear_speed_up,
    longest_s,
    predicted_speed_up,
    rounds_of,
    speed_up,
    split_corrected_s,
    synchronous_training_s,
)

# tg = 5, tc = 2, N = 3
ITERATION = Iteration(gradient_s=5, transfer_s=2, workers=3)
# and D = 12, so D/N = 4
ASYNCHRONOUS = Asynchronous(gradient_s=5, transfer_s=2, workers=3, batches=12)


def test_4_1_the_whole_time() -> None:
    assert computing_s(prepare_s=1, train_s=10, finish_s=2) == 13
    assert computing_s(train_s=10) == 10


def test_4_2_synchronous_training() -> None:
    assert synchronous_training_s(iterations=12, iteration_s=1.5) == 18


def test_4_3_an_iteration_lasts_as_long_as_the_slowest() -> None:
    assert longest_s(3, 1, 4, 2) == 4
    assert longest_s(5, 1, 4, 2) == 5


def test_4_4_the_last_worker_at_best() -> None:
    assert ITERATION.central_best_worker_s == 2 * 2 + 2 + 5 + 2


def test_4_5_the_server_at_best() -> None:
    assert ITERATION.central_best_server_s == 4 * 2 + 5


def test_4_6_the_best_iteration() -> None:
    assert ITERATION.central_best_s == 13


def test_4_7_a_worker_at_worst() -> None:
    assert ITERATION.central_worst_worker_s == 2 * 3 * 2 + 5


def test_4_8_the_server_at_worst() -> None:
    assert ITERATION.central_worst_server_s == 17


def test_4_9_the_worst_iteration() -> None:
    assert ITERATION.central_worst_s == 17


def test_4_10_what_an_iteration_lies_between() -> None:
    assert ITERATION.central_span == Span(13, 17)
    assert ITERATION.central_span.holds(13) and ITERATION.central_span.holds(17)
    assert not ITERATION.central_span.holds(12.9) and not ITERATION.central_span.holds(17.1)


def test_4_11_the_mean_iteration() -> None:
    assert ITERATION.central_s == 15


def test_4_12_distributed_servers() -> None:
    # 2 * 2 * 2/3 + 5
    assert ITERATION.distributed_s == pytest.approx(7.666667)


def test_4_13_the_last_asynchronous_worker_at_best() -> None:
    assert ASYNCHRONOUS.central_best_worker_s == 2 * 2 + 4 * (2 * 2 + 5)


def test_4_14_the_server_of_asynchronous_training_at_best() -> None:
    assert ASYNCHRONOUS.central_best_server_s == 13 * 2 + 5


def test_4_15_asynchronous_training_at_best() -> None:
    assert ASYNCHRONOUS.central_best_s == 40
    # With slow links the server decides: tc = 20 gives 2*20 + 4*(40 + 5) = 220 and 13*20 + 5 = 265.
    assert Asynchronous(gradient_s=5, transfer_s=20, workers=3, batches=12).central_best_s == 265


def test_4_16_an_asynchronous_worker_at_worst() -> None:
    assert ASYNCHRONOUS.central_worst_worker_s == 4 * (2 * 3 * 2 + 5)


def test_4_17_the_server_of_asynchronous_training_at_worst() -> None:
    assert ASYNCHRONOUS.central_worst_server_s == 68


def test_4_18_asynchronous_training_at_worst() -> None:
    assert ASYNCHRONOUS.central_worst_s == 68


def test_4_19_what_asynchronous_training_lies_between() -> None:
    assert ASYNCHRONOUS.central_span == Span(40, 68)


def test_4_20_the_mean_of_asynchronous_training() -> None:
    assert ASYNCHRONOUS.central_s == 54


def test_4_21_asynchronous_with_distributed_servers() -> None:
    # 4 * (2 * 2 * 2/3 + 5)
    assert ASYNCHRONOUS.distributed_s == pytest.approx(30.666667)


def test_4_22_speed_up() -> None:
    assert speed_up(60, parallel_s=20) == 3
    assert linear_speed_up(7) == 7


def test_4_23_predicted_speed_up() -> None:
    assert predicted_speed_up(5, batches=12, parallel_s=20) == 3


def test_times_are_averaged_and_not_speed_ups() -> None:
    # 100 s alone; best 10 s and worst 30 s. The mean of the times gives 5, that of the speed-ups 6.67.
    assert speed_up(100, parallel_s=Span(10, 30).mean_s) == 5


def test_one_worker_waits_for_a_central_server_and_has_its_own_share_at_home() -> None:
    one = Iteration(gradient_s=5, transfer_s=2, workers=1)
    assert one.central_best_s == one.central_worst_s == 9
    assert one.distributed_s == 5


def test_workers_need_not_divide_the_batches() -> None:
    assert rounds_of(128, workers=3) == pytest.approx(42.666667)
    assert rounds_of(128, workers=3, is_whole_corrected=True) == 43
    whole = Asynchronous(gradient_s=5, transfer_s=2, workers=5, batches=12, is_whole_corrected=True)
    assert whole.central_worst_s == 3 * (2 * 5 * 2 + 5)


def test_with_fewer_batches_than_workers_the_best_case_may_exceed_the_worst() -> None:
    few = Asynchronous(gradient_s=1, transfer_s=1, workers=8, batches=2).central_span
    # (8-1) + 2/8 * 3 = 7.75; 2/8 * (16 + 1) = 4.25
    assert few == Span(7.75, 4.25)


def test_a_split_batch_takes_its_share_of_the_time() -> None:
    assert split_corrected_s(6, workers=4) == 1.5


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


def test_a_slow_worker_holds_up_the_others_but_not_itself_alone() -> None:
    assert Iteration(gradient_s=5, transfer_s=2, workers=3, slowest=2).central_best_s == 18
    assert Iteration(gradient_s=5, transfer_s=2, workers=1, slowest=2).central_best_s == 9
    # The server of 4.14 begins with the first gradient, which comes from a worker that is not slow.
    slow = Asynchronous(gradient_s=5, transfer_s=2, workers=3, batches=12, slowest=2)
    assert (slow.central_best_server_s, slow.central_best_worker_s) == (31, 60)


@pytest.mark.parametrize("time_s", [0.0, -1.0, math.nan, math.inf])
def test_times_are_above_0_and_finite(time_s: float) -> None:
    for times in ((time_s, 1.0), (1.0, time_s)):
        with pytest.raises(ValueError, match="times must be"):
            Iteration(gradient_s=times[0], transfer_s=times[1], workers=2)
        with pytest.raises(ValueError, match="times must be"):
            Measured(gradient_s=times[0], transfer_s=times[1], batches=2)


def test_no_workers_no_batches_or_a_factor_below_1_are_errors() -> None:
    for workers, slowest in ((0, 1.0), (2, 0.5), (2, math.nan), (2, math.inf)):
        with pytest.raises(ValueError, match="one worker or more"):
            Iteration(gradient_s=1, transfer_s=1, workers=workers, slowest=slowest)
    with pytest.raises(ValueError, match="one batch or more"):
        Asynchronous(gradient_s=1, transfer_s=1, workers=1, batches=0)
    with pytest.raises(ValueError, match="one batch or more"):
        Measured(gradient_s=1, transfer_s=1, batches=0)


# Šlampa (2017), table 6.1: seconds per gradient of a batch and per transfer of the weights.
TIMES = {
    "VGG-16E": (0.719, 5.153),
    "GoogLeNet": (0.763, 0.210),
    "SqueezeNet": (0.758, 0.033),
    "ResNet-34": (0.821, 0.811),
}
# Predicted speed-up on 1, 2, 4 and 8 workers for D = 128, evaluated independently from the same formulas.
GOLDEN: list[tuple[Mode, Server, dict[str, tuple[float, float, float, float]]]] = [
    (
        "sync-join",
        "central",
        {
            "VGG-16E": (0.065, 0.077, 0.084, 0.088),
            "GoogLeNet": (0.645, 1.019, 1.434, 1.802),
            "SqueezeNet": (0.920, 1.736, 3.118, 5.181),
            "ResNet-34": (0.336, 0.449, 0.539, 0.599),
        },
    ),
    *(
        (
            mode,
            "distributed",
            {
                "VGG-16E": (1.0, 0.245, 0.340, 0.591),
                "GoogLeNet": (1.0, 1.568, 2.831, 5.399),
                "SqueezeNet": (1.0, 1.917, 3.755, 7.434),
                "ResNet-34": (1.0, 1.006, 1.612, 2.932),
            },
        )
        for mode in ("sync-join", "async")
    ),
    (
        "sync-split",
        "central",
        {
            "VGG-16E": (0.065, 0.039, 0.021, 0.011),
            "GoogLeNet": (0.645, 0.683, 0.490, 0.280),
            "SqueezeNet": (0.920, 1.533, 1.876, 1.494),
            "ResNet-34": (0.336, 0.253, 0.150, 0.080),
        },
    ),
    (
        "sync-split",
        "distributed",
        {
            "VGG-16E": (1.0, 0.130, 0.091, 0.079),
            "GoogLeNet": (1.0, 1.290, 1.509, 1.648),
            "SqueezeNet": (1.0, 1.840, 3.172, 4.970),
            "ResNet-34": (1.0, 0.672, 0.577, 0.539),
        },
    ),
    (
        "async",
        "central",
        {
            "VGG-16E": (0.065, 0.089, 0.092, 0.092),
            "GoogLeNet": (0.645, 1.094, 1.674, 2.082),
            "SqueezeNet": (0.920, 1.768, 3.279, 5.709),
            "ResNet-34": (0.336, 0.504, 0.619, 0.644),
        },
    ),
]


@pytest.mark.parametrize(("mode", "server", "networks"), GOLDEN)
def test_the_golden_table_to_three_decimals(
    mode: Mode, server: Server, networks: dict[str, tuple[float, float, float, float]]
) -> None:
    for name, expected in networks.items():
        gradient_s, transfer_s = TIMES[name]
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
