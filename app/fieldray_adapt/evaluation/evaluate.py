"""The evaluation of a pack: operating points chosen on the validation images, figures measured on the test images.

An operating point is chosen by the network's scores. Figures are measured on the program's screening results
(`screening`), by the functions and rules of an audit.

Shares carry their counts, and shares and areas a 95 % interval over patients (`intervals`). Nothing is chosen on the
test images. Also measured are the scores' calibration (Platt scaling), the out-of-distribution check, the share of
evidence inside the lungs, and shortcuts: features other than the finding that may separate the classes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from fieldray.audit.drift import score_counts
from fieldray.audit.figures import arrays, at_point, calibration_bins
from fieldray.audit.units import Case, Rule, ranks
from fieldray.domain import heat_map, metrics
from fieldray.domain.metrics import Scores, Share, Truth, logit, sigmoid
from fieldray.domain.model import Calibration, Estimate, OodGate, OperatingPoint
from fieldray.domain.purpose import TRUTHS
from fieldray.errors import UsageProblem
from fieldray.reasons import reason
from fieldray_adapt.data.dataset import thumbnails
from fieldray_adapt.data.layouts import Row
from fieldray_adapt.evaluation.figures import (
    EvidenceFigures,
    GroupFigures,
    Groups,
    IntegerFigures,
    Interval,
    PartFigures,
    PointFigures,
)
from fieldray_adapt.recipes.classifier import Point


def fit_logistic(features: NDArray[np.float64], truth: Truth, *, ridge: float) -> NDArray[np.float64]:
    """Fit a logistic regression. Returns weights (n + 1,), the last one the intercept, which `ridge` does not penalise.

    Raises ValueError if a class is missing.
    """
    fitted = LogisticRegression(C=1 / ridge, solver="newton-cholesky", tol=1e-10).fit(features, truth)
    return np.append(fitted.coef_[0], fitted.intercept_)


def fit_calibration(scores: Scores, truth: Truth) -> Calibration:
    """Fit Platt scaling to raw scores of images not trained on. A small ridge keeps perfect separation finite."""
    slope, intercept = fit_logistic(logit(scores)[:, None], truth, ridge=0.1)
    return Calibration(slope=max(float(slope), 0.05), intercept=float(intercept))


Features = NDArray[np.float32]


def fit_gate(training: Features, validation: Features, *, components: int, keeps: float) -> OodGate:
    """Fit a gate that whitens by the training features' main components; `keeps` of the validation images pass.

    The smallest components are noise of the integers. A floor of a thousandth of the mean variance limits them.
    """
    mean = training.mean(0, dtype=np.float64)
    covariance = np.cov((training - mean).T) + 1e-12 * np.eye(training.shape[1])
    variances, directions = np.linalg.eigh(covariance)
    chosen = np.argsort(variances)[::-1][: min(components, len(variances))]
    floor = 1e-3 * float(variances.mean())
    projection = directions[:, chosen] / np.sqrt(np.maximum(variances[chosen], floor))
    loose = OodGate(mean=mean.astype(np.float32), projection=projection.astype(np.float32), limit=1.0)
    limit = float(np.quantile(distances(loose, validation), keeps))
    return OodGate(mean=loose.mean, projection=loose.projection, limit=limit)


def distances(gate: OodGate, features: Features) -> NDArray[np.float64]:
    """Distance (n,) of each image's features (n, f), by the gate's own rule."""
    return np.array([gate.distance(row) for row in features])


_LOW: Final = 0.05


def evidence_shares(maps: NDArray[np.float32], lungs: NDArray[np.uint8], *, zero: float) -> NDArray[np.float64]:
    """Share (n,) of each image's evidence that lies inside the lungs; nan where there is none.

    Parameters
    ----------
    maps
        (n, rows, columns) logits of one label.
    lungs
        (n, cells, cells) share of lung, 255 being all, in cells of the same region.
    zero
        Logit from which on a cell is evidence, see `heat_map.zero_logit`.
    """
    evidence = heat_map.evidence(maps, zero).astype(np.float64)
    inside = np.stack([_cells(own, evidence.shape[1:]) for own in lungs]) / 255
    total = evidence.sum((1, 2))
    shares = np.full(len(maps), np.nan)
    np.divide((evidence * inside).sum((1, 2)), total, out=shares, where=total > 0)
    return shares


def evidence_figures(maps: NDArray[np.float32], lungs: NDArray[np.uint8], *, zero: float) -> EvidenceFigures:
    """Mean share inside the lungs, what chance would give, and the share that only one image in twenty is below.

    Parameters as of `evidence_shares`.
    """
    shares = evidence_shares(maps, lungs, zero=zero)
    known = shares[~np.isnan(shares)]
    return EvidenceFigures(
        images=len(known),
        mean=float(known.mean()) if len(known) else None,
        chance=float(lungs.mean() / 255),
        limit=float(np.quantile(known, _LOW)) if len(known) else None,
    )


def map_span(maps: NDArray[np.float32], scores: Scores, *, threshold: float, zero: float) -> float | None:
    """Logits above zero that the strongest cell has in half of the images at or above the threshold; None without any.

    A heat map shows such a cell at full strength. How far logits reach depends on the number of cells and on how far
    the evidence is gathered in few of them, so the scale is the network's own.

    Parameters
    ----------
    maps
        (n, rows, columns) logits of one label.
    scores
        (n,) calibrated.
    threshold
        Of the operating point that the map is shown for.
    """
    strongest = heat_map.evidence(maps[scores >= threshold], zero).max((1, 2), initial=0)
    found = float(np.median(strongest)) if len(strongest) else 0.0
    return found or None


def _cells(shares: NDArray[np.uint8], shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Average shares over blocks as equal as whole cells allow."""
    starts = [
        np.linspace(0, size, count, endpoint=False).astype(int) for size, count in zip(shares.shape, shape, strict=True)
    ]
    sums = np.add.reduceat(np.add.reduceat(shares.astype(np.float64), starts[0], axis=0), starts[1], axis=1)
    heights, widths = (np.diff([*first, size]) for first, size in zip(starts, shares.shape, strict=True))
    return np.asarray(sums / np.outer(heights, widths))


