"""The figures of a classifier as JSON documents of a run: data, evaluation and cross-validation.

Each class is an object of a document. A value that was not measured is absent in JSON and None here. Shares and areas
have a 95 % interval over patients.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from fieldray.domain.metrics import Share
from fieldray.domain.model import Calibration, Estimate, OperatingPoint


class Interval(Struct, frozen=True, kw_only=True):
    """A value of any range, such as a difference, with the ends of its 95 % interval."""

    value: float
    low: float
    high: float


def figure_text(figure: Share | Estimate | Interval, number_format: str = ".3f") -> str:
    """Format a figure as text: counts of a share, then value and interval. `number_format` is a format of numbers."""
    counts = f"{figure.count} of {figure.of}: " if isinstance(figure, Share) else ""
    return f"{counts}{figure.value:{number_format}} ({figure.low:{number_format}} to {figure.high:{number_format}})"


class DuplicateFigures(Struct, frozen=True, kw_only=True):
    """Numbers of pairs of duplicate images, with the names of the first pairs.

    Attributes
    ----------
    exact, near
        Number of pairs of identical files, and of nearly equal images.
    across_parts
        Number of pairs whose images are in different parts.
    training_copies_left_out
        Number of training images that were left out, because they are also validation or test images.
    exact_examples, near_examples
        The names of the two images of the first pairs.
    """

    exact: int
    near: int
    across_parts: int
    without_patient: int = 0
    training_copies_left_out: int
    exact_examples: tuple[tuple[str, str], ...]
    near_examples: tuple[tuple[str, str], ...]


class LabelCounts(Struct, frozen=True, kw_only=True):
    """Numbers of images with a label, without it, and unknown."""

    positive: int
    negative: int
    unknown: int


class DataDigests(Struct, frozen=True, kw_only=True):
    """SHA-256 of the data (rows and file contents), and of the split."""

    data_sha256: str
    split_sha256: str


class DataFigures(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The document data/facts.json of a classifier: numbers of images and patients.

    Attributes
    ----------
    images, patients
        Numbers of images and of patients in each part.
    without_patient
        Number of images of all parts without a patient number.
    left_out, left_out_examples
        Number of images that could not be read, and origin and reason of the first ones.
    labels
        Numbers of images with and without each label, by label and part.
    patients_of_table, patients_of_table_in_data
        Number of patients that the split's table names, and how many of them are in the data; None without a table.
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
    """Numbers of images and patients measured, and of images with and without the finding."""

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
    detected, falsely_referred, sensitivity, specificity
        As in an audit that counts images and refers scores at or above the threshold (see
        `audit.figures.PointPerformance`).
    detected_with_unsure
        The share of positive images that is detected if scores in the uncertain zone are referred, too.
    classes
        For "positive" and for "negative" images: the share of them in each class that the user sees, by its name.
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


class PartFigures(ImageCounts, frozen=True, kw_only=True):
    """The figures of the screened images of one part.

    Attributes
    ----------
    scored
        Number of images with a score. `auc`, `calibration_error` and `score_counts` are measured on these.
    specificity_at_sensitivity
        Specificity by wanted sensitivity, such as `0.90`.
    score_counts
        Numbers of images in equal bins of the score.
    points
        Figures by operating point.
    """

    scored: int
    auc: Estimate
    specificity_at_sensitivity: dict[str, Share]
    calibration_error: float
    score_counts: tuple[int, ...]
    points: dict[str, PointFigures]


class HospitalFigures(PartFigures, frozen=True, kw_only=True):
    """The figures of a pack on images of another hospital, with the thresholds of the pack.

    `shortcuts` has the AUC there of classifiers that see only a shortcut: the border of the image, or a thumbnail of
    it.
    """

    shortcuts: dict[str, float]


class GroupFigures(Struct, frozen=True, kw_only=True):
    """The AUC within a group of images, such as one sex."""

    images: int
    positive: int
    auc: Estimate


GroupedFigures = dict[str, dict[str, GroupFigures]]
"""Figures of groups, by the property (view, sex, age, source) and its value."""


class Int8Comparison(Struct, frozen=True, kw_only=True):
    """A comparison of the raw scores of the float file and the int8 file on equal images."""

    mean_absolute_difference: float
    largest_difference: float
    auc_float: float
    auc_int8: float


class HeatMapScale(Struct, frozen=True, kw_only=True):
    """The scale of a heat map: a cell whose logit is `span` above zero is shown at full strength."""

    span: float


class EvidenceFigures(Struct, frozen=True, kw_only=True):
    """How much of the heat maps' evidence lies inside the lungs, as shares (0..1) of an image's evidence.

    Attributes
    ----------
    images
        Number of images with evidence.
    mean
        Mean share over these images; None without any.
    chance
        The share that evidence without regard to the lungs would have: the lungs' share of the area.
    limit
        The 5th percentile of the share over these images; None without any.
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
        Measured on the test images, too. `shortcuts` has the AUC of classifiers that see only a shortcut (see
        `evaluate.SHORTCUTS`).
    external_test
        Figures on the images of another hospital; None without one.
    """

    validation_auc: Estimate
    test: PartFigures
    by_group: GroupedFigures
    shortcuts: dict[str, float]
    external_test: HospitalFigures | None = None
    float_against_int8: Int8Comparison
    heat_map: HeatMapScale | None = None
    evidence_inside: EvidenceFigures | None = None


class GateFigures(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The figures of the out-of-distribution check: its limit, and the shares of images that it refuses.

    Attributes
    ----------
    limit
        The distance from the training images above which an image is refused.
    side
        Side in pixels to which test images are shrunk, so that they are compared with out-of-distribution images of
        that size. 0: not shrunk.
    images_refused, elsewhere_refused, ood_refused
        The share refused of the test images, of the images of another hospital, and of the out-of-distribution images.
    images_refused_at_equal_resolution
        The share refused of the test images after shrinking.
    """

    limit: float
    images_refused: Share
    side: int | None = None
    ood_images: int | None = None
    ood_refused: Share | None = None
    images_refused_at_equal_resolution: Share | None = None
    elsewhere_refused: Share | None = None

    @property
    def refused(self) -> list[Share]:
        """The shares of images that the check refuses: of the test images, then of another hospital's images if there
        are any.
        """
        return [self.images_refused, *([self.elsewhere_refused] if self.elsewhere_refused else [])]


