"""A pack's manifest, a verified model in memory, and a model's input and output.

The fields follow the pack format, version 2 (docs/pack-format.md). The classes validate themselves: `__post_init__`
raises ValueError with the offending field's name. `packs.manifest` reads them from JSON.
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
# What a lung-field network says of an image as a whole, in the order of its scores.
LUNG_CHECKS: Final = ("frontal_chest", "rotated_90", "rotated_180", "rotated_270", "inverted", "mirrored")

# No pack may name an operating point so: it is one that a site chose on its own images (packs/site_choices).
LOCAL_PREFIX: Final = "local:"


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSpec:
    """The network's input.

    intensity   "as_displayed": the file's own VOI LUT or window (else 1st to 99th percentile) mapped to 0..255;
                "percentile": the same, then, on the resized tensor, its 1st..99th percentile stretched to 0..255,
                so that the grey level of a site does not matter
    fit         "stretch" to height x width; "pad" keeps the aspect and fills with 0; "crop" keeps the aspect and
                cuts the longer side about its middle
    margin      share of each side cut off before fitting (borders carry letters and collimation), 0..0.2
    crop        "lungs": only the lungs that can be seen are fitted, as a lung-field pack finds them; "lung_region":
                all of where lung belongs, where the pack knows that
    crop_margin share of the lungs' height and width kept around them on each side, 0..0.5
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
    """One label of a pack, such as a finding. `code` is a code of `scheme` (for example SNOMED CT, or "fieldray")."""

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

    `name` is used by settings and the command line. `titles` is the name for people, and `measured_on` describes the
    images of the measurement; both by language code.

    A score s is BELOW if s < unsure_low, ABOVE if s >= unsure_high, UNSURE between; a band of no width
    (unsure_low == threshold == unsure_high) leaves no unsure zone.
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
        """Return whether a site chose this operating point on its own images."""
        return self.name.startswith(LOCAL_PREFIX)


