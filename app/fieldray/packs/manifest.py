"""`manifest.json` from bytes to `manifest_types`, from there to the domain, and back; and its JSON Schema.

Parse only bytes whose signature has been verified. A change of meaning raises `schema_version`; arrays do not stand in
the JSON, they are files.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import msgspec

from fieldray.domain.model import (
    LUNG_CHECKS,
    Calibration,
    HeaderRules,
    InputSpec,
    Label,
    LungRules,
    Manifest,
    MatcherRules,
    OodGate,
    OperatingPoint,
    OutputRoles,
    PackKind,
    Requirement,
)
from fieldray.errors import PackProblem
from fieldray.packs import naming
from fieldray.packs.manifest_types import (
    GOLDEN_ROLES,
    LARGEST_PACK,
    OOD_GATE_ROLES,
    PATTERNS,
    REQUIRED_ROLES,
    SCHEMA_VERSION,
    AnyManifest,
    ClassifierManifest,
    LungFieldsManifest,
    MatcherManifest,
    PackFile,
    PackManifest,
    size_limit,
)
from fieldray.packs.reading import manifest_error, read_document, write_document
from fieldray.reasons import reason
from fieldray.typed_json import converted

_MEGABYTE: Final = 2**20
# The fields that the domain has classes for; all others are the same there as here.
_DOMAIN: Final[Mapping[str, Any]] = {
    "input": InputSpec,
    "labels": tuple[Label, ...],
    "outputs": OutputRoles,
    "operating_points": tuple[OperatingPoint, ...],
    "calibration": dict[str, Calibration],
    "accepted": HeaderRules,
    "requires": tuple[Requirement, ...],
    "lung_rules": LungRules,
    "matcher_rules": MatcherRules,
}
_NOT_DOMAIN: Final = frozenset(
    {"kind", "schema_version", "id", "files", "ood_gate", "golden", "checks", "mask_threshold", "local_radius"}
)


# ---- from JSON


def parse(data: bytes) -> AnyManifest:
    """Read the bytes of `manifest.json`.

    Raises PackProblem: pack_manifest (with the place in the file), pack_newer_format, pack_older_format,
    pack_bad_name, pack_too_large.
    """
    document = read_document(data)
    _check_format(document)
    _check_names(document)
    found: AnyManifest = _read(document, AnyManifest)
    _check_files(found)
    if isinstance(found, LungFieldsManifest):
        _check_lung_fields(found)
    domain_manifest(found)  # the domain refuses what no type can say
    return found


def kind_of(found: PackManifest) -> PackKind:
    """What a pack is for."""
    kind: PackKind = type(found).__struct_config__.tag  # type: ignore[assignment]
    return kind


def domain_manifest(found: AnyManifest, *, ood_gate: OodGate | None = None) -> Manifest:
    """A manifest as the rest of the program knows it: a lung-field pack's has its checks as labels, a matcher's none.

    Raises PackProblem("pack_manifest").
    """
    content: dict[str, Any] = msgspec.to_builtins(found)
    if isinstance(found, LungFieldsManifest):
        content |= _lung_fields(found)
    if isinstance(found, MatcherManifest):
        rules = {"local_radius_px": found.local_radius}
        content |= {"labels": [], "outputs": {"planes": found.outputs.features}, "matcher_rules": rules}
    parts = {name: value for name, value in content.items() if name not in _NOT_DOMAIN}
    parts |= {name: _read(content[name], kind, name) for name, kind in _DOMAIN.items() if name in content}
    try:
        return Manifest(pack_id=found.id, ood_gate=ood_gate, **parts)
    except ValueError as error:
        raise manifest_error(str(error)) from error


def _lung_fields(found: LungFieldsManifest) -> dict[str, Any]:
    """What a lung-field pack's manifest says, in the words of a manifest whose network gives scores."""
    return {
        "labels": [{"code": name, "scheme": "fieldray", "meaning": {"en": name}} for name in LUNG_CHECKS],
        "outputs": {"scores": found.outputs.checks, "mask": found.outputs.mask},
        "lung_rules": {
            "mask_threshold": found.mask_threshold,
            "thresholds": {check.name: check.threshold for check in found.checks},
        },
    }


# ---- to JSON


