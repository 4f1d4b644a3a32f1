"""What a pack is worth: operating points chosen on the validation images, figures measured on the test images.

All shares carry their counts, shares and areas a 95 % interval over patients (`intervals`). Nothing is chosen on the
test images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fieldray.adaptation.layouts import Row
from fieldray.adaptation.recipe import Point
from fieldray.audit.drift import score_counts
from fieldray.domain import intervals, metrics
from fieldray.domain.intervals import Share, share
from fieldray.domain.metrics import Scores, Truth
from fieldray.domain.model import Calibration, Estimate, OperatingPoint

WANTED_SENSITIVITIES: Final = (0.90, 0.95, 0.98, 0.99)
_SMALLEST_GROUP: Final = 10
_AGE_EDGES: Final = (0, 18, 40, 60, 200)


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Evaluated:
    """Images of one part with a known answer: score in 0..1, truth, and their rows."""

    scores: Scores
    truth: Truth
    rows: Sequence[Row]

    @property
    def patients(self) -> list[str]:
        """Who each image is of."""
        return [row.person for row in self.rows]

    @property
    def area(self) -> Estimate:
        """The AUC."""
        return intervals.area(self.scores, self.truth, patients=self.patients)

    def sensitivity(self, threshold: float) -> Share:
        """At a threshold chosen on other images."""
        return intervals.sensitivity(self.scores, self.truth, threshold=threshold, patients=self.patients)

    def specificity(self, threshold: float) -> Share:
        """At a threshold chosen on other images."""
        return intervals.specificity(self.scores, self.truth, threshold=threshold, patients=self.patients)

    def specificity_at(self, wanted: float) -> Share:
        """Where the sensitivity on these images is at least `wanted`."""
        return intervals.specificity_at_sensitivity(self.scores, self.truth, wanted=wanted, patients=self.patients)

    def where(self, keep: NDArray[np.bool_]) -> Evaluated:
        """Those that `keep` marks."""
        rows = [row for row, kept in zip(self.rows, keep, strict=True) if kept]
        return Evaluated(scores=self.scores[keep], truth=self.truth[keep], rows=rows)

    def calibrated(self, calibration: Calibration) -> Evaluated:
        """The same images with calibrated scores."""
        return Evaluated(scores=metrics.calibrated(self.scores, calibration), truth=self.truth, rows=self.rows)


def known(scores: NDArray[np.float64], targets: NDArray[np.float32], rows: Sequence[Row]) -> Evaluated:
    """One label's images (scores and targets (n,)) whose answer is known."""
    keep = ~np.isnan(targets)
    whole = Evaluated(scores=scores, truth=targets >= 0.5, rows=rows)
    return whole.where(keep)


def choose_point(
    point: Point, *, label: str, validation: Evaluated, test: Evaluated, measured_on: Mapping[str, str]
) -> OperatingPoint:
    """An operating point: threshold and band from the validation images, its figures from the test images.

    Parameters
    ----------
    point
        What the recipe asks for.
    label
        The code of the label.
    validation, test
        The two parts, with calibrated scores.
    measured_on
        By language, what the figures were measured on, with {images} and {patients} for their numbers.
    """
    if point.rule == "balance":
        threshold = metrics.threshold_for_balance(validation.scores, validation.truth)
    else:
        threshold = metrics.threshold_for_sensitivity(validation.scores, validation.truth, wanted=point.sensitivity)
    low = metrics.threshold_for_sensitivity(validation.scores, validation.truth, wanted=point.band_catches)
    high = 1 - metrics.threshold_for_sensitivity(1 - validation.scores, ~validation.truth, wanted=point.band_clears)
    return OperatingPoint(
        name=point.name,
        titles=point.titles,
        label=label,
        threshold=threshold,
        unsure_low=min(low, threshold),
        unsure_high=max(high, threshold),
        sensitivity=test.sensitivity(threshold).estimate,
        specificity=test.specificity(threshold).estimate,
        measured_on={
            language: text.replace("{images}", str(len(test.rows))).replace("{patients}", str(len(set(test.patients))))
            for language, text in measured_on.items()
        },
    )


