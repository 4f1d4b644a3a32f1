"""Give the channels of a tensor like ranges, so that one scale for all of them rounds none away.

An int8 tensor has one scale for all its channels, set by the largest. A channel that stays far below it keeps only a
few of the 255 steps. Rectified layers pass a factor on, so a channel may be multiplied where it is made and divided
where it is read, and the network computes the same (Nagel et al., ICCV 2019, arXiv:1906.04721, section 4.1, there for
weights). Channels that are added share a channel set, and so their factors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fieldray.adaptation.keras_network import build_network, set_weights
from fieldray.adaptation.specification import Layer, Specification, channel_sets, weight_axes
from fieldray.adaptation.weights import Weights

_LARGEST_FACTOR: Final = 16.0
_TINY: Final = 1e-6
_BATCH: Final = 16

Factors = dict[str, NDArray[np.float32]]


def equalise(
    specification: Specification, weights: Mapping[str, NDArray[np.float32]], *, representative: NDArray[np.uint8]
) -> Weights:
    """Weights of a network that computes the same, with channels of like range.

    representative  (n, height, width, channels) training images, whose ranges count
    Channel sets that are written by anything but rectified and linear layers stay as they are, and so do the labels.
    """
    factors = {
        name: np.clip(1 / share, 1, _LARGEST_FACTOR).astype(np.float32)
        for name, share in _shares(specification, weights, representative).items()
    }
    return scale_channels(specification, weights, factors)


def scale_channels(
    specification: Specification, weights: Mapping[str, NDArray[np.float32]], factors: Factors
) -> Weights:
    """The weights with each channel of the sets named multiplied where it is made and divided where it is read."""
    scaled = Weights()
    for key, axes in weight_axes(specification).items():
        name, _, part = key.rpartition("/")
        array = np.array(weights[key], np.float32)
        for position, axis in enumerate(axes):
            if axis.channels in factors:
                power = _power(part, is_read=position == len(axes) - 2, layer=specification.layer(name))
                shape = [-1 if place == position else 1 for place in range(array.ndim)]
                array *= np.tile(factors[axis.channels], axis.repeats).reshape(shape) ** power
        scaled[key] = array
    return scaled


def _power(part: str, *, is_read: bool, layer: Layer) -> int:
    """Whether an axis of this part is multiplied by the factors of its set (1), divided (-1) or left alone (0).

    Where a normalisation follows, it is the normalisation that makes the channel.
    """
    if part == "kernel":
        return -1 if is_read else int(not layer.batch_norm)
    return int(part in ("gamma", "beta", "bias"))


def _shares(
    specification: Specification, weights: Mapping[str, NDArray[np.float32]], images: NDArray[np.uint8]
) -> Factors:
    """By channel set: the range of each channel as a share of its tensor's, in the tensor where that is largest."""
    sets = channel_sets(specification)
    shares: Factors = {}
    for name, ranges in _ranges(specification, weights, images, names=_levelled(specification)).items():
        share = np.maximum(ranges / max(float(ranges.max()), _TINY), _TINY)
        shares[sets[name]] = np.maximum(shares.get(sets[name], np.float32(0)), share)
    return shares


def _levelled(specification: Specification) -> list[str]:
    """The layers whose outputs count."""
    sets = channel_sets(specification)
    kept = {specification.label_set} | {
        sets[layer.name] for layer in specification.layers if layer.activation not in ("none", "relu")
    }
    return [
        layer.name
        for layer in specification.layers
        if (layer.has_weights or layer.kind == "add") and sets[layer.name] not in kept
    ]


def _ranges(
    specification: Specification,
    weights: Mapping[str, NDArray[np.float32]],
    images: NDArray[np.uint8],
    *,
    names: list[str],
) -> Factors:
    """By layer: the largest absolute value of each channel of its output."""
    if not names:
        return {}
    model = build_network(specification, outputs=names)
    set_weights(model, weights)
    found: Factors = {}
    for start in range(0, len(images), _BATCH):
        values = model.predict_on_batch(images[start : start + _BATCH].astype(np.float32) / 255)
        for name, value in zip(names, values if len(names) > 1 else [values], strict=True):
            largest = np.abs(value).reshape(-1, value.shape[-1]).max(0)
            found[name] = np.maximum(found.get(name, np.float32(0)), largest)
    return found
