"""Drift: the histograms by which runs are compared, and their references."""

from __future__ import annotations

import pytest

from fieldray.audit.drift import Drift, compare_histograms, drift_histograms, reference_histograms
from fieldray.domain.run import DriftSample


def _gists(count: int, score: float, grey: float, refused: int = 0) -> list[DriftSample]:
    seen = [DriftSample(category="normal", scores={"opacity": score}, median_grey=grey) for _ in range(count)]
    return seen + [DriftSample(category="refused", scores={}, median_grey=None) for _ in range(refused)]


def test_scores_refusals_and_exposure_are_counted() -> None:
    counts = drift_histograms([*_gists(3, 0.05, 0, refused=2), *_gists(1, 1.0, 255)], "opacity")
    assert counts["scores"] == (3, 0, 0, 0, 0, 0, 0, 0, 0, 1)
    assert counts["exposure"] == (3, 0, 0, 0, 0, 0, 0, 0, 0, 1)
    assert counts["refused"] == (4, 2)
    assert sum(drift_histograms(_gists(5, 0.5, 9), "other")["scores"]) == 0


def test_only_a_run_with_changed_histograms_exceeds_the_limits() -> None:
    before = drift_histograms(_gists(100, 0.25, 100, refused=2), "opacity")
    same = drift_histograms(_gists(60, 0.25, 100, refused=1), "opacity")
    moved = drift_histograms(_gists(60, 0.85, 30, refused=60), "opacity")
    assert not any(drift.exceeds_limit for drift in compare_histograms(same, before, reference_kind="earlier"))
    out = compare_histograms(moved, before, reference_kind="earlier")
    assert [drift.quantity for drift in out if drift.exceeds_limit] == ["scores", "refused", "exposure"]
    assert (
        "score is 0.85 in this run, and 0.25 in the reference (earlier images of this folder)." in out[0].summary.text
    )
    assert "and 2 of 100 in the reference (earlier images of this folder)." in out[1].summary.text
    assert "60 images of this run with 100 reference images" in out[0].summary.text


def test_fewer_than_fifty_images_are_not_compared() -> None:
    before = drift_histograms(_gists(100, 0.25, 100), "opacity")
    assert compare_histograms(drift_histograms(_gists(49, 0.9, 9), "opacity"), before, reference_kind="earlier") == ()


def test_a_pack_gives_its_reference_or_none() -> None:
    counts = [5, 0, 0, 0, 0, 0, 0, 0, 0, 60]
    metrics = {"labels": {"opacity": {"reference": {"scores": counts}}}}
    assert reference_histograms(metrics, "opacity") == {"scores": tuple(counts)}
    now = drift_histograms(_gists(80, 0.1, 100), "opacity")
    (found,) = compare_histograms(now, reference_histograms(metrics, "opacity"), reference_kind="pack")
    assert found.exceeds_limit
    assert "the images that the pack was measured on" in found.summary.text


@pytest.mark.parametrize("scores", [None, [1, 2], ["a"] * 10, [1.5] * 10, [-1] * 10, {"0": 1}])
def test_a_malformed_reference_is_ignored(scores: object) -> None:
    assert reference_histograms({"labels": {"opacity": {"reference": {"scores": scores}}}}, "opacity") == {}
    assert reference_histograms({"labels": 3}, "opacity") == {}


def test_heat_maps_outside_the_lungs_in_half_of_the_images_mean_drift() -> None:
    """Compared from 20 images on; the share of abnormal images says nothing about the population."""
    before = reference_histograms({"evidence_inside": {"images": 152, "limit": 0.86}}, "opacity")
    assert before == {"evidence": (144, 8)}

    def found(below: int, number: int = 40) -> list[Drift]:
        shares = [0.5] * below + [0.95] * (number - below)
        samples = [
            DriftSample(category="abnormal", scores={}, median_grey=None, evidence_inside=share) for share in shares
        ]
        return list(
            compare_histograms(drift_histograms(samples, "opacity", evidence_limit=0.86), before, reference_kind="pack")
        )

    assert [drift.exceeds_limit for drift in found(8)] == [False]
    (out,) = found(24)
    assert out.exceeds_limit and "other patients than" in out.summary.text
    assert found(19, 19) == []
    assert found(20, 20)[0].exceeds_limit


def test_heat_maps_inside_the_lungs_more_often_than_before_are_no_drift() -> None:
    """As after images of bedridden patients, when those of an outpatient clinic follow."""
    before, now = {"evidence": (10, 14)}, {"evidence": (150, 5)}
    (found,) = compare_histograms(now, before, reference_kind="earlier")
    assert found.index > found.limit and not found.exceeds_limit
    (found,) = compare_histograms(before, now, reference_kind="earlier")
    assert found.exceeds_limit
