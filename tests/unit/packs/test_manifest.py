from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from fieldray.errors import PackProblem
from fieldray.formatting import category_label
from fieldray.packs.manifest import (
    GOLDEN_FILE_ROLES,
    OOD_FILE_ROLES,
    domain_manifest,
    encode_manifest,
    manifest_schema,
    parse_manifest,
)
from fieldray.translation import Translator
from packs_factory import make_pack, manifest
from shipped_packs import ADULTS, CHILDREN, LUNGS

Change = Callable[[dict[str, Any]], object]


@pytest.fixture
def data(tmp_path: Path) -> bytes:
    return (make_pack(tmp_path, edgetpu=True) / "manifest.json").read_bytes()


def _changed(data: bytes, change: Change) -> bytes:
    content = json.loads(data)
    change(content)
    return json.dumps(content).encode()


def _refusal(data: bytes) -> PackProblem:
    with pytest.raises(PackProblem) as caught:
        parse_manifest(data)
    return caught.value


def test_a_written_manifest_reads_back(data: bytes) -> None:
    description = parse_manifest(data)
    assert encode_manifest(description) == data
    # the arrays of the out-of-distribution check are separate files that compare by identity: left out here
    found = domain_manifest(description)
    for field in dataclasses.fields(found):
        if field.name != "ood_gate":
            assert getattr(found, field.name) == getattr(manifest(), field.name), field.name
    assert (description.ood_gate.limit, description.golden.tolerance) == (3.5, 0.02)
    assert set(description.files) == {"litert", "edgetpu", "card", *OOD_FILE_ROLES, *GOLDEN_FILE_ROLES}


def test_a_pack_may_have_class_names_and_warnings(tmp_path: Path) -> None:
    names = {"abnormal": {"en": "Signs", "uk": "Ознаки"}, "normal": {"en": "None found by this pack"}}
    written = make_pack(tmp_path, class_names=names, warnings={"en": "Few images.\nA thumbnail."}) / "manifest.json"
    found = domain_manifest(parse_manifest(written.read_bytes()))
    assert (found.class_names, found.warnings) == (names, {"en": "Few images.\nA thumbnail."})
    english, ukrainian = Translator(), Translator("uk")
    assert category_label(english, "abnormal", found) == "Signs"
    assert category_label(ukrainian, "normal", found) == "None found by this pack"
    assert category_label(english, "unsure", found) == "Uncertain"


ALIKE = [
    ("Normal", "None found", "the program: Normal"),
    ("NORMAL.", "None found", "the program: Normal"),
    ("\u041dормa", "None found", "the program: \u041dорма"),  # the last letter is Latin
    ("Unсertain", "None found", "the program: Uncertain"),  # the c is Cyrillic
    ("Signs", "Reаd first", "the program: Read first"),  # the first a is Cyrillic
    ("Signs", "Читати першим", "the program: Читати першим"),
    ("Signs", "𝐀𝐛𝐧𝐨𝐫𝐦𝐚𝐥", "the program: Abnormal"),
    ("Signs", "Abnorrnal", "the program: Abnormal"),
    ("FAlLED", "None found", "the program: Failed"),  # its third letter is an l
    ("Signs", "Ѕigns", "the other class: "),  # its first letter is Cyrillic
    ("Signs", "S\u0331igns", "the other class: S\u0331igns"),
    ("Signs", "Ознаки", "the other class: Ознаки"),  # in another language the name of the other class
    ("\u115f\u1160", "None found", "no letter and no digit"),
]


@pytest.mark.parametrize(("abnormal", "normal", "said"), ALIKE)
def test_a_class_name_that_looks_like_that_of_another_class_is_refused(
    data: bytes, abnormal: str, normal: str, said: str
) -> None:
    names = {"abnormal": {"en": abnormal, "uk": "Ознаки"}, "normal": {"en": normal}}
    assert said in _refusal(_changed(data, _set("class_names", names))).reason.text


@pytest.mark.parametrize(
    ("abnormal", "normal"), [("Abnormal", "Normal"), ("มี", "มา"), ("कि", "का"), ("Not normal", "Clear"), ("Van", "Han")]
)
def test_distinguishable_class_names_are_accepted(data: bytes, abnormal: str, normal: str) -> None:
    names = {"abnormal": {"en": abnormal}, "normal": {"en": normal}}
    assert domain_manifest(parse_manifest(_changed(data, _set("class_names", names)))).class_names == names


def test_optional_parts_may_be_absent_and_the_runtime_may_be_stated(data: bytes) -> None:
    def change(content: dict[str, Any]) -> None:
        del content["ood_gate"], content["golden"]
        content |= {"operating_points": [], "minimum_edgetpu_runtime": 13}
        content["files"] = {role: content["files"][role] for role in ("litert", "card")}

    description = parse_manifest(_changed(data, change))
    assert (description.ood_gate, description.golden) == (UNSET, UNSET)
    assert domain_manifest(description).point("abnormal") is None


