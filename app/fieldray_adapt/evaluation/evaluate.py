"""The evaluation of a classifier: operating points from validation images, and figures from test images.

Operating points are chosen by the scores of the network. Figures are measured on screening results of the program (see
`screening`), as in an audit. Nothing is chosen on test images. Shares have counts, and shares and areas under the ROC
curve have a 95 % interval over patients. Scores are calibrated by Platt scaling. The module also measures the
out-of-distribution check, the share of a heat map inside the lungs, and shortcuts. A shortcut is a feature other than
the finding that separates the classes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from fieldray.audit.drift import score_histogram
from fieldray.audit.figures import arrays_of_scored_cases, calibration_bins, performance_at
from fieldray.audit.units import Case, CountingRule, scores_and_truths
from fieldray.domain import heat_map, metrics
from fieldray.domain.intended_use import TRUTH_NAMES
from fieldray.domain.metrics import Scores, Share, Truth, logit, sigmoid
from fieldray.domain.model import Calibration, Estimate, OperatingPoint, OutOfDistributionCheck
from fieldray.errors import UsageProblem
from fieldray.reasons import reason
from fieldray_adapt.data.dataset import thumbnails
from fieldray_adapt.data.layouts import Row
from fieldray_adapt.evaluation.figures import (
    DataPartFigures,
    EvidenceFigures,
    GroupedFigures,
    GroupFigures,
    Int8Comparison,
    Interval,
    PointFigures,
)
from fieldray_adapt.recipes.classifier import OperatingPointChoice


def fit_logistic(features: NDArray[np.float64], truth: Truth, *, ridge: float) -> NDArray[np.float64]:
    """Fit a logistic regression with an L2 penalty of strength `ridge`.

    Returns the weights (n + 1,) for features (images, n). The last weight is the intercept, which has no penalty.
    Raises ValueError if all images are positive or all are negative.
    """
    fitted = LogisticRegression(C=1 / ridge, solver="newton-cholesky", tol=1e-10).fit(features, truth)
    return np.append(fitted.coef_[0], fitted.intercept_)


def fit_calibration(scores: Scores, truth: Truth) -> Calibration:
    """Fit Platt scaling to the raw scores (n,) and the truth (n,) of images that are no training images.

    A small penalty keeps the slope finite if the scores separate the classes perfectly.
    """
    slope, intercept = fit_logistic(logit(scores)[:, None], truth, ridge=0.1)
    return Calibration(slope=max(float(slope), 0.05), intercept=float(intercept))


Features = NDArray[np.float32]


def fit_ood_check(
    training_features: Features, validation_features: Features, *, components: int, accepted_share: float
) -> OutOfDistributionCheck:
    """Fit the out-of-distribution check to the network's features of chest X-rays.

    The features are whitened by their first principal components. Components with little variance are rounding noise of
    int8. A minimum variance, a thousandth of the mean variance, limits the influence of these components.

    Parameters
    ----------
    training_features, validation_features
        Features (n, f) of the training images, and of the validation images, by which the limit is chosen.
    components
        Number of principal components.
    accepted_share
        Share of the validation images with a distance below the limit, 0..1.
    """
    mean = training_features.mean(0, dtype=np.float64)
    covariance = np.cov((training_features - mean).T) + 1e-12 * np.eye(training_features.shape[1])
    variances, directions = np.linalg.eigh(covariance)
    chosen = np.argsort(variances)[::-1][: min(components, len(variances))]
    floor = 1e-3 * float(variances.mean())
    projection = directions[:, chosen] / np.sqrt(np.maximum(variances[chosen], floor))
    loose = OutOfDistributionCheck(mean=mean.astype(np.float32), projection=projection.astype(np.float32), limit=1.0)
    limit = float(np.quantile(ood_distances(loose, validation_features), accepted_share))
    return OutOfDistributionCheck(mean=loose.mean, projection=loose.projection, limit=limit)


def ood_distances(ood_check: OutOfDistributionCheck, features: Features) -> NDArray[np.float64]:
    """Return the distance (n,) of each image from the training images, measured between the network's features (n, f).

    `ood_check` is the out-of-distribution check, which refuses images with a distance above the limit.
    """
    return np.array([ood_check.distance(row) for row in features])


_LOW: Final = 0.05


def evidence_shares(
    maps: NDArray[np.float32], lungs: NDArray[np.uint8], *, evidence_threshold: float
) -> NDArray[np.float64]:
    """Return which share (n,) of each heat map's evidence lies inside the lungs; nan for a heat map without evidence.

    Parameters
    ----------
    maps
        (n, rows, columns) logits of one label.
    lungs
        (n, cells, cells) uint8: the share of lung in the cells of the map's region, 255 for a cell that is all lung.
    evidence_threshold
        The logit above which a cell is evidence, see `heat_map.evidence_threshold_logit`.
    """
    evidence = heat_map.evidence(maps, evidence_threshold).astype(np.float64)
    inside = np.stack([_cells(own, evidence.shape[1:]) for own in lungs]) / 255
    total = evidence.sum((1, 2))
    shares = np.full(len(maps), np.nan)
    np.divide((evidence * inside).sum((1, 2)), total, out=shares, where=total > 0)
    return shares


def evidence_figures(
    maps: NDArray[np.float32], lungs: NDArray[np.uint8], *, evidence_threshold: float
) -> EvidenceFigures:
    """Return which share of the heat maps' evidence lies inside the lungs, summarised over all images.

    The parameters are those of `evidence_shares`.
    """
    shares = evidence_shares(maps, lungs, evidence_threshold=evidence_threshold)
    known = shares[~np.isnan(shares)]
    return EvidenceFigures(
        images=len(known),
        mean=float(known.mean()) if len(known) else None,
        chance=float(lungs.mean() / 255),
        limit=float(np.quantile(known, _LOW)) if len(known) else None,
    )


def heat_map_logit_range(
    maps: NDArray[np.float32], scores: Scores, *, threshold: float, evidence_threshold: float
) -> float | None:
    """Return the range of the heat map's colour scale, as a difference of logits.

    For each image with a score at or above the threshold, `evidence_threshold` is subtracted from the strongest cell's
    logit. The range is the median of these differences. A cell this far above `evidence_threshold` has full colour.
    None if these images have no evidence.

    Parameters
    ----------
    maps
        (n, rows, columns) logits of one label.
    scores
        (n,) calibrated scores.
    threshold
        The threshold of the operating point, as a calibrated score.
    evidence_threshold
        The logit above which a cell is evidence.
    """
    strongest = heat_map.evidence(maps[scores >= threshold], evidence_threshold).max((1, 2), initial=0)
    found = float(np.median(strongest)) if len(strongest) else 0.0
    return found or None


def _cells(shares: NDArray[np.uint8], shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Return the mean of `shares` in each cell of a coarser grid of `shape` (rows, columns)."""
    starts = [
        np.linspace(0, size, count, endpoint=False).astype(int) for size, count in zip(shares.shape, shape, strict=True)
    ]
    sums = np.add.reduceat(np.add.reduceat(shares.astype(np.float64), starts[0], axis=0), starts[1], axis=1)
    heights, widths = (np.diff([*first, size]) for first, size in zip(starts, shares.shape, strict=True))
    return np.asarray(sums / np.outer(heights, widths))


