"""The published schema, and manifests of any shape: what is written is what is read."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fieldray.domain.model import Calibration, Estimate, HeaderRules, Label, Manifest, OperatingPoint, Requirement
from fieldray.errors import PackProblem
from fieldray.packs.manifest import describe, domain_manifest, dump, parse, schema
from fieldray.packs.manifest_types import ClassifierManifest, PackFile
from fieldray.translation import Translator
from packs_factory import make_lung_fields, make_pack, manifest
from shipped_packs import ADULTS, CHILDREN

PUBLISHED = Path(__file__).parents[3] / "docs" / "pack-manifest.schema.json"
FILES = {
    role: PackFile(name=f"{role}.bin", size_bytes=1, sha256="0" * 64)
    for role in ("litert", "card", "openvino", "ood_gate_mean", "ood_gate_projection")
}


def _errors(content: Any) -> list[str]:
    validator = jsonschema.Draft202012Validator(json.loads(PUBLISHED.read_bytes()))
    return [error.message for error in validator.iter_errors(content)]


def test_the_published_schema_is_the_one_that_the_types_give() -> None:
    assert PUBLISHED.read_bytes() == schema(), "write it again: python tools/manifest_schema.py"
    jsonschema.Draft202012Validator.check_schema(json.loads(schema()))


@pytest.mark.parametrize("pack", [CHILDREN, ADULTS], ids=lambda pack: pack.name)
def test_the_packs_that_ship_fit_the_schema(pack: Path) -> None:
    assert _errors(json.loads((pack / "manifest.json").read_bytes())) == []


def test_a_pack_of_another_kind_fits_the_schema(tmp_path: Path) -> None:
    assert _errors(json.loads((make_lung_fields(tmp_path) / "manifest.json").read_bytes())) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("names",), {"uk": "Лише українська"}),
        (("names", "en"), "two\nlines"),
        (("names", "en"), "a line feed at the end\n"),
        (("names", "not a tag"), "text"),
        (("kind",), "detector"),
        (("surprise",), 1),
        (("labels",), []),
        (("files", "litert", "name"), "../model.tflite"),
        (("files", "litert", "sha256"), "0" * 63 + "\n"),
        (("operating_points", 0, "threshold"), 1.5),
        (("ood_gate",), None),
        (("version",), "1.0"),
        (("schema_version",), 3),
    ],
)
def test_reader_and_schema_refuse_the_same(tmp_path: Path, path: tuple[str | int, ...], value: object) -> None:
    content = json.loads((make_pack(tmp_path) / "manifest.json").read_bytes())
    assert _errors(content) == []
    parent = content
    for name in path[:-1]:
        parent = parent[name]
    parent[path[-1]] = value
    assert _errors(content)
    with pytest.raises(PackProblem):
        parse(json.dumps(content).encode())


def test_a_third_language_enters_a_pack_without_touching_a_module(tmp_path: Path) -> None:
    polish = {"en": "Test chest", "pl": "Klatka piersiowa, testy", "pt-BR": "Tórax", "zh-Hans": "胸部"}
    label = Label(code="abnormal", scheme="fieldray", meaning={"en": "abnormal", "pl": "nieprawidłowy"})
    pack = make_pack(tmp_path, names=polish, labels=(label,))
    description = parse((pack / "manifest.json").read_bytes())
    assert isinstance(description, ClassifierManifest)
    found = domain_manifest(description)
    assert (found.names, found.labels) == (polish, (label,))
    ukrainian = Translator("uk")
    assert ukrainian.pick(found.names) == "Test chest"  # a language that the pack lacks: English


# ---- manifests of any shape

_LETTERS = st.characters(exclude_categories=("C", "Zl", "Zp"))  # what `is_line` lets pass
_LINES = st.text(_LETTERS, min_size=1, max_size=30)
_PARAGRAPHS = st.text(_LETTERS | st.sampled_from("\n\t"), min_size=1, max_size=60)
_LANGUAGES = st.sampled_from(["uk", "pl", "de", "pt-BR", "zh-Hans", "sr-Latn-RS", "es-419", "ca-valencia"])
_SHARES = st.floats(min_value=0, max_value=1)
_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _LINES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_LINES, inner, max_size=3),
    max_leaves=8,
)


def _texts(text: st.SearchStrategy[str]) -> st.SearchStrategy[dict[str, str]]:
    return st.builds(lambda english, others: {**others, "en": english}, text, st.dictionaries(_LANGUAGES, text))


def _sorted(count: int) -> st.SearchStrategy[list[float]]:
    return st.lists(_SHARES, min_size=count, max_size=count).map(sorted)


_ESTIMATES = _sorted(3).map(lambda values: Estimate(value=values[1], low=values[0], high=values[2]))


@st.composite
def _points(draw: st.DrawFn, code: str) -> OperatingPoint:
    low, threshold, high = draw(_sorted(3))
    return OperatingPoint(
        name=draw(_LINES),
        titles=draw(_texts(_LINES)),
        label=code,
        threshold=threshold,
        unsure_low=low,
        unsure_high=high,
        sensitivity=draw(_ESTIMATES),
        specificity=draw(_ESTIMATES),
        measured_on=draw(_texts(_LINES)),
    )


@st.composite
def _manifests(draw: st.DrawFn) -> Manifest:
    codes = draw(st.lists(_LINES, min_size=1, max_size=3, unique=True))
    slopes = st.floats(min_value=1e-3, max_value=100)
    calibrations = st.builds(Calibration, slope=slopes, intercept=st.floats(-100, 100))
    ages = st.tuples(st.integers(0, 150), st.integers(0, 150)).map(lambda pair: (min(pair), max(pair)))
    return dataclasses.replace(
        manifest(),
        names=draw(_texts(_LINES)),
        limits=draw(_texts(_PARAGRAPHS)),
        labels=tuple(Label(code=code, scheme=draw(_LINES), meaning=draw(_texts(_LINES))) for code in codes),
        operating_points=tuple(draw(_points(code)) for code in codes),
        calibration=draw(st.dictionaries(st.sampled_from(codes), calibrations)),
        accepted=HeaderRules(views=tuple(draw(st.lists(_LINES, max_size=3))), ages_years=draw(st.none() | ages)),
        minimum_edgetpu_runtime=draw(st.none() | st.integers(0, 10**6)),
        requires=draw(st.sampled_from([(), (Requirement(kind="matcher", minimum_version="1.0.0"),)])),
        provenance=draw(st.dictionaries(_LINES, _PARAGRAPHS, max_size=3)),
        metrics=draw(st.dictionaries(_LINES, _JSON, max_size=3)),
    )


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(_manifests())
def test_any_manifest_that_is_written_is_read_back_the_same(given_manifest: Manifest) -> None:
    data = dump(describe(given_manifest, files=FILES, golden_tolerance=None))
    found = parse(data)
    assert isinstance(found, ClassifierManifest)
    assert dump(found) == data
    read = domain_manifest(found, ood_gate=given_manifest.ood_gate)
    for field in dataclasses.fields(read):
        assert getattr(read, field.name) == getattr(given_manifest, field.name), field.name
    assert _errors(json.loads(data)) == []
