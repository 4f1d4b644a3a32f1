"""The values of a manifest are checked when they are created: each wrong value is refused by its name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from fieldray.domain.model import (
    Calibration,
    GoldenVectors,
    HeaderRules,
    InputSpec,
    Label,
    Manifest,
    OutOfDistributionCheck,
    OutputRoles,
)
from outcomes import operating_point
from tiny_models import tiny_model

PIXELS = np.zeros((2, 8, 8, 1), np.uint8)


def gate(size: int = 3, limit: float = 1.0) -> OutOfDistributionCheck:
    return OutOfDistributionCheck(mean=np.ones(3, np.float32), projection=np.eye(size, dtype=np.float32), limit=limit)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: InputSpec(height=7, width=8), "8..2048"),
        (lambda: InputSpec(height=8, width=2049), "8..2048"),
        (lambda: InputSpec(height=8, width=8, channels=2), "channels"),
        (lambda: InputSpec(height=8, width=8, margin=0.21), "margin"),
        (lambda: InputSpec(height=8, width=8, margin=float("nan")), "margin"),
        (lambda: InputSpec(height=8, width=8, crop="lungs", margin=0.1), "margin"),
        (lambda: InputSpec(height=8, width=8, crop_margin=0.1), "crop_margin"),
        (lambda: Label(code="", scheme="fieldray", meaning={"en": "Opacity"}), "a label needs"),
        (lambda: Label(code="opacity", scheme="fieldray", meaning={"uk": "Затемнення"}), "English"),
        (lambda: operating_point(name=""), "needs a name"),
        (lambda: operating_point(titles={"uk": "скринінг"}), "no English"),
        (lambda: Calibration(0.0, 0.0), "slope"),
        (lambda: Calibration(float("inf"), 0.0), "slope"),
        (lambda: Calibration(1.0, float("nan")), "slope"),
        (lambda: gate(size=4), "^OOD gate: projection and mean differ in length$"),
        (lambda: gate(limit=0.0), "^OOD gate: limit must be above 0$"),
        (lambda: gate(limit=float("nan")), "limit"),
        (OutputRoles, "scores or class_maps"),
        (lambda: GoldenVectors(inputs=PIXELS, scores=np.zeros((1, 1), np.float32), tolerance=0.1), "differ in number"),
        (lambda: GoldenVectors(inputs=PIXELS, scores=np.zeros((2, 1), np.float32), tolerance=0.5), "tolerance"),
    ],
)
def test_an_invalid_value_is_refused_by_name(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


def test_an_out_of_distribution_check_may_project_to_fewer_dimensions() -> None:
    narrow = OutOfDistributionCheck(mean=np.ones(3, np.float32), projection=np.eye(3, 2, dtype=np.float32), limit=1.0)
    # (4 - 1) and (5 - 1) count, the third feature does not: sqrt((9 + 16) / 2)
    assert narrow.distance(np.array([4, 5, 99], np.float32)) == pytest.approx(12.5**0.5)


def test_a_pack_may_be_for_one_year_of_age() -> None:
    assert HeaderRules(ages_years=(0, 0)).ages_years == (0, 0)


def test_a_model_names_its_lung_field_pack_by_the_beginning_of_its_hash() -> None:
    model = tiny_model()
    assert model.lungs_pack == ""
    lungs = replace(model, model_sha256="0123456789abcdef" * 4)
    assert replace(model, lungs=lungs).lungs_pack == f"{model.pack_name} 0123456789ab"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (lambda manifest: {"input": replace(manifest.input, crop="lungs")}, "requires lung-fields"),
        (lambda manifest: {"labels": ()}, "at least one label"),
        (lambda manifest: {"labels": manifest.labels * 2}, "must differ"),
        (lambda manifest: {"accepted": HeaderRules(ages_years=(5, 1))}, "^ages must be 0 or more, the youngest first$"),
        (lambda manifest: {"accepted": HeaderRules(ages_years=(-1, 1))}, "ages"),
        (lambda manifest: {"operating_points": (operating_point(label="other"),)}, "unknown label other"),
    ],
)
def test_a_manifest_with_contradictory_parts_is_refused(
    changes: Callable[[Manifest], dict[str, object]], words: str
) -> None:
    manifest = tiny_model().manifest
    with pytest.raises(ValueError, match=words):
        replace(manifest, **changes(manifest))


def test_the_first_operating_point_of_a_label_is_the_default() -> None:
    manifest = tiny_model().manifest
    label = manifest.labels[0].code
    points = tuple(operating_point(name=name, label=label) for name in ("one", "two"))
    manifest = replace(manifest, operating_points=points)
    assert (manifest.point(label), manifest.point(label, "two")) == points
    assert manifest.point(label, "three") is None
    assert manifest.point("other") is None


def test_the_out_of_distribution_distance_uses_whitened_features() -> None:
    assert gate().distance(np.ones(3, np.float32)) == 0
    assert gate().distance(np.array([4, 5, 1], np.float32)) == pytest.approx(np.sqrt((9 + 16) / 3))


def test_a_model_is_named_like_its_folder() -> None:
    model = tiny_model()
    assert model.pack_name == f"{model.manifest.pack_id}-{model.manifest.version}"
