"""A pack's manifest, a verified model in memory, and a model's input and output.

The fields follow the pack format, version 2 (docs/pack-format.md), which `packs.manifest` reads from JSON. Each class
checks its values: the constructor raises ValueError with the name of the offending field.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

IntensityRule = Literal["as_displayed", "percentile"]
FitRule = Literal["stretch", "pad", "crop"]
CropRule = Literal["none", "lungs", "lung_region"]
Activation = Literal["sigmoid", "softmax"]
Trust = Literal["builtin", "signed", "legacy"]
CompanionKind = Literal["lung-fields"]
PackKind = Literal["classifier"] | CompanionKind
# The checks that a lung-field network makes of the whole image, in the order of its scores.
LUNG_NETWORK_CHECKS: Final = ("frontal_chest", "rotated_90", "rotated_180", "rotated_270", "inverted", "mirrored")

# Prefix of the names of operating points that a site chose on its own images (packs/site_choices). No pack may use it.
LOCAL_POINT_PREFIX: Final = "local:"


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSpec:
    """The input that a network expects, and how an image is made into this input.

    intensity    "as_displayed": the file's own VOI LUT or window (else the 1st to 99th percentile) mapped to 0..255.
                 "percentile": in addition, the 1st..99th percentile of the resized input is stretched to 0..255, so
                 that a site's grey level does not matter
    fit          "stretch" to height x width; "pad" keeps the aspect ratio and fills with 0; "crop" keeps the aspect
                 ratio and cuts the longer side around its middle
    margin       share of each side that is cut off before fitting, 0..0.2, because borders carry letters and
                 collimation
    crop         "none": the whole image is fitted. "lungs": only the visible lungs, found by a lung-field pack, are
                 fitted. "lung_region": the whole lung region including opacified parts, if the lung-field pack gives
                 the region
    crop_margin  share of the lungs' height and width kept around the lungs on each side, 0..0.5
    """

    height: int
    width: int
    channels: int = 1
    intensity: IntensityRule = "percentile"
    fit: FitRule = "stretch"
    margin: float = 0.0
    crop: CropRule = "none"
    crop_margin: float = 0.0

    def __post_init__(self) -> None:
        _require(8 <= self.height <= 2048 and 8 <= self.width <= 2048, "input height and width must be 8..2048")
        _require(self.channels in (1, 3), "input channels must be 1 or 3")
        _require(0.0 <= self.margin <= 0.2, "input margin must be 0..0.2")
        _require(0.0 <= self.crop_margin <= 0.5, "input crop_margin must be 0..0.5")
        is_cropped = self.crop != "none"
        _require(is_cropped or not self.crop_margin, "input crop_margin is for an input that is cropped to the lungs")
        _require(not (is_cropped and self.margin), "input margin must be 0 where the input is cropped to the lungs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """One label of a pack, such as a finding.

    code     code of the label in `scheme`, for example SNOMED CT or "fieldray"
    meaning  meaning of the label by language
    """

    code: str
    scheme: str
    meaning: Mapping[str, str]

    def __post_init__(self) -> None:
        _require(bool(self.code) and "en" in self.meaning, "a label needs a code and an English meaning")


@dataclass(frozen=True, slots=True)
class Estimate:
    """A measured share or AUC with its 95 % confidence interval, all in 0..1."""

    value: float
    low: float
    high: float

    def __post_init__(self) -> None:
        _require(0 <= self.low <= self.value <= self.high <= 1, f"not an estimate: {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatingPoint:
    """A named threshold on one label's calibrated score, with the performance measured at that threshold.

    name                     used by settings and the command line
    titles                   names for people, by language
    unsure_low, unsure_high  ends of the uncertain zone
    measured_on              description of the images of the measurement, by language

    A score s gives the decision "below" if s < unsure_low, "above" if s >= unsure_high, and "unsure" between. If
    threshold, unsure_low and unsure_high are equal, there is no uncertain zone.
    """

    name: str
    titles: Mapping[str, str]
    label: str
    threshold: float
    unsure_low: float
    unsure_high: float
    sensitivity: Estimate
    specificity: Estimate
    measured_on: Mapping[str, str]

    def __post_init__(self) -> None:
        _require(bool(self.name), "an operating point needs a name")
        _require("en" in self.titles and "en" in self.measured_on, f"operating point {self.name}: no English texts")
        ordered = 0 <= self.unsure_low <= self.threshold <= self.unsure_high <= 1
        _require(ordered, f"operating point {self.name}: need 0 <= unsure_low <= threshold <= unsure_high <= 1")

    @property
    def is_local(self) -> bool:
        """Whether a site chose this operating point on its own images."""
        return self.name.startswith(LOCAL_POINT_PREFIX)


@dataclass(frozen=True, slots=True)
class Calibration:
    """Platt scaling: calibrated score = sigmoid(slope * logit(score) + intercept)."""

    slope: float = 1.0
    intercept: float = 0.0

    def __post_init__(self) -> None:
        _require(math.isfinite(self.slope + self.intercept) and self.slope > 0, "calibration slope must be above 0")


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class OutOfDistributionCheck:
    """The out-of-distribution check, which refuses images too far from the training images.

    distance = sqrt(mean(((f - mean) @ projection) ** 2)) for the network's pooled features f (n,). The projection (n,
    k) whitens the features of the training images. An image is refused if distance > limit.
    """

    mean: NDArray[np.float32]
    projection: NDArray[np.float32]
    limit: float

    def __post_init__(self) -> None:
        _require(self.projection.shape[0] == self.mean.shape[0], "OOD gate: projection and mean differ in length")
        _require(self.limit > 0, "OOD gate: limit must be above 0")

    def distance(self, features: NDArray[np.float32]) -> float:
        """Return the distance of one image's features (n,) from the training images, 0 or more."""
        centred = (features - self.mean) @ self.projection
        return float(np.sqrt(np.mean(centred**2)))


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputRoles:
    """The indices of a network's outputs by their role; None for a missing output.

    scores      a score for each label
    class_maps  a map for each label. If present, a label's score is activation(mean of the label's map), and the output
                `scores` is not used: the mean of many integer cells is finer than one quantised score
    features    pooled features for the out-of-distribution check
    mask        (1, rows, columns, 1): the share of lung in each cell, 0..1. A second channel is the share of lung
                region
    """

    scores: int | None = None
    class_maps: int | None = None
    features: int | None = None
    mask: int | None = None
    activation: Activation = "sigmoid"

    def __post_init__(self) -> None:
        _require(self.scores is not None or self.class_maps is not None, "outputs need scores or class_maps")
        roles = (self.scores, self.class_maps, self.features, self.mask)
        indices = [index for index in roles if index is not None]
        _require(len(set(indices)) == len(indices), "one output has two roles")


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class GoldenVectors:
    """Inputs with known scores, with which a device is tested before use.

    inputs     (n, h, w, c) uint8
    scores     (n, labels) float32, measured by the pack's maker
    tolerance  largest allowed difference of a score
    """

    inputs: NDArray[np.uint8]
    scores: NDArray[np.float32]
    tolerance: float

    def __post_init__(self) -> None:
        _require(len(self.inputs) == len(self.scores), "golden vectors: inputs and scores differ in number")
        _require(0 < self.tolerance < 0.5, "golden vectors: tolerance must be in (0, 0.5)")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderRules:
    """The header values of the images that a pack accepts. A header without a value is accepted.

    modalities  accepted DICOM codes of the modality
    body_parts  accepted body parts, in upper case; headers may also use known words of other languages
    views       accepted views, in upper case; headers may also use known words of other languages
    ages_years  youngest and oldest age in whole years, both included; None for any age
    """

    modalities: tuple[str, ...] = ("CR", "DX", "DR", "XR", "RG")
    body_parts: tuple[str, ...] = ("CHEST", "THORAX", "LUNG")
    views: tuple[str, ...] = ("PA", "AP")
    ages_years: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        ages = self.ages_years
        _require(ages is None or 0 <= ages[0] <= ages[1], "ages must be 0 or more, the youngest first")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackRequirement:
    """A pack that a classifier needs.

    kind             kind of the required pack
    id               id of the required pack; None for any id
    minimum_version  minimum version of the required pack; None for any version
    key              fingerprint of the key that must have signed the required pack; None allows the classifier's own
                     key, or a shipped pack
    """

    kind: CompanionKind
    id: str | None = None
    minimum_version: str | None = None
    key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LungRules:
    """The thresholds of a lung-field network, 0..1.

    mask_threshold  the smallest share of lung with which a cell of the mask counts as lung
    thresholds      score from which an image check counts as true, by name of the check (`LUNG_NETWORK_CHECKS`)
    """

    mask_threshold: float
    thresholds: Mapping[str, float]

    def __post_init__(self) -> None:
        _require(0 < self.mask_threshold < 1, "mask_threshold must be between 0 and 1")
        _require(set(self.thresholds) == set(LUNG_NETWORK_CHECKS), f"checks must be {', '.join(LUNG_NETWORK_CHECKS)}")


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Manifest:
    """The manifest of a pack.

    names, descriptions, intended_use, limits
                 texts by language (BCP 47); English is always present
    labels       labels of a classifier; of a lung-field pack, its checks
    class_names  names of the classes *abnormal* and *normal*, by class and language; or None
    warnings     warnings by language that figures in this manifest may be wrong, written when the pack was made; or
                 None
    accepted     header values of the images that the pack accepts
    requires     the packs that this pack needs
    lung_rules   thresholds of a lung-field pack; None for every other kind of pack
    is_bare      whether the pack is a model file of the dissertation (see packs/verified), without an operating point.
                 The label with the larger score is then the class, the first label is the abnormal class, and grey
                 levels are not scaled
    """

    pack_id: str
    version: str
    names: Mapping[str, str]
    descriptions: Mapping[str, str]
    intended_use: Mapping[str, str]
    limits: Mapping[str, str]
    input: InputSpec
    labels: tuple[Label, ...]
    outputs: OutputRoles
    class_names: Mapping[str, Mapping[str, str]] | None = None
    warnings: Mapping[str, str] | None = None
    operating_points: tuple[OperatingPoint, ...] = ()
    calibration: Mapping[str, Calibration] = field(default_factory=dict)
    ood_gate: OutOfDistributionCheck | None = None
    accepted: HeaderRules = HeaderRules()
    requires: tuple[PackRequirement, ...] = ()
    lung_rules: LungRules | None = None
    is_bare: bool = False
    provenance: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _require(bool(self.labels), "a pack needs at least one label")
        codes = {label.code for label in self.labels}
        _require(len(codes) == len(self.labels), "label codes must differ")
        for point in self.operating_points:
            _require(point.label in codes, f"operating point {point.name} is for unknown label {point.label}")
        points = [(point.label, point.name) for point in self.operating_points]
        _require(len(set(points)) == len(points), "operating points of one label must have different names")
        unknown = set(self.calibration) - codes
        _require(not unknown, f"calibration: {min(unknown, default='')} is not a label")
        _require(
            self.input.crop == "none" or self.needs_lungs, "an input that is cropped to the lungs requires lung-fields"
        )

    @property
    def label_codes(self) -> tuple[str, ...]:
        """The codes of the pack's labels, in the order of the manifest."""
        return tuple(label.code for label in self.labels)

    @property
    def needs_lungs(self) -> bool:
        """Whether the pack requires a lung-field pack."""
        return any(requirement.kind == "lung-fields" for requirement in self.requires)

    def point(self, label: str, name: str | None = None) -> OperatingPoint | None:
        """Return an operating point of a label; None if the label has no operating point of this name.

        label  code of the label
        name   name of the operating point; None for the label's first operating point
        """
        for point in self.operating_points:
            if point.label == label and name in (None, point.name):
                return point
        return None


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Model:
    """A verified pack in memory. The drive from which the pack was read is not needed any more.

    files           the networks by role: "litert" (in every pack), "edgetpu", and further roles named by the pack
    model_sha256    SHA-256 (hex) of the "litert" file
    fingerprint     fingerprint of the signing key; empty for a legacy model
    content_sha256  SHA-256 (hex) of the manifest, which identifies all files of the pack; empty for a legacy model
    card            the model card (Markdown)
    lungs           the lung-field pack that runs before the classifier; None without a lung-field pack
    """

    manifest: Manifest
    trust: Trust
    fingerprint: str
    model_sha256: str
    files: Mapping[str, bytes]
    golden: GoldenVectors | None = None
    card: str = ""
    content_sha256: str = ""
    lungs: Model | None = None

    @property
    def pack_name(self) -> str:
        """`id-version`, the name of the pack and of the pack's folder."""
        return f"{self.manifest.pack_id}-{self.manifest.version}"

    @property
    def lungs_pack(self) -> str:
        """Name of the lung-field pack, and the first 12 digits of its model's SHA-256; "" without a lung-field pack."""
        return f"{self.lungs.pack_name} {self.lungs.model_sha256[:12]}" if self.lungs else ""


# Names in the table of `fieldray.backends`. A device choice may also be "auto".
BackendName = str
DeviceChoice = str

# Which of the ready backends run images. "accelerator": the first in the table, which leaves the CPU to other programs.
# "fastest": the one measured to be the fastest. "both": all of them, from one queue.
DevicePolicy = Literal["accelerator", "fastest", "both"]


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Prediction:
    """The output of a model for one image.

    backend                  the backend that ran this image
    scores                   uncalibrated score in [0, 1] by label code
    class_maps               (labels, rows, columns) float32 logits, whose mean is the label's logit; None if the model
                             has no class maps
    features                 (n,) float32 pooled features; None if the model has no features
    latency_ms               duration of the inference alone, measured in the process that ran the model
    image_number_on_backend  1 for the first image since this backend was opened, 2 for the second, ...
    """

    pack_name: str
    model_sha256: str
    backend: BackendName
    scores: Mapping[str, float]
    class_maps: NDArray[np.float32] | None
    features: NDArray[np.float32] | None
    latency_ms: float
    image_number_on_backend: int
