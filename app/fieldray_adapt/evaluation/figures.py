"""The figures of a classifier as JSON documents of a run: data, evaluation and cross-validation.

Each class is an object in a JSON document. A value that was not measured is absent in JSON, and None in the class.
Shares and areas under the ROC curve have a 95 % interval over patients.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from fieldray.domain.metrics import Share
from fieldray.domain.model import Calibration, Estimate, OperatingPoint


class Interval(Struct, frozen=True, kw_only=True):
    """A value that may be negative, such as a difference, with the ends of the 95 % interval of the value."""

    value: float
    low: float
    high: float


def figure_text(figure: Share | Estimate | Interval, number_format: str = ".3f") -> str:
    """Format a figure as text with its interval, such as "0.912 (0.890 to 0.930)".

    The text of a share begins with the counts, such as "45 of 50: ". `number_format` is a format specification: ".3f".
    """
    counts = f"{figure.count} of {figure.of}: " if isinstance(figure, Share) else ""
    return f"{counts}{figure.value:{number_format}} ({figure.low:{number_format}} to {figure.high:{number_format}})"


class DuplicateFigures(Struct, frozen=True, kw_only=True):
    """The numbers of pairs of duplicate images, with the names of the first pairs.

    Attributes
    ----------
    exact, near
        Number of pairs of identical files, and number of pairs of nearly equal images.
    across_parts
        Number of pairs whose two images are in different parts, such as training and test.
    training_copies_left_out
        Number of training images that were left out, because they are also validation or test images.
    exact_examples, near_examples
        For each of the first pairs, the names of the two images.
    """

    exact: int
    near: int
    across_parts: int
    without_patient: int = 0
    training_copies_left_out: int
    exact_examples: tuple[tuple[str, str], ...]
    near_examples: tuple[tuple[str, str], ...]


class LabelCounts(Struct, frozen=True, kw_only=True):
    """The numbers of images with a label, of images without the label, and of images whose label is unknown."""

    positive: int
    negative: int
    unknown: int


class DataDigests(Struct, frozen=True, kw_only=True):
    """The SHA-256 of the data (table rows and file contents), and of the division into parts."""

    data_sha256: str
    split_sha256: str


class DataFigures(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The document data/facts.json of a classifier: the numbers of images and patients.

    Attributes
    ----------
    images, patients
        Number of images and number of patients in each part, such as "training".
    without_patient
        Number of images without a patient number, in all parts.
    left_out, left_out_examples
        Number of images that could not be read; for the first of these images, origin and reason.
    labels
        Numbers of images with and without each label, by label and part.
    patients_of_table, patients_of_table_in_data
        Number of patients that the split's table names, and number of these patients that have images. None without a
        table.
    """

    images: dict[str, int]
    patients: dict[str, int]
    without_patient: int = 0
    left_out: int
    left_out_examples: tuple[tuple[str, str], ...]
    duplicates: DuplicateFigures
    labels: dict[str, dict[str, LabelCounts]]
    patients_of_table: int | None = None
    patients_of_table_in_data: int | None = None
    data_sha256: str
    split_sha256: str


class ImageCounts(Struct, frozen=True, kw_only=True):
    """The numbers of images and patients on which figures were measured, and of images with and without the finding."""

    images: int
    patients: int
    positive: int
    negative: int


class PointFigures(Struct, frozen=True, kw_only=True):
    """The figures of an operating point.

    Attributes
    ----------
    threshold, unsure_low, unsure_high
        The threshold and the limits of the uncertain zone, as calibrated scores.
    detected, falsely_referred
        Share of all positive images that are referred, and share of all negative images that are referred. An image is
        referred if its score is at or above the threshold, or if its class is Read first.
    sensitivity, specificity
        Without images that were not assessed: share of positive images that are referred, and share of negative images
        that are not referred.
    detected_with_unsure
        The share of positive images that is detected if scores in the uncertain zone are referred, too.
    classes
        For "positive" and for "negative" images: the share of these images in each class, by the name of the class.
    """

    threshold: float
    unsure_low: float
    unsure_high: float
    detected: Share
    falsely_referred: Share
    sensitivity: Share
    specificity: Share
    detected_with_unsure: Share
    classes: dict[str, dict[str, Share]]


class DataPartFigures(ImageCounts, frozen=True, kw_only=True):
    """The figures of the screened images of one part, such as the test images.

    Attributes
    ----------
    scored
        Number of images with a score. `auc`, `calibration_error` and `score_counts` are measured on these images.
    specificity_at_sensitivity
        For each wanted sensitivity, such as "0.90", the specificity at that sensitivity.
    score_counts
        Number of images in each bin of the score. All bins have equal width.
    points
        Figures by operating point.
    """

    scored: int
    auc: Estimate
    specificity_at_sensitivity: dict[str, Share]
    calibration_error: float
    score_counts: tuple[int, ...]
    points: dict[str, PointFigures]


class HospitalFigures(DataPartFigures, frozen=True, kw_only=True):
    """The figures of a pack on images of another hospital, with the thresholds of the pack.

    `shortcuts` has the AUC, on these images, of classifiers that see only a shortcut: the image's border or a
    thumbnail.
    """

    shortcuts: dict[str, float]


