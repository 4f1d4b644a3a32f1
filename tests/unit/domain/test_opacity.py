"""What is measured of two lungs by thirds, on masks of a few cells whose facts can be worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fieldray.domain.opacity import OF_LEFT, OF_THIRD, THIRDS, WEIGHTS, halves, third_facts, thirds, whiteness

_OUTSIDE = 10  # a grey that would move every figure if it were counted


@pytest.mark.parametrize(
    ("middle", "left", "right"),
    [(2.0, [1, 0], [2, 3]), (2.5, [2, 1, 0], [3, 4, 5]), (-5.0, [0], [1]), (99.0, [4], [5])],
)
def test_halves_begin_at_the_middle_and_go_as_far_as_both_reach(
    middle: float, left: list[int], right: list[int]
) -> None:
    assert halves(np.array([[0, 1, 2, 3, 4, 5]]), middle).tolist() == [[left], [right]]


def test_thirds_of_the_place_that_either_takes_and_the_outer_half_of_the_lower_two() -> None:
    lungs = np.zeros((2, 9, 7), bool)
    lungs[0, 1:8, 1:6] = True
    lungs[1, 2:4, 1:3] = True  # within the other
    # rows 1 to 7 are divided at 1, 3.33, 5.67 and 8; columns 1 to 5 have their middle in column 3
    for (place, counted), (rows, columns) in zip(
        thirds(lungs),
        [(slice(1, 3), slice(1, 6)), (slice(3, 6), slice(3, 6)), (slice(6, 8), slice(3, 6))],
        strict=True,
    ):
        whole, outer = np.zeros((2, 9, 7), bool)
        whole[rows, 1:6] = True
        outer[rows, columns] = True
        np.testing.assert_array_equal(place, whole)
        np.testing.assert_array_equal(counted, outer)


def test_of_no_lung_there_are_three_empty_thirds() -> None:
    found = thirds(np.zeros((2, 4, 4), bool))
    assert len(found) == THIRDS
    assert not any(part.any() for pair in found for part in pair)


def _pair() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Shares and lungs (9, 8) about the middle 4, and the grey at twice their size: only every other pixel counts.

    The left lung as seen is 6 rows of 2 columns without its lowest outer cell, the right one is 4 rows of 2.
    """
    is_lung = np.zeros((8, 8), bool)
    is_lung[1:7, 1:3] = True
    is_lung[6, 1] = False
    is_lung[1:5, 5:7] = True
    shares = np.where(is_lung, 255, 0).astype(np.uint8)
    shares[1:3, 1:3] = [[26, 229], [25, 230]]  # of the four the upper row is undecided, to its limits
    shares[3, 5] = 128
    cells = np.full((8, 8), _OUTSIDE, np.uint8)
    cells[1:7, 3] = [100, 110, 120, 130, 140, 150]
    cells[1:7, 4] = [160, 170, 180, 190, 200, 210]
    cells[5:7, 5:7] = [[225, 220], [230, 235]]
    cells[6, 1] = 240
    cells[1:3, 1:3] = [[30, 110], [110, 110]]
    cells[3:5, 1] = [40, 80]
    cells[3:7, 2] = 250  # beside the heart: not counted below the upper third
    cells[5, 1] = 96
    cells[1:5, 5:7] = 60
    grey = np.full((18, 16), 99, np.uint8)
    grey[::2, ::2] = np.pad(cells, ((1, 0), (0, 0)), constant_values=_OUTSIDE)
    return np.pad(shares, ((1, 0), (0, 0))), np.pad(is_lung, ((1, 0), (0, 0))), grey


