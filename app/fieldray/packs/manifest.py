"""The content of `manifest.json` (pack format, version 2), whose classes define reading, writing and the schema.

Every class rejects unknown keys. `provenance` (text by name) and `metrics` (any JSON) are free: they describe the pack
and decide nothing.

Rules that a type cannot express are checked in two places. The functions of this module check how the file is written,
for example that no name begins with the prefix of local operating points. The classes of `domain.model` check what
values mean, for example that a threshold lies inside its zone and that its label exists.

Parse only bytes whose signature has been verified. If the meaning of a field changes, `schema_version` must be raised.
Arrays are separate files, not JSON.
"""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, get_args, get_type_hints

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from fieldray.domain.finding import Category
from fieldray.domain.model import (
    LOCAL_POINT_PREFIX,
    LUNG_NETWORK_CHECKS,
    Activation,
    CompanionKind,
    FitRule,
    IntensityRule,
    Manifest,
    OutOfDistributionCheck,
    PackKind,
)
from fieldray.errors import PackProblem
from fieldray.formatting import class_synonyms
from fieldray.packs import naming
from fieldray.packs.look_alikes import are_look_alikes, is_visible_text
from fieldray.packs.reading import canonical_json, manifest_error, parse_json_object
from fieldray.paths import translation_catalogue_paths
from fieldray.reasons import reason
from fieldray.translation import ENGLISH, Translator
from fieldray.typed_json import to_type

SCHEMA_VERSION: Final = 2
_MEGABYTE: Final = 2**20
MAX_PACK_BYTES: Final = 1024 * _MEGABYTE
_LARGEST_FILE: Final = 256 * _MEGABYTE
_ROLE_LIMITS: Final[Mapping[str, int]] = {
    "card": 1 * _MEGABYTE,
    "ood_gate_mean": 1 * _MEGABYTE,
    "ood_gate_projection": 32 * _MEGABYTE,
    "golden_inputs": 64 * _MEGABYTE,
    "golden_scores": 1 * _MEGABYTE,
}
OOD_FILE_ROLES: Final = ("ood_gate_mean", "ood_gate_projection")
GOLDEN_FILE_ROLES: Final = ("golden_inputs", "golden_scores")
REQUIRED_FILE_ROLES: Final = ("litert", "card")


def size_limit_bytes(role: str) -> int:
    """Return the largest size in bytes that a pack's file with this role may have, such as 256 MiB for a network."""
    return _ROLE_LIMITS.get(role, _LARGEST_FILE)


def _whole(pattern: str) -> str:
    """Return a regular expression that matches a pattern over a whole text.

    `$` is not used, because in Python (unlike in JSON Schema) it allows a line feed at the end.
    """
    return rf"^(?:{pattern})(?![\s\S])"


LINE_PATTERN: Final = _whole(r"[^\n\t]+")
# The names of operating points that a site chose begin with "local:".
POINT_NAME_PATTERN: Final = _whole(rf"(?!{LOCAL_POINT_PREFIX})[^\n\t]+")
ID_PATTERN: Final = _whole(naming.ID_REGEX)
VERSION_PATTERN: Final = _whole(naming.VERSION_REGEX)
SHA256_PATTERN: Final = _whole("[0-9a-f]{64}")
FINGERPRINT_PATTERN: Final = _whole("[0-9a-f]{4}(-[0-9a-f]{4}){15}")
ROLE_PATTERN: Final = _whole("[a-z][a-z0-9_-]{0,31}")
# The well-formed tags of BCP 47 in their usual spelling: language, script, region, variants ("uk", "pt-BR").
LANGUAGE_PATTERN: Final = _whole(
    r"[a-z]{2,3}(-[A-Z][a-z]{3})?(-([A-Z]{2}|[0-9]{3}))?(-([a-z0-9]{5,8}|[0-9][a-z0-9]{3})){0,3}"
)
# Descriptions of the patterns, for messages about a text that does not match.
PATTERN_DESCRIPTIONS: Final = {
    LINE_PATTERN: "a text without line breaks and tabs",
    POINT_NAME_PATTERN: f"a text without line breaks and tabs that does not begin with {LOCAL_POINT_PREFIX}",
    ID_PATTERN: "a pack id (a-z, 0-9, hyphen)",
    VERSION_PATTERN: "a version such as 1.0.0",
    SHA256_PATTERN: "64 lower-case hexadecimal digits",
    FINGERPRINT_PATTERN: "a key's fingerprint, 16 groups of 4 lower-case hexadecimal digits",
    ROLE_PATTERN: "a role (a-z, 0-9, hyphen, underscore)",
    LANGUAGE_PATTERN: "a language tag such as en or pt-BR",
}