class GroupFigures(Struct, frozen=True, kw_only=True):
    """The AUC within a group of images, such as one sex."""

    images: int
    positive: int
    auc: Estimate


GroupedFigures = dict[str, dict[str, GroupFigures]]
"""The figures of groups of images, by property ("view", "sex", "age", "source") and by value of the property."""


class Int8Comparison(Struct, frozen=True, kw_only=True):
    """A comparison of the raw scores that a network's float file and int8 file give for the same images."""

    mean_absolute_difference: float
    largest_difference: float
    auc_float: float
    auc_int8: float


class HeatMapScale(Struct, frozen=True, kw_only=True):
    """The colour scale of a heat map: a cell has full colour if its logit is `span` above the evidence threshold.

    The evidence threshold is the logit of the operating point's threshold, at least 0.
    """

    span: float


class EvidenceFigures(Struct, frozen=True, kw_only=True):
    """Which share (0..1) of the heat maps' evidence lies inside the lungs, summarised over images.

    Attributes
    ----------
    images
        Number of images with evidence.
    mean
        Mean share over the images with evidence; None if no image has evidence.
    chance
        The share inside the lungs if the evidence were spread evenly over the image: the lungs' share of the area.
    limit
        The 5th percentile of the share over the images with evidence; None if no image has evidence.
    """

    images: int
    mean: float | None
    chance: float
    limit: float | None


class LabelFigures(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All figures of one label of a classifier.

    Attributes
    ----------
    validation_auc
        AUC of the network's scores on the validation images.
    test
        Figures on the test images.
    by_group, shortcuts, float_against_int8, evidence_inside
        Further figures on the test images. `shortcuts` has the AUC of classifiers that see only a shortcut (see
        `evaluate.SHORTCUT_FEATURE_EXTRACTORS`).
    external_test
        Figures on images of another hospital; None if the recipe names no other hospital.
    """

    validation_auc: Estimate
    test: DataPartFigures
    by_group: GroupedFigures
    shortcuts: dict[str, float]
    external_test: HospitalFigures | None = None
    float_against_int8: Int8Comparison
    heat_map: HeatMapScale | None = None
    evidence_inside: EvidenceFigures | None = None


class OodCheckFigures(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The figures of the out-of-distribution check: the limit, and the refused shares of several sets of images.

    Attributes
    ----------
    limit
        The distance from the training images above which an image is refused.
    side, ood_images
        Side in pixels and number of the out-of-distribution images. For a fair comparison, test images are shrunk to
        this side; 0: not shrunk.
    images_refused, elsewhere_refused, ood_refused
        The refused share of the test images, of the images of another hospital, and of the out-of-distribution images.
    images_refused_at_equal_resolution
        The refused share of the test images after shrinking.
    """

    limit: float
    images_refused: Share
    side: int | None = None
    ood_images: int | None = None
    ood_refused: Share | None = None
    images_refused_at_equal_resolution: Share | None = None
    elsewhere_refused: Share | None = None

    @property
    def refused_shares(self) -> list[Share]:
        """The refused share of the test images, then the refused share of another hospital's images if measured."""
        return [self.images_refused, *([self.elsewhere_refused] if self.elsewhere_refused else [])]


class ClassifierFigures(Struct, frozen=True, kw_only=True):
    """The document evaluate/metrics.json of a classifier, with the figures of each label, by label code."""

    labels: dict[str, LabelFigures]
    data: DataFigures
    gate: OodCheckFigures


class EvaluationChoices(Struct, frozen=True, kw_only=True):
    """The document evaluate/points.json: operating points and calibrations, which are chosen on validation images.

    `calibration` has the calibration of each label, by label code.
    """

    points: tuple[OperatingPoint, ...]
    calibration: dict[str, Calibration]


class StageFigures(Struct, frozen=True, kw_only=True):
    """The AUC of cross-validated networks at one stage (trained, pruned or int8): over all folds, and for each fold."""

    auc: Estimate
    auc_by_fold: dict[str, float]


class CrossValidationFigures(ImageCounts, frozen=True, kw_only=True, omit_defaults=True):
    """The figures of the cross-validation of one label.

    Attributes
    ----------
    stages
        Figures by stage: "trained", "pruned" if the recipe prunes, and "int8". Documents of early program versions have
        only "trained".
    after_training
        AUC of the int8 file minus AUC of the trained network.
    """

    stages: dict[str, StageFigures]
    after_training: Interval | None = None
    float_against_int8: Int8Comparison | None = None
    specificity_at_sensitivity: dict[str, Share]
    by_group: GroupedFigures
    shortcuts: dict[str, float]


class PublishedCrossValidation(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The document cross.json: the figures of a cross-validation by label, and the settings of the recipe.

    `trained` comes from `recipes.classifier.training_description`, `made` from `conversion_description`.
    """

    pack: str
    data_sha256: str = ""
    labels: dict[str, CrossValidationFigures]
    trained: dict[str, Any]
    made: dict[str, Any] | None = None
