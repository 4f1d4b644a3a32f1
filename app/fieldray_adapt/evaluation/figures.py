"""The figures of a classifier as stored in a run: data, evaluation, cross-validation.

Each class is a table of a JSON document; a part that a run does not have is absent there and None here. Shares and
areas carry a 95 % interval over patients.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from fieldray.domain.metrics import Share
from fieldray.domain.model import Calibration, Estimate, OperatingPoint


class Interval(Struct, frozen=True, kw_only=True):
    """A value of any range, for example a difference or a distance, with the ends of its 95 % interval."""

    value: float
    low: float
    high: float


def as_text(found: Share | Estimate | Interval, form: str = ".3f") -> str:
    """A figure as text: the counts of a share, the value and its interval."""
    counts = f"{found.count} of {found.of}: " if isinstance(found, Share) else ""
    return f"{counts}{found.value:{form}} ({found.low:{form}} to {found.high:{form}})"


class DuplicateFigures(Struct, frozen=True, kw_only=True):
    """Numbers of pairs of images that are copies, and the first of them by name."""

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
    """The digests of a split: SHA-256 of rows and files, and of the parts."""

    data_sha256: str
    split_sha256: str


class DataFigures(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """data/facts.json of a classifier: images and patients by part, labels by label and part, and digests.

    `without_patient` counts the images of all parts whose patient nobody knows. Images that could not be read are left
    out, the first of them with origin and sentence. Patients of the table are those whom the table of the split names,
    if there is one.
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
    """The numbers of images and patients measured, and of images with and without the finding."""

    images: int
    patients: int
    positive: int
    negative: int


class PointFigures(Struct, frozen=True, kw_only=True):
    """The figures of an operating point: its threshold and unsure zone as calibrated scores, and the counts.

    `detected`, `falsely_referred`, `sensitivity` and `specificity` are those of an audit (`audit.figures.AtPoint`) that
    counts images and refers them by "above". In `detected_with_unsure` unsure images are referred, too. `classes`
    holds, by "positive" and "negative", the share of each class that a person sees.
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
    """Everything counted on one part as the program screens it; specificities by the sensitivity, as `0.90`.

    `auc`, `calibration_error` and `score_counts` (numbers of images in equal bins of the score) are of the `scored`
    images, which have a score.
    """

    scored: int
    auc: Estimate
    specificity_at_sensitivity: dict[str, Share]
    calibration_error: float
    score_counts: tuple[int, ...]
    points: dict[str, PointFigures]


class HospitalFigures(PartFigures, frozen=True, kw_only=True):
    """The figures of a pack's thresholds at another hospital, and the AUC of each shortcut there."""

    shortcuts: dict[str, float]


class GroupFigures(Struct, frozen=True, kw_only=True):
    """The AUC within a group of images."""

    images: int
    positive: int
    auc: Estimate


Groups = dict[str, dict[str, GroupFigures]]
"""By what the images are grouped, and by the group."""


class IntegerFigures(Struct, frozen=True, kw_only=True):
    """The float file against the int8 file on the same images, raw scores."""

    mean_absolute_difference: float
    largest_difference: float
    auc_float: float
    auc_int8: float


class HeatMapScale(Struct, frozen=True, kw_only=True):
    """Logits above zero that a heat map shows at full strength."""

    span: float


class EvidenceFigures(Struct, frozen=True, kw_only=True):
    """Share of the evidence inside the lungs: the mean, the value by chance, and the 5th percentile.

    `images` have evidence; without any there is no mean and no limit.
    """

    images: int
    mean: float | None
    chance: float
    limit: float | None


class LabelFigures(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All figures of one label; `shortcuts` are AUCs of features other than the finding, on the test images.

    `validation_auc` is that of the network's scores alone, by which thresholds are chosen; the parts are screened.
    """

    validation_auc: Estimate
    test: PartFigures
    by_group: Groups
    shortcuts: dict[str, float]
    external_test: HospitalFigures | None = None
    float_against_int8: IntegerFigures
    heat_map: HeatMapScale | None = None
    evidence_inside: EvidenceFigures | None = None


class GateFigures(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The out-of-distribution gate: its limit, and the shares of images that it refuses.

    `side` is what test images are shrunk to before they are compared with images that are no chest X-rays; 0: not.
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
        """Return the share of chest X-rays refused at the own hospital, and at another one if there is one."""
        return [self.images_refused, *([self.elsewhere_refused] if self.elsewhere_refused else [])]


class ClassifierFigures(Struct, frozen=True, kw_only=True):
    """evaluate/metrics.json of a classifier; `labels` by their codes."""

    labels: dict[str, LabelFigures]
    data: DataFigures
    gate: GateFigures


class Choices(Struct, frozen=True, kw_only=True):
    """evaluate/points.json: the choices made on validation images; `calibration` by the labels' codes."""

    points: tuple[OperatingPoint, ...]
    calibration: dict[str, Calibration]


class StageFigures(Struct, frozen=True, kw_only=True):
    """The AUC of a network in one stage of its making: of all folds together, and by fold."""

    auc: Estimate
    auc_by_fold: dict[str, float]


class CrossFigures(ImageCounts, frozen=True, kw_only=True, omit_defaults=True):
    """A cross-validation of one label: "trained", "pruned" where the recipe prunes, and "int8".

    `after_training` is the AUC of the int8 file less that of the network as trained. One that was published earlier may
    have the stage "trained" alone.
    """

    stages: dict[str, StageFigures]
    after_training: Interval | None = None
    float_against_int8: IntegerFigures | None = None
    specificity_at_sensitivity: dict[str, Share]
    by_group: Groups
    shortcuts: dict[str, float]


class PublishedCross(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The document cross.json: figures by label, and what decides training and conversion (see
    `recipes.classifier`).
    """

    pack: str
    data_sha256: str = ""
    labels: dict[str, CrossFigures]
    trained: dict[str, Any]
    made: dict[str, Any] | None = None