def describe(
    manifest: Manifest, *, files: Mapping[str, PackFile], golden_tolerance: float | None
) -> ClassifierManifest:
    """The description of a classifier. Raises PackProblem when it is not valid."""
    content: dict[str, Any] = {
        name: value
        for name in ClassifierManifest.__struct_fields__
        if name not in _NOT_DOMAIN and (value := _written(getattr(manifest, name))) is not None
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


def dump(found: PackManifest) -> bytes:
    """The canonical bytes of `manifest.json`. Raises ValueError or TypeError for metrics that JSON cannot hold."""
    content: dict[str, object] = msgspec.to_builtins(found)
    return write_document(content)


def _written(value: object) -> Any:
    """A domain object as plain values, without what is not there."""
    if isinstance(value, Mapping):
        return {name: _written(member) for name, member in value.items()}
    if isinstance(value, tuple):
        return [_written(item) for item in value]
    if hasattr(value, "__dataclass_fields__"):
        fields = {name: _written(getattr(value, name)) for name in value.__dataclass_fields__}
        return {name: member for name, member in fields.items() if member is not None}
    return value


# ---- the schema


def schema() -> bytes:
    """The JSON Schema (2020-12) of `manifest.json`, canonical. What it cannot say is in its description."""
    found = msgspec.json.schema(AnyManifest)
    found |= {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Fieldray model pack, format {SCHEMA_VERSION}: manifest.json",
        "description": "A reader also refuses: doubled keys, control or formatting characters in texts, nesting deeper "
        "than 31, a file of more than 128 KiB, file names that Windows keeps for devices or that differ in case only, "
        "two outputs with one index, the checks of a lung-field pack in another order, an operating point or a "
        "calibration for a label that does not exist, thresholds "
        "outside their band, files missing for ood_gate or golden, and a pack whose files exceed 1 GiB together.",
    }
    return write_document(found)


# ---- rules that no type can say


def _check_format(document: Mapping[str, Any]) -> None:
    """The version first: another format may have other keys, and the person then needs another program or pack."""
    version = document.get("schema_version")
    if type(version) is not int or version < 1:
        raise manifest_error("schema_version: a whole number from 1 on is needed")
    if version != SCHEMA_VERSION:
        code = "pack_newer_format" if version > SCHEMA_VERSION else "pack_older_format"
        raise PackProblem(reason(code, version=version))


def _check_names(document: Mapping[str, Any]) -> None:
    """Before the types, so that a name made to do harm is called that. FAT and NTFS do not tell "A" from "a"."""
    files = document.get("files")
    listed = files.values() if isinstance(files, dict) else ()
    names = [file["name"] for file in listed if isinstance(file, dict) and isinstance(file.get("name"), str)]
    times = Counter(name.lower() for name in names)
    for name in names:
        if not naming.is_file_name(name) or times[name.lower()] > 1:
            raise PackProblem(reason("pack_bad_name", name=name))


def _check_files(found: PackManifest) -> None:
    """The roles that belong together are there together, and no file is larger than its role allows."""
    arrays = {OOD_GATE_ROLES: False, GOLDEN_ROLES: False}
    if isinstance(found, ClassifierManifest):
        arrays[OOD_GATE_ROLES] = found.ood_gate is not msgspec.UNSET
    if isinstance(found, ClassifierManifest | LungFieldsManifest):
        arrays[GOLDEN_ROLES] = found.golden is not msgspec.UNSET
    needed = {*REQUIRED_ROLES, *(role for roles, is_used in arrays.items() if is_used for role in roles)}
    unused = {role for roles, is_used in arrays.items() if not is_used for role in roles}
    missing = sorted(needed - set(found.files))
    if missing:
        raise manifest_error(f"files: {missing[0]} is missing")
    if unused & set(found.files):
        raise manifest_error(f"files: nothing needs {min(unused & set(found.files))}")
    for role, file in found.files.items():
        check_size(file.name, file.size_bytes, limit=size_limit(role))
    check_size("*", sum(file.size_bytes for file in found.files.values()), limit=LARGEST_PACK)


def _check_lung_fields(found: LungFieldsManifest) -> None:
    """A reader takes the scores by their order, so that the order is fixed."""
    if tuple(check.name for check in found.checks) != LUNG_CHECKS:
        raise manifest_error(f"checks: need {', '.join(LUNG_CHECKS)}, in this order")
    if found.outputs.mask == found.outputs.checks:
        raise manifest_error("outputs: one output has two roles")


def check_size(name: str, size_bytes: int, *, limit: int) -> None:
    """Raises PackProblem("pack_too_large") when a file is larger than its role allows."""
    if size_bytes > limit:
        sizes = {"size_mb": f"{size_bytes / _MEGABYTE:.1f}", "limit_mb": limit // _MEGABYTE}
        raise PackProblem(reason("pack_too_large", name=name, **sizes))


# ---- complaints that name the place


def _read(value: Any, kind: Any, place: str = "") -> Any:
    try:
        return converted(value, kind)
    except ValueError as error:
        message, _, path = str(error).partition(" - at `")
        path = path.rpartition("`$")[2].removeprefix("$").removesuffix("`")
        if "[...]" in path:
            path = path.replace("[...]", f".{_failing_key(value, kind, str(error), path.partition('[...]')[0])}")
        where = (place + path).removeprefix(".")
        raise manifest_error(f"{where or 'the file'}: {_plainly(message)}") from error


def _failing_key(value: Any, kind: Any, message: str, path: str) -> str:
    """The key of a mapping whose member fails, which msgspec does not name: each is tried alone.

    The value is spoilt by it, but it is refused anyway. "?" also where there is no such mapping: the words that msgspec
    quotes may look like a place.
    """
    mapping = value
    with suppress(LookupError, TypeError, ValueError):
        for name, index in re.findall(r"\.(\w+)|\[(\d+)\]", path):
            mapping = mapping[name] if name else mapping[int(index)]
    if not isinstance(mapping, dict):
        return "?"
    key: str
    for key, member in dict(mapping).items():
        mapping.clear()
        mapping[key] = member
        try:
            converted(value, kind)
        except ValueError as error:
            if str(error) == message:
                return key
    return "?"


def _plainly(message: str) -> str:
    """What msgspec says, in a person's words where it quotes a pattern."""
    return next((f"{text} is needed" for pattern, text in PATTERNS.items() if repr(pattern) in message), message)
