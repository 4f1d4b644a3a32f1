"""`manifest.json` described once (pack format, version 2): reading, writing and the published schema come from here.

Every class refuses keys it does not know. `provenance` (text by name) and `metrics` (any JSON) are free: they describe
and decide nothing. What a type cannot say stands in `packs.manifest`, and in the domain's classes, which refuse a
threshold outside its band or an operating point for a label that does not exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from fieldray.domain.model import LOCAL_PREFIX, LUNG_CHECKS, Activation, CompanionKind, FitRule, IntensityRule
from fieldray.packs import naming

SCHEMA_VERSION: Final = 2
_MEGABYTE: Final = 2**20
LARGEST_PACK: Final = 1024 * _MEGABYTE
_LARGEST_FILE: Final = 256 * _MEGABYTE
_ROLE_LIMITS: Final[Mapping[str, int]] = {
    "card": 1 * _MEGABYTE,
    "ood_gate_mean": 1 * _MEGABYTE,
    "ood_gate_projection": 32 * _MEGABYTE,
    "golden_inputs": 64 * _MEGABYTE,
    "golden_scores": 1 * _MEGABYTE,
}
OOD_GATE_ROLES: Final = ("ood_gate_mean", "ood_gate_projection")
GOLDEN_ROLES: Final = ("golden_inputs", "golden_scores")
REQUIRED_ROLES: Final = ("litert", "card")


def size_limit(role: str) -> int:
    """Bytes that the file of a role may have: 256 MiB for a network."""
    return _ROLE_LIMITS.get(role, _LARGEST_FILE)


def _whole(pattern: str) -> str:
    """A pattern for the whole of a text. `$` would let a line feed at the end pass in Python, not in JSON Schema."""
    return rf"^(?:{pattern})(?![\s\S])"


LINE: Final = _whole(r"[^\n\t]+")
# "local:" begins the names of operating points that a site chose itself.
POINT_NAME: Final = _whole(rf"(?!{LOCAL_PREFIX})[^\n\t]+")
ID: Final = _whole(naming.ID)
VERSION: Final = _whole(naming.VERSION)
SHA256: Final = _whole("[0-9a-f]{64}")
FINGERPRINT: Final = _whole("[0-9a-f]{4}(-[0-9a-f]{4}){15}")
ROLE: Final = _whole("[a-z][a-z0-9_-]{0,31}")
# The well-formed tags of BCP 47 in their usual spelling: language, script, region, variants ("uk", "pt-BR").
LANGUAGE: Final = _whole(r"[a-z]{2,3}(-[A-Z][a-z]{3})?(-([A-Z]{2}|[0-9]{3}))?(-([a-z0-9]{5,8}|[0-9][a-z0-9]{3})){0,3}")
# What a person reads where a text does not match.
PATTERNS: Final = {
    LINE: "a text without line breaks and tabs",
    POINT_NAME: f"a text without line breaks and tabs that does not begin with {LOCAL_PREFIX}",
    ID: "a pack id (a-z, 0-9, hyphen)",
    VERSION: "a version such as 1.0.0",
    SHA256: "64 lower-case hexadecimal digits",
    FINGERPRINT: "a key's fingerprint, 16 groups of 4 lower-case hexadecimal digits",
    ROLE: "a role (a-z, 0-9, hyphen, underscore)",
    LANGUAGE: "a language tag such as en or pt-BR",
}

_Id = Annotated[str, Meta(pattern=ID)]
_Version = Annotated[str, Meta(pattern=VERSION)]
_Sha256 = Annotated[str, Meta(pattern=SHA256)]
_Fingerprint = Annotated[str, Meta(pattern=FINGERPRINT)]
_Role = Annotated[str, Meta(pattern=ROLE)]
# Checked by `naming.is_file_name`, whose complaint is one of its own.
_FileName = Annotated[str, Meta(extra_json_schema={"pattern": _whole(naming.FILE_NAME)})]
_Name = Annotated[str, Meta(max_length=64, pattern=LINE)]
_Line100 = Annotated[str, Meta(max_length=100, pattern=LINE)]
_Line200 = Annotated[str, Meta(max_length=200, pattern=LINE)]
_Line500 = Annotated[str, Meta(max_length=500, pattern=LINE)]
_Paragraphs = Annotated[str, Meta(min_length=1, max_length=5_000)]
_Note = Annotated[str, Meta(min_length=1, max_length=10_000)]
_Language = Annotated[str, Meta(pattern=LANGUAGE)]
_BY_LANGUAGE: Final = Meta(min_length=1, max_length=100, extra_json_schema={"required": ["en"]})
_Texts100 = Annotated[dict[_Language, _Line100], _BY_LANGUAGE]
_Texts200 = Annotated[dict[_Language, _Line200], _BY_LANGUAGE]
_Texts500 = Annotated[dict[_Language, _Line500], _BY_LANGUAGE]
_TextsLong = Annotated[dict[_Language, _Paragraphs], _BY_LANGUAGE]
# The fields above, by name: English is in each of them.
TEXT_FIELDS: Final = frozenset(
    {"names", "descriptions", "intended_use", "limits", "warnings", "meaning", "titles", "measured_on"}
    | {"abnormal", "normal"}
)

_Words = Annotated[tuple[_Name, ...], Meta(max_length=100)]
_Side = Annotated[int, Meta(ge=8, le=2048)]
_Index = Annotated[int, Meta(ge=0, le=15)]
_Age = Annotated[int, Meta(ge=0, le=150)]
_Share = Annotated[float, Meta(ge=0, le=1)]
_Number = Annotated[float, Meta(ge=-1e30, le=1e30)]
_Positive = Annotated[float, Meta(gt=0, le=1e30)]


class _Part(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of the manifest."""

    def __post_init__(self) -> None:
        for name in TEXT_FIELDS.intersection(self.__struct_fields__):
            texts = getattr(self, name)
            if texts is not UNSET and "en" not in texts:
                raise ValueError(f"{name}: en is missing, a text in English")


