"""From a score to a decision, for any score, calibration and operating point."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fieldray.domain.finding import (
    BORDERLINE_LOG_ODDS,
    BORDERLINE_SCORE,
    Decision,
    Finding,
    borderline_scores,
    calibrate,
    decide,
    is_borderline,
)
from fieldray.domain.metrics import sigmoid
from fieldray.domain.model import Calibration, Estimate, OperatingPoint
from outcomes import POINT, operating_point, screened
from properties import CALIBRATIONS, SHARES, points

ORDER: list[Decision] = ["below", "unsure", "above"]
DECISIONS = st.sampled_from([*ORDER, "not_assessed"])


@given(SHARES, SHARES, CALIBRATIONS)
def test_a_calibration_stays_a_share_and_keeps_the_order(one: float, other: float, calibration: Calibration) -> None:
    low, high = (calibrate(score, calibration) for score in sorted([one, other]))
    assert 0.0 <= low <= high <= 1.0


@given(SHARES)
def test_the_neutral_calibration_changes_nothing(score: float) -> None:
    assert calibrate(score, Calibration()) == pytest.approx(score, abs=2e-7)


@given(SHARES, st.floats(1e-3, 1e3), st.floats(-1e3, 1e3))
def test_a_calibration_of_the_opposite_is_the_opposite(score: float, slope: float, intercept: float) -> None:
    there = calibrate(score, Calibration(slope, intercept))
    assert calibrate(1 - score, Calibration(slope, -intercept)) == pytest.approx(1 - there, abs=1e-6)


@given(st.floats(allow_nan=False), st.floats(allow_nan=False))
def test_the_logistic_function_rises_and_is_symmetric(one: float, other: float) -> None:
    low, high = sigmoid(sorted([one, other]))
    assert 0.0 <= low <= high <= 1.0
    np.testing.assert_allclose(sigmoid(-one), 1 - sigmoid(one), atol=1e-15)


@given(st.lists(SHARES, min_size=2), points())
def test_a_higher_score_is_never_a_lower_decision(scores: list[float], point: OperatingPoint) -> None:
    ranks = [ORDER.index(decide(score, point)) for score in sorted(scores)]
    assert ranks == sorted(ranks)


@given(SHARES, points())
def test_the_limits_of_a_band_belong_to_what_is_above_them(score: float, point: OperatingPoint) -> None:
    assert decide(point.unsure_high, point) == "above"
    assert (decide(score, point) == "unsure") == (point.unsure_low <= score < point.unsure_high)


@given(SHARES, SHARES)
def test_a_band_of_no_width_leaves_nothing_unsure(score: float, threshold: float) -> None:
    point = operating_point(unsure_low=threshold, threshold=threshold, unsure_high=threshold)
    assert decide(score, point) == ("above" if score >= threshold else "below")


@given(st.floats())
def test_without_an_operating_point_nothing_is_decided(score: float) -> None:
    assert decide(score, None) == "not_assessed"


@given(st.tuples(*[st.floats(-0.5, 1.5) | st.just(float("nan"))] * 3))
def test_an_operating_point_out_of_order_is_refused(values: tuple[float, float, float]) -> None:
    low, threshold, high = values
    if 0 <= low <= threshold <= high <= 1:
        operating_point(unsure_low=low, threshold=threshold, unsure_high=high)
        return
    with pytest.raises(ValueError, match="unsure_low <= threshold"):
        operating_point(unsure_low=low, threshold=threshold, unsure_high=high)


@given(st.tuples(*[st.floats(-0.5, 1.5) | st.just(float("nan"))] * 3))
def test_an_estimate_lies_within_its_interval_or_is_refused(values: tuple[float, float, float]) -> None:
    value, low, high = values
    if 0 <= low <= value <= high <= 1:
        Estimate(value, low, high)
        return
    with pytest.raises(ValueError, match="not an estimate"):
        Estimate(value, low, high)


def findings(score: float, point: OperatingPoint) -> list[Finding]:
    return [Finding(label="opacity", score=score, point=point, decision=decide(score, point))]


def borderline(score: float, point: OperatingPoint) -> bool:
    moved = [findings(scores["opacity"], point) for scores in borderline_scores({"opacity": score})]
    return is_borderline(findings(score, point), *moved, gate=None, distance=None)


@given(SHARES, st.floats(-0.99, 0.99), points())
def test_what_is_not_borderline_stands_a_small_change(score: float, share: float, point: OperatingPoint) -> None:
    assume(not borderline(score, point))
    by_odds = score + share * abs(
        calibrate(score, Calibration(intercept=math.copysign(BORDERLINE_LOG_ODDS, share))) - score
    )
    by_score = min(max(score + share * BORDERLINE_SCORE, 0.0), 1.0)
    assert decide(min(by_odds, by_score, key=lambda moved: abs(moved - score)), point) == decide(score, point)


@pytest.mark.parametrize(("score", "expected"), [(0.99, False), (0.965, True), (0.955, True), (0.87, False)])
def test_a_score_far_above_a_limit_near_one_is_not_borderline(score: float, expected: bool) -> None:
    """A margin of the score alone made every image above a limit of 0.96 borderline."""
    assert borderline(score, operating_point(unsure_low=0.6, threshold=0.8, unsure_high=0.96)) == expected


@given(st.lists(DECISIONS, max_size=4))
def test_the_category_is_that_of_the_worst_finding_in_any_order(decisions: list[Decision]) -> None:
    def category(order: tuple[Decision, ...]) -> str:
        findings = tuple(Finding(label="opacity", score=0.5, point=POINT, decision=decision) for decision in order)
        made = screened()
        return type(made)(
            ref=made.ref, facts=made.facts, findings=findings, class_maps=None, pack_name=made.pack_name,
            model_sha256=made.model_sha256, backend=made.backend, inference_ms=1.0,
        ).category  # fmt: skip

    (only,) = {category(order) for order in itertools.permutations(decisions)}
    assert (only == "abnormal") == ("above" in decisions)
    assert (only == "normal") == (set(decisions) == {"below"})
