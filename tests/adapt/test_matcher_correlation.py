"""The correlation that gradients pass through, and the loss: against the direct formula, and by differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytestmark = pytest.mark.adapt


def _direct(search: NDArray[Any], template: NDArray[Any]) -> NDArray[np.float64]:
    """The cosine of each window by the formula, in float64; one channel."""
    height, width = template.shape
    own = template.astype(np.float64) - template.mean(dtype=np.float64)
    found = np.zeros((search.shape[0] - height + 1, search.shape[1] - width + 1))
    for row, column in np.ndindex(found.shape):
        window = search[row : row + height, column : column + width].astype(np.float64)
        window = window - window.mean()
        size = np.linalg.norm(window) * np.linalg.norm(own)
        found[row, column] = (window * own).sum() / size if size > 1e-6 else 0
    return found


def _correlate(search: NDArray[Any], templates: NDArray[Any]) -> NDArray[np.float32]:
    import tensorflow as tf

    from fieldray_adapt.matcher.engine import correlate

    found = correlate(tf.constant(search.astype(np.float32)), tf.constant(templates.astype(np.float32)))
    return np.asarray(found)


@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_it_is_the_direct_correlation_averaged_over_channels(offset: float) -> None:
    generator = np.random.default_rng(1)
    search = generator.normal(size=(2, 20, 17, 2)).cumsum(axis=1) + offset
    templates = generator.normal(size=(2, 6, 5, 2)) + offset
    search, templates = search.astype(np.float32), templates.astype(np.float32)
    found = _correlate(search, templates)
    for number in range(2):
        wanted = np.mean([_direct(search[number, ..., c], templates[number, ..., c]) for c in range(2)], axis=0)
        assert found[number].shape == (15, 13)
        # A shift by 1000 costs float32 three digits before anything is computed.
        assert np.abs(found[number] - wanted).max() < (1e-5 if not offset else 1e-3)


def test_brightness_and_contrast_of_the_template_do_not_count() -> None:
    generator = np.random.default_rng(2)
    search, template = generator.normal(size=(1, 24, 24, 1)), generator.normal(size=(1, 8, 8, 1))
    plain = _correlate(search, template)
    assert np.abs(_correlate(search, 3.5 * template + 7) - plain).max() < 1e-5
    assert np.abs(_correlate(search, -template) + plain).max() < 1e-5


def test_a_template_is_found_where_it_was_cut_out() -> None:
    search = np.random.default_rng(3).normal(size=(1, 30, 30, 1))
    found = _correlate(search, search[:, 7:15, 11:19])
    assert np.unravel_index(found[0].argmax(), found[0].shape) == (7, 11)
    assert found.max() == pytest.approx(1, abs=1e-5)


def test_flat_patches_give_nought_and_finite_gradients() -> None:
    import tensorflow as tf

    from fieldray_adapt.matcher.engine import correlate

    search = np.zeros((1, 16, 16, 1), np.float32)
    search[0, 10:, 10:] = np.random.default_rng(4).normal(size=(6, 6, 1))
    for template in (np.full((1, 5, 5, 1), 0.3, np.float32), search[:, 9:14, 9:14]):
        with tf.GradientTape() as tape:
            inputs = [tf.constant(search), tf.constant(template)]
            tape.watch(inputs)
            values = correlate(*inputs)
            total = tf.reduce_sum(values)
        assert all(np.isfinite(gradient).all() for gradient in tape.gradient(total, inputs))
        assert values[0, 0, 0] == 0
    assert not _correlate(np.full((1, 9, 9, 1), 5), np.random.default_rng(5).normal(size=(1, 4, 4, 1))).any()


def test_gradients_are_those_of_differences() -> None:
    import tensorflow as tf

    from fieldray_adapt.matcher.engine import correlate

    generator = np.random.default_rng(6)
    search = generator.normal(size=(1, 9, 8, 2)).astype(np.float32)
    template = generator.normal(size=(1, 4, 3, 2)).astype(np.float32)
    weights = generator.normal(size=(1, 6, 6)).astype(np.float32)

    def total(first: NDArray[Any], second: NDArray[Any]) -> float:
        parts = [
            np.mean([_direct(first[0, ..., c], second[0, ..., c]) for c in range(2)], axis=0),
        ]
        return float((parts[0] * weights[0]).sum())

    with tf.GradientTape() as tape:
        inputs = [tf.constant(search), tf.constant(template)]
        tape.watch(inputs)
        value = tf.reduce_sum(correlate(*inputs) * weights)
    gradients = [np.asarray(gradient) for gradient in tape.gradient(value, inputs)]
    step = 1e-4
    for which, place in ((0, (0, 4, 4, 0)), (0, (0, 0, 0, 1)), (0, (0, 8, 7, 1)), (1, (0, 1, 2, 0)), (1, (0, 3, 0, 1))):
        moved = [search.astype(np.float64), template.astype(np.float64)]
        moved[which] = moved[which].copy()
        moved[which][place] += step
        higher = total(*moved)
        moved[which][place] -= 2 * step
        assert gradients[which][place] == pytest.approx((higher - total(*moved)) / (2 * step), abs=2e-3)


def test_the_second_peak_lies_beyond_the_distance() -> None:
    import tensorflow as tf

    from fieldray_adapt.matcher.engine import two_peaks

    values = np.zeros((1, 12, 12), np.float32)
    values[0, 5, 5], values[0, 5, 8], values[0, 9, 5], values[0, 0, 0] = 0.9, 0.8, 0.7, 0.6
    # Three columns away is too near for a distance of 4, four rows are not; of 5 the corner is left.
    for distance, wanted in ((1, 0.8), (3, 0.8), (4, 0.7), (5, 0.6), (12, -1.0)):
        first, second = two_peaks(tf.constant(values), distance=distance)
        assert (float(first[0]), float(second[0])) == (pytest.approx(0.9), pytest.approx(wanted))


def test_the_loss_is_the_difference_of_the_peaks_and_what_a_dissimilar_pair_has() -> None:
    import tensorflow as tf

    from fieldray_adapt.matcher.engine import matching_loss

    own, other = np.zeros((2, 8, 8), np.float32), np.zeros((1, 8, 8), np.float32)
    own[:, 1, 1], own[0, 7, 7], other[0, 3, 3] = 0.9, 0.5, 0.6
    loss, gap, stray = matching_loss(tf.constant(own), tf.constant(other), distance=3, dissimilar_weight=0.5)
    # P1 - P2 is 0.4 and 0.9, their mean 0.65; |P1| of the dissimilar pair is 0.6, half of it 0.3.
    assert (float(gap), float(stray), float(loss)) == pytest.approx((0.65, 0.6, 0.3 - 0.65))
