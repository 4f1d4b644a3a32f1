"""Which images one epoch shows: sources in given shares, and within each source its classes equally often.

Otherwise the network learns the source (its letters, collimation, grey levels) instead of the finding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray


def balanced_draw(
    sources: Sequence[str],
    classes: Sequence[str],
    *,
    count: int,
    shares: Mapping[str, float],
    generator: np.random.Generator,
) -> NDArray[np.int64]:
    """`count` indices in random order; small groups repeat, but nothing repeats before its whole group was drawn.

    A source that `shares` does not name counts 1. Raises ValueError without images.
    """
    groups: dict[tuple[str, str], list[int]] = {}
    for index, key in enumerate(zip(sources, classes, strict=True)):
        groups.setdefault(key, []).append(index)
    if not groups:
        raise ValueError("there are no images to draw from")
    names = sorted({source for source, _ in groups})
    weight = {name: shares.get(name, 1.0) / sum(1 for source, _ in groups if source == name) for name in names}
    total = sum(weight[source] for source, _ in groups)
    drawn = [_repeated(groups[key], round(count * weight[key[0]] / total), generator) for key in sorted(groups)]
    return generator.permutation(np.concatenate(drawn))


def _repeated(members: list[int], count: int, generator: np.random.Generator) -> NDArray[np.int64]:
    rounds = [generator.permutation(members) for _ in range(-(-count // len(members)))]
    return np.concatenate(rounds)[:count] if rounds else np.zeros(0, np.int64)
