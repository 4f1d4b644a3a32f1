"""The evaluation of a classifier: operating points from validation images, and figures from test images.

Operating points are chosen by the scores of the network. Figures are measured on screening results of the program (see
`screening`), by the functions and rules of an audit. Nothing is chosen on test images. Shares have their counts, and
shares and areas a 95 % interval over patients. Also measured are the calibration of the scores (Platt scaling), the
out-of-distribution check, the share of evidence inside the lungs, and shortcuts. A shortcut is a feature other than the
finding that separates the classes.
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
from fieldray.audit.figures import calibration_bins, performance_at, scored_arrays
from fieldray.audit.units import Case, Rule, scores_and_truths
from fieldray.domain import heat_map, metrics
from fieldray.domain.metrics import Scores, Share, Truth, logit, sigmoid
from fieldray.domain.model import Calibration, Estimate, OperatingPoint, OutOfDistributionCheck
from fieldray.domain.purpose import TRUTHS
from fieldray.errors import UsageProblem
from fieldray.reasons import reason
from fieldray_adapt.data.dataset import thumbnails
from fieldray_adapt.data.layouts import Row
from fieldray_adapt.evaluation.figures import (
    EvidenceFigures,
    GroupedFigures,
    GroupFigures,
    Int8Comparison,
    Interval,
    PartFigures,
    PointFigures,
)
from fieldray_adapt.recipes.classifier import OperatingPointChoice


def fit_logistic(features: NDArray[np.float64], truth: Truth, *, ridge: float) -> NDArray[np.float64]:
    """Fit a logistic regression with an L2 penalty.

    Returns the weights (n + 1,) for features (images, n). The last weight is the intercept, which has no penalty.
    Raises ValueError if a class is missing.
    """
    fitted = LogisticRegression(C=1 / ridge, solver="newton-cholesky", tol=1e-10).fit(features, truth)
    return np.append(fitted.coef_[0], fitted.intercept_)


def fit_calibration(scores: Scores, truth: Truth) -> Calibration:
    """Fit Platt scaling to the raw scores of images that were not trained on.

    A small ridge penalty keeps the slope finite if the classes are separated perfectly.
    """
    slope, intercept = fit_logistic(logit(scores)[:, None], truth, ridge=0.1)
    return Calibration(slope=max(float(slope), 0.05), intercept=float(intercept))


Features = NDArray[np.float32]


def fit_ood_gate(
    training: Features, validation: Features, *, components: int, accepted_share: float
) -> OutOfDistributionCheck:
    """Fit the out-of-distribution check to the network's features of chest X-rays.

    The features are whitened by their first principal components. Small components are rounding noise of int8; a floor
    of a thousandth of the mean variance limits their influence.

    Parameters
    ----------
    training, validation
        Features (n, f) of the training images, and of the images by which the limit is chosen.
    components
        Number of principal components.
    accepted_share
        Share of the validation images below the limit, 0..1.
    """
    mean = training.mean(0, dtype=np.float64)
    covariance = np.cov((training - mean).T) + 1e-12 * np.eye(training.shape[1])
    variances, directions = np.linalg.eigh(covariance)
    chosen = np.argsort(variances)[::-1][: min(components, len(variances))]
    floor = 1e-3 * float(variances.mean())
    projection = directions[:, chosen] / np.sqrt(np.maximum(variances[chosen], floor))
    loose = OutOfDistributionCheck(mean=mean.astype(np.float32), projection=projection.astype(np.float32), limit=1.0)
    limit = float(np.quantile(ood_distances(loose, validation), accepted_share))
    return OutOfDistributionCheck(mean=loose.mean, projection=loose.projection, limit=limit)


def ood_distances(gate: OutOfDistributionCheck, features: Features) -> NDArray[np.float64]:
    """Return how far each image is from the training images by its features (n, f). The result is (n,).

    `gate` is the out-of-distribution check, which refuses images with a distance above its limit.
    """
    return np.array([gate.distance(row) for row in features])


_LOW: Final = 0.05


def evidence_shares(maps: NDArray[np.float32], lungs: NDArray[np.uint8], *, zero: float) -> NDArray[np.float64]:
    """Return the share (n,) of each heat map's evidence that lies inside the lungs; nan without evidence.

    Parameters
    ----------
    maps
        (n, rows, columns) logits of one label.
    lungs
        (n, cells, cells) share of lung, 255 for all lung, over the region of the map.
    zero
        The logit above which a cell is evidence, see `heat_map.zero_logit`.
    """
    evidence = heat_map.evidence(maps, zero).astype(np.float64)
    inside = np.stack([_cells(own, evidence.shape[1:]) for own in lungs]) / 255
    total = evidence.sum((1, 2))
    shares = np.full(len(maps), np.nan)
    np.divide((evidence * inside).sum((1, 2)), total, out=shares, where=total > 0)
    return shares


def evidence_figures(maps: NDArray[np.float32], lungs: NDArray[np.uint8], *, zero: float) -> EvidenceFigures:
    """Return how much of the heat maps' evidence lies inside the lungs, over all images.

    The figures are those of `EvidenceFigures`. The parameters are those of `evidence_shares`.
    """
    shares = evidence_shares(maps, lungs, zero=zero)
    known = shares[~np.isnan(shares)]
    return EvidenceFigures(
        images=len(known),
        mean=float(known.mean()) if len(known) else None,
        chance=float(lungs.mean() / 255),
        limit=float(np.quantile(known, _LOW)) if len(known) else None,
    )


def heat_map_span(maps: NDArray[np.float32], scores: Scores, *, threshold: float, zero: float) -> float | None:
    """Return the logit range of the heat map's colour scale; None if no image at the threshold or above has evidence.

    The range is the median, over the images at or above the threshold, of the strongest cell's logit above `zero`. A
    cell with this value is shown at full strength. The range depends on the network, for example on the number of
    cells.

    Parameters
    ----------
    maps
        (n, rows, columns) logits of one label.
    scores
        (n,) calibrated scores.
    threshold
        The threshold of the operating point for which the map is shown.
    zero
        The logit above which a cell is evidence.
    """
    strongest = heat_map.evidence(maps[scores >= threshold], zero).max((1, 2), initial=0)
    found = float(np.median(strongest)) if len(strongest) else 0.0
    return found or None


def _cells(shares: NDArray[np.uint8], shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Return the mean share of lung in each cell of a coarser grid."""
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
class EvaluatedImages:
    """Images with a known label and a score: scores in 0..1, truth, and table rows."""

    scores: Scores
    truth: Truth
    rows: Sequence[Row]

    @property
    def patients(self) -> list[str]:
        """The patient of each image."""
        return [row.person for row in self.rows]

    @property
    def sources(self) -> NDArray[np.str_]:
        """The source of the recipe that each image (n,) comes from."""
        return np.array([row.source for row in self.rows])

    @property
    def counts(self) -> dict[str, int]:
        """The numbers of images and patients, by the fields of `figures.ImageCounts`."""
        positive = int(self.truth.sum())
        whole = {"images": len(self.rows), "patients": len(set(self.patients))}
        return whole | {"positive": positive, "negative": len(self.rows) - positive}

    @property
    def auc(self) -> Estimate:
        """The area under the ROC curve, with its 95 % interval."""
        return metrics.auc_estimate(self.scores, self.truth, patients=self.patients)

    def sensitivity(self, threshold: float) -> Share:
        """Return the sensitivity on these images at a threshold that was chosen on other images."""
        return metrics.sensitivity(self.scores, self.truth, threshold=threshold, patients=self.patients)

    def specificity(self, threshold: float) -> Share:
        """Return the specificity on these images at a threshold that was chosen on other images."""
        return metrics.specificity(self.scores, self.truth, threshold=threshold, patients=self.patients)

    def specificity_at(self, sensitivity: float) -> Share:
        """Return the specificity at the threshold that gives a sensitivity of at least `sensitivity`.

        Both are measured on these images.
        """
        return metrics.specificity_at_sensitivity(self.scores, self.truth, wanted=sensitivity, patients=self.patients)

    def where(self, keep: NDArray[np.bool_]) -> EvaluatedImages:
        """Return only the images for which `keep` (n,) bool is True."""
        rows = [row for row, kept in zip(self.rows, keep, strict=True) if kept]
        return EvaluatedImages(scores=self.scores[keep], truth=self.truth[keep], rows=rows)

    def by_source(self) -> list[EvaluatedImages]:
        """Divide the images by their source. Returns the images of each source, in the order of the sources' names."""
        return [self.where(self.sources == name) for name in np.unique(self.sources)]

    def calibrated(self, calibration: Calibration) -> EvaluatedImages:
        """Return the images with calibrated scores in place of the raw ones."""
        return replace(self, scores=metrics.calibrate_scores(self.scores, calibration))