WANTED_SENSITIVITIES: Final = (0.90, 0.95, 0.98, 0.99)
_SMALLEST_GROUP: Final = 10
_AGE_EDGES: Final = (0, 18, 40, 60, 200)


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Evaluated:
    """Images of one part with a known answer and a score in 0..1: scores, truth, and their rows."""

    scores: Scores
    truth: Truth
    rows: Sequence[Row]

    @property
    def patients(self) -> list[str]:
        """The patient of each image."""
        return [row.person for row in self.rows]

    @property
    def counts(self) -> dict[str, int]:
        """The fields of `figures.ImageCounts`."""
        positive = int(self.truth.sum())
        whole = {"images": len(self.rows), "patients": len(set(self.patients))}
        return whole | {"positive": positive, "negative": len(self.rows) - positive}

    @property
    def area(self) -> Estimate:
        """The AUC."""
        return metrics.area(self.scores, self.truth, patients=self.patients)

    def sensitivity(self, threshold: float) -> Share:
        """Return the sensitivity at a threshold chosen on other images."""
        return metrics.sensitivity(self.scores, self.truth, threshold=threshold, patients=self.patients)

    def specificity(self, threshold: float) -> Share:
        """Return the specificity at a threshold chosen on other images."""
        return metrics.specificity(self.scores, self.truth, threshold=threshold, patients=self.patients)

    def specificity_at(self, wanted: float) -> Share:
        """The specificity at a sensitivity of at least `wanted` on these images."""
        return metrics.specificity_at_sensitivity(self.scores, self.truth, wanted=wanted, patients=self.patients)

    def where(self, keep: NDArray[np.bool_]) -> Evaluated:
        """The images that `keep` marks."""
        rows = [row for row, kept in zip(self.rows, keep, strict=True) if kept]
        return Evaluated(scores=self.scores[keep], truth=self.truth[keep], rows=rows)

    def calibrated(self, calibration: Calibration) -> Evaluated:
        """The images with calibrated scores."""
        return replace(self, scores=metrics.calibrated(self.scores, calibration))


