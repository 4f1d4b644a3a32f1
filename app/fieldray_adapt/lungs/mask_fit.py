"""Measure how well a predicted lung mask agrees with the true mask: Dice, Jaccard, distances between the outlines.

Only lung pixels count. A measure that also counts the background would be too high, because even an empty mask is right
in most of the image. Two empty masks agree completely. The distance to an empty mask is the image's diagonal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

Mask = NDArray[np.bool_]
REFERENCE_IMAGE_SIDE_PIXELS: Final = 512
"""The width and height, in pixels, of the image to whose pixels all distances refer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskFit:
    """The fit of one mask: Dice, Jaccard, mean and 95th percentile of outline distances (pixels at 512 x 512)."""

    dice: float
    jaccard: float
    average_distance: float
    distance_95: float


def dice_coefficient(predicted: Mask, truth: Mask) -> float:
    """Return the Dice coefficient of two masks (Dice 1945): 2 |A and B| / (|A| + |B|), in 0..1.

    The masks have equal shapes. Two empty masks give 1.
    """
    total = int(predicted.sum()) + int(truth.sum())
    return 2 * int((predicted & truth).sum()) / total if total else 1.0


def jaccard_index(predicted: Mask, truth: Mask) -> float:
    """Return the Jaccard index of two masks: |A and B| / |A or B|, in 0..1.

    The masks have equal shapes. Two empty masks give 1.
    """
    either = int((predicted | truth).sum())
    return int((predicted & truth).sum()) / either if either else 1.0


def surface_distances(predicted: Mask, truth: Mask) -> NDArray[np.float64]:
    """Return, for each outline pixel of each of two masks, the distance to the outline of the other mask.

    Masks are (rows, columns). Distances are in pixels of an image of 512 x 512 pixels.
    """
    rows, columns = truth.shape
    step = (REFERENCE_IMAGE_SIDE_PIXELS / rows, REFERENCE_IMAGE_SIDE_PIXELS / columns)
    outlines = [mask_outline(mask) for mask in (predicted, truth)]
    if not all(outline.any() for outline in outlines):
        both_empty = not any(outline.any() for outline in outlines)
        return np.array(
            [0.0 if both_empty else float(np.hypot(REFERENCE_IMAGE_SIDE_PIXELS, REFERENCE_IMAGE_SIDE_PIXELS))]
        )
    away = [ndimage.distance_transform_edt(~outline, sampling=step) for outline in outlines]
    return np.concatenate([away[1][outlines[0]], away[0][outlines[1]]])


def measure_fit(predicted: Mask, truth: Mask) -> MaskFit:
    """Measure how well a predicted mask fits the true mask, both (rows, columns).

    Raises ValueError if the shapes of the masks differ.
    """
    if predicted.shape != truth.shape:
        raise ValueError(f"a mask of {predicted.shape} cannot be compared with one of {truth.shape}")
    distances = surface_distances(predicted, truth)
    return MaskFit(
        dice=dice_coefficient(predicted, truth),
        jaccard=jaccard_index(predicted, truth),
        average_distance=float(distances.mean()),
        distance_95=float(np.percentile(distances, 95)),
    )


def mask_outline(mask: Mask) -> Mask:
    """Return the outline of a mask: the mask's pixels next to a pixel outside the mask, or at the image's border."""
    outline: Mask = mask & ~ndimage.binary_erosion(mask)
    return outline
