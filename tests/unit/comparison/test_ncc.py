"""Normalised cross-correlation by FFT is what its formula says, and its peaks are apart."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fieldray.comparison.matching import blurred, correlate, fast_length, find_peaks, joined, own_offset


def direct(search: np.ndarray, template: np.ndarray) -> np.ndarray:
    """Window by window; 0 where window or template is flat."""
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
def test_it_equals_the_direct_formula(
    seed: int, template: tuple[int, int], more: tuple[int, int], brightness: float
) -> None:
    random = np.random.default_rng(seed)
    search = random.normal(size=(template[0] + more[0], template[1] + more[1])) + brightness
    pattern = random.normal(size=template)
    found = correlate(search[None], pattern[None])[0]
    assert found.shape == (more[0] + 1, more[1] + 1)
    np.testing.assert_allclose(found, direct(search, pattern), atol=1e-5)


def test_a_flat_window_and_a_flat_template_are_like_nothing() -> None:
    random = np.random.default_rng(2)
    search = random.normal(size=(30, 30)) * 50
    search[:12, :12] = 200.0
    surface = correlate(search[None], random.normal(size=(8, 8))[None])[0]
    assert (surface[:5, :5] == 0).all()  # windows that lie in the first 12 rows and columns
    assert np.isfinite(surface).all()
    assert (correlate(search[None], np.full((1, 8, 8), 1e6 + 0.1)) == 0).all()


def test_many_templates_in_one_image_and_in_images_of_their_own() -> None:
    random = np.random.default_rng(3)
    search, templates = random.normal(size=(1, 25, 25)), random.normal(size=(4, 6, 7))
    together = correlate(search, templates)
    each = correlate(np.repeat(search, 4, axis=0), templates)
    np.testing.assert_allclose(together, each, atol=1e-12)
    np.testing.assert_allclose(together[2], direct(search[0], templates[2]), atol=1e-9)


def test_channels_are_averaged() -> None:
    random = np.random.default_rng(4)
    search, template = random.normal(size=(20, 20, 3)), random.normal(size=(5, 5, 3))
    means = np.mean([direct(search[:, :, channel], template[:, :, channel]) for channel in range(3)], axis=0)
    np.testing.assert_allclose(correlate(search[None], template[None])[0], means, atol=1e-9)


@pytest.mark.parametrize("shapes", [((1, 5, 5), (1, 6, 2)), ((1, 5, 5, 2), (1, 2, 2, 1)), ((5, 5), (2, 2))])
def test_what_does_not_fit_is_refused(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    with pytest.raises(ValueError):
        correlate(np.ones(shapes[0]), np.ones(shapes[1]))


def test_a_template_in_its_own_image_is_exactly_at_its_place() -> None:
    search = blurred(np.random.default_rng(5).normal(size=(60, 60)).astype(np.float32), 2.0)
    peaks = find_peaks(correlate(search[None], search[None, 17:33, 21:37]), exclusion_px=5)
    rows, columns = own_offset(search[None, 16:34, 20:38])
    assert abs(peaks.rows[0] - 17) + abs(peaks.columns[0] - 21) > 0.005  # what is to be taken off
    assert (peaks.rows - rows)[0] == pytest.approx(17, abs=1e-6)
    assert (peaks.columns - columns)[0] == pytest.approx(21, abs=1e-6)


def test_a_flat_template_has_no_offset() -> None:
    assert [offset.tolist() for offset in own_offset(np.ones((2, 10, 10, 3)))] == [[0, 0], [0, 0]]


def test_the_second_peak_is_at_a_distance() -> None:
    surface = np.zeros((1, 21, 21))
    surface[0, 10, 10], surface[0, 10, 11] = 0.9, 0.8  # its own slope
    surface[0, 10, 13], surface[0, 13, 9] = 0.5, 0.6  # 3 away: in columns, in rows
    assert find_peaks(surface, exclusion_px=3).second[0] == 0.6
    assert find_peaks(surface, exclusion_px=4).second[0] == 0.0
    assert find_peaks(surface, exclusion_px=1).second[0] == 0.8
    # (0.0 - 0.8) / (0 - 2 * 0.9 + 0.8) / 2 = 0.4 of a pixel to the right
    assert find_peaks(surface, exclusion_px=3).columns[0] == pytest.approx(10.4)


def test_a_peak_on_the_border_says_so() -> None:
    surface = np.zeros((2, 15, 15))
    surface[0, 0, 7], surface[1, 7, 7] = 1, 1
    assert find_peaks(surface, exclusion_px=2).is_at_border.tolist() == [True, False]


def test_an_exclusion_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="too small"):
        find_peaks(np.zeros((1, 9, 9)), exclusion_px=5)


def test_peaks_of_several_calls_are_one() -> None:
    surfaces = np.random.default_rng(6).normal(size=(5, 11, 11))
    whole = find_peaks(surfaces, exclusion_px=3)
    parts = joined([find_peaks(surfaces[:2], exclusion_px=3), find_peaks(surfaces[2:], exclusion_px=3)])
    assert parts.first.tolist() == whole.first.tolist()
    assert parts.is_at_border.tolist() == whole.is_at_border.tolist()


def test_lengths_of_transforms_have_small_factors() -> None:
    assert [fast_length(length) for length in (1, 7, 11, 97, 160, 161)] == [1, 8, 12, 100, 160, 162]
