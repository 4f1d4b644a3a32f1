"""Whether a run looks like the images a pack was measured on, or like earlier runs: population stability index.

PSI = sum over bins of (p - q) ln(p / q), p and q the shares of images in a bin. Of two samples of the same population
with n and m images and B bins it is, in the mean, (B - 1)(1/n + 1/m), and its 95th percentile is that of a chi-squared
with B - 1 degrees of freedom times (1/n + 1/m) (Yurdakul and Naranjo, J Risk Model Validation 14 (2020) 89): a small
run differs by chance alone, which the usual fixed marks of 0.1 and 0.25 leave out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

SCORE_BINS: Final = 10
NOTABLE: Final = 0.1  # below this a difference is too small to matter, however certain it is
_Z_95: Final = 1.644854


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """One quantity of a run against a reference.

    of                what was compared, as "scores"
    index             PSI, 0 or more
    limit             what chance alone stays below in 95 of 100, or `NOTABLE` if that is more
    images, reference the numbers of images compared
    """

    of: str
    index: float
    limit: float
    images: int
    reference: int

    @property
    def is_out(self) -> bool:
        """Whether the run has left its band."""
        return self.index > self.limit


def stability(now: Sequence[int], before: Sequence[int], *, of: str) -> Drift:
    """PSI of counts by bin.

    Half an image is added to every bin of both, so that an empty one stays finite.

    Parameters
    ----------
    now, before
        Counts in the same bins, of the run and of the reference; each with one image or more.
    of
        What was counted.

    Raises
    ------
    ValueError
        If the bins differ in number, or either has no image.
    """
    if len(now) != len(before) or not sum(now) or not sum(before):
        raise ValueError("drift needs counts of both, in the same bins")
    p, q = ((np.asarray(counts, np.float64) + 0.5) for counts in (now, before))
    p, q = p / p.sum(), q / q.sum()
    index = float(((p - q) * np.log(p / q)).sum())
    used = int(np.count_nonzero(np.asarray(now) + np.asarray(before)))
    chance = _chi_squared_95(max(used - 1, 1)) * (1 / sum(now) + 1 / sum(before))
    return Drift(of=of, index=index, limit=max(chance, NOTABLE), images=sum(now), reference=sum(before))


def _chi_squared_95(freedom: int) -> float:
    """95th percentile by Wilson and Hilferty (1931), within 1 % from two degrees of freedom on (one: 2.4 %)."""
    part = 2 / (9 * freedom)
    return float(freedom * (1 - part + _Z_95 * math.sqrt(part)) ** 3)


def score_counts(scores: Sequence[float]) -> tuple[int, ...]:
    """How many scores (0..1) lie in each of ten bins of equal width."""
    counts, _ = np.histogram(np.asarray(scores, np.float64), bins=SCORE_BINS, range=(0.0, 1.0))
    return tuple(int(count) for count in counts)


def compare(now: Mapping[str, Sequence[int]], before: Mapping[str, Sequence[int]]) -> tuple[Drift, ...]:
    """Every quantity that both have counts of."""
    return tuple(
        stability(now[of], before[of], of=of)
        for of in now
        if of in before and any(now[of]) and any(before[of]) and len(now[of]) == len(before[of])
    )
