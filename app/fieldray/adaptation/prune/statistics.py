"""How much each channel is used: the average percentage of zeros, and the size of its weights.

APoZ (Hu et al. 2016, arXiv:1607.03250): the share of zeros among a channel's values behind its rectifier, over all
positions of all images of a calibration set. A channel that is nearly always zero carries little.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldray.adaptation.keras_engine import build_network, set_weights
from fieldray.adaptation.specification import Specification, channel_sets, weight_axes

Scores = dict[str, NDArray[np.float64]]


def rectified_layers(specification: Specification) -> dict[str, tuple[str, ...]]:
    """For each channel set the layers that end in a rectifier; sets without one (the labels) are left out.

    A residual stage is evaluated by its sums alone: what its branches give before the sum is not rectified.
    """
    sets, found = channel_sets(specification), dict[str, tuple[str, ...]]()
    for layer in specification.layers:
        if layer.activation in ("relu", "relu6") and sets[layer.name] != specification.label_set:
            found[sets[layer.name]] = (*found.get(sets[layer.name], ()), layer.name)
    return found


def zero_shares(
    specification: Specification,
    weights: Mapping[str, NDArray[np.float32]],
    *,
    batches: Iterable[NDArray[np.float32]],
) -> Scores:
    """APoZ in 0..1 of every channel of every prunable set, float64 (channels,).

    A set that several layers share (a residual stage) gets the mean over them.

    Parameters
    ----------
    batches
        Images (n, height, width, channels) float32 in 0..1.

    Raises
    ------
    ValueError
        For no images.
    """
    layers = rectified_layers(specification)
    names = [name for members in layers.values() for name in members]
    model = build_network(specification, outputs=names)
    set_weights(model, weights)
    zeros = {name: np.zeros(specification.channels[channel], np.float64) for channel, name in _pairs(layers)}
    images = 0
    for batch in batches:
        values = model.predict_on_batch(batch)
        for name, value in zip(names, values if len(names) > 1 else [values], strict=True):
            zeros[name] += len(batch) * _zero_share(np.asarray(value))
        images += len(batch)
    if not images:
        raise ValueError("no images to calibrate with")
    return {channel: np.mean([zeros[name] for name in members], axis=0) / images for channel, members in layers.items()}


def _pairs(layers: Mapping[str, tuple[str, ...]]) -> list[tuple[str, str]]:
    return [(channel, name) for channel, members in layers.items() for name in members]


def _zero_share(value: NDArray[Any]) -> NDArray[np.float64]:
    """Share of zeros of each channel over all other axes."""
    share: NDArray[np.float64] = (value == 0).reshape(-1, value.shape[-1]).mean(axis=0)
    return share


def weight_sizes(specification: Specification, weights: Mapping[str, NDArray[np.float32]]) -> Scores:
    """Mean absolute weight that makes each channel, relative to the mean of its layer; (channels,) for each set.

    Layers that share a set are averaged, so that one with large weights does not decide alone.
    """
    gathered: dict[str, list[NDArray[np.float64]]] = {}
    for key, axes in weight_axes(specification).items():
        if not key.endswith("/kernel") or axes[-1].channels in ("", specification.label_set):
            continue
        sizes = np.abs(weights[key].astype(np.float64)).reshape(-1, weights[key].shape[-1]).mean(axis=0)
        gathered.setdefault(axes[-1].channels, []).append(sizes / max(sizes.mean(), np.finfo(np.float64).tiny))
    return {channel: np.mean(rows, axis=0) for channel, rows in gathered.items()}