def figures(test: Evaluated, *, points: Sequence[OperatingPoint]) -> dict[str, Any]:
    """Everything measured on one part with calibrated scores, ready for JSON."""
    return {
        "images": len(test.rows),
        "patients": len(set(test.patients)),
        "positive": int(test.truth.sum()),
        "negative": int((~test.truth).sum()),
        "auc": asdict(test.area),
        "specificity_at_sensitivity": {
            f"{wanted:.2f}": asdict(test.specificity_at(wanted)) for wanted in WANTED_SENSITIVITIES
        },
        "calibration_error": metrics.calibration_error(test.scores, test.truth),
        "score_counts": list(score_counts(test.scores.tolist())),
        "points": {point.name: point_figures(test, point) for point in points},
    }


def point_figures(test: Evaluated, point: OperatingPoint) -> dict[str, Any]:
    """Sensitivity, specificity and accuracy at the threshold, and what the not-sure band changes.

    sensitivity_with_band counts "not sure" as caught, since a person looks at it; decided_* are over the images
    outside the band.
    """
    threshold, low, high = point.threshold, point.unsure_low, point.unsure_high
    unsure = (test.scores >= low) & (test.scores < high)
    right = (test.scores >= threshold) == test.truth
    return {
        "threshold": threshold,
        "unsure_low": low,
        "unsure_high": high,
        "sensitivity": asdict(test.sensitivity(threshold)),
        "specificity": asdict(test.specificity(threshold)),
        "accuracy": asdict(share(right, patients=test.patients)),
        "sensitivity_with_band": asdict(test.sensitivity(low)),
        "specificity_with_band": asdict(test.specificity(high)),
        "unsure_share": asdict(share(unsure, patients=test.patients)),
        "decided_accuracy": asdict(share(right[~unsure], patients=test.where(~unsure).patients))
        if not unsure.all()
        else None,
    }


def by_group(test: Evaluated) -> dict[str, dict[str, Any]]:
    """AUC by view, sex, age and source, where a group has ten images of each class."""
    groups: Mapping[str, list[str]] = {
        "view": [row.view for row in test.rows],
        "sex": [row.sex for row in test.rows],
        "age": [_age_group(row.age_years) for row in test.rows],
        "source": [row.source for row in test.rows],
    }
    found: dict[str, dict[str, Any]] = {}
    for name, values in groups.items():
        for value in sorted(set(values) - {""}):
            part = test.where(np.array([own == value for own in values]))
            if min(part.truth.sum(), (~part.truth).sum()) >= _SMALLEST_GROUP:
                facts = {"images": len(part.rows), "positive": int(part.truth.sum()), "auc": asdict(part.area)}
                found.setdefault(name, {})[value] = facts
    return found


def compare(whole: Evaluated, integer: Evaluated) -> dict[str, float]:
    """Float against int8 on the same images, raw scores."""
    return {
        "mean_absolute_difference": float(np.abs(whole.scores - integer.scores).mean()),
        "largest_difference": float(np.abs(whole.scores - integer.scores).max()),
        "auc_float": metrics.auc(whole.scores, whole.truth),
        "auc_int8": metrics.auc(integer.scores, integer.truth),
    }


def auc_difference(scores: Scores, truth: Truth, *, patients: list[str]) -> dict[str, float]:
    """The AUC of the second column of scores (images, 2) less the first's: value, and an interval over patients."""
    return dict(zip(("value", "low", "high"), intervals.area_difference(scores, truth, patients=patients), strict=True))


def _age_group(years: float | None) -> str:
    if years is None:
        return ""
    low = max(edge for edge in _AGE_EDGES if edge <= years)
    high = min(edge for edge in _AGE_EDGES if edge > years)
    return f"{low}+" if high == _AGE_EDGES[-1] else f"{low}-{high - 1}"