def test_the_facts_of_two_unlike_lungs() -> None:
    """Around: the median of the 17 cells beside the lungs is 180. Air: of the left lung's 11 cells a tenth is below
    40, all of the right one are 60. So 40 is 0 and 180 is 1. The darkest quarter: upper left of 30, 110, 110, 110 it is
    90, middle left of 40 and 80 it is 50, lower left 96; on the right it is 60, 60, and 220 where no lung was found.
    """
    area, height = math.log(11 / 8), math.log(6 / 4)
    left = [
        [1, 1, 0.5, 0, (90 - 60) / 140, (90 - 40) / 140, area, height],
        [1, 1, 0, 0.25, (50 - 60) / 140, (50 - 40) / 140, area, height],
        [1, 0, 0, 0, (96 - 220) / 140, (96 - 40) / 140, area, height],
    ]
    right = [
        [1, 1, 0, 0.5, (60 - 90) / 140, (60 - 40) / 140, -area, -height],
        [1, 1, 0.25, 0, (60 - 50) / 140, (60 - 40) / 140, -area, -height],
        [0, 1, 0, 0, (220 - 96) / 140, (220 - 40) / 140, -area, -height],
    ]
    np.testing.assert_allclose(third_facts(*_pair(), 4.0), [left, right], atol=1e-12)


def test_with_nothing_beside_the_lungs_what_lies_around_is_white() -> None:
    grey = np.full((6, 4), 162, np.uint8)
    grey[:2] = 100
    facts = third_facts(np.full((6, 4), 255, np.uint8), np.ones((6, 4), bool), grey, 2.0)
    np.testing.assert_allclose(facts[:, :, 5], [[0, 62 / 155, 62 / 155]] * 2, atol=1e-12)
    np.testing.assert_array_equal(facts[:, :, 4], 0)


def test_a_lung_that_neither_half_reaches_tells_nothing() -> None:
    """The middle lies at the edge, so that each half is one column. Air is then 0, what lies around is 4: of 8 at the
    least.
    """
    is_lung = np.zeros((6, 8), bool)
    is_lung[:, 7] = is_lung[0, 6] = True
    facts = third_facts(np.where(is_lung, 255, 0).astype(np.uint8), is_lung, np.full((6, 8), 4, np.uint8), 1.0)
    expected = np.zeros((2, THIRDS, len(WEIGHTS)))
    expected[:, :, 5] = 4 / 8
    np.testing.assert_array_equal(facts, expected)


def test_one_lung_of_three_cells_against_none() -> None:
    """Its facts are those of shares, whatever the size; against nothing it is as large as it is against one cell."""
    is_lung = np.zeros((5, 4), bool)
    is_lung[1:4, 1] = True
    facts = third_facts(np.zeros((5, 4), np.uint8), is_lung, np.full((5, 4), 50, np.uint8), 2.0)
    left = [1, 0, 0, 0, 0, 0, math.log(3), math.log(3)]
    right = [0, 1, 0, 0, 0, 0, -math.log(3), -math.log(3)]
    np.testing.assert_allclose(facts, [[left] * 3, [right] * 3], atol=1e-12)


def test_a_fact_ends_at_three_and_grey_without_contrast_is_none() -> None:
    is_lung = np.zeros((12, 8), bool)
    is_lung[3:9, :4] = True
    is_lung[8, 3] = False  # 23 cells: ln 23 is 3.14
    grey = np.full((12, 8), 100, np.uint8)
    grey[is_lung] = 98  # 2 of 255 darker: of 8 at the least
    facts = third_facts(np.zeros((12, 8), np.uint8), is_lung, grey, 4.0)
    np.testing.assert_array_equal(facts[:, 0, 6], [3.0, -3.0])
    np.testing.assert_allclose(facts[:, 0, 7], [math.log(6), -math.log(6)])
    np.testing.assert_allclose(facts[1, :, 4], 2 / 8)


def test_the_whitest_third_speaks_and_the_left_half_as_seen_is_the_right_lung() -> None:
    facts = np.zeros((2, THIRDS, len(WEIGHTS)))
    nothing = max(OF_THIRD)
    facts[0, 1, 2] = 1.0
    speaks = OF_THIRD[1] + WEIGHTS[2]
    assert whiteness(facts, is_mirrored=False) == pytest.approx((nothing + OF_LEFT, speaks))
    assert whiteness(facts, is_mirrored=True) == pytest.approx((speaks + OF_LEFT, nothing))
