"""One-shot pruning to compare with: every set cut at once to a share of its channels, then trained once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fieldray.adaptation.prune.selection import Keep, most_used
from fieldray.adaptation.prune.statistics import weight_sizes
from fieldray.adaptation.specification import Specification

Baseline = Literal["magnitude", "random"]


def one_shot(
    specification: Specification,
    weights: Mapping[str, NDArray[np.float32]],
    *,
    kind: Baseline,
    share: float,
    minimum_channels: int = 1,
    seed: int = 0,
) -> Keep:
    """The channels to keep: `share` (0..1) of each set, those with the largest weights or drawn at random."""
    generator = np.random.default_rng(seed)
    keep = Keep()
    for channel, sizes in weight_sizes(specification, weights).items():
        count = min(len(sizes), max(minimum_channels, math.ceil(len(sizes) * share)))
        keep[channel] = most_used(-sizes if kind == "magnitude" else generator.random(len(sizes)), count=count)
    return keep
