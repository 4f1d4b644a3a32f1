"""Training on Keras (with TensorFlow unless KERAS_BACKEND says otherwise)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fieldray.adaptation.engine import Batch, EngineSettings
from fieldray.adaptation.keras_network import build_network, get_weights, set_weights
from fieldray.adaptation.specification import Specification
from fieldray.adaptation.weights import Weights

_LEAST_KNOWN: Final = 1e-6


class KerasEngine:
    """An `Engine` on Keras."""

    def __init__(
        self, specification: Specification, weights: Mapping[str, NDArray[np.float32]], *, settings: EngineSettings
    ) -> None:
        import keras

        keras.config.set_dtype_policy("mixed_bfloat16" if settings.precision == "bfloat16" else "float32")
        self._model = build_network(specification, outputs=["logits"])
        set_weights(self._model, weights)
        for layer in self._model.layers:
            if layer.name.removesuffix("_bn") in settings.frozen:
                layer.trainable = False
        self._optimiser = keras.optimizers.AdamW(0.0, weight_decay=settings.weight_decay, epsilon=1e-8)
        self._optimiser.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
        self._optimiser.build(self._model.trainable_variables)
        self._model.compile(self._optimiser, loss=_losses(settings))

    def step(self, images: Batch, targets: Batch, *, learning_rate: float) -> float:
        """One AdamW step; the batch's mean loss before it."""
        self._optimiser.learning_rate = learning_rate
        return float(self._model.train_on_batch(images, targets))

    def logits(self, images: Batch) -> Batch:
        """Logits (n, labels)."""
        return np.asarray(self._model.predict_on_batch(images), np.float32)

    def weights(self) -> Weights:
        """A copy of the weights."""
        return get_weights(self._model)

    def set_weights(self, weights: Mapping[str, NDArray[np.float32]]) -> None:
        """Replace the weights."""
        set_weights(self._model, weights)

    def optimiser_state(self) -> dict[str, NDArray[Any]]:
        """The optimiser's variables in their order."""
        return {str(index): np.asarray(variable) for index, variable in enumerate(self._optimiser.variables)}

    def set_optimiser_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """The inverse."""
        for index, variable in enumerate(self._optimiser.variables):
            variable.assign(state[str(index)])


def _losses(settings: EngineSettings) -> Any:
    from keras import losses, ops

    if settings.loss == "categorical":
        return losses.CategoricalCrossentropy(from_logits=True)

    weights = ops.convert_to_tensor(settings.label_weights or (1.0,), "float32")

    def binary(targets: Any, logits: Any) -> Any:
        known = ops.cast(ops.logical_not(ops.isnan(targets)), "float32") * weights
        each = ops.binary_crossentropy(ops.nan_to_num(targets), ops.cast(logits, "float32"), from_logits=True)
        return ops.sum(each * known) / ops.maximum(ops.sum(known), _LEAST_KNOWN)

    return binary
