"""Masks as arrays: parts, outlines, and masks at the size of the image."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import ndimage

from fieldray.domain.image import CoordinateMap
from fieldray.domain.mask import cell_edges, components, enlarge, interval_overlaps, outlines

ONE = CoordinateMap(1.0, 0.0, 1.0, 0.0)


def test_parts_are_numbered_in_reading_order() -> None:
    mask = np.array([[1, 0, 1, 0], [1, 0, 1, 1], [0, 0, 0, 1], [1, 1, 0, 0]], bool)
    assert components(mask).tolist() == [[1, 0, 2, 0], [1, 0, 2, 2], [0, 0, 0, 2], [3, 3, 0, 0]]


@given(arrays(bool, st.tuples(st.integers(1, 12), st.integers(1, 12))))
def test_adjacent_cells_share_a_part_number_and_separate_parts_do_not(mask: np.ndarray) -> None:
    labels = components(mask)
    assert ((labels > 0) == mask).all()
    for axis in (0, 1):
        first, second = (np.take(labels, range(start, end), axis) for start, end in _pairs(mask.shape[axis]))
        both = (first > 0) & (second > 0)
        assert (first[both] == second[both]).all()
    assert len(np.unique(labels[mask])) == ndimage.label(mask)[1]


def _pairs(length: int) -> tuple[tuple[int, int], tuple[int, int]]:
    return (0, length - 1), (1, length)


def test_overlap_of_intervals() -> None:
    # [0, 2), [2, 5) against [1, 3), [3, 10)
    shared = interval_overlaps(np.array([0.0, 2, 5]), np.array([1.0, 3, 10]))
    assert shared.tolist() == [[1.0, 0.0], [1.0, 2.0]]


def test_cell_edges_follow_the_pixel_map() -> None:
    down, across = cell_edges(CoordinateMap(3.0, 5.0, 2.0, 1.0), (2, 1))
    assert (down.tolist(), across.tolist()) == ([5.0, 8.0, 11.0], [1.0, 3.0])


def test_a_mask_at_the_size_of_the_image_keeps_its_place_and_area() -> None:
    shares = np.zeros((20, 20), np.uint8)
    shares[5:15, 4:10] = 255
    mask = enlarge(shares, CoordinateMap(30.0, 0.0, 20.0, 0.0), rows=600, columns=400, threshold=128)
    assert mask.shape == (600, 400)
    # The border between a cell of 255 and one of 0 lies in the middle between their centres: on the cell's edge.
    assert mask[150:450, 80:200].mean() > 0.99
    assert mask.sum() == pytest.approx(300 * 120, rel=0.01)


def test_mask_values_are_interpolated_between_cell_centres() -> None:
    shares = np.array([[0, 100]], np.uint8)
    # centres of the pixels at 0.5, 1.5, 2.5, 3.5; of the cells at 1 and 3: 0, 25, 75, 100
    for threshold, filled in ((25, 3), (26, 2), (75, 2), (76, 1)):
        mask = enlarge(shares, CoordinateMap(2.0, 0.0, 2.0, 0.0), rows=2, columns=4, threshold=threshold)
        assert mask.sum(axis=1).tolist() == [filled] * 2


def test_an_outline_goes_around_each_part() -> None:
    shares = np.zeros((6, 9), np.uint8)
    shares[1:3, 1:3], shares[3:5, 5:8] = 255, 255
    found = outlines(shares, CoordinateMap(10.0, 0.0, 10.0, 0.0), threshold=128)
    assert len(found) == 2
    boxes = sorted((min(x for x, _ in line), min(y for _, y in line)) for line in found)
    assert boxes[0] == pytest.approx((10.0, 10.0), abs=0.2)
    assert boxes[1] == pytest.approx((50.0, 30.0), abs=0.2)


def test_an_outline_closes_at_the_border_and_around_a_hole() -> None:
    shares = np.full((5, 5), 255, np.uint8)
    shares[2, 2] = 0
    found = outlines(shares, ONE, threshold=128)
    assert len(found) == 2
    # the corners are cut: half a cell less for the whole, half a cell for the hole
    assert sorted(abs(_area(line)) for line in found) == pytest.approx([0.5, 24.5], abs=0.1)


@given(arrays(np.uint8, st.tuples(st.integers(1, 8), st.integers(1, 8)), elements=st.sampled_from([0, 90, 200, 255])))
def test_outlines_enclose_nearly_the_area_of_the_mask(shares: np.ndarray) -> None:
    lines = outlines(shares, ONE, threshold=128)
    assert bool(lines) == bool((shares >= 128).any())
    # each crossing lies within half a cell of the edges of the mask
    assert abs(sum(map(_area, lines))) <= (shares >= 128).sum() + 2 * sum(map(len, lines))


def _area(line: tuple[tuple[float, float], ...]) -> float:
    points = np.array(line)
    following = np.roll(points, -1, axis=0)
    return float((points[:, 0] * following[:, 1] - following[:, 0] * points[:, 1]).sum() / 2)