def select_known(scores: NDArray[np.float64], targets: NDArray[np.float32], rows: Sequence[Row]) -> EvaluatedImages:
    """Return the images that have a score and a known label, for measuring figures.

    Parameters
    ----------
    scores
        Scores (n,) in 0..1; nan for images without a score.
    targets
        (n,) 1 with the label, 0 without, nan if unknown.
    rows
        The n table rows.
    """
    whole = EvaluatedImages(scores=scores, truth=targets >= 0.5, rows=rows)
    return whole.where(~np.isnan(targets) & ~np.isnan(scores))


def choose_operating_point(point: OperatingPointChoice, *, label: str, validation: EvaluatedImages) -> OperatingPoint:
    """Choose a threshold and an uncertain zone by the calibrated scores of the validation images.

    Returns the operating point, with its sensitivity and specificity on these images.

    Parameters
    ----------
    point
        The recipe's rule for the operating point.
    label
        The code of the label.

    Raises UsageProblem (data_class_empty) if the point must hold at each source, and a source lacks one of the classes.
    """
    sources = validation.by_source() if point.each_source else [validation]
    if point.each_source:
        _require_both_classes(sources, label=label)
    if point.rule == "balance":
        groups = validation.sources if point.each_source else None
        threshold = metrics.threshold_for_balance(validation.scores, validation.truth, groups=groups)
    else:
        threshold = min(
            metrics.threshold_for_sensitivity(images.scores, images.truth, wanted=point.sensitivity)
            for images in sources
        )
    low = min(
        metrics.threshold_for_sensitivity(images.scores, images.truth, wanted=point.band_catches) for images in sources
    )
    high = max(
        1 - metrics.threshold_for_sensitivity(1 - images.scores, ~images.truth, wanted=point.band_clears)
        for images in sources
    )
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