REPORTED_SENSITIVITIES: Final = (0.90, 0.95, 0.98, 0.99)
_SMALLEST_GROUP: Final = 10
_AGE_EDGES: Final = (0, 18, 40, 60, 200)


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class EvaluatedImages:
    """Images with a known label and a score: n scores in 0..1, n truths (True for positive), and n table rows."""

    scores: Scores
    truth: Truth
    rows: Sequence[Row]

    @property
    def patients(self) -> list[str]:
        """The patient number of each image, or another text that identifies the patient."""
        return [row.person_id for row in self.rows]

    @property
    def sources(self) -> NDArray[np.str_]:
        """The source of the recipe that each image (n,) comes from."""
        return np.array([row.source for row in self.rows])

    @property
    def image_and_patient_counts(self) -> dict[str, int]:
        """The numbers of images, patients, positive and negative images, by the field names of `ImageCounts`."""
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

        Sensitivity and specificity are both measured on these images.
        """
        return metrics.specificity_at_sensitivity(self.scores, self.truth, wanted=sensitivity, patients=self.patients)

    def where(self, keep: NDArray[np.bool_]) -> EvaluatedImages:
        """Return only the images for which `keep` (n,) bool is True."""
        rows = [row for row, kept in zip(self.rows, keep, strict=True) if kept]
        return EvaluatedImages(scores=self.scores[keep], truth=self.truth[keep], rows=rows)

    def by_source(self) -> list[EvaluatedImages]:
        """Divide the images by their source. Returns the images of each source, in the order of the sources' names."""
        return [self.where(self.sources == name) for name in np.unique(self.sources)]

    def with_calibrated_scores(self, calibration: Calibration) -> EvaluatedImages:
        """Return the images with calibrated scores in place of raw scores."""
        return replace(self, scores=metrics.calibrate_scores(self.scores, calibration))


