"""Two framed images compared from end to end: alignment, whether it may be believed, and the change.

It may be believed of two X-rays of one patient, none of them mirrored or inverted; the thresholds are from the choosing
part of the pairs alone (`benchmarks/comparison_pairs.py`). The change is what differs between the current image and the
aligned prior beyond what differs between any two X-rays.

Both are normalised inside the lungs (mean and deviation), subtracted, and averaged at the sizes of opacities, each
average less that of its wider surroundings: so the local mean falls away. Noise is what such averages are like where
nothing has changed. How much of it a pair has, its own spread tells (median absolute deviation, which a change in a
part of the lungs does not move), and it is never taken to be less than that of an image and its own warped copy. How
many times the noise makes a region is from pairs of one patient whose findings did not change: at most one region in
each of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fieldray.comparison.align import Overlay, align
from fieldray.comparison.matching import Displacement, Grey, blurred, warped
from fieldray.domain.comparison import (
    CHANGE_SHOWN,
    Aligned,
    Alignment,
    ChangeRegion,
    FramedImage,
    Incomparable,
    PairComparison,
)
from fieldray.domain.image import Box
from fieldray.domain.mask import Mask, components
from fieldray.processes.rpc import Call, served
from fieldray.reasons import Reason, reason

_LEAST_LUNGS: Final = 0.04  # of the frame


def compare(prior: FramedImage, current: FramedImage) -> PairComparison:
    """Compare two images, in their frames and with their lungs."""
    for name, image in (("prior", prior), ("current", current)):
        if image.lungs.mean() < _LEAST_LUNGS:
            problem = Incomparable(reason=reason("compare_cut"), image="prior" if name == "prior" else "current")
            return PairComparison(prior=prior, current=current, problem=problem)
    alignment, overlay = align(prior, current)
    figure = reliability(alignment, overlay, current.lungs)
    why = doubt(alignment, overlay, current.lungs)
    if why is not None:
        problem = Incomparable(reason=why)
        return PairComparison(prior=prior, current=current, problem=problem, tried=alignment, reliability=figure)
    moved = warped(prior.pixels, alignment.displacement)
    change = find_change(prior, current, alignment.displacement)
    aligned = Aligned(
        alignment=alignment,
        warped_prior=np.rint(moved).astype(np.uint8),
        change=change,
        regions=regions(change),
    )
    return PairComparison(prior=prior, current=current, aligned=aligned, reliability=figure)


_LEAST_IN_LUNGS: Final = 12
# Weights of the figure (logistic regression on 80 pairs of one patient and 80 of two, of the choosing part), and what
# it must reach: 93 % of those of two patients stay below.
_SIMILAR, _KEPT, _AFTER = 1.0, 0.67, 0.1
LEAST_RELIABILITY: Final = 0.80
_MIRRORED_BY: Final = 0.03
_INVERTED_BY: Final = 0.03


def reliability(alignment: Alignment, overlay: Overlay, lungs: Mask) -> float:
    """How much speaks for one patient seen twice, about 0..1.8.

    Likeness of the images laid over each other as a whole, matches in the lungs that were kept, likeness at the end.
    """
    return _SIMILAR * overlay.similarity + _KEPT * kept_share(alignment, lungs) + _AFTER * alignment.similarity_after


def kept_share(alignment: Alignment, lungs: Mask) -> float:
    """Share of the matches in the lungs that were kept, 0..1."""
    inside = [match.is_kept for match in alignment.matches if lungs[round(match.row), round(match.column)]]
    return float(np.mean(inside)) if len(inside) >= _LEAST_IN_LUNGS else 0.0


def doubt(alignment: Alignment, overlay: Overlay, lungs: Mask) -> Reason | None:
    """Why the pair is not comparable, None where it is."""
    if overlay.mirrored_similarity > overlay.similarity + _MIRRORED_BY:
        return reason("compare_mirrored")
    if overlay.inverted_similarity > overlay.similarity + _INVERTED_BY:
        return reason("compare_inverted")
    if kept_share(alignment, lungs) == 0:
        return reason("compare_no_matches")
    if not reliability(alignment, overlay, lungs) >= LEAST_RELIABILITY:
        return reason("compare_unlike")
    return None


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


SERVICE: Final = "fieldray.comparison.compare:handle"


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Pair:
    """The images to compare."""

    prior: FramedImage
    current: FramedImage


COMPARE: Final = Call("compare", Pair, PairComparison)
handle: Final = served((COMPARE, lambda pair: compare(pair.prior, pair.current)))
