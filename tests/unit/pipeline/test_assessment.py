from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from fieldray.domain.model import Calibration, HeaderRules, InputSpec, OodGate
from fieldray.errors import UsageProblem
from fieldray.pipeline.assessment import Assessment, choose
from tiny_models import tiny_manifest, tiny_model

MANIFEST = tiny_manifest()
FIRST = MANIFEST.operating_points[0]
SECOND = dataclasses.replace(FIRST, name="sensitive", threshold=0.2, unsure_low=0.1, unsure_high=0.3)


def assessment(name: str | None = None, **changes: object) -> Assessment:
    manifest = tiny_manifest(**{"operating_points": (FIRST, SECOND), **changes})
    return choose(tiny_model(manifest=manifest), operating_point=name)


def test_the_first_operating_point_is_in_force_unless_another_is_named() -> None:
    assert assessment().points == {"opacity": FIRST}
    assert assessment("sensitive").points == {"opacity": SECOND}


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UsageProblem) as problem:
        assessment("spezific")
    assert "spezific" in str(problem.value)
    assert "screening, sensitive" in str(problem.value)


def test_a_pack_without_operating_points_assesses_nothing() -> None:
    bare = assessment(operating_points=())
    assert bare.points == {"opacity": None}
    assert bare.findings({"opacity": 0.99})[0].decision == "not_assessed"


def test_whatever_decides_a_result_changes_the_hash() -> None:
    gate = OodGate(mean=np.zeros(4, np.float32), projection=np.eye(4, dtype=np.float32), limit=2.0)
    variants = [
        assessment(),
        assessment("sensitive"),
        assessment(version="1.0.1"),
        assessment(calibration={"opacity": Calibration(2.0, 0.0)}),
        assessment(ood_gate=gate),
        assessment(ood_gate=dataclasses.replace(gate, limit=3.0)),
        assessment(ood_gate=dataclasses.replace(gate, mean=np.ones(4, np.float32))),
        assessment(input=InputSpec(height=64, width=64, margin=0.1)),
        assessment(accepted=HeaderRules(views=("PA",))),
    ]
    hashes = [variant.settings_hash for variant in variants]
    assert len(set(hashes)) == len(hashes)
    assert assessment().settings_hash == hashes[0]
    assert assessment(names={"en": "Other", "uk": "Інше"}).settings_hash == hashes[0]
