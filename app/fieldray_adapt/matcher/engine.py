"""What trains the encoder: Keras on TensorFlow. Both images of a pair pass through one network: the weights are shared.

What a step gets is images and where templates are cut out of the first of them. Where they belong in the second is not
among its arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fieldray_adapt.keras_engine import build_network, get_weights, set_weights
from fieldray_adapt.matcher.correlation import correlate, matching_loss
from fieldray_adapt.matcher.networks import FEATURES, passing_weights, residual_unet
from fieldray_adapt.matcher.recipe import MatcherNetwork, MatcherTraining
from fieldray_adapt.specification import Specification, Weights

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


class MatcherEngine:
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

    def weights(self) -> Weights:
        """A copy of the weights."""
        return get_weights(self.model)

    def set_weights(self, weights: Mapping[str, NDArray[np.float32]]) -> None:
        """Replace the weights."""
        set_weights(self.model, weights)

    def optimiser_state(self) -> dict[str, NDArray[Any]]:
        """The optimiser's variables in their order."""
        return {str(index): np.asarray(variable) for index, variable in enumerate(self._optimiser.variables)}

    def set_optimiser_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """The inverse."""
        for index, variable in enumerate(self._optimiser.variables):
            variable.assign(state[str(index)])

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