_Id = Annotated[str, Meta(pattern=ID_PATTERN)]
_Version = Annotated[str, Meta(pattern=VERSION_PATTERN)]
_Sha256 = Annotated[str, Meta(pattern=SHA256_PATTERN)]
_Fingerprint = Annotated[str, Meta(pattern=FINGERPRINT_PATTERN)]
_Role = Annotated[str, Meta(pattern=ROLE_PATTERN)]
# Checked by `naming.is_file_name`, which has its own message.
_FileName = Annotated[str, Meta(extra_json_schema={"pattern": _whole(naming.FILE_NAME_REGEX)})]
_Name = Annotated[str, Meta(max_length=64, pattern=LINE_PATTERN)]
_Line100 = Annotated[str, Meta(max_length=100, pattern=LINE_PATTERN)]
_Line200 = Annotated[str, Meta(max_length=200, pattern=LINE_PATTERN)]
_Line500 = Annotated[str, Meta(max_length=500, pattern=LINE_PATTERN)]
_Paragraphs = Annotated[str, Meta(min_length=1, max_length=5_000)]
_Note = Annotated[str, Meta(min_length=1, max_length=10_000)]
_Language = Annotated[str, Meta(pattern=LANGUAGE_PATTERN)]
_BY_LANGUAGE: Final = Meta(min_length=1, max_length=100, extra_json_schema={"required": ["en"]})
_Texts100 = Annotated[dict[_Language, _Line100], _BY_LANGUAGE]
_Texts200 = Annotated[dict[_Language, _Line200], _BY_LANGUAGE]
_Texts500 = Annotated[dict[_Language, _Line500], _BY_LANGUAGE]
_TextsLong = Annotated[dict[_Language, _Paragraphs], _BY_LANGUAGE]
# Names of the fields that hold texts by language. English is required in each.
TRANSLATED_TEXT_FIELDS: Final = frozenset(
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
    """Base class of all parts of the manifest. Texts by language must include English and be visible."""

    def __post_init__(self) -> None:
        for name in TRANSLATED_TEXT_FIELDS.intersection(self.__struct_fields__):
            texts = getattr(self, name)
            if texts is UNSET:
                continue
            if "en" not in texts:
                raise ValueError(f"{name}: en is missing, a text in English")
            if unseen := [language for language, text in texts.items() if not is_visible_text(text)]:
                raise ValueError(f"{name}: the text in {unseen[0]} has no letter and no digit that can be seen")


class PackFile(_Part, frozen=True, kw_only=True):
    """An entry for one file of the pack: its name, its size in bytes, and its SHA-256 (hex)."""

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
    crop: Literal["lungs", "lung_region"] | UnsetType = UNSET
    crop_margin: Annotated[float, Meta(ge=0, le=0.5)] | UnsetType = UNSET


class CodedLabel(_Part, frozen=True, kw_only=True):
    """A finding that the classifier looks for: a code in a coding scheme, and its meaning by language."""

    code: _Name
    scheme: _Name
    meaning: _Texts200


class ClassNames(_Part, frozen=True, kw_only=True):
    """Names of the image classes, replacing *abnormal* and *normal*."""

    abnormal: _Texts100
    normal: _Texts100

    def __post_init__(self) -> None:
        super().__post_init__()
        if problem := class_names_problem({"abnormal": self.abnormal, "normal": self.normal}):
            raise ValueError(" ".join(problem))


def class_names_problem(names: Mapping[str, Mapping[str, str]]) -> tuple[str, str] | None:
    """Return the problem if a pack's name of a class can be confused with the name of another class; else None.

    The problem is (the class, a phrase that names both texts), for example ("normal", "must not be Abn0rmal, which
    looks like the name of another class of the program: Abnormal").

    names  names of the pack's own classes, by class and language. A name must not look like the name of the pack's
           other class, or like a name that the program uses for another class
    """
    for category, texts in names.items():
        taken = {name: "the other class" for other in names if other != category for name in names[other].values()}
        words = [word for other, words in _words().items() if other != category for word in words]
        taken |= dict.fromkeys(words, "another class of the program")
        for text in texts.values():
            for name, owner in taken.items():
                if are_look_alikes(text, name):
                    return category, f"must not be {text}, which looks like the name of {owner}: {name}"
    return None


@functools.cache
def _words() -> Mapping[Category, tuple[str, ...]]:
    """Return for each class the program's names in all languages, and the class's name in data formats."""
    translators = [Translator(language) for language in (ENGLISH, *translation_catalogue_paths())]
    return {
        category: (*(word for translator in translators for word in class_synonyms(translator, category)), category)
        for category in get_args(Category)
    }


class Outputs(_Part, frozen=True, kw_only=True):
    """Indices of the network's outputs by role."""

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
    """An operating point: thresholds of the score of one label, with the measured sensitivity and specificity.

    score                                      decision
    below `unsure_low`                         *below*
    from `unsure_low` to below `unsure_high`   *unsure*
    `unsure_high` or more                      *above*
    """

    name: Annotated[str, Meta(max_length=64, pattern=POINT_NAME_PATTERN)]
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
    """Header values of the images that the pack accepts."""

    modalities: _Words
    body_parts: _Words
    views: _Words
    ages_years: tuple[_Age, _Age] | UnsetType = UNSET


class OodGateLimit(_Part, frozen=True, kw_only=True):
    """The limit of the out-of-distribution check. Its arrays are the files of `OOD_FILE_ROLES`."""

    limit: _Positive


class GoldenTolerance(_Part, frozen=True, kw_only=True):
    """The tolerance of the self-test. Its arrays are the files of `GOLDEN_FILE_ROLES`."""

    tolerance: Annotated[float, Meta(gt=0, lt=0.5)]


class Companion(_Part, frozen=True, kw_only=True):
    """A pack that this pack needs to run."""

    kind: CompanionKind
    id: _Id | UnsetType = UNSET
    minimum_version: _Version | UnsetType = UNSET
    key: _Fingerprint | UnsetType = UNSET


class LungOutputs(_Part, frozen=True, kw_only=True):
    """Indices of a lung-field network's outputs by role.

    mask    (1, rows, columns, 1 or 2): the share of lung of each cell in 0..1, and perhaps the share of lung region
    checks  (1, n): scores of the image checks in 0..1
    """

    mask: _Index
    checks: _Index


class LungCheck(_Part, frozen=True, kw_only=True):
    """One image check of a lung-field network, such as *inverted*: its name, and the threshold of its score."""

    name: _Name
    threshold: Annotated[float, Meta(gt=0, lt=1)]


class PackManifest(_Part, frozen=True, kw_only=True, tag_field="kind"):
    """The fields that the manifests of all kinds of packs share."""

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
    """The manifest of a pack that screens images: scores by label, and their meaning."""

    labels: Annotated[tuple[CodedLabel, ...], Meta(min_length=1, max_length=100)]
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
    """The manifest of a pack that finds the lung fields before a classifier runs."""

    outputs: LungOutputs
    checks: Annotated[
        tuple[LungCheck, ...], Meta(min_length=len(LUNG_NETWORK_CHECKS), max_length=len(LUNG_NETWORK_CHECKS))
    ]
    mask_threshold: Annotated[float, Meta(gt=0, lt=1)]
    golden: GoldenTolerance | UnsetType = UNSET


AnyManifest = ClassifierManifest | LungFieldsManifest


# The fields of `domain.model.Manifest` that come from the manifest file; `ood_gate` needs arrays from other files.
_DOMAIN: Final = {name: kind for name, kind in get_type_hints(Manifest).items() if name != "ood_gate"}


# ---- from JSON


@functools.lru_cache(maxsize=32)  # listing, choosing and running a pack parse equal bytes
def parse_manifest(data: bytes) -> AnyManifest:
    """Read the bytes of `manifest.json`. Equal bytes give one shared object, which callers must not change.

    Raises PackProblem: pack_manifest (with the position in the file), pack_newer_format, pack_older_format,
    pack_bad_name, pack_too_large.
    """
    document = parse_json_object(data)
    _check_format(document)
    _check_names(document)
    found: AnyManifest = _read(document, AnyManifest)
    _check_files(found)
    if isinstance(found, LungFieldsManifest) and tuple(check.name for check in found.checks) != LUNG_NETWORK_CHECKS:
        raise manifest_error(
            f"checks: need {', '.join(LUNG_NETWORK_CHECKS)}, in this order"
        )  # the scores have this order
    domain_manifest(found)  # raises PackProblem for rules that no type can express
    return found


def pack_kind_of(manifest: PackManifest) -> PackKind:
    """Return the kind of a pack (`classifier`, `lung-fields`), from the type of its manifest."""
    kind: PackKind = type(manifest).__struct_config__.tag  # type: ignore[assignment]
    return kind


def domain_manifest(manifest: AnyManifest, *, ood_gate: OutOfDistributionCheck | None = None) -> Manifest:
    """Convert the content of a manifest file to a `Manifest`.

    The checks of a lung-field pack become its labels. Raises PackProblem("pack_manifest") if values contradict each
    other, such as a threshold outside its zone.

    ood_gate  the out-of-distribution check, whose arrays are read from other files
    """
    content: dict[str, Any] = msgspec.to_builtins(manifest)
    content["pack_id"] = content.pop("id")
    if isinstance(manifest, LungFieldsManifest):  # described as a network that gives scores
        content |= {
            "labels": [{"code": name, "scheme": "fieldray", "meaning": {"en": name}} for name in LUNG_NETWORK_CHECKS],
            "outputs": {"scores": manifest.outputs.checks, "mask": manifest.outputs.mask},
            "lung_rules": {
                "mask_threshold": manifest.mask_threshold,
                "thresholds": {check.name: check.threshold for check in manifest.checks},
            },
        }
    parts = {name: _read(content[name], kind, name) for name, kind in _DOMAIN.items() if name in content}
    try:
        return Manifest(ood_gate=ood_gate, **parts)
    except ValueError as error:
        raise manifest_error(str(error)) from error


# ---- to JSON


def classifier_manifest(
    manifest: Manifest, *, files: Mapping[str, PackFile], golden_tolerance: float | None
) -> ClassifierManifest:
    """Make the content of a classifier's manifest file.

    manifest          the manifest in memory
    files             entry of each file of the pack, by the role of the file, such as "litert" for the network
    golden_tolerance  largest allowed difference of a score in the self-test; None without a self-test

    Raises PackProblem if the result is not valid.
    """
    content: dict[str, Any] = {
        name: value
        for name in ClassifierManifest.__struct_fields__
        if name in _DOMAIN and (value := _written(getattr(manifest, name))) is not None
    }
    content |= {"kind": "classifier", "schema_version": SCHEMA_VERSION, "id": manifest.pack_id}
    content["input"]["dtype"] = "uint8"
    if manifest.input.crop == "none":
        del content["input"]["crop"], content["input"]["crop_margin"]
    content["files"] = msgspec.to_builtins(files)
    if manifest.ood_gate:
        content["ood_gate"] = {"limit": manifest.ood_gate.limit}
    if golden_tolerance is not None:
        content["golden"] = {"tolerance": golden_tolerance}
    found: ClassifierManifest = _read(content, ClassifierManifest)
    return found


def encode_manifest(manifest: PackManifest) -> bytes:
    """Return the canonical bytes of `manifest.json`.

    Raises ValueError or TypeError for metrics that JSON cannot express.
    """
    content: dict[str, object] = msgspec.to_builtins(manifest)
    return canonical_json(content)


def _written(value: object) -> Any:
    """Convert a domain object to plain values for JSON, leaving out fields that are None."""
    if isinstance(value, Mapping):
        return {name: _written(member) for name, member in value.items()}
    if isinstance(value, tuple):
        return [_written(item) for item in value]
    if hasattr(value, "__dataclass_fields__"):
        fields = {name: _written(getattr(value, name)) for name in value.__dataclass_fields__}
        return {name: member for name, member in fields.items() if member is not None}
    return value


# ---- the schema


def manifest_schema() -> bytes:
    """Return the JSON Schema (2020-12) of `manifest.json` as canonical JSON.

    The schema's description lists the rules that JSON Schema cannot express.
    """
    found = msgspec.json.schema(AnyManifest)
    for kind in found["$defs"].values():  # since Python 3.13 docstrings have no indentation
        if "description" in kind:
            kind["description"] = inspect.cleandoc(kind["description"])
    found |= {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Fieldray model pack, format {SCHEMA_VERSION}: manifest.json",
        "description": "A reader also refuses: doubled keys, control or formatting characters in texts, nesting deeper "
        "than 31, a file of more than 128 KiB, file names that Windows keeps for devices or that differ in case only, "
        "two outputs with one index, the checks of a lung-field pack in another order, an operating point or a "
        "calibration for a label that does not exist, two operating points of one label with one name, thresholds "
        "outside their band, a text without a letter or digit that can be seen, a class name that looks like that of "
        "another class (UTS 39, of the pack or of the program), files missing for ood_gate or golden, and a pack whose "
        "files exceed 1 GiB together.",
    }
    return canonical_json(found)


# ---- rules that no type can express


def _check_format(document: Mapping[str, Any]) -> None:
    """Raise PackProblem unless the document has the format version of this program.

    This check comes first, because a document of another version has different keys.
    """
    version = document.get("schema_version")
    if type(version) is not int or version < 1:
        raise manifest_error("schema_version: a whole number from 1 on is needed")
    if version != SCHEMA_VERSION:
        code = "pack_newer_format" if version > SCHEMA_VERSION else "pack_older_format"
        raise PackProblem(reason(code, version=version))


def _check_names(document: Mapping[str, Any]) -> None:
    """Raise PackProblem("pack_bad_name") unless all file names are valid and differ by more than letter case.

    FAT and NTFS ignore letter case. Names are checked before types, so that a malicious name is reported as a bad name.
    """
    files = document.get("files")
    listed = files.values() if isinstance(files, dict) else ()
    names = [file["name"] for file in listed if isinstance(file, dict) and isinstance(file.get("name"), str)]
    times = Counter(name.lower() for name in names)
    for name in names:
        if not naming.is_file_name(name) or times[name.lower()] > 1:
            raise PackProblem(reason("pack_bad_name", name=name))


def _check_files(found: AnyManifest) -> None:
    """Raise PackProblem if a needed file is missing, an array file is not needed, or a file exceeds its size limit."""
    arrays = {
        OOD_FILE_ROLES: isinstance(found, ClassifierManifest) and found.ood_gate is not msgspec.UNSET,
        GOLDEN_FILE_ROLES: found.golden is not msgspec.UNSET,
    }
    needed = {*REQUIRED_FILE_ROLES, *(role for roles, is_used in arrays.items() if is_used for role in roles)}
    unused = {role for roles, is_used in arrays.items() if not is_used for role in roles}
    missing = sorted(needed - set(found.files))
    if missing:
        raise manifest_error(f"files: {missing[0]} is missing")
    if unused & set(found.files):
        raise manifest_error(f"files: nothing needs {min(unused & set(found.files))}")
    for role, file in found.files.items():
        check_size(file.name, file.size_bytes, limit_bytes=size_limit_bytes(role))
    check_size("*", sum(file.size_bytes for file in found.files.values()), limit_bytes=MAX_PACK_BYTES)


def check_size(name: str, size_bytes: int, *, limit_bytes: int) -> None:
    """Raise PackProblem("pack_too_large") if a file is larger than `limit_bytes` bytes."""
    if size_bytes > limit_bytes:
        sizes = {"size_mb": f"{size_bytes / _MEGABYTE:.1f}", "limit_mb": limit_bytes // _MEGABYTE}
        raise PackProblem(reason("pack_too_large", name=name, **sizes))


# ---- errors with their position in the file


def _read(value: Any, kind: Any, path_before: str = "") -> Any:
    try:
        return to_type(value, kind)
    except ValueError as error:
        message, _, path = str(error).partition(" - at `")
        path = path.rpartition("`$")[2].removeprefix("$").removesuffix("`")
        where = (path_before + path).removeprefix(".")
        # The message of msgspec, or a readable one where msgspec quotes a regular expression.
        plain = next(
            (f"{text} is needed" for pattern, text in PATTERN_DESCRIPTIONS.items() if repr(pattern) in message), message
        )
        raise manifest_error(f"{where or 'the file'}: {plain}") from error
