"""What rounding the weights to integers does to a convolution's mean, taken back in its bias.

A convolution that takes differences of large values (the first one always does: its input is never below 0) changes
its mean by the sum of the rounding errors times the mean input, which can be a large part of its signal. Both are
known, so the bias can carry the opposite (Nagel et al. 2019, arXiv:1906.04721, section 4.2).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fieldray.adaptation.keras_network import build_network, set_weights
from fieldray.adaptation.specification import INPUT, Layer, Specification
from fieldray.adaptation.weights import Weights

_BATCH: Final = 16
_LARGEST: Final = 127


def correct_rounding(
    specification: Specification, weights: Mapping[str, NDArray[np.float32]], *, representative: NDArray[np.uint8]
) -> Weights:
    """Weights whose convolutions keep their mean output once they are int8 with a scale for each output channel.

    representative  (n, height, width, channels) training images; borders, where padding counts, are neglected
    """
    layers = [layer for layer in specification.layers if layer.kind in ("conv", "depthwise")]
    means = _input_means(specification, weights, layers, representative)
    corrected = {key: np.array(array) for key, array in weights.items()}
    for layer in layers:
        shift = _mean_shift(layer, weights, means[layer.inputs[0]], specification.epsilon)
        corrected[f"{layer.name}/{'beta' if layer.batch_norm else 'bias'}"] -= shift
    return corrected


def _input_means(
    specification: Specification,
    weights: Mapping[str, NDArray[np.float32]],
    layers: list[Layer],
    images: NDArray[np.uint8],
) -> dict[str, NDArray[np.float32]]:
    """The mean of each channel of what the layers read, by the name of the layer read."""
    names = sorted({layer.inputs[0] for layer in layers} - {INPUT})
    model = build_network(specification, outputs=names)
    set_weights(model, weights)
    sums: dict[str, NDArray[np.float32]] = {}
    for start in range(0, len(images), _BATCH):
        batch = images[start : start + _BATCH].astype(np.float32) / 255
        found = model.predict_on_batch(batch)
        values = {INPUT: batch, **dict(zip(names, found if len(names) > 1 else [found], strict=True))}
        for name, array in values.items():
            sums[name] = sums.get(name, np.float32(0)) + np.asarray(array).mean((1, 2)).sum(0)
    return {name: (total / len(images)).astype(np.float32) for name, total in sums.items()}


def _mean_shift(
    layer: Layer, weights: Mapping[str, NDArray[np.float32]], means: NDArray[np.float32], epsilon: float
) -> NDArray[np.float32]:
    """How far the mean of each output channel moves when the folded kernel is rounded."""
    kernel = weights[f"{layer.name}/kernel"]
    if layer.kind == "depthwise":
        kernel = kernel[..., 0]
    if layer.batch_norm:
        kernel = kernel * weights[f"{layer.name}/gamma"] / np.sqrt(weights[f"{layer.name}/variance"] + epsilon)
    axes = tuple(range(kernel.ndim - 1))
    scale = np.abs(kernel).max(axes) / _LARGEST
    scale = np.where(scale > 0, scale, 1)
    error = np.rint(kernel / scale) * scale - kernel
    if layer.kind == "depthwise":
        return np.asarray(error.sum(axes) * means, np.float32)
    return np.asarray(np.einsum("hwio,i->o", error, means), np.float32)
