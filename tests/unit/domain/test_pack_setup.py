from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from fieldray.domain.finding import leading_finding_among, score_for_sorting
from fieldray.domain.model import (
    LUNG_NETWORK_CHECKS,
    Calibration,
    HeaderRules,
    InputSpec,
    Label,
    LungRules,
    Manifest,
    Model,
    OutOfDistributionCheck,
    OutputRoles,
    PackRequirement,
)
from fieldray.domain.pack_setup import FIELDS_NOT_IN_SETTINGS_HASH, PackSetup, set_up_pack, setup_of_run
from fieldray.domain.run import RefusalOverrides
from fieldray.errors import UsageProblem
from fieldray.packs.verified import LEGACY_MANIFEST as LEGACY
from fieldray.pipeline.batch_ports import run_spec
from tiny_lungs import tiny_lungs_model
from tiny_models import tiny_golden, tiny_manifest, tiny_model

MANIFEST = tiny_manifest()
FIRST = MANIFEST.operating_points[0]
SECOND = dataclasses.replace(FIRST, name="sensitive", threshold=0.2, unsure_low=0.1, unsure_high=0.3)


def a_setup(name: str | None = None, **changes: object) -> PackSetup:
    manifest = tiny_manifest(**{"operating_points": (FIRST, SECOND), **changes})
    return set_up_pack(tiny_model(manifest=manifest), operating_point=name)


def test_the_first_operating_point_is_in_force_unless_another_is_named() -> None:
    assert a_setup().points == {"opacity": FIRST}
    assert a_setup("sensitive").points == {"opacity": SECOND}


def test_an_unknown_operating_point_lists_the_known_ones() -> None:
    with pytest.raises(UsageProblem) as problem:
        a_setup("spezific")
    assert "spezific" in str(problem.value)
    assert "screening, sensitive" in str(problem.value)


def test_a_pack_without_operating_points_makes_no_decision() -> None:
    bare = a_setup(operating_points=())
    assert bare.points == {"opacity": None}
    assert bare.findings({"opacity": 0.99})[0].decision == "not_assessed"


def test_for_the_dissertations_files_the_larger_output_is_the_class() -> None:
    legacy = set_up_pack(dataclasses.replace(tiny_model(manifest=LEGACY), trust="legacy"))
    for abnormal, decision in [(0.9, "above"), (0.5, "above"), (0.4, "below"), (0.1, "below")]:
        findings = legacy.findings({"normal": 1 - abnormal, "abnormal": abnormal})
        assert [(found.label, found.decision, found.point) for found in findings] == [
            ("abnormal", decision, None),
            ("normal", "below", None),
        ]
        assert all(found.is_decided_by_larger_output for found in findings)
        leading = leading_finding_among(findings)
        assert leading is not None
        assert (leading.score, leading.label) == (abnormal, "abnormal")
        assert score_for_sorting(findings) == abnormal  # the least certain of the normal ones comes first


def test_for_the_dissertations_files_an_image_near_one_half_is_borderline() -> None:
    legacy = set_up_pack(dataclasses.replace(tiny_model(manifest=LEGACY), trust="legacy"))

    def is_close(abnormal: float) -> bool:
        return legacy.is_borderline({"abnormal": abnormal, "normal": 1 - abnormal}, None, oversampling=1.0)

    assert [is_close(abnormal) for abnormal in (0.2, 0.46, 0.5, 0.54, 0.8)] == [False, True, True, True, False]


def test_every_value_that_decides_a_result_changes_the_hash() -> None:
    gate = OutOfDistributionCheck(mean=np.zeros(4, np.float32), projection=np.eye(4, dtype=np.float32), limit=2.0)
    variants = [
        a_setup(),
        a_setup("sensitive"),
        a_setup(ood_gate=gate),
        a_setup(ood_gate=dataclasses.replace(gate, limit=3.0)),
        a_setup(ood_gate=dataclasses.replace(gate, mean=np.ones(4, np.float32))),
        dataclasses.replace(a_setup(), overrides=RefusalOverrides(overrules=True)),
        dataclasses.replace(a_setup(), overrides=RefusalOverrides(turns=True)),
        dataclasses.replace(a_setup(), overrides=RefusalOverrides(overrules=True, turns=True)),
    ]
    hashes = [variant.settings_hash for variant in variants]
    assert len(set(hashes)) == len(hashes)
    assert a_setup().settings_hash == hashes[0]


def test_a_run_spec_identifies_a_run_by_paths_pack_and_options() -> None:
    model = a_setup().model
    asked = [
        set_up_pack(model, operating_point=name, ages_confirmed=is_confirmed, overrides=overrides)
        for name in ("screening", "sensitive")
        for is_confirmed in (False, True)
        for overrides in (
            RefusalOverrides(),
            RefusalOverrides(overrules=True),
            RefusalOverrides(turns=True),
            RefusalOverrides(overrules=True, turns=True),
        )
    ]
    for one in asked:
        spec = run_spec([Path("/x")], [one])
        assert (spec.overrides, spec.ages_confirmed) == (one.overrides, one.ages_confirmed)
        of_before = dataclasses.replace(spec, overrides=None, ages_confirmed=False)  # as version 0.2.0 stored it
        for asked_so in (spec, of_before):
            found = setup_of_run(asked_so, 0, model)
            assert (found.points, found.overrides) == (one.points, one.overrides)
    with pytest.raises(UsageProblem, match="by the pack tiny"):
        setup_of_run(run_spec([Path("/x")], [asked[-1]]), 0, dataclasses.replace(model, model_sha256="other"))


