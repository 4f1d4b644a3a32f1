"""Whether a run looks like the images a pack was measured on, or like earlier runs: population stability index.

PSI = sum over bins of (p - q) ln(p / q), p and q the shares of images in a bin. Of two samples of the same population
with n and m images and B bins it is, in the mean, (B - 1)(1/n + 1/m), and its 95th percentile is that of a chi-squared
with B - 1 degrees of freedom times (1/n + 1/m) (Yurdakul and Naranjo, J Risk Model Validation 14 (2020) 89): a small
run differs by chance alone, which the usual fixed marks of 0.1 and 0.25 leave out.

Three things are compared: the calibrated scores and the exposure (median grey of the small picture, as displayed), in
ten bins each, and how many images were refused.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from fieldray.domain.run import ImageGist
from fieldray.reasons import Reason, reason

Quantity = Literal["scores", "refused", "exposure"]
Reference = Literal["pack", "earlier"]
Counts = Mapping[Quantity, Sequence[int]]

SCORE_BINS: Final = 10
EXPOSURE_BINS: Final = 10
SMALLEST_RUN: Final = 50  # images from which a run is compared
NOTABLE: Final = 0.1  # below this a difference is too small to matter, however certain it is
_Z_95: Final = 1.644854


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """One quantity of a run against a reference.

    of                what was compared
    against           the images that the pack was measured on, or earlier runs with the same model and settings
    index             PSI, 0 or more
    limit             what chance alone stays below in 95 of 100, or `NOTABLE` if that is more
    images, reference the numbers of images compared
    """

    of: Quantity
    against: Reference
    index: float
    limit: float
    images: int
    reference: int

    @property
    def is_out(self) -> bool:
        """Whether the run has left its band."""
        return self.index > self.limit

    @property
    def told(self) -> Reason:
        """That it has, in a sentence."""
        return reason(
            f"drift_{self.of}",
            reference="the images that the pack was measured on" if self.against == "pack" else "earlier runs",
            index=f"{self.index:.2f}",
            limit=f"{self.limit:.2f}",
            images=self.images,
            others=self.reference,
        )


def stability(now: Sequence[int], before: Sequence[int], *, of: Quantity, against: Reference = "earlier") -> Drift:
    """PSI of counts by bin.

    Half an image is added to every bin of both, so that an empty one stays finite.

    Parameters
    ----------
    now, before
        Counts in the same bins, of the run and of the reference; each with one image or more.
    of, against
        What was counted, and what it is compared with.

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
    images, reference = sum(now), sum(before)
    return Drift(of=of, against=against, index=index, limit=max(chance, NOTABLE), images=images, reference=reference)


def _chi_squared_95(freedom: int) -> float:
    """95th percentile by Wilson and Hilferty (1931), within 1 % from two degrees of freedom on (one: 2.4 %)."""
    part = 2 / (9 * freedom)
    return float(freedom * (1 - part + _Z_95 * math.sqrt(part)) ** 3)


def score_counts(scores: Sequence[float]) -> tuple[int, ...]:
    """How many scores (0..1) lie in each of ten bins of equal width."""
    counts, _ = np.histogram(np.asarray(scores, np.float64), bins=SCORE_BINS, range=(0.0, 1.0))
    return tuple(int(count) for count in counts)


def gist_counts(gists: Iterable[ImageGist], label: str) -> Counts:
    """How often each quantity fell into each of its bins; a bin each for images read and for images refused."""
    gists = list(gists)
    grey = Counter(int(gist.grey * EXPOSURE_BINS / 256) for gist in gists if gist.grey is not None)
    refused = sum(gist.category == "refused" for gist in gists)
    return {
        "scores": score_counts([gist.scores[label] for gist in gists if label in gist.scores]),
        "refused": (len(gists) - refused, refused),
        "exposure": tuple(grey[place] for place in range(EXPOSURE_BINS)),
    }


def reference_counts(metrics: Mapping[str, object], label: str) -> Counts:
    """The counts that a pack's metrics hold of the images it was measured on; none where they hold something else."""
    found: object = metrics
    for key in ("labels", label, "reference", "scores"):
        found = found.get(key) if isinstance(found, Mapping) else None
    if isinstance(found, list) and len(found) == SCORE_BINS and all(type(n) is int and n >= 0 for n in found):
        return {"scores": tuple(found)}
    return {}


def compare(now: Counts, before: Counts, *, against: Reference) -> tuple[Drift, ...]:
    """Every quantity of which both have enough images."""
    return tuple(
        stability(now[of], before[of], of=of, against=against)
        for of in now
        if of in before and min(sum(now[of]), sum(before[of])) >= SMALLEST_RUN
    )