@dataclass(frozen=True, slots=True)
class Calibration:
    """Platt scaling: calibrated score = sigmoid(slope * logit(score) + intercept)."""

    slope: float = 1.0
    intercept: float = 0.0

    def __post_init__(self) -> None:
        _require(math.isfinite(self.slope + self.intercept) and self.slope > 0, "calibration slope must be above 0")


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class OodGate:
    """The out-of-distribution check: refuses images too far from the training images, by the pooled features f (n,).

    distance = sqrt(mean(((f - mean) @ projection) ** 2)), projection (n, k) whitens the training features.
    Refused when distance > limit.
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
    """The indices of a model file's outputs by their role; None for a missing output.

    If there are class maps, a label's score is activation(mean of its map), taken from the integer map: the mean of
    many cells is finer than the single quantised score. Otherwise the scores output is used. A mask is (1, rows,
    columns, 1), the share of lung of every cell, 0..1; of 2 channels the second is the share of lung region.
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
    """Inputs (n, h, w, c) uint8, the scores (n, labels) float32 measured by the pack's maker, and the tolerance."""

    inputs: NDArray[np.uint8]
    scores: NDArray[np.float32]
    tolerance: float

    def __post_init__(self) -> None:
        _require(len(self.inputs) == len(self.scores), "golden vectors: inputs and scores differ in number")
        _require(0 < self.tolerance < 0.5, "golden vectors: tolerance must be in (0, 0.5)")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderRules:
    """The header values of the images that a pack accepts; a missing value passes.

    modalities  codes, as in DICOM; body_parts: parts of the text; views: words of the text; all in upper case
    ages_years  youngest and oldest age, whole years, both included; None for any age
    """

    modalities: tuple[str, ...] = ("CR", "DX", "DR", "XR", "RG")
    body_parts: tuple[str, ...] = ("CHEST", "THORAX", "LUNG")
    views: tuple[str, ...] = ("PA", "AP")
    ages_years: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        ages = self.ages_years
        _require(ages is None or 0 <= ages[0] <= ages[1], "ages must be 0 or more, the youngest first")


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """A pack that a classifier needs: its kind and its minimum version.

    id   the required pack's id, or None for any
    key  fingerprint of the required signing key; None for the classifier's own key or the program's
    """

    kind: CompanionKind
    id: str | None = None
    minimum_version: str | None = None
    key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LungRules:
    """The thresholds of a lung-field network.

    From `threshold` on a cell is lung; from its own threshold on (0..1) a check of `LUNG_CHECKS` is passed.
    """

    mask_threshold: float
    thresholds: Mapping[str, float]

    def __post_init__(self) -> None:
        _require(0 < self.mask_threshold < 1, "mask_threshold must be between 0 and 1")
        _require(set(self.thresholds) == set(LUNG_CHECKS), f"checks must be {', '.join(LUNG_CHECKS)}")


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Manifest:
    """The manifest of a pack. The labels of a lung-field pack are its checks.

    names, descriptions, intended_use, limits   texts by language (BCP 47), English always among them
    class_names                                 names of the classes *abnormal* and *normal*, by class and language; or
                                                None
    warnings                                    doubts about the pack's own figures found when it was made, by language;
                                                or None
    accepted                                    header values of the images that the pack accepts
    requires                                    the packs that this pack needs
    lung_rules                                  of a lung-field pack, None for any other
    is_bare                                     whether this is a bare file of the dissertation (see packs/verified):
                                                grey levels are not scaled, there is no operating point, the label with
                                                the larger score is the class, and the first label is the abnormal one
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
    ood_gate: OodGate | None = None
    accepted: HeaderRules = HeaderRules()
    requires: tuple[Requirement, ...] = ()
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
        """Return the codes of the labels."""
        return tuple(label.code for label in self.labels)

    @property
    def needs_lungs(self) -> bool:
        """Return whether the pack needs a lung-field pack."""
        return any(requirement.kind == "lung-fields" for requirement in self.requires)

    def point(self, label: str, name: str | None = None) -> OperatingPoint | None:
        """Return the operating point `name` of a label (the first one if no name is given), or None."""
        for point in self.operating_points:
            if point.label == label and name in (None, point.name):
                return point
        return None


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Model:
    """A verified pack in memory; the drive is not needed any more.

    files         the networks by role: "litert" (always there), "edgetpu", and further roles named by the pack
    model_sha256  of the "litert" file (hex)
    fingerprint   of the signing key, empty for a legacy pack
    content_sha256  SHA-256 (hex) of the manifest, which identifies all files of the pack; empty for a legacy pack
    lungs         the lung-field pack that runs before a classifier, None without one
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
        """Return `id-version`, the name of the pack's folder."""
        return f"{self.manifest.pack_id}-{self.manifest.version}"

    @property
    def lungs_pack(self) -> str:
        """Return the lung-field pack's name and the beginning of its file's hash, as results name it; "" without
        one.
        """
        return f"{self.lungs.pack_name} {self.lungs.model_sha256[:12]}" if self.lungs else ""


# Names of rows of the table in `fieldray.backends`; a choice may also be "auto"
BackendName = str
DeviceChoice = str

# The ready backends that run images: "accelerator" the one that the table prefers, which spares the CPU
# for other programs; "fastest" the one that was measured to be; "both" all of them, draining one queue
Policy = Literal["accelerator", "fastest", "both"]


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Prediction:
    """The output of a model for one image.

    backend     the backend that ran this image
    scores      uncalibrated score in [0, 1] by label code
    class_maps  (labels, rows, columns) float32 logits, their mean is the label's logit; None if the model has none
    features    (n,) float32 pooled features; None if the model has none
    latency_ms  duration of the inference alone, measured in the process that ran it
    sequence    1 for the first image this backend ran since it was opened, 2 for the second, ...
    """

    pack_name: str
    model_sha256: str
    backend: BackendName
    scores: Mapping[str, float]
    class_maps: NDArray[np.float32] | None
    features: NDArray[np.float32] | None
    latency_ms: float
    sequence: int
