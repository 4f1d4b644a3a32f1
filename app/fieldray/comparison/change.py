"""What differs between the current image and the aligned prior, beyond what differs between any two X-rays.

Both are normalised inside the lungs (local mean and deviation), subtracted, and averaged at the sizes of opacities.
Noise is what such averages are like where nothing has changed: its floor is the table below, from pairs of one patient
whose findings did not change; a pair that is less alike than that has more, as its own spread tells (median absolute
deviation, which a change in a part of the lungs does not move).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fieldray.comparison.features import Grey, blurred, locally_normalised
from fieldray.comparison.mesh import Displacement, warped
from fieldray.domain.comparison import ChangeRegion, FramedImage
from fieldray.domain.image import Box
from fieldray.domain.mask import Mask, components

# Standard deviation of the averages below which no pair is believed to lie, by their size in pixels of the frame: the
# fifth percentile over the stable pairs of the choosing part, as `python -m benchmarks comparison --noise` prints it.
NOISE_FLOOR: Final[Mapping[float, float]] = {6.0: 0.02, 12.0: 0.015, 20.0: 0.01}
# From here on a region is told: about one in a stable pair of the choosing part, by the same command.
REGION_STRENGTH: Final = 3.75
_GREW: Final = 0.6  # of that strength: how far a region reaches around its core
_LEAST_AREA_PX: Final = 60
_MOST_REGIONS: Final = 20
_LOCAL_PX: Final = 64.0
_ERODED_PX: Final = 4.0
_STAYS: Final = 0.75
_GAUSSIAN: Final = 1.4826  # standard deviations in a median absolute deviation
_LEAST_INSIDE_PX: Final = 2000


def compared_area(prior: FramedImage, current: FramedImage, displacement: Displacement) -> Mask:
    """Inside the lungs of both, away from their edges, where a pixel of misalignment looks like a change."""
    moved = warped(prior.lungs.astype(np.float32), displacement) > 0.5
    both = (moved & current.lungs).astype(np.float32)
    return np.asarray(blurred(both, _ERODED_PX) > _STAYS) & current.lungs & moved


def averages(warped_prior: NDArray[np.float32], current: FramedImage, inside: Mask) -> Mapping[float, Grey]:
    """The difference of the normalised images, averaged at each size of `NOISE_FLOOR`; 0 outside."""
    first = locally_normalised(warped_prior, sigma_px=_LOCAL_PX, inside=inside)
    second = locally_normalised(current.pixels, sigma_px=_LOCAL_PX, inside=inside)
    weights, difference = inside.astype(np.float32), (second - first) * inside
    return {
        size: np.where(inside, blurred(difference, size) / blurred(weights, size).clip(0.05, None), np.float32(0))
        for size in NOISE_FLOOR
    }


def spread(average: Grey, inside: Mask) -> float:
    """Standard deviation as the median absolute deviation tells it."""
    values = average[inside]
    return _GAUSSIAN * float(np.median(np.abs(values - np.median(values))))


def find_change(prior: FramedImage, current: FramedImage, displacement: Displacement) -> Grey:
    """The difference in units of the noise (rows, columns): of all sizes the strongest; 0 outside the lungs."""
    inside = compared_area(prior, current, displacement)
    strongest = np.zeros(inside.shape, np.float32)
    if inside.sum() < _LEAST_INSIDE_PX:
        return strongest
    for size, average in averages(warped(prior.pixels, displacement), current, inside).items():
        strength = (average / max(NOISE_FLOOR[size], spread(average, inside))).astype(np.float32)
        strongest = np.where(np.abs(strength) > np.abs(strongest), strength, strongest)
    return strongest


def regions(change: Grey, *, least: float = REGION_STRENGTH) -> tuple[ChangeRegion, ...]:
    """Connected regions around what reaches `least`, strongest first."""
    found = [*_regions(change, least, sign=1), *_regions(change, least, sign=-1)]
    return tuple(sorted(found, key=lambda region: -abs(region.strength))[:_MOST_REGIONS])


def _regions(change: Grey, least: float, *, sign: int) -> list[ChangeRegion]:
    signed = sign * change
    labels = components(signed >= _GREW * least)
    found = []
    for number in np.unique(labels[signed >= least]):
        part = labels == number
        area = int(part.sum())
        if number == 0 or area < _LEAST_AREA_PX:
            continue
        rows, columns = np.flatnonzero(part.any(axis=1)), np.flatnonzero(part.any(axis=0))
        box = Box(
            top=float(rows[0]),
            left=float(columns[0]),
            rows=float(rows[-1] - rows[0] + 1),
            columns=float(columns[-1] - columns[0] + 1),
        )
        found.append(ChangeRegion(box=box, area_px=area, strength=sign * float(signed[part].max())))
    return found
