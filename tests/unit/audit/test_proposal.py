"""The proposed operating point: the highest threshold that still catches what was asked for."""

from __future__ import annotations

import math

import pytest

from fieldray.audit.cases import Case
from fieldray.audit.report import moved_band, propose
from fieldray.domain.image import ImageHeader
from fieldray.errors import UsageProblem
from outcomes import operating_point


def _cases() -> list[Case]:
    """Positives score 0.1 to 0.95, negatives 0.05 to 0.45; one image has no score."""
    scored = [(0.05 * step, step >= 8 or step % 3 == 0) for step in range(1, 20)]
    return [
        Case(image=f"{n}.png", row_id=n, patient=f"p{n}", truth=truth, score=score, category="normal",
             header=ImageHeader())
        for n, (score, truth) in enumerate([*scored, (None, True)])
    ]  # fmt: skip


@pytest.mark.parametrize("wanted", [0.5, 0.9, 1.0])
def test_the_threshold_catches_what_was_asked_for_and_the_next_one_would_not(wanted: float) -> None:
    cases = _cases()
    found = propose(cases, label="opacity", pattern=None, wanted=wanted)
    positives = sorted(case.score for case in cases if case.truth and case.score is not None)
    caught = [score for score in positives if score >= found.threshold]
    assert found.sensitivity.count == len(caught) >= wanted * len(positives) - 1e-9
    assert len(caught) - 1 < wanted * len(positives)
    assert found.images == found.patients == 19
    assert found.unsure_low == found.threshold == found.unsure_high


def test_the_interval_of_the_specificity_counts_that_the_threshold_was_chosen_here() -> None:
    found = propose(_cases(), label="opacity", pattern=None, wanted=0.9)
    alone = [case.score for case in _cases() if not case.truth and case.score is not None]
    value = sum(score < found.threshold for score in alone) / len(alone)
    assert found.specificity.value == pytest.approx(value)
    assert found.specificity.low <= value <= found.specificity.high


def test_the_band_moves_along_in_log_odds() -> None:
    pattern = operating_point(threshold=0.5, unsure_low=0.4, unsure_high=0.6)
    low, high = moved_band(pattern, 0.8)
    assert math.log(low / (1 - low)) == pytest.approx(math.log(0.8 / 0.2) + math.log(0.4 / 0.6))
    assert math.log(high / (1 - high)) == pytest.approx(math.log(0.8 / 0.2) + math.log(0.6 / 0.4))


@pytest.mark.parametrize("threshold", [0.0, 1e-12, 0.5, 1 - 1e-12, 1.0])
def test_a_band_holds_its_threshold_and_stays_in_the_scale(threshold: float) -> None:
    low, high = moved_band(operating_point(threshold=0.5, unsure_low=0.0, unsure_high=0.9), threshold)
    assert 0 == low <= threshold <= high <= 1


@pytest.mark.parametrize("wanted", [0.0, -0.1, 1.01, float("nan")])
def test_a_sensitivity_that_is_none_is_refused(wanted: float) -> None:
    with pytest.raises(UsageProblem, match="sensitivity"):
        propose(_cases(), label="opacity", pattern=None, wanted=wanted)