def select_labelled_images(
    scores: NDArray[np.float64], targets: NDArray[np.float32], rows: Sequence[Row]
) -> EvaluatedImages:
    """Return only those images that have a score and a known label, so that figures can be measured.

    Parameters
    ----------
    scores
        Scores (n,) in 0..1; nan for images without a score.
    targets
        The label (n,) of each image: 1 with the label, 0 without, nan if unknown.
    rows
        The n table rows.
    """
    whole = EvaluatedImages(scores=scores, truth=targets >= 0.5, rows=rows)
    return whole.where(~np.isnan(targets) & ~np.isnan(scores))


def choose_operating_point(point: OperatingPointChoice, *, label: str, validation: EvaluatedImages) -> OperatingPoint:
    """Choose the threshold and the uncertain zone of an operating point from calibrated scores of validation images.

    Returns the operating point, with sensitivity and specificity on the validation images.

    Parameters
    ----------
    point
        The recipe's rule for the operating point.
    label
        The code of the label.
    validation
        The validation images with calibrated scores.

    Raises UsageProblem (data_class_empty) if the rule applies to each source separately, and a source has no positive
    or no negative images.
    """
    sources = validation.by_source() if point.each_source else [validation]
    if point.each_source:
        _require_both_classes(sources, label=label)
    if point.rule == "balance":
        groups = validation.sources if point.each_source else None
        threshold = metrics.threshold_for_youden_index(validation.scores, validation.truth, groups=groups)
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
    point: OperatingPoint, *, figures: DataPartFigures, measured_on: Mapping[str, str]
) -> OperatingPoint:
    """Return a copy of an operating point with the sensitivity and specificity that `figures` has for the point.

    Parameters
    ----------
    figures
        The figures measured on some images, for several operating points.
    measured_on
        A description of these images, by language. `{images}` and `{patients}` in the text are replaced by numbers.
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


CARD_COUNTING_RULE: Final = CountingRule(unit="image", refers="above")
"""The rule by which the figures of a model card are counted, in the form of an audit rule.

