"""Normalised cross-correlation (NCC) as a Keras layer with a gradient, to train features for matching images.

NCC(F_i, T) = (F_i - mean F_i) . (T - mean T) / (|F_i - mean F_i| |T - mean T|), for every window F_i of the template's
size: D. Buniatyan, synopsis of the thesis on NCCNet, equation 4, with norms in place of dispersions (arXiv:1705.08593).
`fieldray.comparison.matching.correlate` computes these values without a gradient. No network of the program uses
this layer. A matcher trained with this layer was tested, but the program still uses a band-pass filter.
"""

from __future__ import annotations

from typing import Any, Final

import keras
import tensorflow as tf

_FLAT_SHARE: Final = 1e-9
"""A variance below this share of the mean square counts as 0, for windows of an image and for templates."""


class NormalisedCrossCorrelation(keras.layers.Layer):  # type: ignore[misc]
    """Correlates templates with every window of images.

    Inputs are images (n, rows, columns, channels) and templates (n, height, width, channels). Templates are no larger
    than images. The output (n, rows - height + 1, columns - width + 1) is in -1..1, the mean over the channels. A
    window or template of one value gives 0 without a gradient.
    """

    def call(self, inputs: tuple[Any, Any]) -> Any:
        """Return the normalised cross-correlation of each image with its template, in -1..1.

        `inputs` are images and templates, with the shapes that the class describes. The computation is an FFT in
        float64. The result has the dtype of the layer.
        """
        images, templates = (tf.transpose(tf.cast(each, tf.float64), (0, 3, 1, 2)) for each in inputs)
        size, (height, width) = tf.shape(images)[2:], tf.unstack(tf.shape(templates)[2:])
        images -= tf.reduce_mean(images, axis=(2, 3), keepdims=True)
        least = _FLAT_SHARE * tf.reduce_mean(tf.square(images), axis=(2, 3), keepdims=True)
        least_norm = _FLAT_SHARE * tf.reduce_mean(tf.square(templates), axis=(2, 3), keepdims=True)
        templates -= tf.reduce_mean(templates, axis=(2, 3), keepdims=True)
        # A Fourier transform of the image's size is enough, because windows inside the image do not wrap around.
        spectrum = tf.signal.rfft2d(images) * tf.math.conj(tf.signal.rfft2d(templates, fft_length=size))
        products = tf.signal.irfft2d(spectrum, fft_length=size)[:, :, : size[0] - height + 1, : size[1] - width + 1]
        count = tf.cast(height * width, tf.float64)
        sums, squares = (_window_sums(values, height, width) for values in (images, tf.square(images)))
        energies, norms = squares - tf.square(sums) / count, tf.reduce_sum(tf.square(templates), (2, 3), keepdims=True)
        is_flat = (energies <= least * count) | (norms <= least_norm * count)
        # The square root of 0 has no gradient, even if its value is not used.
        scale = tf.sqrt(tf.where(is_flat, tf.ones_like(energies), energies * norms))
        surface = tf.reduce_mean(tf.where(is_flat, tf.zeros_like(products), products / scale), axis=1)
        return tf.cast(surface, self.compute_dtype)


def _window_sums(values: Any, height: Any, width: Any) -> Any:
    """Return the sum of the values (n, channels, rows, columns) in each window of `height` x `width` pixels."""
    totals = tf.pad(tf.cumsum(tf.cumsum(values, axis=2), axis=3), ((0, 0), (0, 0), (1, 0), (1, 0)))
    down = totals[:, :, height:] - totals[:, :, :-height]
    return down[:, :, :, width:] - down[:, :, :, :-width]
