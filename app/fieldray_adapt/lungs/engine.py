"""What trains a lung-field network: Keras on TensorFlow, for the compact network and the published one alike.

A segmentation is trained by 1 - Dice of the lungs and the cross-entropy of each cell, added. Dice alone has hardly a
gradient while nothing is found; the cross-entropy alone lets the larger class win.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fieldray.domain.metrics import sigmoid
from fieldray.domain.model import LUNG_CHECKS
from fieldray_adapt.keras_engine import KerasGradients, build_network, get_weights, set_weights
from fieldray_adapt.lungs.check_samples import UNKNOWN
from fieldray_adapt.lungs.dataset import shrunk
from fieldray_adapt.lungs.networks import MARGIN, compact_unet, mask_side, published_unet
from fieldray_adapt.lungs.recipe import LungNetwork, LungTraining
from fieldray_adapt.specification import Weights

_SMOOTHING: Final = 1.0
"""Cells added to both sides of the fraction, so that two empty masks have a loss of 0 and not 0 / 0."""


def dice_loss(truth: Any, probabilities: Any) -> Any:
    """1 - 2 sum(t p) / (sum(t) + sum(p)) of each image, (n,); (n, rows, columns, 1) tensors in 0..1."""
    from keras import ops

    axes = (1, 2, 3)
    shared = ops.sum(truth * probabilities, axes)
    total = ops.sum(truth, axes) + ops.sum(probabilities, axes)
    return 1 - (2 * shared + _SMOOTHING) / (total + _SMOOTHING)


def mask_loss(truth: Any, logits: Any) -> Any:
    """1 - Dice and mean cross-entropy of each image, added: (n,). `logits` (n, rows, columns, 1) before the sigmoid."""
    from keras import ops

    entropy = ops.mean(ops.binary_crossentropy(truth, logits, from_logits=True), axis=(1, 2, 3))
    return dice_loss(truth, ops.sigmoid(logits)) + entropy


def checks_loss(targets: Any, logits: Any) -> Any:
    """Cross-entropy of each image (n,), whose mean is that over all that is known.

    Targets (n, checks) are 1, 0, or below 0 where unknown.
    """
    from keras import ops

    known = ops.cast(targets >= 0, logits.dtype)
    each = ops.binary_crossentropy(ops.maximum(targets, 0.0), logits, from_logits=True) * known
    return ops.sum(each, axis=1) / ops.maximum(ops.mean(ops.sum(known, axis=1)), 1.0)


Batch = NDArray[np.float32]
CLIP: Final = 5.0
"""The gradient's largest norm."""

_PREDICT_BATCH: Final = 16


class MaskEngine:
    """A lung-field network of one input side in training.

    Images are (n, side, side) uint8; the network gives masks of `mask_side` pixels, which cover the whole image.
    """

    def __init__(self, network: LungNetwork, side: int, training: LungTraining) -> None:
        import keras

        keras.config.set_dtype_policy("float32")
        self._network, self.side = network, side
        self.has_checks = network.kind == "compact"
        if self.has_checks:
            specification = compact_unet(height=side, width=side, channels=network.channels)
            self.model = build_network(specification, outputs=["mask_logits", "logits"])
            self.mask_side = side // 2
        else:
            self.model = published_unet(side=side, root_channels=network.root_channels)
            self.mask_side = mask_side(side)
        self._optimiser = keras.optimizers.AdamW(
            0.0, weight_decay=training.weight_decay, epsilon=1e-8, global_clipnorm=CLIP
        )
        self._optimiser.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
        self._optimiser.build(self.model.trainable_variables)
        per_mask = (training.masks_per_step + training.checks_per_step) / training.masks_per_step
        if self.has_checks:
            self.model.compile(
                self._optimiser, loss=[mask_loss, checks_loss], loss_weights=[per_mask, training.checks_weight]
            )
        else:
            self.model.compile(self._optimiser, loss=mask_loss)
        self._gradients = KerasGradients(self.model)

    def prepared(self, images: NDArray[np.uint8]) -> Batch:
        """Images (n, any side) as the network sees them: (n, side, side, 1) float32 in 0..1."""
        if self.has_checks:
            return shrunk(images, self.side).astype(np.float32)[..., None] / 255
        inner = shrunk(images, self.mask_side)
        mirrored = np.pad(inner, ((0, 0), (MARGIN, MARGIN), (MARGIN, MARGIN)), mode="symmetric")
        return mirrored.astype(np.float32)[..., None] / 255

    def truth(self, masks: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Masks (n, any side) as the network is to find them, (n, mask_side, mask_side)."""
        return shrunk(masks, self.mask_side) > 127

    def step(
        self, images: NDArray[np.uint8], masks: NDArray[np.uint8], targets: Batch, *, learning_rate: float
    ) -> float:
        """One step; the batch's loss before it. The first images have masks, the rest have targets for the checks."""
        self.model.reset_metrics()  # Keras would tell the mean over all steps so far
        self._optimiser.learning_rate = learning_rate
        prepared, wanted, counts = self._told(images, masks, targets)
        if not self.has_checks:
            return float(self.model.train_on_batch(prepared, wanted))
        return float(self.model.train_on_batch(prepared, wanted, sample_weight=counts)[0])

    def gradient(self, images: NDArray[np.uint8], masks: NDArray[np.uint8], targets: Batch) -> tuple[Weights, float]:
        """What `step` would learn from a batch, and its loss; by name, see `engine.Engine.gradient`. Not clipped."""
        return self._gradients.take(*self._told(images, masks, targets))

    def _told(self, images: NDArray[np.uint8], masks: NDArray[np.uint8], targets: Batch) -> tuple[Batch, Any, Any]:
        """Images, targets and sample weights as Keras takes them."""
        wanted = shrunk(masks, self.mask_side).astype(np.float32)[..., None] / 255
        if not self.has_checks:
            return self.prepared(images), wanted, None
        others = len(images) - len(masks)
        blank = np.zeros((others, self.mask_side, self.mask_side, 1), np.float32)
        unknown = np.full((len(masks), len(LUNG_CHECKS)), UNKNOWN, np.float32)
        has_mask = (np.arange(len(images)) < len(masks)).astype(np.float32)
        return (
            self.prepared(images),
            [np.concatenate([wanted, blank]), np.concatenate([unknown, targets])],
            [has_mask, np.ones(len(images), np.float32)],
        )

    def predict(self, images: NDArray[np.uint8]) -> tuple[Batch, Batch]:
        """Shares of lung (n, mask_side, mask_side) and scores of the checks (n, checks), both in 0..1."""
        masks, checks = list[Batch](), list[Batch]()
        for start in range(0, len(images), _PREDICT_BATCH):
            found = self.model.predict_on_batch(self.prepared(images[start : start + _PREDICT_BATCH]))
            logits, scores = found if self.has_checks else (found, np.zeros((len(found), 0), np.float32))
            masks.append(sigmoid(logits)[..., 0].astype(np.float32))
            checks.append(sigmoid(scores).astype(np.float32))
        return np.concatenate(masks), np.concatenate(checks)

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
