"""Measure how much each channel of a network is used, and choose the channels to keep.

Use is measured by APoZ or by the size of the weights. APoZ, the average percentage of zeros (Hu et al. 2016,
arXiv:1607.03250), is the share of zeros in a channel after the ReLU, over all positions and calibration images. A
channel that is almost always zero contributes little. Channels are removed in several iterations or, for comparison,
in one step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fieldray_adapt.networks.specification import Specification, channel_set_by_layer, weight_axes
from fieldray_adapt.training.keras_engine import layer_output_function

ChannelScores = dict[str, NDArray[np.float64]]
"""A score for each channel: arrays (channels,) by name of the channel set."""


def relu_layers_by_channel_set(specification: Specification) -> dict[str, tuple[str, ...]]:
    """Return the names of the layers that end in a ReLU, by channel set. Only a ReLU gives zeros that can be counted.

    Channel sets without a ReLU layer, and the channel set of the labels, are left out.
    """
    sets, found = channel_set_by_layer(specification), dict[str, tuple[str, ...]]()
    for layer in specification.layers:
        if layer.activation in ("relu", "relu6") and sets[layer.name] != specification.label_channel_set:
            found[sets[layer.name]] = (*found.get(sets[layer.name], ()), layer.name)
    return found


def measure_zero_shares(
    specification: Specification,
    weights: Mapping[str, NDArray[np.float32]],
    *,
    batches: Iterable[NDArray[np.float32]],
) -> ChannelScores:
    """Measure the average percentage of zeros (APoZ) of each channel, as a share 0..1.

    Returns arrays (channels,) float64 by channel set. If several layers share a channel set (a residual stage), the
    result is the mean over these layers.

    Parameters
    ----------
    batches
        Batches of images, each (n, height, width, channels) float32 in 0..1.

    Raises
    ------
    ValueError
        If there are no images.
    """
    layers = relu_layers_by_channel_set(specification)
    names = [name for members in layers.values() for name in members]
    read = layer_output_function(specification, weights, names)
    zeros = {
        name: np.zeros(specification.channels[channel], np.float64)
        for channel, members in layers.items()
        for name in members
    }
    images = 0
    for batch in batches:
        for name, value in read(batch).items():
            zeros[name] += len(batch) * _zero_share(value)
        images += len(batch)
    if not images:
        raise ValueError("no images to calibrate with")
    return {channel: np.mean([zeros[name] for name in members], axis=0) / images for channel, members in layers.items()}


def _zero_share(value: NDArray[Any]) -> NDArray[np.float64]:
    """Return the share of zeros in each channel (channels,) of an array (..., channels)."""
    share: NDArray[np.float64] = (value == 0).reshape(-1, value.shape[-1]).mean(axis=0)
    return share


def relative_weight_magnitudes(
    specification: Specification, weights: Mapping[str, NDArray[np.float32]]
) -> ChannelScores:
    """Return the mean absolute weight of each channel divided by the layer's mean: (channels,) by channel set.

    If several layers share a channel set, the result is the mean of the layers' results.
    """
    gathered: dict[str, list[NDArray[np.float64]]] = {}
    for key, axes in weight_axes(specification).items():
        if not key.endswith("/kernel") or axes[-1].joined_channel_set_names in ("", specification.label_channel_set):
            continue
        sizes = np.abs(weights[key].astype(np.float64)).reshape(-1, weights[key].shape[-1]).mean(axis=0)
        gathered.setdefault(axes[-1].joined_channel_set_names, []).append(
            sizes / max(sizes.mean(), np.finfo(np.float64).tiny)
        )
    return {channel: np.mean(rows, axis=0) for channel, rows in gathered.items()}


CutOffUnit = Literal["level", "deviation"]
"""The unit of the limit above which pruning removes a channel.

"level": the average share of zeros in a channel, 0..1. "deviation": standard deviations above the channel set's mean.
"""
KeptChannels = dict[str, NDArray[np.int64]]
"""The indices of the channels to keep, by name of the channel set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PruningRule:
    """The rule by which pruning removes channels with a high average percentage of zeros (APoZ, here a share 0..1).

    Attributes
    ----------
    cut_off_unit
        "level": remove channels with an APoZ above `cut_off`. "deviation": remove channels with an APoZ above the mean
        of their channel set plus `cut_off` standard deviations.
    minimum_channels
        Smallest number of channels that a channel set keeps. A smaller channel set keeps all channels.
    max_removed_share
        Largest share of a channel set that one iteration may remove, 0..1.
    channel_count_multiple
        The number of channels to keep is rounded up to a multiple of this number, at most to all channels. Inference
        works on 8 or 16 channels at a time, so a smaller reduction saves no time.
    """

    cut_off_unit: CutOffUnit
    cut_off: float
    minimum_channels: int = 1
    max_removed_share: float = 1.0
    channel_count_multiple: int = 1


def select_channels(zero_shares: Mapping[str, NDArray[np.float64]], *, rule: PruningRule) -> KeptChannels:
    """Return the channels to keep: the channels with the lowest average percentage of zeros (APoZ).

    `zero_shares` has the APoZ of each channel, by channel set. `rule` decides how many channels are kept. Of channels
    with equal APoZ, the first are kept. The indices are in ascending order.
    """
    return {
        channel: lowest_scoring_channels(shares, count=_rounded(_wanted(shares, rule), shares, rule))
        for channel, shares in zero_shares.items()
    }


def _wanted(shares: NDArray[np.float64], rule: PruningRule) -> int:
    limit = rule.cut_off if rule.cut_off_unit == "level" else float(shares.mean() + rule.cut_off * shares.std())
    # Averaging changes the last bits of equal shares. So a channel at the limit is kept.
    return int((shares <= limit + 1e-9).sum())


def _lowest(shares: NDArray[np.float64], rule: PruningRule) -> int:
    return min(max(rule.minimum_channels, math.ceil(len(shares) * (1 - rule.max_removed_share)), 1), len(shares))


def _rounded(wanted: int, shares: NDArray[np.float64], rule: PruningRule) -> int:
    rounded = math.ceil(max(wanted, _lowest(shares, rule)) / rule.channel_count_multiple) * rule.channel_count_multiple
    return min(rounded, len(shares))


def lowest_scoring_channels(shares: NDArray[np.float64], *, count: int) -> NDArray[np.int64]:
    """Return the indices of the `count` channels with the lowest scores; the indices are in ascending order."""
    return np.sort(np.argsort(shares, kind="stable")[:count]).astype(np.int64)


BaselineKind = Literal["magnitude", "random"]
"""How pruning in one step chooses the channels to keep: the largest weights, or at random."""


def select_in_one_shot(
    specification: Specification,
    weights: Mapping[str, NDArray[np.float32]],
    *,
    kind: BaselineKind,
    share: float,
    seed: int = 0,
) -> KeptChannels:
    """Choose the channels that pruning in one step keeps: the share `share` (0..1) of each channel set.

    `kind` is "magnitude" for the channels with the largest weights, or "random" for random channels.
    """
    generator = np.random.default_rng(seed)
    keep = KeptChannels()
    for channel, sizes in relative_weight_magnitudes(specification, weights).items():
        count = min(len(sizes), max(1, math.ceil(len(sizes) * share)))
        keep[channel] = lowest_scoring_channels(
            -sizes if kind == "magnitude" else generator.random(len(sizes)), count=count
        )
    return keep
