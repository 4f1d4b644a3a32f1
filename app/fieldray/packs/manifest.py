"""`manifest.json`: what a pack says about itself, from JSON to the domain and back (pack format, version 1).

Parse only bytes whose signature has been verified. Unknown keys are refused everywhere but inside `provenance`
(text by name) and `metrics` (any JSON), which describe and decide nothing; a change of meaning raises
`schema_version`. Texts by language must have `en` and `uk`. Arrays do not stand in the JSON: they are files of the
roles `gate_mean`, `gate_projection`, `golden_inputs` and `golden_scores`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, get_args

from fieldray.domain.model import (
    Activation,
    Calibration,
    Estimate,
    FitRule,
    InputSpec,
    IntensityRule,
    Label,
    Manifest,
    OperatingPoint,
    OutputRoles,
)
from fieldray.errors import PackProblem
from fieldray.packs.document import Node, is_plain, manifest_error, read_document, write_document
from fieldray.packs.manifest_document import ROLE_LIMITS, ManifestDocument, PackFile, Role, check_size
from fieldray.packs.naming import is_file_name, is_pack_id, is_version
from fieldray.reasons import reason

SCHEMA_VERSION: Final = 1
LANGUAGES: Final = ("en", "uk")

_REQUIRED_ROLES: Final[tuple[Role, ...]] = ("cpu", "card")
_GATE_ROLES: Final[tuple[Role, ...]] = ("gate_mean", "gate_projection")
_GOLDEN_ROLES: Final[tuple[Role, ...]] = ("golden_inputs", "golden_scores")

_DECIDING: Final = ("input", "labels", "outputs", "operating_points", "calibration", "accepted", "files")
_TELLING: Final = ("id", "version", "names", "descriptions", "intended_use", "limits", "provenance", "metrics")
_REQUIRED: Final = ("schema_version", *_TELLING, *_DECIDING)
_OPTIONAL: Final = ("gate", "golden", "minimum_edgetpu_runtime")
_POINT_NUMBERS: Final = ("threshold", "unsure_low", "unsure_high")
_POINT_ESTIMATES: Final = ("sensitivity", "specificity")


def parse(data: bytes) -> ManifestDocument:
    """Read the bytes of `manifest.json`.

    Raises PackProblem: pack_manifest (with the place in the file), pack_newer_format, pack_bad_name, pack_too_large.
    """
    root = read_document(data)
    _check_schema(root)
    fields = root.fields(_REQUIRED, _OPTIONAL)
    gate, golden = fields.get("gate"), fields.get("golden")
    description = ManifestDocument(
        manifest=_manifest(root, fields),
        files=_files(fields["files"]),
        ood_gate_limit=gate.fields({"limit"})["limit"].number() if gate else None,
        golden_tolerance=golden.fields({"tolerance"})["tolerance"].number() if golden else None,
    )
    _check_roles(description)
    _check_calibration(description.manifest)
    return description


def dump(description: ManifestDocument) -> bytes:
    """The canonical bytes of `manifest.json`. Raises ValueError or TypeError for metrics that JSON cannot hold."""
    manifest = description.manifest
    accepted = {
        "modalities": list(manifest.accepted_modalities),
        "body_parts": list(manifest.accepted_body_parts),
        "views": list(manifest.accepted_views),
    }
    content: dict[str, object] = {
        "schema_version": SCHEMA_VERSION,
        "id": manifest.pack_id,
        "version": manifest.version,
        "names": dict(manifest.names),
        "descriptions": dict(manifest.descriptions),
        "intended_use": dict(manifest.intended_use),
        "limits": dict(manifest.limits),
        "input": _slots(manifest.input, "height width channels intensity fit margin") | {"dtype": "uint8"},
        "labels": [
            {"code": label.code, "scheme": label.scheme, "meaning": dict(label.meaning)} for label in manifest.labels
        ],
        "outputs": _outputs_content(manifest.outputs),
        "operating_points": [_point_content(point) for point in manifest.operating_points],
        "calibration": {code: _slots(values, "slope intercept") for code, values in manifest.calibration.items()},
        "accepted": accepted,
        "files": [_slots(file, "name role size_bytes sha256") for file in description.files],
        "provenance": dict(manifest.provenance),
        "metrics": dict(manifest.metrics),
    }
    if description.ood_gate_limit is not None:
        content["gate"] = {"limit": description.ood_gate_limit}
    if description.golden_tolerance is not None:
        content["golden"] = {"tolerance": description.golden_tolerance}
    if manifest.accepted_ages_years is not None:
        content["accepted"] = {**accepted, "ages_years": list(manifest.accepted_ages_years)}
    if manifest.minimum_edgetpu_runtime is not None:
        content["minimum_edgetpu_runtime"] = manifest.minimum_edgetpu_runtime
    return write_document(content)


# ---- from JSON


def _check_schema(root: Node) -> None:
    """The version first: a newer format may have other keys, and the person then needs a newer program."""
    version = root.members().get("schema_version", Node(None, "schema_version")).integer(low=1, high=10**6)
    if version > SCHEMA_VERSION:
        raise PackProblem(reason("pack_newer_format", version=version))


def _manifest(root: Node, fields: Mapping[str, Node]) -> Manifest:
    runtime = fields.get("minimum_edgetpu_runtime")
    accepted = fields["accepted"].fields({"modalities", "body_parts", "views"}, {"ages_years"})
    return root.make(
        Manifest,
        pack_id=_checked(fields["id"], is_pack_id(fields["id"].text()), "not a pack id (a-z, 0-9, hyphen)"),
        version=_checked(fields["version"], is_version(fields["version"].text()), "not a version such as 1.0.0"),
        names=_texts(fields["names"], longest=100),
        descriptions=_long_texts(fields["descriptions"]),
        intended_use=_long_texts(fields["intended_use"]),
        limits=_long_texts(fields["limits"]),
        input=_input(fields["input"]),
        labels=tuple(_label(item) for item in fields["labels"].items(most=100)),
        outputs=_outputs(fields["outputs"]),
        operating_points=tuple(_point(item) for item in fields["operating_points"].items(most=100)),
        calibration={code: _calibration(node) for code, node in fields["calibration"].members().items()},
        accepted_modalities=_words(accepted["modalities"]),
        accepted_body_parts=_words(accepted["body_parts"]),
        accepted_views=_words(accepted["views"]),
        accepted_ages_years=_ages(accepted["ages_years"]) if "ages_years" in accepted else None,
        minimum_edgetpu_runtime=runtime.integer(low=0, high=10**6) if runtime else None,
        provenance={name: node.paragraphs(longest=10_000) for name, node in fields["provenance"].members().items()},
        metrics={name: _free(node) for name, node in fields["metrics"].members().items()},
    )


def _checked(node: Node, is_right: bool, detail: str) -> str:
    if not is_right:
        raise node.fail(detail)
    return str(node.value)


def _ages(node: Node) -> tuple[int, int]:
    ages = tuple(item.integer(low=0, high=150) for item in node.items(most=2))
    if len(ages) != 2:
        raise node.fail("the youngest and the oldest age are needed")
    return ages[0], ages[1]


def _texts(node: Node, *, longest: int) -> Mapping[str, str]:
    return {language: text.text(longest=longest) for language, text in node.fields(LANGUAGES).items()}


def _long_texts(node: Node) -> Mapping[str, str]:
    return {language: text.paragraphs(longest=5_000) for language, text in node.fields(LANGUAGES).items()}


def _words(node: Node) -> tuple[str, ...]:
    return tuple(item.text(longest=64) for item in node.items(most=100))


def _free(node: Node) -> object:
    """A metric as it stands; only what could mislead on a screen is refused."""
    if isinstance(node.value, str) and not is_plain(node.value):
        raise node.fail("the text holds control characters")
    if isinstance(node.value, dict):
        return {name: _free(member) for name, member in node.members().items()}
    if isinstance(node.value, list):
        return [_free(item) for item in node.items(most=10_000)]
    return node.value


def _input(node: Node) -> InputSpec:
    fields = node.fields(("height", "width", "channels", "dtype", "intensity", "fit", "margin"))
    fields["dtype"].choice(("uint8",))
    return node.make(
        InputSpec,
        height=fields["height"].integer(low=8, high=2048),
        width=fields["width"].integer(low=8, high=2048),
        channels=fields["channels"].integer(low=1, high=3),
        intensity=fields["intensity"].choice(get_args(IntensityRule)),
        fit=fields["fit"].choice(get_args(FitRule)),
        margin=fields["margin"].number(),
    )


def _label(node: Node) -> Label:
    fields = node.fields(("code", "scheme", "meaning"))
    return node.make(
        Label,
        code=fields["code"].text(longest=64),
        scheme=fields["scheme"].text(longest=64),
        meaning=_texts(fields["meaning"], longest=200),
    )


def _outputs(node: Node) -> OutputRoles:
    fields = node.fields({"activation"}, {"scores", "class_maps", "features"})
    indices = {name: field.integer(low=0, high=15) for name, field in fields.items() if name != "activation"}
    if len(set(indices.values())) != len(indices):
        raise node.fail("one output has two roles")
    return node.make(OutputRoles, activation=fields["activation"].choice(get_args(Activation)), **indices)


def _point(node: Node) -> OperatingPoint:
    fields = node.fields(("name", "titles", "label", "measured_on", *_POINT_NUMBERS, *_POINT_ESTIMATES))
    return node.make(
        OperatingPoint,
        name=fields["name"].text(longest=64),
        titles=_texts(fields["titles"], longest=100),
        label=fields["label"].text(longest=64),
        measured_on=_texts(fields["measured_on"], longest=500),
        **{name: fields[name].number() for name in _POINT_NUMBERS},
        **{name: _estimate(fields[name]) for name in _POINT_ESTIMATES},
    )


def _estimate(node: Node) -> Estimate:
    fields = node.fields(("value", "low", "high"))
    return node.make(Estimate, **{name: field.number() for name, field in fields.items()})


def _calibration(node: Node) -> Calibration:
    fields = node.fields(("slope", "intercept"))
    return node.make(Calibration, **{name: field.number() for name, field in fields.items()})


def _files(node: Node) -> tuple[PackFile, ...]:
    files = tuple(_file(item) for item in node.items(most=len(ROLE_LIMITS)))
    names = [file.name.lower() for file in files]
    for name in names:
        if names.count(name) > 1:  # FAT and NTFS do not tell "A" from "a"
            raise PackProblem(reason("pack_bad_name", name=name))
    return files


def _file(node: Node) -> PackFile:
    fields = node.fields(("name", "role", "size_bytes", "sha256"))
    name, sha256 = fields["name"].value, fields["sha256"].text(longest=64)
    if not isinstance(name, str) or not is_file_name(name):
        raise PackProblem(reason("pack_bad_name", name=name))
    if len(sha256) != 64 or not set(sha256) <= set("0123456789abcdef"):
        raise fields["sha256"].fail("64 lower-case hexadecimal digits are needed")
    role = fields["role"].choice(get_args(Role))
    size_bytes = fields["size_bytes"].integer(low=1, high=2**40)
    check_size(name, role, size_bytes)
    return PackFile(name=name, role=role, size_bytes=size_bytes, sha256=sha256)


def _check_roles(description: ManifestDocument) -> None:
    """Each role at most once, and the roles that belong together are there together."""
    roles = [file.role for file in description.files]
    needed = set(_REQUIRED_ROLES)
    needed |= set(_GATE_ROLES) if description.ood_gate_limit is not None else set()
    needed |= set(_GOLDEN_ROLES) if description.golden_tolerance is not None else set()
    if len(set(roles)) != len(roles):
        raise manifest_error("files: a role stands twice")
    if set(roles) - {"edgetpu"} != needed:
        raise manifest_error("files: the roles needed are " + ", ".join(sorted(needed)))


def _check_calibration(manifest: Manifest) -> None:
    unknown = set(manifest.calibration) - {label.code for label in manifest.labels}
    if unknown:
        raise manifest_error(f"calibration: {min(unknown)} is not a label")


# ---- to JSON


def _slots(thing: object, names: str) -> dict[str, object]:
    return {name: getattr(thing, name) for name in names.split()}


def _outputs_content(outputs: OutputRoles) -> dict[str, object]:
    content = _slots(outputs, "scores class_maps features activation")
    return {name: value for name, value in content.items() if value is not None}


def _point_content(point: OperatingPoint) -> dict[str, object]:
    names: Sequence[str] = ("name", "titles", "label", "measured_on", *_POINT_NUMBERS)
    content = _slots(point, " ".join(names))
    for name in _POINT_ESTIMATES:
        content[name] = _slots(getattr(point, name), "value low high")
    return content
