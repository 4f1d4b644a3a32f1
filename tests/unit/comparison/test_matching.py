"""Template search, mesh and outlines, against formulas and figures worked out by hand.

Their combined alignment of two images is tested in test_compare.py.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fieldray.comparison.compare import outline_matches, outline_points
from fieldray.comparison.matching import (
    IDENTITY_AFFINE,
    MIN_JACOBIAN,
    Affine,
    blur,
    correlate,
    find_peaks,
    min_jacobian,
    relax_mesh,
    subpixel_bias,
    warp,
)
from fieldray.domain.comparison import FRAME_SIDE


def direct(search: np.ndarray, template: np.ndarray) -> np.ndarray:
    """The correlation of each window by the formula; 0 where window or template is flat."""
    height, width = template.shape
    windows = np.lib.stride_tricks.sliding_window_view(search.astype(np.float64), (height, width))
    windows = windows - windows.mean(axis=(2, 3), keepdims=True)
    pattern = template.astype(np.float64) - template.mean(dtype=np.float64)
    norms = np.linalg.norm(windows, axis=(2, 3)) * np.linalg.norm(pattern)
    products = (windows * pattern).sum(axis=(2, 3))
    return np.divide(products, norms, out=np.zeros_like(products), where=norms > 1e-6 * template.size)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 2**31),
    st.tuples(st.integers(1, 9), st.integers(1, 9)),
    st.tuples(st.integers(0, 12), st.integers(0, 12)),
    st.sampled_from([0.0, 1e3, 1e6]),
)
def test_the_search_equals_the_direct_formula(
    seed: int, template: tuple[int, int], more: tuple[int, int], brightness: float
) -> None:
    random = np.random.default_rng(seed)
    search = random.normal(size=(template[0] + more[0], template[1] + more[1])) + brightness
    pattern = random.normal(size=template)
    found = correlate(search[None], pattern[None])[0]
    assert found.shape == (more[0] + 1, more[1] + 1)
    np.testing.assert_allclose(found, direct(search, pattern), atol=1e-5)


def test_a_flat_window_or_template_has_no_correlation() -> None:
    random = np.random.default_rng(2)
    search = random.normal(size=(30, 30)) * 50
    search[:12, :12] = 200.0
    surface = correlate(search[None], random.normal(size=(8, 8))[None])[0]
    assert (surface[:5, :5] == 0).all()  # windows within the first 12 rows and columns
    assert np.isfinite(surface).all()
    assert (correlate(search[None], np.full((1, 8, 8), 1e6 + 0.1)) == 0).all()


def test_channels_are_averaged() -> None:
    random = np.random.default_rng(4)
    search, template = random.normal(size=(20, 20, 3)), random.normal(size=(5, 5, 3))
    means = np.mean([direct(search[:, :, channel], template[:, :, channel]) for channel in range(3)], axis=0)
    np.testing.assert_allclose(correlate(search[None], template[None])[0], means, atol=1e-9)


@pytest.mark.parametrize("shapes", [((1, 5, 5), (1, 6, 2)), ((1, 5, 5, 2), (1, 2, 2, 1)), ((5, 5), (2, 2))])
def test_a_template_of_unsuitable_shape_is_refused(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    with pytest.raises(ValueError):
        correlate(np.ones(shapes[0]), np.ones(shapes[1]))


def test_a_template_in_its_own_image_is_exactly_at_its_place() -> None:
    search = blur(np.random.default_rng(5).normal(size=(60, 60)).astype(np.float32), 2.0)
    peaks = find_peaks(correlate(search[None], search[None, 17:33, 21:37]), exclusion_px=5)
    rows, columns = subpixel_bias(search[None, 16:34, 20:38])
    assert abs(peaks.rows[0] - 17) + abs(peaks.columns[0] - 21) > 0.005  # the offset to be subtracted
    assert (peaks.rows - rows)[0] == pytest.approx(17, abs=1e-6)
    assert (peaks.columns - columns)[0] == pytest.approx(21, abs=1e-6)


def test_the_second_peak_is_at_a_distance() -> None:
    surface = np.zeros((1, 21, 21))
    surface[0, 10, 10], surface[0, 10, 11] = 0.9, 0.8  # the slope of the first peak
    surface[0, 10, 13], surface[0, 13, 9] = 0.5, 0.6  # 3 away: in columns, in rows
    assert find_peaks(surface, exclusion_px=3).second_highest[0] == 0.6
    assert find_peaks(surface, exclusion_px=4).second_highest[0] == 0.0
    assert find_peaks(surface, exclusion_px=1).second_highest[0] == 0.8
    # (0.0 - 0.8) / (0 - 2 * 0.9 + 0.8) / 2 = 0.4 of a pixel to the right
    assert find_peaks(surface, exclusion_px=3).columns[0] == pytest.approx(10.4)


def test_an_exclusion_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="too small"):
        find_peaks(np.zeros((1, 9, 9)), exclusion_px=5)


GRID = np.stack(np.meshgrid(np.arange(20, 500, 40.0), np.arange(20, 500, 40.0), indexing="ij"), -1).reshape(-1, 2)


def test_matches_that_cross_do_not_fold_the_mesh() -> None:
    targets = GRID + np.random.default_rng(1).normal(0, 60, GRID.shape)
    field, _ = relax_mesh(GRID, targets, np.ones(len(GRID)), rest=IDENTITY_AFFINE, stiffness=0.01)
    assert min_jacobian(field) >= MIN_JACOBIAN


def test_the_jacobian_shows_scale_and_folds() -> None:
    shrunk = Affine(np.diag([0.5, 0.8]), np.zeros(2)).displacement()
    assert min_jacobian(shrunk) == pytest.approx(0.4, abs=1e-4)
    mirrored = Affine(np.diag([1.0, -1.0]), np.zeros(2)).displacement()
    assert min_jacobian(mirrored) == pytest.approx(-1, abs=1e-4)


def test_warping_takes_the_pixel_at_position_plus_displacement() -> None:
    image = np.arange(48, dtype=np.float32).reshape(6, 8)
    shift = np.zeros((6, 8, 2), np.float32)
    shift[..., 0], shift[..., 1] = 1, 2
    np.testing.assert_array_equal(warp(image, shift)[:5, :6], image[1:, 2:])
    assert (warp(image, shift)[5] == 0).all()  # beyond the last row
    np.testing.assert_array_equal(warp(image, np.zeros((6, 8, 2))), image)


STILL = IDENTITY_AFFINE.displacement()


def disc(radius: float) -> np.ndarray:
    """A mask of the frame with a disc of this radius."""
    down, across = np.mgrid[:FRAME_SIDE, :FRAME_SIDE]
    return np.asarray(np.hypot(down - 256, across - 256) < radius)


def test_an_outline_pulls_by_its_distance_minus_a_tolerance() -> None:
    points, targets = outline_matches(outline_points(disc(110)), outline_points(disc(100)), STILL)
    pulled = np.hypot(*(targets - points).T)
    assert len(points) > 40
    assert np.median(pulled) == pytest.approx(8, abs=0.7)
    outward = ((targets - points) * (points - 256)).sum(axis=1)
    assert (outward > 0).all()


def test_no_outline_pulls_nowhere() -> None:
    nothing = outline_points(np.zeros((FRAME_SIDE, FRAME_SIDE), bool))
    assert [len(found) for found in outline_matches(nothing, outline_points(disc(40)), STILL)] == [0, 0]
    assert [len(found) for found in outline_matches(outline_points(disc(40)), nothing, STILL)] == [0, 0]