RULES = LungRules(mask_threshold=0.5, thresholds=dict.fromkeys(LUNG_NETWORK_CHECKS, 0.5))
OPACITY = MANIFEST.labels[0]
# For every field of a model and its parts, another value than that of `WHOLE`.
OTHER: Mapping[type, Mapping[str, object]] = {
    Manifest: {
        "pack_id": "other",
        "version": "1.0.1",
        **{name: {"en": "Other"} for name in ("names", "descriptions", "intended_use", "limits")},
        "input": InputSpec(height=64, width=64, channels=3),
        "labels": (OPACITY, Label(code="second", scheme="fieldray", meaning={"en": "second"})),
        "outputs": OutputRoles(scores=0),
        "operating_points": (FIRST, SECOND),
        "calibration": {"opacity": Calibration(2.0, 0.0)},
        "ood_gate": OutOfDistributionCheck(
            mean=np.zeros(4, np.float32), projection=np.eye(4, dtype=np.float32), limit=2.0
        ),
        "accepted": HeaderRules(views=("PA",)),
        "requires": (PackRequirement(kind="lung-fields"),),
        "lung_rules": RULES,
        "class_names": {"abnormal": {"en": "Other"}, "normal": {"en": "Other"}},
        "warnings": {"en": "Other"},
        "is_bare": True,
        "provenance": {"data": "other"},
        "metrics": {"auc": 0.9},
    },
    Model: {
        "manifest": tiny_manifest(version="1.0.1"),
        "trust": "signed",
        "fingerprint": "0123",
        "model_sha256": "0" * 64,
        "files": {"litert": b"other"},
        "golden": tiny_golden(tolerance=0.03),
        "card": "other",
        "content_sha256": "0" * 64,
        "lungs": tiny_lungs_model(version="1.0.1"),
    },
    LungRules: {"mask_threshold": 0.4, "thresholds": {**RULES.thresholds, "inverted": 0.4}},
    InputSpec: {
        "height": 32,
        "width": 32,
        "channels": 3,
        "intensity": "as_displayed",
        "fit": "pad",
        "margin": 0.1,
        "crop": "lungs",
        "crop_margin": 0.1,
    },
    OutputRoles: {"scores": 4, "class_maps": 5, "features": 6, "mask": 7, "activation": "softmax"},
    HeaderRules: {"modalities": ("CR",), "body_parts": ("LUNG",), "views": ("PA",), "ages_years": (18, 90)},
}
WHOLE = tiny_model(manifest=tiny_manifest(requires=(PackRequirement(kind="lung-fields", id="l"),)))
CROPPED = InputSpec(height=64, width=64, crop="lungs")


def within(kind: type, change: Mapping[str, object]) -> Model:
    """`WHOLE` with its lung-field pack, and the change applied to the part of that kind."""
    model = dataclasses.replace(WHOLE, lungs=tiny_lungs_model())
    manifest = model.manifest
    if kind is Model:
        return dataclasses.replace(model, **change)
    if kind is Manifest:
        return dataclasses.replace(model, manifest=dataclasses.replace(manifest, **change))
    if kind is LungRules:
        return dataclasses.replace(model, lungs=tiny_lungs_model(lung_rules=dataclasses.replace(RULES, **change)))
    place = {InputSpec: "input", OutputRoles: "outputs", HeaderRules: "accepted"}[kind]
    base = CROPPED if "crop_margin" in change else getattr(manifest, place)
    changed = dataclasses.replace(manifest, **{place: dataclasses.replace(base, **change)})
    return dataclasses.replace(model, manifest=changed)


@pytest.mark.parametrize(("kind", "name"), [(kind, field.name) for kind in OTHER for field in dataclasses.fields(kind)])
def test_every_field_of_a_model_is_in_the_hash_or_decides_nothing(kind: type, name: str) -> None:
    before, after = (set_up_pack(within(kind, change)).settings_hash for change in ({}, {name: OTHER[kind][name]}))
    assert (before == after) == (name in FIELDS_NOT_IN_SETTINGS_HASH)


def test_the_files_and_rules_of_the_lung_fields_are_in_the_hash() -> None:
    lungs = tiny_lungs_model()
    changes = [
        {},
        {"files": {**lungs.files, "edgetpu": b"one"}},
        {"files": {**lungs.files, "edgetpu": b"other"}},
        {"manifest": tiny_lungs_model(outputs=OutputRoles(scores=0, mask=1)).manifest},
        {"manifest": tiny_lungs_model(input=InputSpec(height=32, width=32)).manifest},
    ]
    models = [dataclasses.replace(WHOLE, lungs=dataclasses.replace(lungs, **change)) for change in changes]
    models += [dataclasses.replace(WHOLE, files={**WHOLE.files, "edgetpu": data}) for data in (b"one", b"other")]
    models += [within(Manifest, {"metrics": {"evidence_inside": {"limit": limit}}}) for limit in (0.2, 0.3)]
    hashes = [set_up_pack(model).settings_hash for model in models]
    assert len(set(hashes)) == len(hashes)