class PackFile(_Part, frozen=True, kw_only=True):
    """A file of the pack, beside the manifest."""

    name: _FileName
    size_bytes: Annotated[int, Meta(ge=1, le=2**40)]
    sha256: _Sha256


class Input(_Part, frozen=True, kw_only=True):
    """The network's input; see `domain.model.InputSpec`."""

    height: _Side
    width: _Side
    channels: Literal[1, 3]
    dtype: Literal["uint8"]
    intensity: IntensityRule
    fit: FitRule
    margin: Annotated[float, Meta(ge=0, le=0.2)]
    crop: Literal["lungs"] | UnsetType = UNSET
    crop_margin: Annotated[float, Meta(ge=0, le=0.5)] | UnsetType = UNSET


class LabelText(_Part, frozen=True, kw_only=True):
    """A finding the classifier looks for: `code` in `scheme`."""

    code: _Name
    scheme: _Name
    meaning: _Texts200


class ClassNames(_Part, frozen=True, kw_only=True):
    """What the classes of an image are called, in place of *abnormal* and *normal*."""

    abnormal: _Texts100
    normal: _Texts100


class Outputs(_Part, frozen=True, kw_only=True):
    """Which output of the network is what, by index."""

    activation: Activation
    scores: _Index | UnsetType = UNSET
    class_maps: _Index | UnsetType = UNSET
    features: _Index | UnsetType = UNSET


class EstimateNumbers(_Part, frozen=True, kw_only=True):
    """A measured share with its 95 % confidence interval."""

    value: _Share
    low: _Share
    high: _Share


class Point(_Part, frozen=True, kw_only=True):
    """An operating point: below `unsure_low`, unsure up to `unsure_high`, above from there on."""

    name: Annotated[str, Meta(max_length=64, pattern=POINT_NAME)]
    titles: _Texts100
    label: _Name
    threshold: _Share
    unsure_low: _Share
    unsure_high: _Share
    sensitivity: EstimateNumbers
    specificity: EstimateNumbers
    measured_on: _Texts500


class Platt(_Part, frozen=True, kw_only=True):
    """Calibrated score = sigmoid(slope * logit(score) + intercept)."""

    slope: _Positive
    intercept: _Number


