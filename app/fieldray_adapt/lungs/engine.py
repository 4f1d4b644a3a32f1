"""The training engine of lung-field networks, in Keras on TensorFlow.

The loss of a mask is (1 - Dice) plus the mean cross-entropy of the pixels. Dice alone has almost no gradient while the
network finds no lung. Cross-entropy alone favours the larger class, which is the background.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fieldray.domain.metrics import sigmoid
from fieldray.domain.model import LUNG_NETWORK_CHECKS
from fieldray_adapt.data.images_for_checks import UNKNOWN_TARGET
from fieldray_adapt.lungs.dataset import resize_images
from fieldray_adapt.lungs.networks import PUBLISHED_UNET_MARGIN, compact_unet, published_mask_side, published_unet
from fieldray_adapt.lungs.recipe import LungNetwork, LungTraining
from fieldray_adapt.networks.specification import Weights
from fieldray_adapt.training.keras_engine import KerasGradients, KerasState, build_network, compile_model

_SMOOTHING: Final = 1.0
"""Pixels added to numerator and denominator of the Dice loss, so that two empty masks have a loss of 0."""


def dice_loss(truth: Any, probabilities: Any) -> Any:
    """Return the Dice loss of each mask, a tensor (n, masks): 1 - 2 sum(t p) / (sum(t) + sum(p)).

    `truth` (t) and `probabilities` (p) are tensors (n, rows, columns, masks) in 0..1.
    """
    from keras import ops

    axes = (1, 2)
    shared = ops.sum(truth * probabilities, axes)
    total = ops.sum(truth, axes) + ops.sum(probabilities, axes)
    return 1 - (2 * shared + _SMOOTHING) / (total + _SMOOTHING)


def mask_loss(truth: Any, logits: Any) -> Any:
    """Return the mask loss of each image, a tensor (n,): (1 - Dice) + mean cross-entropy, summed over the masks.

    Parameters
    ----------
    truth
        The true masks, (n, rows, columns, masks) in 0..1; negative where unknown. An unknown pixel has no
        cross-entropy. A mask with an unknown pixel has no Dice term.
    logits
        The predicted masks, (n, rows, columns, masks), before the sigmoid.
    """
    from keras import ops

    known = ops.cast(truth >= 0, logits.dtype)
    truth = ops.maximum(truth, 0.0)
    entropy = ops.mean(ops.binary_crossentropy(truth, logits, from_logits=True) * known, axis=(1, 2))
    return ops.sum(dice_loss(truth, ops.sigmoid(logits)) * ops.min(known, axis=(1, 2)) + entropy, axis=1)


def image_check_loss(targets: Any, logits: Any) -> Any:
    """Return the loss (n,) of each image for the image checks, such as "is the image inverted?".

    The loss is the sum of the cross-entropies of an image, scaled so that the mean over n images equals the mean over
    all known targets. `targets` and `logits` are (n, checks). Targets are 1 for yes, 0 for no, or negative if unknown.
    """
    from keras import ops

    known = ops.cast(targets >= 0, logits.dtype)
    each = ops.binary_crossentropy(ops.maximum(targets, 0.0), logits, from_logits=True) * known
    return ops.sum(each, axis=1) / ops.maximum(ops.mean(ops.sum(known, axis=1)), 1.0)


Batch = NDArray[np.float32]
GRADIENT_NORM_LIMIT: Final = 5.0
"""The largest allowed norm of a gradient. A gradient with a larger norm is scaled down to this norm."""

_PREDICT_BATCH: Final = 16


class MaskEngine(KerasState):
    """A lung-field network in training, for images of `side` x `side` pixels.

    The network maps images (n, side, side) uint8 to one or two masks of `mask_side` x `mask_side` pixels, which cover
    the whole image. True masks are (n, mask_side, mask_side, number of masks) float32 in 0..1, with `UNKNOWN_TARGET`
    for unknown pixels.
    """

    def __init__(self, network: LungNetwork, side: int, training: LungTraining) -> None:
        import keras

        keras.config.set_dtype_policy("float32")
        self._network, self.side = network, side
        self.has_checks = network.kind == "compact"
        if self.has_checks:
            specification = compact_unet(
                height=side, width=side, channels=network.channels, mask_count=network.mask_count
            )
            self.model = build_network(specification, outputs=["mask_logits", "logits"])
            self.mask_side = side // 2
        else:
            self.model = published_unet(side=side, root_channels=network.root_channels)
            self.mask_side = published_mask_side(side)
        options: dict[str, Any] = {"weight_decay": training.weight_decay, "global_clipnorm": GRADIENT_NORM_LIMIT}
        if training.momentum:
            self._optimiser = keras.optimizers.SGD(0.0, momentum=training.momentum, **options)
        else:
            self._optimiser = keras.optimizers.AdamW(0.0, epsilon=1e-8, **options)
        self._optimiser.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
        self._optimiser.build(self.model.trainable_variables)
        per_mask = (training.masks_per_step + training.checks_per_step) / training.masks_per_step
        if self.has_checks:
            losses, factors = [mask_loss, image_check_loss], [per_mask, training.checks_weight]
            compile_model(self.model, self._optimiser, loss=losses, loss_weights=factors)
        else:
            compile_model(self.model, self._optimiser, loss=mask_loss)
        self._gradients = KerasGradients(self.model)

    def prepare(self, images: NDArray[np.uint8]) -> Batch:
        """Return images (n, rows, columns) uint8 of any size as inputs of the network, float32 in 0..1.

        Inputs of the compact network are (n, side, side, 1). For the published network, the image is mirrored beyond
        its border.
        """
        if self.has_checks:
            return resize_images(images, self.side).astype(np.float32)[..., None] / np.float32(255)
        inner = resize_images(images, self.mask_side)
        mirrored = np.pad(
            inner,
            ((0, 0), (PUBLISHED_UNET_MARGIN, PUBLISHED_UNET_MARGIN), (PUBLISHED_UNET_MARGIN, PUBLISHED_UNET_MARGIN)),
            mode="symmetric",
        )
        return mirrored.astype(np.float32)[..., None] / np.float32(255)

    def step(self, images: NDArray[np.uint8], masks: Batch, targets: Batch, *, learning_rate: float) -> float:
        """Perform one training step. Returns the loss before the step.

        The first `len(masks)` images have masks. The remaining images have `targets` for the image checks, such as "is
        the image inverted?".
        """
        self.model.reset_metrics()  # otherwise Keras returns the mean loss of all steps so far
        self._optimiser.learning_rate = learning_rate
        loss = self.model.train_on_batch(*self._batch(images, masks, targets))
        return float(loss[0] if self.has_checks else loss)

    def gradient(self, images: NDArray[np.uint8], masks: Batch, targets: Batch) -> tuple[Weights, float]:
        """Return the unclipped gradient of a batch by weight name, and the batch's loss. Parameters as in `step`."""
        return self._gradients.compute(*self._batch(images, masks, targets))

    def _batch(self, images: NDArray[np.uint8], masks: Batch, targets: Batch) -> tuple[Batch, Any]:
        """Return the network's inputs, and the masks and targets, in the form that `train_on_batch` of Keras takes."""
        if not self.has_checks:
            return self.prepare(images), masks
        blank = np.full((len(images) - len(masks), *masks.shape[1:]), UNKNOWN_TARGET, np.float32)
        unknown = np.full((len(masks), len(LUNG_NETWORK_CHECKS)), UNKNOWN_TARGET, np.float32)
        return self.prepare(images), [np.concatenate([masks, blank]), np.concatenate([unknown, targets])]

    def predict_masks_and_checks(self, images: NDArray[np.uint8]) -> tuple[Batch, Batch]:
        """Run the network on images (n, rows, columns) uint8.

        Returns masks (n, mask_side, mask_side, number of masks), and the scores of the image checks (n, number of
        checks). Both are float32 in 0..1.
        """
        masks, checks = list[Batch](), list[Batch]()
        for start in range(0, len(images), _PREDICT_BATCH):
            found = self.model.predict_on_batch(self.prepare(images[start : start + _PREDICT_BATCH]))
            logits, scores = found if self.has_checks else (found, np.zeros((len(found), 0), np.float32))
            masks.append(sigmoid(logits).astype(np.float32))
            checks.append(sigmoid(scores).astype(np.float32))
        return np.concatenate(masks), np.concatenate(checks)


def set_thread_count(count: int) -> None:
    """Set the number of CPU threads of TensorFlow; 0 to change nothing.

    TensorFlow accepts the number only before its first operation in this process.
    """
    if not count:
        return
    import tensorflow

    for set_count in (
        tensorflow.config.threading.set_intra_op_parallelism_threads,
        tensorflow.config.threading.set_inter_op_parallelism_threads,
    ):
        try:
            set_count(count)
        except RuntimeError:  # TensorFlow is already in use, with the thread count of an earlier run
            return
