"""Which thirds of two lungs are white: what their mask and the grey say, compared with the mirror image.

A network that learnt on whole lungs draws them into white ones as well, but lower, narrower or without deciding. The
weights are those of a logistic regression on lungs painted white: `python -m benchmarks.white_lungs` fits them again
(decision 55).
"""

from __future__ import annotations

import itertools
import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fieldray.domain.mask import Mask

THIRDS: Final = 3
UNDECIDED: Final = (26, 229)  # of 255: from a tenth to nine tenths lung
_DARKER: Final = 25  # percentile of the grey in a third: ribs and vessels of a lung are white as well
_AIR: Final = 10  # percentile of a lung
_LEAST_CONTRAST: Final = 8.0  # between air and what lies around, of 255
_MOST: Final = 3.0  # a fact beyond it says no more

# By fact, in the order of `third_facts`; above 0 in all a third is not seen.
WEIGHTS: Final = (-3.09, -2.8, 13.0, -14.97, 4.5, 8.46, 1.9, -5.41)
OF_THIRD: Final = (-7.08, -4.78, -8.13)  # upper, middle, lower
OF_LEFT: Final = 0.23  # the heart lies there


def third_facts(
    shares: NDArray[np.uint8], is_lung: Mask, grey: NDArray[np.uint8], middle: float
) -> NDArray[np.float64]:
    """(2, 3, 8): of the left and right half as seen, of the upper, middle and lower third, eight facts.

    Of the place that either lung or its mirror image takes: the share that is lung here and there, the share that is
    undecided here and there; of its grey, from air (0) to what lies around the lungs (1): how much whiter it is here,
    and how white. Of the whole lung: area and height against the other's, as logarithms.

    shares   (rows, columns) share of lung of 255
    is_lung  (rows, columns), not empty
    grey     (height, width), 0 is air
    middle   between the lungs, as a column
    """
    cells = grey[np.ix_(*(np.arange(n) * size // n for n, size in zip(is_lung.shape, grey.shape, strict=True)))]
    rows, columns = (np.flatnonzero(is_lung.any(axis=axis)) for axis in (1, 0))
    inside = (slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1))
    beside = cells[inside][~is_lung[inside]]
    around = float(np.median(beside)) if beside.size else 255.0
    lungs, greys = halves(is_lung, middle), halves(cells, middle).astype(np.float64)
    undecided = halves((shares >= UNDECIDED[0]) & (shares <= UNDECIDED[1]), middle)
    airs = [np.percentile(of[lung], _AIR) for of, lung in zip(greys, lungs, strict=True) if lung.any()]
    air = float(min(airs, default=0.0))
    contrast = max(around - air, _LEAST_CONTRAST)
    areas, heights = np.log(lungs.sum(axis=(1, 2)).clip(1)), np.log(lungs.any(axis=2).sum(axis=1).clip(1))
    facts = np.zeros((2, THIRDS, len(WEIGHTS)))
    for third, (place, lateral) in enumerate(thirds(lungs)):
        size = max(1, np.count_nonzero(place))
        lung, doubt = (np.count_nonzero(of & place, axis=(1, 2)) / size for of in (lungs, undecided))
        white = np.percentile(greys[:, lateral], _DARKER, axis=1) if lateral.any() else np.full(2, around)
        white = (white - air) / contrast
        for here, there in ((0, 1), (1, 0)):
            of_grey = white[here] - white[there], white[here]
            whole = areas[here] - areas[there], heights[here] - heights[there]
            facts[here, third] = lung[here], lung[there], doubt[here], doubt[there], *of_grey, *whole
    return facts.clip(-_MOST, _MOST)


def halves(values: NDArray[Any], middle: float) -> NDArray[Any]:
    """(2, rows, width): what lies left and right of the middle, from there outwards, as far as both reach."""
    columns = values.shape[1]
    left = min(max(math.ceil(middle), 1), columns - 1)
    width = min(left, columns - left)
    return np.stack([values[:, :left][:, ::-1][:, :width], values[:, left : left + width]])


def thirds(lungs: Mask) -> list[tuple[Mask, Mask]]:
    """From above, the place that either of two halves takes, and the part of it whose grey counts, (rows, width) each.

    Beside the heart that is the outer half.
    """
    either = lungs.any(axis=0)
    rows, columns = np.flatnonzero(either.any(axis=1)), np.flatnonzero(either.any(axis=0))
    if not len(rows):
        return [(either, either)] * THIRDS
    is_outer = np.arange(either.shape[1]) >= (columns[0] + columns[-1]) / 2
    borders = np.linspace(rows[0], rows[-1] + 1, THIRDS + 1).round().astype(int)
    found = []
    for third, (top, bottom) in enumerate(itertools.pairwise(borders)):
        place = np.zeros_like(either)
        place[top:bottom] = either[top:bottom]
        found.append((place, place & is_outer if third else place))
    return found


def whiteness(facts: NDArray[np.float64], *, is_mirrored: bool) -> tuple[float, float]:
    """Of the patient's left and right lung: how far its whitest third speaks for not being seen, which is above 0."""
    patients = facts if is_mirrored else facts[::-1]
    of_third = (patients @ np.array(WEIGHTS) + np.array(OF_THIRD)).max(axis=1)
    return float(of_third[0]) + OF_LEFT, float(of_third[1])
