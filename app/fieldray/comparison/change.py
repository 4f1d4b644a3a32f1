"""What differs between the current image and the aligned prior, beyond what differs between any two X-rays.

Both are normalised inside the lungs (mean and deviation), subtracted, and averaged at the sizes of opacities, each
average less that of its wider surroundings: so the local mean falls away. Noise is what such averages are like where
nothing has changed. How much of it a pair has, its own spread tells (median absolute deviation, which a change in a
part of the lungs does not move), and it is never taken to be less than that of an image and its own warped copy. How
many times the noise makes a region is from pairs of one patient whose findings did not change: at most one region in
each of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fieldray.comparison.features import Grey, blurred
from fieldray.comparison.mesh import Displacement, warped
from fieldray.domain.comparison import CHANGE_SHOWN, ChangeRegion, FramedImage
from fieldray.domain.image import Box
from fieldray.domain.mask import Mask, components

# Standard deviations in pixels of the frame of what is averaged and of its surroundings, and the least noise of that
# average in units of the lungs' deviation: several times the 0.004 that warping alone leaves in copies of images of the
# choosing part, as `python -m benchmarks comparison DATA --part choose` prints it.
BANDS: Final[Mapping[tuple[float, float], float]] = {(8.0, 20.0): 0.02, (14.0, 35.0): 0.02, (22.0, 55.0): 0.02}
# A region begins where the difference is so many times the noise: at 4.5 there were 1.1 regions per stable pair of the
# choosing part (15 pairs), at 5 there are 0.8.
REGION_STRENGTH: Final = 5.0
_LEAST_AREA_PX: Final = 60
_MOST_REGIONS: Final = 20
_ERODED_PX: Final = 4.0
_STAYS: Final = 0.85
_GAUSSIAN: Final = 1.4826  # standard deviations in a median absolute deviation
_LEAST_INSIDE_PX: Final = 2000
_LEAST_DEVIATION: Final = 1.0  # grey levels


def compared_area(prior: FramedImage, current: FramedImage, displacement: Displacement) -> Mask:
    """Inside the lungs of both, away from their edges, where a pixel of misalignment looks like a change."""
    moved = warped(prior.lungs.astype(np.float32), displacement) > 0.5
    both = (moved & current.lungs).astype(np.float32)
    return np.asarray(blurred(both, _ERODED_PX) > _STAYS) & current.lungs & moved


def averages(
    warped_prior: NDArray[np.float32], current: FramedImage, inside: Mask
) -> Mapping[tuple[float, float], Grey]:
    """The difference of the normalised images, averaged at each size of `BANDS`; 0 outside."""
    difference = (_normalised(current.pixels, inside) - _normalised(warped_prior, inside)) * inside
    weights = inside.astype(np.float32)
    found = {}
    for fine, coarse in BANDS:
        near = blurred(difference, fine) / blurred(weights, fine).clip(0.05, None)
        far = blurred(difference, coarse) / blurred(weights, coarse).clip(0.05, None)
        found[fine, coarse] = np.where(inside, near - far, np.float32(0)).astype(np.float32)
    return found


def _normalised(image: NDArray[Any], inside: Mask) -> Grey:
    """Less its mean, over its deviation, of the lungs alone."""
    grey = image.astype(np.float32)
    values = grey[inside]
    normal: Grey = (grey - values.mean()) / max(float(values.std()), _LEAST_DEVIATION)
    return normal


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
    for band, average in averages(warped(prior.pixels, displacement), current, inside).items():
        strength = (average / max(BANDS[band], spread(average, inside))).astype(np.float32)
        strongest = np.where(np.abs(strength) > np.abs(strongest), strength, strongest)
    return strongest


def regions(change: Grey, *, least: float = REGION_STRENGTH) -> tuple[ChangeRegion, ...]:
    """Connected regions around what reaches `least`, strongest first."""
    found = [*_regions(change, least, sign=1), *_regions(change, least, sign=-1)]
    return tuple(sorted(found, key=lambda region: -abs(region.strength))[:_MOST_REGIONS])


def _regions(change: Grey, least: float, *, sign: int) -> list[ChangeRegion]:
    signed = sign * change
    labels = components(signed >= CHANGE_SHOWN)
    found = list[ChangeRegion]()
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
