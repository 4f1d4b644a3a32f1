"""The agreement of a mask with the true one: foreground Dice, Jaccard, and distances between the outlines.

Measures over both classes would be too high: an empty mask agrees with most of the image. So only the lungs count. Two
empty masks agree completely. The distance to an empty mask is the image's diagonal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

Mask = NDArray[np.bool_]
REFERENCE_SIDE: Final = 512
"""Distances are told in pixels of an image of this width and height."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The fit of one mask: Dice and Jaccard in 0..1, distances in pixels of 512."""

    dice: float
    jaccard: float
    average_distance: float
    distance_95: float


def dice(found: Mask, truth: Mask) -> float:
    """2 |A and B| / (|A| + |B|) of two masks of one shape, in 0..1; 1 where both are empty (Dice 1945)."""
    total = int(found.sum()) + int(truth.sum())
    return 2 * int((found & truth).sum()) / total if total else 1.0


def jaccard(found: Mask, truth: Mask) -> float:
    """|A and B| / |A or B| of two masks of one shape, in 0..1; 1 where both are empty."""
    either = int((found | truth).sum())
    return int((found & truth).sum()) / either if either else 1.0


def surface_distances(found: Mask, truth: Mask) -> NDArray[np.float64]:
    """Distance of each outline pixel of either mask (rows, columns) to the other's outline, in pixels of 512."""
    rows, columns = truth.shape
    step = (REFERENCE_SIDE / rows, REFERENCE_SIDE / columns)
    outlines = [outline(mask) for mask in (found, truth)]
    if not all(outline.any() for outline in outlines):
        both_empty = not any(outline.any() for outline in outlines)
        return np.array([0.0 if both_empty else float(np.hypot(REFERENCE_SIDE, REFERENCE_SIDE))])
    away = [ndimage.distance_transform_edt(~outline, sampling=step) for outline in outlines]
    return np.concatenate([away[1][outlines[0]], away[0][outlines[1]]])


def fit_of(found: Mask, truth: Mask) -> Fit:
    """All measures of a mask against the true one, both (rows, columns). Raises ValueError if they differ in shape."""
    if found.shape != truth.shape:
        raise ValueError(f"a mask of {found.shape} cannot be compared with one of {truth.shape}")
    distances = surface_distances(found, truth)
    return Fit(
        dice=dice(found, truth),
        jaccard=jaccard(found, truth),
        average_distance=float(distances.mean()),
        distance_95=float(np.percentile(distances, 95)),
    )


def outline(mask: Mask) -> Mask:
    """The pixels of a mask that touch what is outside it, or the image's border."""
    outline: Mask = mask & ~ndimage.binary_erosion(mask)
    return outline
