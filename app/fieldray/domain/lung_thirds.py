"""Measurements of the upper, middle and lower third of each lung, and the weights that decide which thirds are white.

Lung mask and grey level of each third are compared with the third on the opposite side. A lung-field network finds
a white lung, too. But the mask of a white lung has less height or width, or shares near one half. The weights come from
logistic regression on lungs painted white. `python -m benchmarks.white_lungs` fits the weights again
(docs/decisions/0055).
"""

from __future__ import annotations

import itertools
import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fieldray.domain.mask import Mask

THIRDS_PER_LUNG: Final = 3
UNDECIDED_LUNG_SHARE_RANGE: Final = (26, 229)  # of 255: from a tenth to nine tenths lung
_DARKER: Final = 25  # percentile that stands for the grey of a third, below the white of ribs and vessels
_AIR: Final = 10  # percentile of a lung's grey that stands for air
_MIN_CONTRAST: Final = 8.0  # between air and the tissue around the lungs, of 255
_MAX_FACT: Final = 3.0  # limit of a fact's absolute value
# Positions of two facts: how white a third is, and how much whiter it is than the same third of the other lung.
WHITENESS_FEATURE_INDICES: Final = (5, 4)

# Weight of each fact, in the order of `features_of_thirds`. A third with a weighted sum above 0 counts as not seen.
FEATURE_WEIGHTS: Final = (-3.09, -2.8, 13.0, -14.97, 4.5, 8.46, 1.9, -5.41)
THIRD_INTERCEPTS: Final = (-7.08, -4.78, -8.13)  # upper, middle, lower
LEFT_LUNG_INTERCEPT: Final = 0.23  # for the left lung, next to the heart


def features_of_thirds(
    shares: NDArray[np.uint8], is_lung: Mask, grey: NDArray[np.uint8], middle_column: float
) -> NDArray[np.float64]:
    """Return eight facts about each third of both lungs: (2, 3, 8) for half, third and fact.

    The halves are left and right as seen; the thirds are upper, middle and lower. A third covers the cells that are
    lung in its half or, mirrored, in the opposite half.

    facts  content
    1, 2   share of the third's cells that are lung, in this half and in the opposite half
    3, 4   share of the third's undecided cells (`UNDECIDED_LUNG_SHARE_RANGE`: neither clearly lung nor clearly not), in
           this half and in the opposite half
    5      whiteness of the third minus whiteness of the third in the opposite half
    6      whiteness of the third: air is 0, tissue around the lungs is 1
    7, 8   area and height of the whole lung relative to the other lung, as logarithms

    shares         (rows, columns) share of lung in each cell, 0..255
    is_lung        (rows, columns) whether each cell is lung; not empty
    grey           (height, width) grey levels of the network's input, 0 is air
    middle_column  column between the lungs, counted in cells
    """
    cells = grey[np.ix_(*(np.arange(n) * size // n for n, size in zip(is_lung.shape, grey.shape, strict=True)))]
    rows, columns = (np.flatnonzero(is_lung.any(axis=axis)) for axis in (1, 0))
    inside = (slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1))
    without_lung = cells[inside][~is_lung[inside]]
    around = float(np.median(without_lung)) if without_lung.size else 255.0
    lungs, greys = split_into_halves(is_lung, middle_column), split_into_halves(cells, middle_column)
    undecided = split_into_halves(
        (shares >= UNDECIDED_LUNG_SHARE_RANGE[0]) & (shares <= UNDECIDED_LUNG_SHARE_RANGE[1]), middle_column
    )
    airs = [_percentile(of[lung], _AIR) for of, lung in zip(greys, lungs, strict=True) if lung.any()]
    air = float(min(airs, default=0.0))
    contrast = max(around - air, _MIN_CONTRAST)
    areas, heights = np.log(lungs.sum(axis=(1, 2)).clip(1)), np.log(lungs.any(axis=2).sum(axis=1).clip(1))
    facts = np.zeros((2, THIRDS_PER_LUNG, len(FEATURE_WEIGHTS)))
    for third, (area, lateral) in enumerate(split_into_thirds(lungs)):
        size = max(1, np.count_nonzero(area))
        lung, doubt = (np.count_nonzero(of & area, axis=(1, 2)) / size for of in (lungs, undecided))
        whites = [_percentile(of[lateral], _DARKER) if lateral.any() else around for of in greys]
        white = (np.array(whites) - air) / contrast
        for here, there in ((0, 1), (1, 0)):
            of_grey = white[here] - white[there], white[here]
            whole = areas[here] - areas[there], heights[here] - heights[there]
            facts[here, third] = lung[here], lung[there], doubt[here], doubt[there], *of_grey, *whole
    return facts.clip(-_MAX_FACT, _MAX_FACT)


def _percentile(levels: NDArray[np.uint8], percent: float) -> float:
    """Return the result of `numpy.percentile` for grey levels (n,) uint8, exactly but faster, by counting levels."""
    ends = np.bincount(levels, minlength=256).cumsum()
    position = (len(levels) - 1) * (percent / 100)
    below = int(position)
    low, high = (int(at) for at in np.searchsorted(ends, (below, min(below + 1, len(levels) - 1)), side="right"))
    share = position - below
    return high - (high - low) * (1 - share) if share >= 0.5 else low + (high - low) * share


def split_into_halves(values: NDArray[Any], middle_column: float) -> NDArray[Any]:
    """Return the left and the right half of an array (rows, columns) as one array (2, rows, width) of equal widths.

    In both halves, column 0 is next to the middle.

    middle_column  the position of the middle, in columns
    """
    columns = values.shape[1]
    left = min(max(math.ceil(middle_column), 1), columns - 1)
    width = min(left, columns - left)
    return np.stack([values[:, :left][:, ::-1][:, :width], values[:, left : left + width]])


def split_into_thirds(lungs: Mask) -> list[tuple[Mask, Mask]]:
    """Return the upper, middle and lower third of the lungs. Each third is two masks (rows, width), for both halves.

    The first mask contains the cells of the third that are lung in either half. The second mask contains the cells
    from which the grey level is measured: all cells of the upper third, but only the outer half of the middle and the
    lower third, because the heart covers the inner half.

    lungs  (2, rows, width) mask of the lungs, as `split_into_halves` returns it
    """
    either: Mask = np.any(lungs, axis=0)
    rows, columns = np.flatnonzero(either.any(axis=1)), np.flatnonzero(either.any(axis=0))
    if not len(rows):
        return [(either, either)] * THIRDS_PER_LUNG
    is_outer = np.arange(either.shape[1]) >= (columns[0] + columns[-1]) / 2
    borders = np.linspace(rows[0], rows[-1] + 1, THIRDS_PER_LUNG + 1).round().astype(int)
    found = []
    for third, (top, bottom) in enumerate(itertools.pairwise(borders)):
        area = np.zeros_like(either)
        area[top:bottom] = either[top:bottom]
        found.append((area, area & is_outer if third else area))
    return found


def whiteness_of_lungs(features: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the weighted sum of the features (2, 3) for the thirds of the patient's left and right lung.

    A third with a sum above 0 is white, and counts as not seen.

    features  (2, 3, 8) of both lungs, as `features_of_thirds` returns them
    """
    of_thirds = features @ np.array(FEATURE_WEIGHTS) + np.array(THIRD_INTERCEPTS)
    of_thirds[0] += LEFT_LUNG_INTERCEPT
    return np.asarray(of_thirds)
