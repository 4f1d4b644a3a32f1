"""NCC as a layer: its values equal those of the program's matching, and its gradient equals finite differences."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from fieldray.comparison.matching import correlate

pytestmark = pytest.mark.adapt
Array = NDArray[np.float64]
GENERATOR = np.random.default_rng(5)
IMAGES, TEMPLATES = GENERATOR.random((2, 9, 11, 3)), GENERATOR.random((2, 4, 5, 3))


def surface(images: Array, templates: Array, *, dtype: str = "float64") -> Array:
    from fieldray_adapt.networks.correlation import NormalisedCrossCorrelation

    return np.asarray(NormalisedCrossCorrelation(dtype=dtype)((images, templates)))


def gradients(images: Array, templates: Array, weights: Array) -> tuple[Array, Array]:
    """Return the gradients of the weighted sum of the surface with respect to images and templates."""
    import tensorflow as tf

    from fieldray_adapt.networks.correlation import NormalisedCrossCorrelation

    given = tf.constant(images), tf.constant(templates)
    with tf.GradientTape() as tape:
        tape.watch(given)
        total = tf.reduce_sum(NormalisedCrossCorrelation(dtype="float64")(given) * weights)
    first, second = tape.gradient(total, given)
    return np.asarray(first), np.asarray(second)


def test_each_value_is_the_cosine_of_a_window_and_the_template() -> None:
    found = surface(IMAGES, TEMPLATES)
    assert found.shape == (2, 6, 7)
    window, template = (part - part.mean(axis=(0, 1)) for part in (IMAGES[1, 2:6, 3:8], TEMPLATES[1]))
    norms = np.sqrt(np.square(window).sum(axis=(0, 1)) * np.square(template).sum(axis=(0, 1)))
    assert found[1, 2, 3] == pytest.approx(((window * template).sum(axis=(0, 1)) / norms).mean(), abs=1e-12)
    assert np.abs(found - correlate(IMAGES, TEMPLATES)).max() < 1e-12
    single = surface(IMAGES.astype(np.float32), TEMPLATES.astype(np.float32), dtype="float32")
    assert single.dtype == np.float32 and np.abs(single - found).max() < 1e-5


def test_brightness_and_contrast_of_a_template_change_nothing() -> None:
    assert np.abs(surface(IMAGES, 10 + 0.1 * TEMPLATES) - surface(IMAGES, TEMPLATES)).max() < 1e-9


def test_the_gradient_equals_finite_differences() -> None:
    weights, step = GENERATOR.standard_normal((2, 6, 7)), 1e-6
    for number, found in enumerate(gradients(IMAGES, TEMPLATES, weights)):
        for place in zip(*(GENERATOR.integers(0, side, 12) for side in found.shape), strict=True):
            totals = []
            for way in (step, -step):
                moved = [IMAGES.copy(), TEMPLATES.copy()]
                moved[number][place] += way
                totals.append((surface(*moved) * weights).sum())
            assert found[place] == pytest.approx((totals[0] - totals[1]) / (2 * step), abs=1e-7), place


def test_flat_windows_and_templates_give_zero_and_no_gradient() -> None:
    images, templates = IMAGES.copy(), TEMPLATES.copy()
    images[0, :5, :6] = 0.3
    templates[1] = 0.7
    found = surface(images, templates)
    assert found[0, :2, :2] == pytest.approx(0) and found[1] == pytest.approx(0) and np.abs(found[0]).max() > 0.1
    by_images, by_templates = gradients(images, templates, np.ones((2, 6, 7)))
    assert np.isfinite(by_images).all() and np.isfinite(by_templates).all()
    assert not by_images[1].any() and not by_templates[1].any() and by_images[0].any()
    assert np.abs(by_images[0, :1, :1]).max() < 1e-12  # all windows of this image are flat
