"""How much each channel is used, and which channels of each set are kept.

Used is measured by the average percentage of zeros, or by the size of the weights. APoZ (Hu et al. 2016,
arXiv:1607.03250): the share of zeros among a channel's values behind its rectifier, over all positions of all images
of a calibration set. A channel that is nearly always zero carries little. Channels are chosen by iterative pruning, or
in one shot, to compare with.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fieldray_adapt.networks.specification import Specification, channel_sets, weight_axes
from fieldray_adapt.training.keras_engine import layer_reader

ChannelScores = dict[str, NDArray[np.float64]]


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
) -> ChannelScores:
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
    read = layer_reader(specification, weights, names)
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
    """Share of zeros of each channel over all other axes."""
    share: NDArray[np.float64] = (value == 0).reshape(-1, value.shape[-1]).mean(axis=0)
    return share


def weight_sizes(specification: Specification, weights: Mapping[str, NDArray[np.float32]]) -> ChannelScores:
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


CutKind = Literal["level", "deviation"]
KeptChannels = dict[str, NDArray[np.int64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PruningRule:
    """The rule by which channels of a set go.

    Attributes
    ----------
    kind
        "level": a share of zeros above `value` goes; "deviation": above mean + value * standard deviation of the set.
    minimum_channels
        Of every set (a smaller set is left as it is).
    largest_share
        Of a set that may go at once, 0..1.
    multiple
        Counts kept are rounded up to a multiple of it, where the set had as many: kernels of the runtimes work on 8
        or 16 channels at a time, and a channel less than that saves nothing.
    """

    kind: CutKind
    value: float
    minimum_channels: int = 1
    largest_share: float = 1.0
    multiple: int = 1


def select_channels(zeros: Mapping[str, NDArray[np.float64]], *, rule: PruningRule) -> KeptChannels:
    """The channels to keep of each set, ascending, by its APoZ; equal ones are kept in their order."""
    return {
        channel: lowest_scoring_channels(shares, count=_rounded(_wanted(shares, rule), shares, rule))
        for channel, shares in zeros.items()
    }


def _wanted(shares: NDArray[np.float64], rule: PruningRule) -> int:
    limit = rule.value if rule.kind == "level" else float(shares.mean() + rule.value * shares.std())
    # Equal shares differ in their last bits after averaging: a channel at the limit stays.
    return int((shares <= limit + 1e-9).sum())


def _lowest(shares: NDArray[np.float64], rule: PruningRule) -> int:
    return min(max(rule.minimum_channels, math.ceil(len(shares) * (1 - rule.largest_share)), 1), len(shares))


def _rounded(wanted: int, shares: NDArray[np.float64], rule: PruningRule) -> int:
    rounded = math.ceil(max(wanted, _lowest(shares, rule)) / rule.multiple) * rule.multiple
    return min(rounded, len(shares))


def lowest_scoring_channels(shares: NDArray[np.float64], *, count: int) -> NDArray[np.int64]:
    """Indices of the `count` channels with the lowest score, ascending."""
    return np.sort(np.argsort(shares, kind="stable")[:count]).astype(np.int64)


Baseline = Literal["magnitude", "random"]


def select_in_one_shot(
    specification: Specification,
    weights: Mapping[str, NDArray[np.float32]],
    *,
    kind: Baseline,
    share: float,
    seed: int = 0,
) -> KeptChannels:
    """The channels to keep: `share` (0..1) of each set, those with the largest weights or drawn at random."""
    generator = np.random.default_rng(seed)
    keep = KeptChannels()
    for channel, sizes in weight_sizes(specification, weights).items():
        count = min(len(sizes), max(1, math.ceil(len(sizes) * share)))
        keep[channel] = lowest_scoring_channels(
            -sizes if kind == "magnitude" else generator.random(len(sizes)), count=count
        )
    return keep
