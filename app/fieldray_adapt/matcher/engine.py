"""What trains the encoder, and the correlation that it is trained by.

Normalised cross-correlation that gradients pass through, and the loss that teaches features to match.

The correlation follows Buniatyan D. et al., Deep Learning Improves Template Matching by Normalized Cross Correlation,
2017, arXiv:1705.08593: for every window F_i of the size of the template T in a search image F,

    NCC_i = (F_i - mean F_i) . (T - mean T) / (|F_i - mean F_i| |T - mean T|)

The numerator is one product of Fourier transforms, because T - mean T has no mean of its own; the windows' norms come
from sums over boxes. The search image is centred first: the difference of the mean square and the squared mean cancels
in float32 otherwise. Where a patch is flat, the cosine is 0 and so is its gradient.

The loss is P1 - P2: the highest value and the highest that is at least a distance away. It takes no position: where the
template belongs is neither given nor known. Templates of other patients belong nowhere, and their |P1| is made small;
without that the network may draw the same pattern into every image and match that.

What trains the encoder: Keras on TensorFlow. Both images of a pair pass through one network: the weights are shared.

What a step gets is images and where templates are cut out of the first of them. Where they belong in the second is not
among its arguments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fieldray_adapt.keras_engine import KerasState, build_network, set_weights
from fieldray_adapt.matcher.recipe import FEATURES, MatcherNetwork, MatcherTraining, passing_weights, residual_unet
from fieldray_adapt.specification import Specification

FLATTEST: Final = 1e-8
"""Of the largest square of a search image, or of a template: patches whose variance is below this share are flat."""
_LEAST: Final = 1e-30


def correlate(search: Any, templates: Any, *, floor: float = 0.0) -> Any:
    """Cosine of each window with the template, channel by channel, averaged over the channels.

    Parameters
    ----------
    search
        (n, rows, columns, channels) float32 tensor.
    templates
        (n, height, width, channels) float32 tensor, no larger than the search images.
    floor
        Variance that is added to that of windows and templates while training: a fainter pattern then correlates
        less, so that the way to a higher peak leads to a stronger pattern. Without it the size of the features is free,
        and a network that makes them ever fainter ends where nothing has a gradient.

    Returns
    -------
    tensor
        (n, rows - height + 1, columns - width + 1) float32 in -1..1.
    """
    import tensorflow as tf

    rows, columns = search.shape[1], search.shape[2]
    height, width = templates.shape[1], templates.shape[2]
    fields = tf.transpose(search, (0, 3, 1, 2))
    fields -= tf.reduce_mean(fields, (2, 3), keepdims=True)
    patches = tf.transpose(templates, (0, 3, 1, 2))
    patches -= tf.reduce_mean(patches, (2, 3), keepdims=True)
    spectrum = tf.signal.rfft2d(fields, (rows, columns))
    products = tf.signal.irfft2d(spectrum * tf.math.conj(tf.signal.rfft2d(patches, (rows, columns))), (rows, columns))[
        ..., : rows - height + 1, : columns - width + 1
    ]  # the first of them do not wrap around
    count = float(height * width)
    sums, squares = _box_sums(fields, height, width), _box_sums(tf.square(fields), height, width)
    variances = squares - tf.square(sums) / count
    norms = tf.reduce_sum(tf.square(patches), (2, 3), keepdims=True)
    limit = FLATTEST * count * tf.reduce_max(tf.square(fields), (2, 3), keepdims=True)
    own_limit = FLATTEST * count * tf.reduce_max(tf.square(templates))
    is_flat = tf.logical_or(variances <= limit + _LEAST, norms <= own_limit + _LEAST)
    # Twice chosen: the gradient of what is not chosen must be finite as well, because it is multiplied by 0.
    added = floor * count
    product = tf.where(is_flat, 1.0, (variances + added) * (norms + added))
    cosines = tf.where(is_flat, 0.0, products * tf.math.rsqrt(product))
    return tf.reduce_mean(cosines, 1)


def _box_sums(planes: Any, height: int, width: int) -> Any:
    """Sums over every box of (n, channels, rows, columns), as products with two matrices of ones and zeros.

    Sums by Fourier transform or of running totals carry the rounding errors of the whole plane into each box.
    """
    import tensorflow as tf

    # Products of two matrices each: the product of a matrix with a stack of them ends the process on some CPUs.
    count, channels, rows, columns = planes.shape
    across = tf.matmul(tf.reshape(planes, (-1, columns)), _band(columns, width), transpose_b=True)
    turned = tf.transpose(tf.reshape(across, (count, channels, rows, -1)), (0, 1, 3, 2))
    down = tf.matmul(tf.reshape(turned, (-1, rows)), _band(rows, height), transpose_b=True)
    return tf.transpose(tf.reshape(down, (count, channels, columns - width + 1, -1)), (0, 1, 3, 2))


def _band(size: int, length: int) -> Any:
    """(size - length + 1, size): row i has ones from i to i + length - 1."""
    import tensorflow as tf

    offsets = tf.range(size)[None, :] - tf.range(size - length + 1)[:, None]
    return tf.cast(tf.logical_and(offsets >= 0, offsets < length), tf.float32)


def two_peaks(values: Any, *, distance: int) -> tuple[Any, Any]:
    """The highest value P1 of each map (n, rows, columns), and P2, the highest at least `distance` pixels from it.

    The distance is the larger of the two along the axes. Both (n,); P2 is -1 where no place is that far.
    """
    import tensorflow as tf

    rows, columns = values.shape[1], values.shape[2]
    flat = tf.reshape(values, (-1, rows * columns))
    best = tf.argmax(flat, axis=1, output_type=tf.int32)
    row, column = best // columns, best % columns
    down = tf.abs(tf.range(rows)[None, :] - row[:, None]) >= distance
    across = tf.abs(tf.range(columns)[None, :] - column[:, None]) >= distance
    is_far = tf.logical_or(down[:, :, None], across[:, None, :])
    second = tf.reduce_max(tf.where(is_far, values, -1.0), (1, 2))
    return tf.reduce_max(flat, 1), second


def matching_loss(similar: Any, dissimilar: Any, *, distance: int, dissimilar_weight: float) -> tuple[Any, Any, Any]:
    """-mean(P1 - P2) of templates in their own patient's image, and mean |P1| of templates in another's.

    Parameters
    ----------
    similar, dissimilar
        Maps (n, rows, columns) of `correlate`.

    Returns
    -------
    loss, gap, stray
        Scalars: gap is the mean of P1 - P2, stray that of |P1|, loss = -gap + dissimilar_weight * stray.
    """
    import tensorflow as tf

    first, second = two_peaks(similar, distance=distance)
    gap = tf.reduce_mean(first - second)
    stray = tf.reduce_mean(tf.abs(tf.reduce_max(dissimilar, (1, 2))))
    return dissimilar_weight * stray - gap, gap, stray


Batch = NDArray[np.float32]
_CLIP: Final = 0.3
_EPSILON: Final = 1e-5
"""Of Adam: gradients that are all but nothing stay so, and do not become steps of full length."""
_FLOOR: Final = 0.005
"""Variance, of features in -1..1."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Step:
    """What one step learns from.

    Attributes
    ----------
    priors, currents
        (n, side, side) uint8, locally normalised; pair i is of another patient than pair i + 1.
    owners
        (m,) which pair each template is of.
    corners
        (m, 2) row and column of each template's first pixel in the prior image.
    template
        Side of the templates.
    """

    priors: NDArray[np.uint8]
    currents: NDArray[np.uint8]
    owners: NDArray[np.int32]
    corners: NDArray[np.int32]
    template: int