def _set(path: str, value: object) -> Change:
    """Put `value` at a path such as "labels.0.code"."""
    *parents, last = path.split(".")

    def change(content: Any) -> None:
        for name in parents:
            content = content[int(name) if isinstance(content, list) else name]
        content[int(last) if isinstance(content, list) else last] = value

    return change


BY_READER_AND_SCHEMA: list[tuple[str, object, str]] = [
    ("id", "../chest", "id"),
    ("id", 7, "id"),
    ("version", "1.2", "version"),
    ("surprise", 1, "unknown field `surprise`"),
    ("labels.0.surprise", 1, "labels[0]: Object contains unknown field `surprise`"),
    ("names", {"uk": "Лише українська"}, "names: en is missing"),
    ("labels.0.meaning", {"uk": "Лише українська"}, "labels[0]: meaning: en is missing"),
    ("names", {"en": "a", "not a tag": "text"}, "names"),
    ("kind", "detector", "kind"),
    ("files.litert.sha256", "0" * 63 + "\n", "files[...].sha256"),
    ("limits", {"en": "a", "uk": ""}, "limits[...]"),
    ("warnings", {"uk": "a"}, "en is missing"),
    ("class_names", {"abnormal": {"en": "a"}}, "class_names"),
    ("class_names", {"abnormal": {"en": "a"}, "normal": {"uk": "b"}}, "en is missing"),
    ("intended_use", {"en": "a", "french": "c"}, "intended_use"),
    ("intended_use", {"en": "a", "EN-us": "c"}, "intended_use"),
    ("intended_use", {"en": "a", "fr\u200b": "c"}, "intended_use"),
    ("names.en", "two\nlines", "names[...]"),
    ("names.en", "a line feed at the end\n", "names[...]"),
    ("labels.0.code", "a\nb", "labels[0].code"),
    ("operating_points.0.titles.uk", "a\nb", "operating_points[0].titles[...]"),
    ("accepted.views", ["PA\nAP"], "accepted.views[0]"),
    ("input.height", True, "input.height"),
    ("input.height", 4, "input.height"),
    ("input.dtype", "float32", "input.dtype"),
    ("input.fit", "squash", "input.fit"),
    ("labels", [], "label"),
    ("labels", "abnormal", "labels"),
    ("outputs.class_maps", None, "outputs.class_maps"),
    ("outputs.scores", -1, "outputs.scores"),
    ("operating_points.0.threshold", 1.5, "operating_points[0]"),
    ("calibration.abnormal.slope", 0, "calibration[...].slope"),
    ("accepted.ages_years", [18], "accepted.ages_years"),
    ("ood_gate", {}, "ood_gate: Object missing required field `limit`"),
    ("ood_gate", None, "ood_gate"),
    ("gate", {"limit": 1}, "unknown field `gate`"),
    ("golden", None, "golden"),
    ("provenance.data", 3, "provenance[...]"),
    ("files.card.size_bytes", 0, "files[...].size_bytes"),
    ("files.litert.size_bytes", True, "files[...].size_bytes"),
    ("files.litert.role", "litert", "files[...]: Object contains unknown field `role`"),
    ("files.Library", {}, "files: a role"),
    ("files", [], "files"),
    ("files.litert", None, "files[...]"),
    ("files.litert.name", 5, "files[...].name"),
    ("requires", [{"kind": "classifier"}], "requires[0].kind"),
    ("requires", [{"kind": "heart"}], "requires[0].kind"),
    ("requires", [{"kind": "lung-fields", "minimum_version": "1"}], "requires[0].minimum_version"),
    ("requires", [{"kind": "lung-fields", "id": None}], "requires[0].id"),
    ("schema_version", "1", "schema_version"),
    ("schema_version", 0, "schema_version"),
]
BY_THE_READER_ALONE: list[tuple[str, object, str]] = [
    ("names.en", "screen\u202egnp", "names.en"),
    ("names.uk", "carriage\rreturn", "names.uk"),
    ("names.en", "next\u0085line", "names.en"),
    ("names.en", "paragraph\u2029separator", "names.en"),
    ("provenance", {"da\nta": "x"}, "provenance"),
    ("descriptions.en", "carriage\rreturn", "descriptions.en"),
    ("input.height", 16.0, "input.height"),
    ("outputs.scores", 1, "outputs: one output has two roles"),
    ("operating_points.1.sensitivity.low", 0.99, "operating_points[1].sensitivity"),
    ("metrics.note", "a\x00b", "metrics.note"),
    ("names.en", "\u3164", "names: the text in en has no letter"),
    ("labels.0.meaning.uk", " \u2800\ufe0f", "labels[0]: meaning: the text in uk has no letter"),
    ("operating_points.1.name", "sensitive", "operating points of one label must have different names"),
]


@pytest.mark.parametrize(("path", "value", "place"), BY_READER_AND_SCHEMA + BY_THE_READER_ALONE)
def test_a_wrong_value_is_refused_with_its_path(data: bytes, path: str, value: object, place: str) -> None:
    changed = _changed(data, _set(path, value))
    problem = _refusal(changed)
    assert problem.reason.code == "pack_manifest"
    assert place in problem.reason.text
    assert bool(_errors(json.loads(changed))) == ((path, value, place) in BY_READER_AND_SCHEMA)