def _require_both_classes(sources: Sequence[EvaluatedImages], *, label: str) -> None:
    """Raise UsageProblem (data_class_empty) if a source has no positive or no negative validation image."""
    for images in sources:
        part = f"validation ({images.rows[0].source})"
        for kind, is_there in (("positive", images.truth.any()), ("negative", not images.truth.all())):
            if not is_there:
                raise UsageProblem(reason("data_class_empty", label=label, kind=kind, part=part))


def with_measured_figures(
    point: OperatingPoint, *, figures: PartFigures, measured_on: Mapping[str, str]
) -> OperatingPoint:
    """Return an operating point with the sensitivity and specificity of `figures` in place of its own.

    Parameters
    ----------
    figures
        The figures that were measured on a part of the images, with this operating point among them.
    measured_on
        A description of these images by language. Their numbers replace {images} and {patients} in it.
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


CARD_RULE: Final = Rule(unit="image", refers="above")
"""The audit rule behind the figures of a model card.

Images are counted, not patients. An image counts as referred if its score is at or above the threshold, or if it is to
be read first.
"""
_RULE_WITH_UNSURE: Final = Rule(unit="image", refers="unsure")


def part_figures(cases: Mapping[str, Sequence[Case]], *, points: Sequence[OperatingPoint]) -> PartFigures:
    """Measure the figures of one label on one part of the images.

    Parameters
    ----------
    cases
        The screened images by operating point (see `screening.ScreeningResults.cases`). Figures that belong to no
        operating point, such as the AUC, are measured on the images of the first one.
    points
        The operating points of the label.

    Raises UsageProblem `evaluate_refused` if a class has no image with a score.
    """
    images = next(iter(cases.values()))
    scored = [case for case in images if case.score is not None]
    scores, truth, patients = scored_arrays(scored)
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
        auc=metrics.auc_estimate(scores, truth, patients=patients),
        specificity_at_sensitivity=_specificities(images),
        calibration_error=metrics.calibration_error(
            scores, truth, bins=len(calibration_bins(scores, truth, patients=patients))
        ),
        score_counts=tuple(score_counts(scores.tolist())),
        points={point.name: point_figures(cases[point.name], point) for point in points},
    )


def _specificities(images: Sequence[Case]) -> dict[str, Share]:
    """Return the specificity at each sensitivity of `WANTED_SENSITIVITIES`."""
    found, truth, patients = scores_and_truths(images)
    return {
        f"{wanted:.2f}": metrics.specificity_at_sensitivity(found, truth, wanted=wanted, patients=patients)
        for wanted in WANTED_SENSITIVITIES
    }


def point_figures(images: Sequence[Case], point: OperatingPoint) -> PointFigures:
    """Measure the sensitivity, specificity and other figures of an operating point on screened images.

    Images are counted and referred as in an audit (see `CARD_RULE`).
    """
    prevalence = float(np.mean([case.truth for case in images]))  # predictive values need it, but no card shows them
    at, with_unsure = (
        performance_at(images, point, rule=rule, prevalence=prevalence) for rule in (CARD_RULE, _RULE_WITH_UNSURE)
    )
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


def auc_by_group(test: EvaluatedImages) -> GroupedFigures:
    """Return the AUC by view, sex, age group and source, for groups with ten images of each class."""
    groups: Mapping[str, list[str]] = {
        "view": [row.view for row in test.rows],
        "sex": [row.sex for row in test.rows],
        "age": [_age_group(row.age_years) for row in test.rows],
        "source": [row.source for row in test.rows],
    }
    found: GroupedFigures = {}
    for name, values in groups.items():
        for value in sorted(set(values) - {""}):
            part = test.where(np.array([own == value for own in values]))
            if min(part.truth.sum(), (~part.truth).sum()) >= _SMALLEST_GROUP:
                own = GroupFigures(images=len(part.rows), positive=int(part.truth.sum()), auc=part.auc)
                found.setdefault(name, {})[value] = own
    return found


def compare_with_int8(float_images: EvaluatedImages, int8_images: EvaluatedImages) -> Int8Comparison:
    """Compare the raw scores of the float file and of the int8 file on equal images."""
    return Int8Comparison(
        mean_absolute_difference=float(np.abs(float_images.scores - int8_images.scores).mean()),
        largest_difference=float(np.abs(float_images.scores - int8_images.scores).max()),
        auc_float=metrics.auc(float_images.scores, float_images.truth),
        auc_int8=metrics.auc(int8_images.scores, int8_images.truth),
    )


def auc_difference(scores: Scores, truth: Truth, *, patients: list[str]) -> Interval:
    """Return the difference of two AUCs on the same images, with its 95 % interval over patients.

    `scores` are (n, 2): the AUC of the first column is subtracted from that of the second. `patients` has the patient
    of each image.
    """
    value, low, high = metrics.auc_difference(scores, truth, patients=patients)
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
    """Return the grey values along the border of each image: (n, 256), 64 values for each of the four sides.

    The border is the outermost 6 % of the image. Its grey values are averaged over its depth.
    """
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
    """Return each image as a thumbnail of 16 x 16 pixels: (n, 256)."""
    return thumbnails(images, side=_THUMBNAIL_SIDE)


SHORTCUTS: Final = {"border": border_pixels, "thumbnail": thumbnail_pixels}
"""Features other than the finding that may separate the classes: functions from images to values (n, 256), by name."""


def shortcut_scores(
    training: NDArray[np.float64], truth: NDArray[np.bool_], evaluated: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the scores (n,) in 0..1 of a logistic regression that sees only a shortcut, not the finding.

    A shortcut is a feature such as the border of the image (see `SHORTCUTS`). If all training images are of one class,
    every score is 0.5.

    Parameters
    ----------
    training, truth
        The shortcut's values of the training images (m, values), and whether each image is positive (m,). At most 4000
        images are used.
    evaluated
        The shortcut's values of the images to score (n, values).
    """
    chosen = np.random.default_rng(0).permutation(len(training))[:_MOST_IMAGES]
    mean, spread = training[chosen].mean(0), training[chosen].std(0) + 1e-6
    if len(np.unique(truth[chosen])) < 2:
        return np.full(len(evaluated), 0.5)  # nothing can be learned from one class
    weights = fit_logistic((training[chosen] - mean) / spread, truth[chosen], ridge=_RIDGE)
    return sigmoid(((evaluated - mean) / spread) @ weights[:-1] + weights[-1])
