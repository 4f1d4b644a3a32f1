"""Drift: whether a run's images differ from a reference, measured by the population stability index (PSI).

The reference is the set of images that the pack was measured on, or earlier images of the same folder. Images of other
folders are no reference: another hospital's images differ without anything being wrong.

PSI = sum over bins of (p - q) ln(p / q), p and q the shares of images in a bin. The images of a small run differ from
the reference by chance alone, but the usual fixed limits of 0.1 and 0.25 ignore chance. So the limit depends on the
numbers of images. For two samples of one population, with n and m images in B bins, PSI / (1/n + 1/m) is distributed as
chi-squared with B - 1 degrees of freedom (Yurdakul and Naranjo, J Risk Model Validation 14 (2020) 89).

Four quantities are compared:

scores    the calibrated scores, in ten bins
exposure  the median grey of the thumbnail, as displayed, in ten bins
refused   the number of images that were not suitable
evidence  the number of images whose share of the heat map inside the lungs is below a limit. In 95 of 100 images that
          the pack was measured on, the share reaches the limit. This quantity shows best that images come from
          another source, because the number hardly depends on how many patients have the condition
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

DriftQuantity = Literal["scores", "refused", "exposure", "evidence"]
DriftReferenceKind = Literal["pack", "earlier"]
DriftHistograms = Mapping[DriftQuantity, Sequence[int]]

SCORE_BIN_COUNT: Final = 10
EXPOSURE_BIN_COUNT: Final = 10
MIN_DRIFT_IMAGES: Final = 50  # minimum number of images, of a run and of its reference
MIN_NOTABLE_DRIFT: Final = 0.1  # below this a difference is too small to matter, however certain it is
# Limit for evidence inside the lungs (decision 55). Share of images below the pack's evidence limit: 73 to 80 % for
# children's images under a pack for adults, at most 20 % for adults of any hospital, 42 % for adults in bed with
# opacities. A share of one half gives this index, and 20 images are enough to detect it.
EVIDENCE_DRIFT_LIMIT: Final = 1.25
MIN_EVIDENCE_DRIFT_IMAGES: Final = 20
_BELOW_LIMIT: Final = 0.05  # share of the pack's own images below its `evidence_inside.limit`, by definition
_Z_95: Final = 1.644854


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """The drift of one quantity of a run against a reference.

    quantity                    the quantity compared
    reference_kind              the reference: the images that the pack was measured on, or earlier images of the same
                                folder, screened with the same model and settings
    index                       population stability index (PSI), 0 or more
    limit                       the PSI above which the drift counts. In at least 95 of 100 runs without a drift, PSI is
                                lower. The limit is never below the smallest notable PSI
    image_count, reference_image_count
                                number of images of the run, and of the reference
    is_last_bin_larger          whether the last bin contains a larger share of the run's images than of the reference's
                                images
    run_value, reference_value  a value of the run, and a value of the reference, for a person to compare. Scores (0..1)
                                and exposure (0..255): the mean, taken from the middles of the bins. Refused and
                                evidence: the percentage of images in the last bin
    """

    quantity: DriftQuantity
    reference_kind: DriftReferenceKind
    index: float
    limit: float
    image_count: int
    reference_image_count: int
    is_last_bin_larger: bool
    run_value: float
    reference_value: float

    @property
    def exceeds_limit(self) -> bool:
        """Whether the drift exceeds its limit, so that a person must see a warning.

        A drift of "evidence" counts only if the heat maps lie less inside the lungs than those of the reference images.
        """
        return self.index > self.limit and (self.is_last_bin_larger or self.quantity != "evidence")

    @property
    def summary(self) -> Reason:
        """A message for a person: how far the images of the run differ from the reference."""
        is_pack = self.reference_kind == "pack"
        digits = 2 if self.quantity == "scores" else 0
        return reason(
            f"drift_{self.quantity}",
            reference="the images that the pack was measured on" if is_pack else "earlier images of this folder",
            now=f"{self.run_value:.{digits}f}",
            before=f"{self.reference_value:.{digits}f}",
            index=f"{self.index:.2f}",
            limit=f"{self.limit:.2f}",
            images=self.image_count,
            others=self.reference_image_count,
        )


def measure_drift(
    run_counts: Sequence[int],
    reference_counts: Sequence[int],
    *,
    quantity: DriftQuantity,
    reference_kind: DriftReferenceKind = "earlier",
) -> Drift:
    """Compute the population stability index of two histograms with the same bins.

    Half an image is added to every bin of both histograms, so that an empty bin does not make the index infinite.

    run_counts, reference_counts  number of images in each bin, of the run and of the reference; at least one image each
    quantity, reference_kind      the quantity that was counted, and the reference

    Raises ValueError if the histograms have different numbers of bins, or if one of the histograms is empty.
    """
    if len(run_counts) != len(reference_counts) or not sum(run_counts) or not sum(reference_counts):
        raise ValueError("drift needs counts of both, in the same bins")
    p, q = ((np.asarray(counts, np.float64) + 0.5) for counts in (run_counts, reference_counts))
    p, q = p / p.sum(), q / q.sum()
    index = float(((p - q) * np.log(p / q)).sum())
    used = int(np.count_nonzero(np.asarray(run_counts) + np.asarray(reference_counts)))
    chance = _chi_squared_95(max(used - 1, 1)) * (1 / sum(run_counts) + 1 / sum(reference_counts))
    images, reference = sum(run_counts), sum(reference_counts)
    levels = {"run_value": _level(quantity, run_counts), "reference_value": _level(quantity, reference_counts)}
    limit = max(chance, EVIDENCE_DRIFT_LIMIT if quantity == "evidence" else MIN_NOTABLE_DRIFT)
    is_more = bool(p[-1] > q[-1])
    return Drift(
        quantity=quantity,
        reference_kind=reference_kind,
        index=index,
        limit=limit,
        image_count=images,
        reference_image_count=reference,
        is_last_bin_larger=is_more,
        **levels,
    )


def _level(of: DriftQuantity, counts: Sequence[int]) -> float:
    """Return one value that describes a histogram, for messages.

    The value for "refused" and "evidence" is the percentage in the last bin. The value for "scores" (0..1) and
    "exposure" (0..255) is the mean.
    """
    if of in ("refused", "evidence"):
        return 100 * counts[-1] / sum(counts)
    scale = {"scores": 1, "exposure": 256}[of] / len(counts)
    return float(np.average(scale * (np.arange(len(counts)) + 0.5), weights=counts))


def _chi_squared_95(freedom: int) -> float:
    """Return the 95th percentile of a chi-squared distribution with `freedom` degrees of freedom.

    The value is Wilson and Hilferty's approximation (1931). The error is 2.4 % for one degree of freedom, and at most
    1 % for two or more.
    """
    part = 2 / (9 * freedom)
    return float(freedom * (1 - part + _Z_95 * math.sqrt(part)) ** 3)


def score_histogram(scores: Sequence[float]) -> tuple[int, ...]:
    """Return the number of scores (0..1) in each of ten bins of equal width."""
    counts, _ = np.histogram(np.asarray(scores, np.float64), bins=SCORE_BIN_COUNT, range=(0.0, 1.0))
    return tuple(int(count) for count in counts)


def drift_histograms(
    samples: Iterable[DriftSample], label: str, *, evidence_limit: float | None = None
) -> DriftHistograms:
    """Return one histogram of a run's images for each quantity whose drift is measured.

    The histogram "refused" has two bins: suitable images, and images that were not suitable. The histogram "evidence"
    has two bins: images at or above `evidence_limit`, and images below `evidence_limit`.

    label           the label whose scores are counted
    evidence_limit  share of the heat map inside the lungs, 0..1. In 95 of 100 images that the pack was measured on, the
                    share reaches this limit. None leaves the histogram "evidence" empty
    """
    samples = list(samples)
    inside = [sample.evidence_inside for sample in samples if sample.evidence_inside is not None]
    below = sum(share < evidence_limit for share in inside) if evidence_limit is not None else 0
    grey = Counter(int(one.median_grey * EXPOSURE_BIN_COUNT / 256) for one in samples if one.median_grey is not None)
    refused = sum(sample.category == "refused" for sample in samples)
    return {
        "scores": score_histogram([sample.scores[label] for sample in samples if label in sample.scores]),
        "refused": (len(samples) - refused, refused),
        "exposure": tuple(grey[index] for index in range(EXPOSURE_BIN_COUNT)),
        "evidence": (len(inside) - below, below) if evidence_limit is not None else (),
    }


def reference_histograms(metrics: Mapping[str, object], label: str) -> DriftHistograms:
    """Return the histograms of the images that a pack was measured on, from the pack's `metrics`.

    A quantity is left out if `metrics` does not contain it in the expected form.
    """
    counts: dict[DriftQuantity, Sequence[int]] = {}
    evidence, found = metrics.get("evidence_inside"), cast(object, metrics)
    number = evidence.get("images") if isinstance(evidence, Mapping) else None
    if type(number) is int and number > 0:
        below = round(_BELOW_LIMIT * number)
        counts["evidence"] = (number - below, below)
    for key in ("labels", label, "reference", "scores"):
        found = found.get(key) if isinstance(found, Mapping) else None
    if isinstance(found, list) and len(found) == SCORE_BIN_COUNT and all(type(n) is int and n >= 0 for n in found):
        counts["scores"] = tuple(found)
    return counts


def compare_histograms(
    run_histograms: DriftHistograms, reference: DriftHistograms, *, reference_kind: DriftReferenceKind
) -> tuple[Drift, ...]:
    """Return the drift of each quantity between a run and a reference.

    run_histograms, reference  histograms of the run and of the reference, by quantity
    reference_kind             the kind of reference

    A quantity with too few images in the run or in the reference is left out.
    """
    return tuple(
        measure_drift(run_histograms[of], reference[of], quantity=of, reference_kind=reference_kind)
        for of in run_histograms
        if of in reference
        and min(sum(run_histograms[of]), sum(reference[of]))
        >= (MIN_EVIDENCE_DRIFT_IMAGES if of == "evidence" else MIN_DRIFT_IMAGES)
    )
