"""Drift: whether a run's images differ from the pack's or from earlier images, by the population stability index.

Earlier images are those of the same folder: another hospital's images differ without anything being wrong.

PSI = sum over bins of (p - q) ln(p / q), p and q the shares of images in a bin. For two samples of one population
with n and m images and B bins, its mean is (B - 1)(1/n + 1/m), and its 95th percentile is that of a chi-squared
with B - 1 degrees of freedom times (1/n + 1/m) (Yurdakul and Naranjo, J Risk Model Validation 14 (2020) 89). A small
run differs by chance alone, which the usual fixed limits of 0.1 and 0.25 ignore.

Four quantities are compared: the calibrated scores and the exposure (median grey of the thumbnail, as displayed), in
ten bins each; the number of refused images; and the number of images in which less of the heat map lies inside the
lungs than in 95 of 100 images of the pack. The last one is most specific to the origin of the images: it hardly depends
on how many have the condition.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, cast

import numpy as np

from fieldray.domain.run import DriftSample
from fieldray.reasons import Reason, reason

Quantity = Literal["scores", "refused", "exposure", "evidence"]
Reference = Literal["pack", "earlier"]
Counts = Mapping[Quantity, Sequence[int]]

SCORE_BINS: Final = 10
EXPOSURE_BINS: Final = 10
SMALLEST_RUN: Final = 50  # images from which a run is compared
NOTABLE: Final = 0.1  # below this a difference is too small to matter, however certain it is
# Of children's images under a pack for adults 73 to 80 in 100 are so, of any hospital's adults at most 20, of adults in
# bed with opacities 42. At half of the images the index is so large, and 20 images tell (decision 55).
OTHER_PATIENTS: Final = 1.25
SMALLEST_OF_OTHERS: Final = 20
_BELOW_LIMIT: Final = 0.05  # of the images that a pack's `evidence_inside.limit` was measured on
_Z_95: Final = 1.644854


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """One quantity of a run against a reference.

    of                the quantity compared
    against           the reference: the images that the pack was measured on, or earlier images of the same folder,
                      screened with the same model and settings
    index             population stability index (PSI), 0 or more
    limit             the larger of two: the 95th percentile of PSI by chance, and the smallest notable PSI
    images, reference the numbers of images compared
    is_more           whether the last bin holds a larger share of the run than of the reference
    now, before       for the run and for the reference: the mean score (0..1) or grey level (0..255), by middles of the
                      bins; or how many in 100 were refused, or have little of the heat map inside the lungs
    """

    of: Quantity
    against: Reference
    index: float
    limit: float
    images: int
    reference: int
    is_more: bool
    now: float
    before: float

    @property
    def is_out(self) -> bool:
        """Whether the drift exceeds its limit. More evidence inside the lungs than in the reference does not count."""
        return self.index > self.limit and (self.is_more or self.of != "evidence")

    @property
    def summary(self) -> Reason:
        """The message that images have drifted."""
        is_pack = self.against == "pack"
        digits = 2 if self.of == "scores" else 0
        return reason(
            f"drift_{self.of}",
            reference="the images that the pack was measured on" if is_pack else "earlier images of this folder",
            now=f"{self.now:.{digits}f}",
            before=f"{self.before:.{digits}f}",
            index=f"{self.index:.2f}",
            limit=f"{self.limit:.2f}",
            images=self.images,
            others=self.reference,
        )


def stability(now: Sequence[int], before: Sequence[int], *, of: Quantity, against: Reference = "earlier") -> Drift:
    """PSI of counts by bin.

    Half an image is added to every bin of both, so that an empty one stays finite.

    now, before  counts in the same bins, of the run and of the reference; each with one image or more
    of, against  what was counted, and what it is compared with

    Raises ValueError if the bins differ in number, or either has no image.
    """
    if len(now) != len(before) or not sum(now) or not sum(before):
        raise ValueError("drift needs counts of both, in the same bins")
    p, q = ((np.asarray(counts, np.float64) + 0.5) for counts in (now, before))
    p, q = p / p.sum(), q / q.sum()
    index = float(((p - q) * np.log(p / q)).sum())
    used = int(np.count_nonzero(np.asarray(now) + np.asarray(before)))
    chance = _chi_squared_95(max(used - 1, 1)) * (1 / sum(now) + 1 / sum(before))
    images, reference = sum(now), sum(before)
    levels = {"now": _level(of, now), "before": _level(of, before)}
    limit = max(chance, OTHER_PATIENTS if of == "evidence" else NOTABLE)
    is_more = bool(p[-1] > q[-1])
    return Drift(
        of=of, against=against, index=index, limit=limit, images=images, reference=reference, is_more=is_more, **levels
    )


def _level(of: Quantity, counts: Sequence[int]) -> float:
    """Return the percentage in the last bin (refused, evidence), or the mean of the quantity (scores, exposure)."""
    if of in ("refused", "evidence"):
        return 100 * counts[-1] / sum(counts)
    scale = {"scores": 1, "exposure": 256}[of] / len(counts)
    return float(np.average(scale * (np.arange(len(counts)) + 0.5), weights=counts))


def _chi_squared_95(freedom: int) -> float:
    """95th percentile by Wilson and Hilferty (1931), within 1 % from two degrees of freedom on (one: 2.4 %)."""
    part = 2 / (9 * freedom)
    return float(freedom * (1 - part + _Z_95 * math.sqrt(part)) ** 3)


def score_counts(scores: Sequence[float]) -> tuple[int, ...]:
    """The number of scores (0..1) in each of ten bins of equal width."""
    counts, _ = np.histogram(np.asarray(scores, np.float64), bins=SCORE_BINS, range=(0.0, 1.0))
    return tuple(int(count) for count in counts)


def drift_counts(samples: Iterable[DriftSample], label: str, *, evidence_limit: float | None = None) -> Counts:
    """Count a histogram of each quantity; images read and images refused are a bin each.

    evidence_limit  share of evidence inside the lungs that few of the pack's own images are below
    """
    samples = list(samples)
    inside = [sample.evidence_inside for sample in samples if sample.evidence_inside is not None]
    below = sum(share < evidence_limit for share in inside) if evidence_limit is not None else 0
    grey = Counter(int(sample.grey * EXPOSURE_BINS / 256) for sample in samples if sample.grey is not None)
    refused = sum(sample.category == "refused" for sample in samples)
    return {
        "scores": score_counts([sample.scores[label] for sample in samples if label in sample.scores]),
        "refused": (len(samples) - refused, refused),
        "exposure": tuple(grey[index] for index in range(EXPOSURE_BINS)),
        "evidence": (len(inside) - below, below) if evidence_limit is not None else (),
    }


def reference_counts(metrics: Mapping[str, object], label: str) -> Counts:
    """The counts of the images a pack was measured on, from its metrics. Empty if these have another form."""
    counts: dict[Quantity, Sequence[int]] = {}
    evidence, found = metrics.get("evidence_inside"), cast(object, metrics)
    number = evidence.get("images") if isinstance(evidence, Mapping) else None
    if type(number) is int and number > 0:
        below = round(_BELOW_LIMIT * number)
        counts["evidence"] = (number - below, below)
    for key in ("labels", label, "reference", "scores"):
        found = found.get(key) if isinstance(found, Mapping) else None
    if isinstance(found, list) and len(found) == SCORE_BINS and all(type(n) is int and n >= 0 for n in found):
        counts["scores"] = tuple(found)
    return counts


def compare(now: Counts, before: Counts, *, against: Reference) -> tuple[Drift, ...]:
    """Compare every quantity for which both sides have enough images."""
    return tuple(
        stability(now[of], before[of], of=of, against=against)
        for of in now
        if of in before
        and min(sum(now[of]), sum(before[of])) >= (SMALLEST_OF_OTHERS if of == "evidence" else SMALLEST_RUN)
    )