def known(scores: NDArray[np.float64], targets: NDArray[np.float32], rows: Sequence[Row]) -> Evaluated:
    """Return the images (all arrays (n,)) with a score and a known answer for one label."""
    whole = Evaluated(scores=scores, truth=targets >= 0.5, rows=rows)
    return whole.where(~np.isnan(targets) & ~np.isnan(scores))


def choose_point(point: Point, *, label: str, validation: Evaluated) -> OperatingPoint:
    """An operating point by the calibrated scores of the validation images, with its figures on them.

    Parameters
    ----------
    point
        What the recipe asks for.
    label
        The code of the label.
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
        sensitivity=validation.sensitivity(threshold).estimate,
        specificity=validation.specificity(threshold).estimate,
        measured_on={"en": "the validation part"},
    )


def measured_point(point: OperatingPoint, *, figures: PartFigures, measured_on: Mapping[str, str]) -> OperatingPoint:
    """Return an operating point with its measured figures.

    Parameters
    ----------
    measured_on
        By language, a description of the images, with {images} and {patients} for their numbers.
    """
    at = figures.points[point.name]
    return replace(
        point,
        sensitivity=at.sensitivity.estimate,
        specificity=at.specificity.estimate,
        measured_on={
            language: text.replace("{images}", str(figures.images)).replace("{patients}", str(figures.patients))
            for language, text in measured_on.items()
        },
    )


RULE: Final = Rule(unit="image", refers="above")
"""What a card counts, and what counts as referred there."""
_RULE_WITH_UNSURE: Final = Rule(unit="image", refers="unsure")


def figures(cases: Mapping[str, Sequence[Case]], *, points: Sequence[OperatingPoint]) -> PartFigures:
    """Measure all figures on one part.

    Parameters
    ----------
    cases
        By operating point, the screened images (`screening.Screening.cases`). Figures that belong to no point use the
        first one.
    points
        The operating points of the label.

    Raises UsageProblem `evaluate_refused` if a class has no image with a score.
    """
    images = next(iter(cases.values()))
    scored = [case for case in images if case.score is not None]
    scores, truth, patients = arrays(scored)
    if not truth.any() or truth.all():
        whys = Counter(case.why.text for case in images if case.why and case.score is None)
        why = next((text for text, _ in whys.most_common(1)), "-")
        raise UsageProblem(reason("evaluate_refused", count=len(images), scored=len(scored), why=why))
    positive = sum(case.truth for case in images)
    return PartFigures(
        images=len(images),
        patients=len({case.patient for case in images}),
        positive=positive,
        negative=len(images) - positive,
        scored=len(scored),
        auc=metrics.area(scores, truth, patients=patients),
        specificity_at_sensitivity=_specificities(images),
        calibration_error=metrics.calibration_error(
            scores, truth, bins=len(calibration_bins(scores, truth, patients=patients))
        ),
        score_counts=tuple(score_counts(scores.tolist())),
        points={point.name: point_figures(cases[point.name], point) for point in points},
    )


def _specificities(images: Sequence[Case]) -> dict[str, Share]:
    """Return the specificity at each wanted sensitivity."""
    found, truth, patients = ranks(images)
    return {
        f"{wanted:.2f}": metrics.specificity_at_sensitivity(found, truth, wanted=wanted, patients=patients)
        for wanted in WANTED_SENSITIVITIES
    }


def point_figures(images: Sequence[Case], point: OperatingPoint) -> PointFigures:
    """The figures of an audit of images at an operating point."""
    prevalence = float(np.mean([case.truth for case in images]))  # for predictive values, which no card has
    at, with_unsure = (at_point(images, point, rule=rule, prevalence=prevalence) for rule in (RULE, _RULE_WITH_UNSURE))
    return PointFigures(
        threshold=point.threshold,
        unsure_low=point.unsure_low,
        unsure_high=point.unsure_high,
        detected=at.detected,
        falsely_referred=at.falsely_referred,
        sensitivity=at.sensitivity,
        specificity=at.specificity,
        detected_with_unsure=with_unsure.detected,
        classes={TRUTHS[truth]: {str(one): own for one, own in found.items()} for truth, found in at.classes.items()},
    )


def by_group(test: Evaluated) -> Groups:
    """AUC by view, sex, age and source, where a group has ten images of each class."""
    groups: Mapping[str, list[str]] = {
        "view": [row.view for row in test.rows],
        "sex": [row.sex for row in test.rows],
        "age": [_age_group(row.age_years) for row in test.rows],
        "source": [row.source for row in test.rows],
    }
    found: Groups = {}
    for name, values in groups.items():
        for value in sorted(set(values) - {""}):
            part = test.where(np.array([own == value for own in values]))
            if min(part.truth.sum(), (~part.truth).sum()) >= _SMALLEST_GROUP:
                own = GroupFigures(images=len(part.rows), positive=int(part.truth.sum()), auc=part.area)
                found.setdefault(name, {})[value] = own
    return found


def compare(whole: Evaluated, integer: Evaluated) -> IntegerFigures:
    """Compare the float file with the int8 file on their common images, by raw scores."""
    return IntegerFigures(
        mean_absolute_difference=float(np.abs(whole.scores - integer.scores).mean()),
        largest_difference=float(np.abs(whole.scores - integer.scores).max()),
        auc_float=metrics.auc(whole.scores, whole.truth),
        auc_int8=metrics.auc(integer.scores, integer.truth),
    )


def auc_difference(scores: Scores, truth: Truth, *, patients: list[str]) -> Interval:
    """AUC of the second column of scores (images, 2) minus that of the first, with an interval over patients."""
    value, low, high = metrics.area_difference(scores, truth, patients=patients)
    return Interval(value=value, low=low, high=high)


def _age_group(years: float | None) -> str:
    if years is None:
        return ""
    low = max(edge for edge in _AGE_EDGES if edge <= years)
    high = min(edge for edge in _AGE_EDGES if edge > years)
    return f"{low}+" if high == _AGE_EDGES[-1] else f"{low}-{high - 1}"


_THUMBNAIL_SIDE: Final = 16
_BORDER_SHARE: Final = 0.06
_BORDER_POINTS: Final = 64
_MOST_IMAGES: Final = 4000
_RIDGE: Final = 30.0


def border_pixels(images: NDArray[np.uint8]) -> NDArray[np.float64]:
    """The outermost 6 % of each image, averaged over 64 stretches of each side: (n, 256)."""
    height, width = images.shape[1:3]
    deep = max(1, round(_BORDER_SHARE * min(height, width)))
    grey = images[:, :, :, 0]
    sides = [grey[:, :deep].mean(1), grey[:, -deep:].mean(1), grey[:, :, :deep].mean(2), grey[:, :, -deep:].mean(2)]
    points = np.linspace(0, 1, _BORDER_POINTS)
    return np.concatenate(
        [np.stack([np.interp(points, np.linspace(0, 1, side.shape[1]), line) for line in side]) for side in sides],
        axis=1,
    )


def thumbnail_pixels(images: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Each image as 16 x 16 pixels: (n, 256)."""
    return thumbnails(images, side=_THUMBNAIL_SIDE)


SHORTCUTS: Final = {"border": border_pixels, "thumbnail": thumbnail_pixels}
"""What gives classes away that is no finding: pixels (n, values) of images, by name."""


def shortcut_scores(
    training: NDArray[np.float64], truth: NDArray[np.bool_], evaluated: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Scores (n,) of `evaluated` pixels by a logistic regression on the training pixels, at most 4000 drawn ones."""
    chosen = np.random.default_rng(0).permutation(len(training))[:_MOST_IMAGES]
    mean, spread = training[chosen].mean(0), training[chosen].std(0) + 1e-6
    if len(np.unique(truth[chosen])) < 2:
        return np.full(len(evaluated), 0.5)  # of one class alone nothing can be learned
    weights = fit_logistic((training[chosen] - mean) / spread, truth[chosen], ridge=_RIDGE)
    return sigmoid(((evaluated - mean) / spread) @ weights[:-1] + weights[-1])