def specification_of(network: MatcherNetwork, *, side: int) -> Specification:
    """The encoder that a recipe asks for, for images of this side."""
    return residual_unet(
        side=side,
        channels=network.channels,
        convolutions=network.convolutions,
        features=network.features,
        activation=network.activation,
    )


class MatcherEngine(KerasState):
    """The encoder in training, on crops of one size."""

    def __init__(self, network: MatcherNetwork, training: MatcherTraining) -> None:
        import keras
        import tensorflow as tf

        keras.config.set_dtype_policy("float32")
        specification = specification_of(network, side=training.crop_side)
        self.model = build_network(specification, outputs=[FEATURES])
        set_weights(self.model, passing_weights(specification, seed=training.seed))
        self._training = training
        self._optimiser = keras.optimizers.Adam(0.0, epsilon=_EPSILON, global_clipnorm=_CLIP)
        self._optimiser.build(self.model.trainable_variables)
        self._learn = tf.function(self._learn_eagerly, reduce_retracing=False)
        self._look = tf.function(self._losses, reduce_retracing=False)

    def step(self, step: Step, *, learning_rate: float) -> tuple[float, float, float]:
        """One step; loss, mean P1 - P2 and mean |P1| of dissimilar templates, before it."""
        self._optimiser.learning_rate = learning_rate
        return _numbers(self._learn(*self._tensors(step), step.template))

    def look(self, step: Step) -> tuple[float, float, float]:
        """The same figures, and nothing is learnt."""
        return _numbers(self._look(*self._tensors(step), step.template))

    def _tensors(self, step: Step) -> tuple[Any, ...]:
        import tensorflow as tf

        images = np.concatenate([step.priors, step.currents]).astype(np.float32)[..., None] / 255
        return tf.constant(images), tf.constant(step.owners), tf.constant(step.corners)

    def _learn_eagerly(self, images: Any, owners: Any, corners: Any, template: int) -> Any:
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss, gap, stray = self._losses(images, owners, corners, template)
        gradients = tape.gradient(loss, self.model.trainable_variables)
        self._optimiser.apply(gradients, self.model.trainable_variables)
        return loss, gap, stray

    def _losses(self, images: Any, owners: Any, corners: Any, template: int) -> Any:

        features = self.model(images, training=True)
        pairs, reach = images.shape[0] // 2, self._training.reach
        priors, currents = features[:pairs], features[pairs:]
        templates = cut(priors, owners, corners, side=template)
        wide = template + 2 * reach
        own = correlate(cut(currents, owners, corners - reach, side=wide), templates, floor=_FLOOR)
        # Every second template is looked for in the next patient's image too: half of them are enough.
        strange = cut(currents, (owners[::2] + 1) % pairs, corners[::2] - reach, side=wide)
        other = correlate(strange, templates[::2], floor=_FLOOR)
        return matching_loss(
            own, other, distance=self._training.distance, dissimilar_weight=self._training.dissimilar_weight
        )


def cut(features: Any, owners: Any, corners: Any, *, side: int) -> Any:
    """Squares (m, side, side, channels) out of feature maps (n, rows, columns, channels)."""
    import tensorflow as tf

    steps = tf.range(side)
    rows = tf.broadcast_to((corners[:, 0, None] + steps)[:, :, None], (owners.shape[0], side, side))
    columns = tf.broadcast_to((corners[:, 1, None] + steps)[:, None, :], (owners.shape[0], side, side))
    numbers = tf.broadcast_to(owners[:, None, None], (owners.shape[0], side, side))
    return tf.gather_nd(features, tf.stack([numbers, rows, columns], -1))


def _numbers(found: Any) -> tuple[float, float, float]:
    loss, gap, stray = (float(value) for value in found)
    return loss, gap, stray