class Accepted(_Part, frozen=True, kw_only=True):
    """The images the pack is for, by what their headers say."""

    modalities: _Words
    body_parts: _Words
    views: _Words
    ages_years: tuple[_Age, _Age] | UnsetType = UNSET


class OodGateLimit(_Part, frozen=True, kw_only=True):
    """The out-of-distribution check; its arrays are the files `ood_gate_mean` and `ood_gate_projection`."""

    limit: _Positive


class GoldenTolerance(_Part, frozen=True, kw_only=True):
    """The self-test; its arrays are the files `golden_inputs` and `golden_scores`."""

    tolerance: Annotated[float, Meta(gt=0, lt=0.5)]


class Companion(_Part, frozen=True, kw_only=True):
    """Another pack that this one does not run without."""

    kind: CompanionKind
    id: _Id | UnsetType = UNSET
    minimum_version: _Version | UnsetType = UNSET
    key: _Fingerprint | UnsetType = UNSET


class LungOutputs(_Part, frozen=True, kw_only=True):
    """Which output of a lung-field network is what, by index.

    The mask is (1, rows, columns, 1), the share of lung of each cell in 0..1; the checks are (1, n) scores in 0..1.
    """

    mask: _Index
    checks: _Index


class LungCheck(_Part, frozen=True, kw_only=True):
    """What a score of a lung-field network says about the image as a whole, and from which score on it holds."""

    name: _Name
    threshold: Annotated[float, Meta(gt=0, lt=1)]


class FeatureOutput(_Part, frozen=True, kw_only=True):
    """Which output of a matcher's encoder holds the features, by index: (1, height, width, n) for the whole input."""

    features: _Index


class PackManifest(_Part, frozen=True, kw_only=True, tag_field="kind"):
    """What every pack says."""

    schema_version: Literal[2]
    id: _Id
    version: _Version
    names: _Texts100
    descriptions: _TextsLong
    intended_use: _TextsLong
    limits: _TextsLong
    input: Input
    files: Annotated[dict[_Role, PackFile], Meta(min_length=1, max_length=16)]
    provenance: Annotated[dict[str, _Note], Meta(max_length=100)]
    metrics: dict[str, Any]


class ClassifierManifest(PackManifest, frozen=True, kw_only=True, tag="classifier"):
    """A pack that screens images: scores by label, and what they mean."""

    labels: Annotated[tuple[LabelText, ...], Meta(min_length=1, max_length=100)]
    class_names: ClassNames | UnsetType = UNSET
    warnings: _TextsLong | UnsetType = UNSET
    outputs: Outputs
    operating_points: Annotated[tuple[Point, ...], Meta(max_length=100)]
    calibration: Annotated[dict[str, Platt], Meta(max_length=100)]
    accepted: Accepted
    ood_gate: OodGateLimit | UnsetType = UNSET
    golden: GoldenTolerance | UnsetType = UNSET
    minimum_edgetpu_runtime: Annotated[int, Meta(ge=0, le=10**6)] | UnsetType = UNSET
    requires: Annotated[tuple[Companion, ...], Meta(max_length=8)] = ()


class LungFieldsManifest(PackManifest, frozen=True, kw_only=True, tag="lung-fields"):
    """A pack that finds the lung fields, for a classifier that requires it."""

    outputs: LungOutputs
    checks: Annotated[tuple[LungCheck, ...], Meta(min_length=len(LUNG_CHECKS), max_length=len(LUNG_CHECKS))]
    mask_threshold: Annotated[float, Meta(gt=0, lt=1)]
    golden: GoldenTolerance | UnsetType = UNSET


class MatcherManifest(PackManifest, frozen=True, kw_only=True, tag="matcher"):
    """A pack that describes image patches, to compare two images.

    `local_radius` is that of `domain.image.locally_normalised`, in pixels of the input.
    """

    outputs: FeatureOutput
    local_radius: Annotated[int, Meta(ge=1, le=64)]


AnyManifest = ClassifierManifest | LungFieldsManifest | MatcherManifest
