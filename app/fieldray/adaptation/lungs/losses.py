"""What a segmentation is trained by: 1 - Dice of the lungs, and the cross-entropy of each cell, added.

Dice alone has hardly a gradient while nothing is found; the cross-entropy alone lets the larger class win.
"""

from __future__ import annotations

from typing import Any, Final

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
