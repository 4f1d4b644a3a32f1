"""From scores to a decision, for any calibration and operating point; and the values of an outcome."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fieldray.domain.finding import (
    BORDERLINE_LOG_ODDS_MARGIN,
    BORDERLINE_SCORE_MARGIN,
    Decision,
    Finding,
    calibrate,
    can_be_fixed_by_turning,
    can_refusal_be_overruled,
    decide,
    decide_by_larger_output,
    is_borderline,
    leading_finding,
    leading_finding_among,
    lungs_of,
    notes_of,
    override_notes,
    position_on_scale,
    reason_of,
    score_bounds,
    score_for_sorting,
    without_preview,
)
from fieldray.domain.metrics import sigmoid
from fieldray.domain.model import Calibration, Estimate, OperatingPoint, OutOfDistributionCheck
from fieldray.reasons import reason
from lungs import lungs, two_lungs
from outcomes import POINT, failed, operating_point, refused, screened
from properties import CALIBRATIONS, SHARES, points


def test_a_calibration_is_applied_to_the_logit() -> None:
    # logit(0.8) = ln 4; 2 ln 4 - ln 2 = ln 8; sigmoid(ln 8) = 8/9
    assert calibrate(0.8, Calibration(2.0, -math.log(2))) == pytest.approx(8 / 9, abs=1e-12)


@pytest.mark.parametrize("slope", [50.0, 1e3, 1e308])
@pytest.mark.parametrize(("score", "calibrated"), [(0.0, 0.0), (0.49, 0.0), (0.51, 1.0), (1.0, 1.0)])
def test_a_steep_calibration_is_a_step(slope: float, score: float, calibrated: float) -> None:
    """A logit of -16.1 (of 1e-7) times 50 is beyond the range of exp in 64 bits."""
    found = calibrate(score, Calibration(slope, 0.0))
    assert 0.0 <= found <= 1.0
    assert found == pytest.approx(calibrated, abs=0.15 if slope == 50 else 1e-12)
    assert calibrate(score, Calibration(1.0, -1e308 if score < 0.5 else 1e308)) == pytest.approx(calibrated)


def test_the_sigmoid_is_defined_for_all_numbers() -> None:
    values = np.array([-math.inf, -1e308, -800.0, -2.0, 0.0, 2.0, 800.0, 1e308, math.inf])
    # e^-2 = 0.1353352832366127
    middle = 0.1353352832366127 / 1.1353352832366127
    wanted = [0, 0, 0, middle, 0.5, 1 - middle, 1, 1, 1]
    np.testing.assert_allclose(sigmoid(values), wanted, atol=1e-15)
    assert np.all(np.diff(sigmoid(np.linspace(-50, 30, 200))) > 0)
    assert sigmoid(values.reshape(3, 3)).shape == (3, 3)


def finding(decision: Decision, score: float = 0.5) -> Finding:
    return Finding(label="opacity", score=score, point=POINT, decision=decision)


# ---- a model without an operating point


def test_without_an_operating_point_only_the_larger_score_is_above() -> None:
    found = decide_by_larger_output({"abnormal": 0.7, "normal": 0.3})
    assert [(each.label, each.score, each.decision) for each in found] == [
        ("abnormal", 0.7, "above"),
        ("normal", 0.3, "below"),
    ]
    assert all(each.point is None and each.is_decided_by_larger_output for each in found)
    assert [each.decision for each in decide_by_larger_output({"abnormal": 0.3, "normal": 0.7})] == ["below", "below"]
    # one of three: compared with the largest of the others; of equal ones the first is above
    assert [each.decision for each in decide_by_larger_output({"a": 0.3, "b": 0.2, "c": 0.5})] == ["below"] * 3
    assert [each.decision for each in decide_by_larger_output({"a": 0.5, "b": 0.5})] == ["above", "below"]


def test_a_finding_with_a_point_or_without_a_decision_is_not_by_the_larger_score() -> None:
    assert not finding("above").is_decided_by_larger_output
    assert not dataclasses.replace(finding("not_assessed"), point=None).is_decided_by_larger_output


@pytest.mark.parametrize(("larger", "expected"), [(0.503, True), (0.497, True), (0.9, False), (0.1, False)])
def test_two_nearly_equal_outputs_are_borderline(larger: float, expected: bool) -> None:
    scores = {"abnormal": larger, "normal": 1 - larger}
    lowest, highest = (decide_by_larger_output(moved) for moved in score_bounds(scores))
    assert is_borderline(decide_by_larger_output(scores), lowest, highest, gate=None, distance=None) is expected


def test_an_output_of_exactly_one_half_is_above() -> None:
    """0.5 + the margin of 0.05: the lower end 0.5 is above as the score is; the upper end of 0.45 is not below."""
    for score, expected in ((0.5 + BORDERLINE_SCORE_MARGIN, False), (0.5 - BORDERLINE_SCORE_MARGIN, True)):
        (found,) = decide_by_larger_output({"abnormal": score, "normal": 0.0})[:1]
        ends = (dataclasses.replace(found, score=0.0), dataclasses.replace(found, score=1.0))
        found = dataclasses.replace(found, decision="below")
        assert is_borderline([found], ends[:1], ends[1:], gate=None, distance=None) is expected


# ---- possible changes by a lower resolution


def test_borderline_scores_move_by_log_odds_and_at_least_one_output_step() -> None:
    # from log-odds 0: sigmoid(0.8) = 0.6899744811276125, and sigmoid(0.2) = 0.549833997312478 from 1.5 pixels on
    for oversampling, margin in ((1.0, 0.6899744811276125), (1.49, 0.6899744811276125), (1.5, 0.549833997312478)):
        lowest, highest = score_bounds({"a": 0.5}, oversampling=oversampling)
        assert highest["a"] == pytest.approx(margin, abs=1e-12)
        assert lowest["a"] == pytest.approx(1 - margin, abs=1e-12)
    assert score_bounds({"a": 0.5}) == score_bounds({"a": 0.5}, oversampling=1.0)
    lowest, highest = score_bounds({"zero": 0.0, "one": 1.0})
    assert lowest == {"zero": 0.0, "one": 1 - 1 / 256}
    assert highest == {"zero": 1 / 256, "one": 1.0}
    assert sigmoid(BORDERLINE_LOG_ODDS_MARGIN) == pytest.approx(0.6899744811276125, abs=1e-12)


def gate(limit: float) -> OutOfDistributionCheck:
    return OutOfDistributionCheck(mean=np.zeros(1, np.float32), projection=np.ones((1, 1), np.float32), limit=limit)


def test_a_distance_near_the_out_of_distribution_limit_is_borderline() -> None:
    # 0.015 of 1,000 is 15
    assert is_borderline([], [], [], gate=gate(1000.0), distance=1015.0)
    assert is_borderline([], [], [], gate=gate(1000.0), distance=985.0)
    for distance in (1015.5, 984.5, math.nan):
        assert not is_borderline([], [], [], gate=gate(1000.0), distance=distance)


def test_without_a_gate_or_a_distance_the_scores_decide() -> None:
    near, far = ([finding("above", score)] for score in (0.61, 0.9))
    for which, distance in ((None, 5.0), (gate(5.0), None)):
        assert is_borderline(near, [finding("above", 0.55)], [finding("above", 0.65)], gate=which, distance=distance)
        assert not is_borderline(far, far, far, gate=which, distance=distance)


# ---- the order in which images are listed


@pytest.mark.parametrize(
    ("score", "threshold", "place"),
    [(0.0, 0.2, 0.0), (0.1, 0.2, 0.25), (0.2, 0.2, 0.5), (0.6, 0.2, 0.75), (1.0, 0.2, 1.0), (1.0, 1.0, 1.0)],
)
def test_the_threshold_is_in_the_middle_of_the_scale(score: float, threshold: float, place: float) -> None:
    """Each side is linear: 0.6 lies half-way between 0.2 and 1."""
    assert position_on_scale(score, threshold) == pytest.approx(place, abs=1e-12)
    assert position_on_scale(0.5, 0.0) == pytest.approx(0.75, abs=1e-12)


def test_the_most_urgent_finding_leads_then_the_highest_score() -> None:
    order: list[Decision] = ["above", "unsure", "not_assessed", "below"]
    findings = [finding(decision, score) for score, decision in enumerate(reversed(order))]
    while findings:
        assert leading_finding_among(findings) == findings.pop()
    assert leading_finding_among([]) is None
    assert leading_finding_among([finding("above", 0.7), finding("above", 0.9)]) == finding("above", 0.9)
    made = screened()
    assert leading_finding(made) == made.findings[0]
    assert leading_finding(refused()) is leading_finding(failed()) is None


def test_images_are_listed_by_their_leading_score() -> None:
    assert score_for_sorting([finding("below", 0.9), finding("above", 0.6)]) == 0.6
    assert score_for_sorting([finding("below", 0.3), finding("below", 0.2)]) == 0.3
    assert score_for_sorting([]) is None
    assert score_for_sorting(iter(decide_by_larger_output({"abnormal": 0.6, "normal": 0.4}))) == 0.6
    # a normal image by its score for abnormal: the least certain comes first
    assert score_for_sorting(iter(decide_by_larger_output({"abnormal": 0.4, "normal": 0.6}))) == 0.4


@pytest.mark.parametrize("abnormal", [0.9, 0.5, 0.4, 0.1])
def test_without_an_operating_point_the_leading_score_is_of_abnormal(abnormal: float) -> None:
    leading = leading_finding_among(decide_by_larger_output({"abnormal": abnormal, "normal": 1 - abnormal}))
    assert leading is not None and (leading.label, leading.score) == ("abnormal", abnormal)


@pytest.mark.parametrize(("abnormal", "category"), [(0.9, "abnormal"), (0.1, "normal")])
def test_an_unseen_lung_keeps_the_class_of_a_model_without_a_point(abnormal: float, category: str) -> None:
    shares = two_lungs()
    shares[:, 20:] = 0
    found = decide_by_larger_output({"abnormal": abnormal, "normal": 1 - abnormal})
    made = dataclasses.replace(screened(), findings=found, lungs=lungs(shares))
    assert made.category == category and reason_of(made) == made.lungs.read_first_reason


# ---- the values of an outcome


NAMED: dict[str, dict[str, object]] = {
    "view": {"view": "LL"},
    "body_part": {"body_part": "HAND"},
    "modality": {"modality": "CT"},
    "image_type": {"kind": "BONE"},
}
"""What the sentences of reasons name."""


def test_which_refusals_can_be_overruled_or_corrected() -> None:
    turned = {"rotated", "upside_down", "inverted"}
    overruled = {*turned, "view", "body_part", "for_processing", "image_type", "not_frontal_chest", "unlike_training"}
    for code in (*overruled, "modality", "blank", "truncated"):
        why = reason(code, **NAMED.get(code, {}))
        assert can_refusal_be_overruled(why) == (code in overruled)
        assert can_be_fixed_by_turning(why) == (code in turned)


def test_the_lungs_and_the_reason_of_an_outcome() -> None:
    shares = two_lungs()
    shares[:, 20:] = 0  # the right half of the picture is the patient's left
    whole, one_sided = lungs(), lungs(shares)
    made = dataclasses.replace(screened(), lungs=one_sided)
    assert lungs_of(made) is one_sided
    assert lungs_of(dataclasses.replace(refused(), lungs=whole)) is whole
    assert lungs_of(failed()) is None
    assert reason_of(made) == one_sided.read_first_reason == reason("left_lung_not_found", opposite="12.5")
    assert (made.category, made.status) == ("read_first", "screened")
    for normal in (screened(decision="below"), dataclasses.replace(screened(decision="below"), lungs=whole)):
        assert reason_of(normal) is None
        assert normal.category == "normal"
    assert reason_of(refused()) == reason("view", view="LL")
    assert reason_of(failed()) == reason("truncated")
    assert (refused().category, refused().status, failed().category, failed().status) == (
        *("refused", "refused"),
        *("failed", "failed"),
    )


def test_an_outcome_has_notes_on_what_a_person_overruled() -> None:
    notes = (reason("perhaps_mirrored"), reason("screened_anyway"), reason("turned_back", degrees=90))
    made = dataclasses.replace(screened(), notes=notes)
    assert notes_of(made) == notes
    assert override_notes(made) == notes[1:]
    assert notes_of(refused()) == notes_of(failed()) == override_notes(failed()) == ()


@pytest.mark.parametrize(
    "extra", [{"preview": b"jpeg"}, {"file_stamp": b"file_stamp"}, {"preview": b"jpeg", "file_stamp": b"file_stamp"}]
)
def test_without_preview_drops_preview_and_stamp_only(extra: dict[str, bytes]) -> None:
    made = screened()
    assert without_preview(made) is made
    full = dataclasses.replace(made, facts=dataclasses.replace(made.facts, **extra))
    slim = without_preview(full)
    assert (slim.facts.preview, slim.facts.file_stamp) == (b"", b"")
    assert slim.facts.thumbnail is made.facts.thumbnail
    assert dataclasses.replace(slim, facts=made.facts).findings == made.findings


# ---- properties for any score, calibration and operating point

ORDER: list[Decision] = ["below", "unsure", "above"]
DECISIONS = st.sampled_from([*ORDER, "not_assessed"])


@given(SHARES, SHARES, CALIBRATIONS)
def test_a_calibrated_score_stays_within_0_and_1_and_keeps_the_order(
    one: float, other: float, calibration: Calibration
) -> None:
    low, high = (calibrate(score, calibration) for score in sorted([one, other]))
    assert 0.0 <= low <= high <= 1.0


@given(st.lists(SHARES, min_size=2), points())
def test_a_higher_score_is_never_a_lower_decision(scores: list[float], point: OperatingPoint) -> None:
    ranks = [ORDER.index(decide(score, point)) for score in sorted(scores)]
    assert ranks == sorted(ranks)


@given(SHARES, points())
def test_a_score_at_a_limit_belongs_to_the_zone_above_it(score: float, point: OperatingPoint) -> None:
    assert decide(point.unsure_high, point) == "above"
    assert (decide(score, point) == "unsure") == (point.unsure_low <= score < point.unsure_high)


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
    moved = [findings(scores["opacity"], point) for scores in score_bounds({"opacity": score})]
    return is_borderline(findings(score, point), *moved, gate=None, distance=None)


@given(SHARES, st.floats(-0.99, 0.99), points())
def test_a_decision_that_is_not_borderline_survives_a_small_change(
    score: float, share: float, point: OperatingPoint
) -> None:
    assume(not borderline(score, point))
    by_odds = score + share * abs(
        calibrate(score, Calibration(intercept=math.copysign(BORDERLINE_LOG_ODDS_MARGIN, share))) - score
    )
    by_score = min(max(score + share * BORDERLINE_SCORE_MARGIN, 0.0), 1.0)
    assert decide(min(by_odds, by_score, key=lambda moved: abs(moved - score)), point) == decide(score, point)


@pytest.mark.parametrize(("score", "expected"), [(0.99, False), (0.965, True), (0.955, True), (0.87, False)])
def test_a_score_far_above_a_limit_near_one_is_not_borderline(score: float, expected: bool) -> None:
    """A fixed margin on the score would make every image above a limit of 0.96 borderline."""
    assert borderline(score, operating_point(unsure_low=0.6, threshold=0.8, unsure_high=0.96)) == expected


@given(st.lists(DECISIONS, max_size=4))
def test_the_category_is_that_of_the_worst_finding_in_any_order(decisions: list[Decision]) -> None:
    def category(order: tuple[Decision, ...]) -> str:
        return dataclasses.replace(screened(), findings=tuple(map(finding, order))).category

    (only,) = {category(order) for order in itertools.permutations(decisions)}
    assert (only == "abnormal") == ("above" in decisions)
    assert (only == "normal") == (set(decisions) == {"below"})
