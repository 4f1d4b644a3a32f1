"""Statistics of times, with figures that can be worked out by hand."""

from __future__ import annotations

import pytest

from fieldray.bench.benchmark_case import paired_time_ratio, summarise_times


def test_iterations_1_2_and_later_have_separate_figures() -> None:
    # later images of both repetitions: 2, 4 and 4, 10 -> mean 5; squares 9 + 1 + 1 + 25 = 36, / 3 = 12
    summary = summarise_times([[30, 8, 2, 4], [20, 6, 4, 10]])
    assert (summary.repetitions, summary.images) == (2, 4)
    assert (summary.first_ms, summary.second_ms) == (25, 7)
    assert summary.mean_ms == 5
    assert summary.stdev_ms == pytest.approx(12**0.5)
    assert summary.first_image_time_ratio == 5
    assert summarise_times([[3, 2, 1]]).stdev_ms == 0  # one image has no deviation


def test_percentiles_lie_between_the_times() -> None:
    # 101 times 1..101: the p-th percentile is exactly 1 + p
    summary = summarise_times([[1, 1, *range(1, 102)]])
    assert (summary.p50_ms, summary.p95_ms, summary.p99_ms) == pytest.approx((51, 96, 100))


def test_frames_per_second_are_of_the_slowest_the_mean_and_the_fastest() -> None:
    # times 10, 10, 40 ms: mean 20 ms = 50 a second, slowest 25, fastest 100
    summary = summarise_times([[99, 99, 10, 10, 40]])
    assert (summary.fps_min, summary.fps_avg, summary.fps_max) == pytest.approx((25, 50, 100))


@pytest.mark.parametrize("repetitions", [[], [[1, 1]], [[1, 1, 1], [1]], [[1, 1, 0]]])
def test_too_few_repetitions_give_no_figures(repetitions: list[list[float]]) -> None:
    with pytest.raises(ValueError, match=r"image|above 0"):
        summarise_times(repetitions)


def test_ratios_are_taken_within_a_round() -> None:
    # rounds: 2 / 1, 30 / 10, 4 / 4 -> ratios 2, 3, 1, median 2; a ratio of the means would be 36 / 15
    assert paired_time_ratio([[0, 0, 2], [0, 0, 30], [0, 0, 4]], [[0, 0, 1], [0, 0, 10], [0, 0, 4]]) == 2
    with pytest.raises(ValueError, match="no repetition"):
        paired_time_ratio([], [])
    with pytest.raises(ValueError, match="longer"):
        paired_time_ratio([[1, 1, 1]], [[1, 1, 1], [1, 1, 1]])