class ClassifierFigures(Struct, frozen=True, kw_only=True):
    """The document evaluate/metrics.json of a classifier, with the figures of each label by its code."""

    labels: dict[str, LabelFigures]
    data: DataFigures
    gate: GateFigures


class EvaluationChoices(Struct, frozen=True, kw_only=True):
    """The document evaluate/points.json: choices made on validation images, with the calibration of each label by its
    code.
    """

    points: tuple[OperatingPoint, ...]
    calibration: dict[str, Calibration]


class StageFigures(Struct, frozen=True, kw_only=True):
    """The AUC of a network at one stage (trained, pruned, int8), over all folds and by fold."""

    auc: Estimate
    auc_by_fold: dict[str, float]


class CrossFigures(ImageCounts, frozen=True, kw_only=True, omit_defaults=True):
    """The cross-validation of one label.

    Attributes
    ----------
    stages
        Figures by stage: "trained", "pruned" if the recipe prunes, and "int8". Early documents have "trained" alone.
    after_training
        AUC of the int8 file minus AUC of the trained network.
    """

    stages: dict[str, StageFigures]
    after_training: Interval | None = None
    float_against_int8: Int8Comparison | None = None
    specificity_at_sensitivity: dict[str, Share]
    by_group: GroupedFigures
    shortcuts: dict[str, float]


class PublishedCross(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The document cross.json: the figures of a cross-validation by label, and the settings of training and conversion.

    `trained` and `made` are results of `recipes.classifier.training_description` and `conversion_description`.
    """

    pack: str
    data_sha256: str = ""
    labels: dict[str, CrossFigures]
    trained: dict[str, Any]
    made: dict[str, Any] | None = None