Images are counted, not patients. An image counts as referred if its score is at or above the threshold, or if its class
is Read first.
"""
_RULE_WITH_UNSURE: Final = CountingRule(unit="image", refers="unsure")


def data_part_figures(cases: Mapping[str, Sequence[Case]], *, points: Sequence[OperatingPoint]) -> DataPartFigures:
    """Measure the figures of one label on one part of the images.

    Parameters
    ----------
    cases
        The screened images by operating point (see `screening.ScreeningResults.cases_by_operating_point`). Figures that
        belong to no operating point, such as the AUC, are measured on the images of the first operating point.
    points
        The operating points of the label.

    Raises UsageProblem (`evaluate_refused`) if no positive image or no negative image has a score.
    """
    images = next(iter(cases.values()))
    scored = [case for case in images if case.score is not None]
    scores, truth, patients = arrays_of_scored_cases(scored)
    if not truth.any() or truth.all():
        whys = Counter(case.reason.text for case in images if case.reason and case.score is None)
        why = next((text for text, _ in whys.most_common(1)), "-")
        raise UsageProblem(reason("evaluate_refused", count=len(images), scored=len(scored), why=why))
    positive = sum(case.truth for case in images)
    return DataPartFigures(
        images=len(images),
        patients=len({case.patient_key for case in images}),
        positive=positive,
        negative=len(images) - positive,
        scored=len(scored),
        auc=metrics.auc_estimate(scores, truth, patients=patients),
        specificity_at_sensitivity=_specificities(images),
        calibration_error=metrics.calibration_error(
            scores, truth, bins=len(calibration_bins(scores, truth, patients=patients))
        ),
        score_counts=tuple(score_histogram(scores.tolist())),
        points={point.name: point_figures(cases[point.name], point) for point in points},
    )


def _specificities(images: Sequence[Case]) -> dict[str, Share]:
    """Return the specificity at each sensitivity of `REPORTED_SENSITIVITIES`."""
    found, truth, patients = scores_and_truths(images)
    return {
        f"{wanted:.2f}": metrics.specificity_at_sensitivity(found, truth, wanted=wanted, patients=patients)
        for wanted in REPORTED_SENSITIVITIES
    }


def point_figures(images: Sequence[Case], point: OperatingPoint) -> PointFigures:
    """Measure the sensitivity, specificity and other figures of an operating point on screened images.

    Figures are counted as in an audit with the rule `CARD_COUNTING_RULE`.
    """
    prevalence = float(np.mean([case.truth for case in images]))  # only for predictive values, which no card shows
    at, with_unsure = (
        performance_at(images, point, rule=rule, prevalence=prevalence)
        for rule in (CARD_COUNTING_RULE, _RULE_WITH_UNSURE)
    )
    return PointFigures(
        threshold=point.threshold,
        unsure_low=point.unsure_low,
        unsure_high=point.unsure_high,
        detected=at.detected_share,
        falsely_referred=at.falsely_referred_share,
        sensitivity=at.sensitivity,
        specificity=at.specificity,
        detected_with_unsure=with_unsure.detected_share,
        classes={
            TRUTH_NAMES[truth]: {str(one): own for one, own in found.items()}
            for truth, found in at.class_shares_by_truth.items()
        },
    )


def auc_by_group(test: EvaluatedImages) -> GroupedFigures:
    """Return the AUC by view, sex, age group and source.

    Only groups with at least ten positive and ten negative images have an AUC.
    """
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
    """Compare the raw scores that the float file and the int8 file of a network give for the same images."""
    return Int8Comparison(
        mean_absolute_difference=float(np.abs(float_images.scores - int8_images.scores).mean()),
        largest_difference=float(np.abs(float_images.scores - int8_images.scores).max()),
        auc_float=metrics.auc(float_images.scores, float_images.truth),
        auc_int8=metrics.auc(int8_images.scores, int8_images.truth),
    )


def paired_auc_difference(scores: Scores, truth: Truth, *, patients: list[str]) -> Interval:
    """Return the difference of two AUCs on n images, with the 95 % interval of the difference over patients.

    `scores` are (n, 2): the AUC of the first column is subtracted from the AUC of the second column. `patients` are the
    patients of the n images.
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
_MAX_IMAGES: Final = 4000
_RIDGE: Final = 30.0


def border_pixels(images: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return the grey values along the border of each image: (n, 256), 64 values for each of the four sides.

    The border is the outermost 6 % of the image. Each value is a mean over the width of the border.
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
    """Return a thumbnail of 16 x 16 pixels of each image, as an array (n, 256)."""
    return thumbnails(images, side=_THUMBNAIL_SIDE)


SHORTCUT_FEATURE_EXTRACTORS: Final = {"border": border_pixels, "thumbnail": thumbnail_pixels}
"""Functions that return features (n, 256) of images without the finding, such as the border, by name.

A classifier should not be able to separate the classes by such features (a shortcut).
"""


def shortcut_scores(
    training_pixels: NDArray[np.float64], truth: NDArray[np.bool_], evaluated_pixels: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the scores (n,) in 0..1 of a logistic regression that sees only a shortcut, not the finding.

    A shortcut is a feature such as the border of the image (see `SHORTCUT_FEATURE_EXTRACTORS`). If all training images
    are of one class, every score is 0.5.

    Parameters
    ----------
    training_pixels, truth
        The features (m, values) of m training images, and whether each image is positive (m,). At most 4000 images are
        used.
    evaluated_pixels
        The features (n, values) of the n images to score.
    """
    chosen = np.random.default_rng(0).permutation(len(training_pixels))[:_MAX_IMAGES]
    mean, spread = training_pixels[chosen].mean(0), training_pixels[chosen].std(0) + 1e-6
    if len(np.unique(truth[chosen])) < 2:
        return np.full(len(evaluated_pixels), 0.5)  # nothing can be learned from one class
    weights = fit_logistic((training_pixels[chosen] - mean) / spread, truth[chosen], ridge=_RIDGE)
    return sigmoid(((evaluated_pixels - mean) / spread) @ weights[:-1] + weights[-1])