@pytest.mark.parametrize(
    ("path", "value", "code"),
    [("files.litert.name", "../model.tflite", "pack_bad_name"), ("schema_version", 3, "pack_newer_format")],
)
def test_values_with_their_own_reason_are_refused_by_the_schema_too(
    data: bytes, path: str, value: object, code: str
) -> None:
    changed = _changed(data, _set(path, value))
    assert _refusal(changed).reason.code == code
    assert _errors(json.loads(changed))


def test_unneeded_or_too_large_files_are_refused(data: bytes) -> None:
    assert _refusal(_changed(data, lambda content: content.pop("ood_gate"))).reason.code == "pack_manifest"

    def change(content: dict[str, Any]) -> None:
        for number in range(4):
            file = {"name": f"{number}.bin", "size_bytes": 256 * 2**20, "sha256": "0" * 64}
            content["files"][f"role-{number}"] = file

    assert _refusal(_changed(data, change)).reason.code == "pack_too_large"
    problem = _refusal(_changed(data, _set("files.litert.size_bytes", 257 * 2**20)))
    assert problem.reason.code == "pack_too_large"
    assert dict(problem.reason.parameters) == {"name": "model.tflite", "size_mb": "257.0", "limit_mb": "256"}


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b"\xff\xfe{\x00}\x00",
        b"\xef\xbb\xbf{}",
        b'{"id": "\xed\xa0\x80"}',
        b'{"schema_version": 1, "schema_version": 1}',
        b'{"schema_version": NaN}',
        b'{"schema_version": 1e999}',
        b'{"schema_version": ' + b"9" * 5000 + b"}",
        b"[" * 100_000,
        b'{"a":' * 100_000,
    ],
)
def test_json_that_is_not_strict_is_refused(text: bytes) -> None:
    assert _refusal(text).reason.code == "pack_manifest"


def test_metrics_may_have_any_structure_but_no_misleading_text(data: bytes) -> None:
    shaped = {"table": [{"a": [1, 2.5, None, True]}, "рядок\nдругий"]}
    assert parse_manifest(_changed(data, _set("metrics", shaped))).metrics == shaped
    for bad in ([["\x1b"]], {"a": {"\u202e": 1}}):
        assert _refusal(_changed(data, _set("metrics.deep", bad))).reason.code == "pack_manifest"


def test_long_texts_may_have_paragraphs(data: bytes) -> None:
    for name in ("descriptions", "intended_use", "limits"):
        assert parse_manifest(_changed(data, _set(f"{name}.en", "one\n\n\ttwo")))
    assert parse_manifest(_changed(data, _set("provenance.data", "one\ntwo"))).provenance["data"] == "one\ntwo"


def _nested(depth: int, *, of: str = "[]") -> bytes:
    opening, closing = {"[]": (b"[", b"]"), "{}": (b'{"a":', b"}")}[of]
    return opening * depth + b"1" + closing * depth


@pytest.mark.parametrize("of", ["[]", "{}"])
@pytest.mark.parametrize("place", ["metrics", "provenance", "labels", "files", "names", "schema_version", "surprise"])
def test_deep_nesting_is_refused_wherever_it_is(data: bytes, place: str, of: str) -> None:
    for depth in (32, 600, 900, 5_000, 100_000):
        content = json.loads(data)
        content[place] = {"deep": "here"} if place == "metrics" else "here"
        deep = json.dumps(content).encode().replace(b'"here"', _nested(depth, of=of))
        assert _refusal(deep).reason.code == "pack_manifest"


def test_the_nesting_of_any_real_description_passes(data: bytes) -> None:
    # the document, metrics and deep are three levels of the 31 allowed
    changed = _changed(data, _set("metrics.deep", json.loads(_nested(28))))
    assert parse_manifest(changed)
    assert "nested" in _refusal(_changed(data, _set("metrics.deep", json.loads(_nested(30))))).reason.text


def test_numbers_json_cannot_hold_are_not_written(data: bytes) -> None:
    description = parse_manifest(data)
    bad = msgspec.structs.replace(description, metrics={"auc": float("nan")})
    with pytest.raises(ValueError, match="not JSON compliant"):
        encode_manifest(bad)


# ---- the published schema

PUBLISHED = Path(__file__).parents[3] / "docs" / "pack-manifest.schema.json"


def _errors(content: Any) -> list[str]:
    from jsonschema import Draft202012Validator  # imported here, as it takes three seconds

    Draft202012Validator.check_schema(published := json.loads(PUBLISHED.read_bytes()))
    return [error.message for error in Draft202012Validator(published).iter_errors(content)]


def test_the_published_schema_equals_the_one_of_the_types() -> None:
    assert PUBLISHED.read_bytes() == manifest_schema(), "write it again: python tools/manifest_schema.py"


@pytest.mark.parametrize("pack", [CHILDREN, ADULTS, *LUNGS], ids=lambda pack: pack.name)
def test_shipped_packs_are_valid_by_the_schema(pack: Path) -> None:
    assert _errors(json.loads((pack / "manifest.json").read_bytes())) == []
