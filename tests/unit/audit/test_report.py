"""The threshold plan of an audit, worked out by hand on a few people; and the proposed operating point."""

from __future__ import annotations

import math

import pytest

from fieldray.audit.report import (
    ALL_UNITS_SUBGROUP,
    ProposalGoal,
    ScreeningPrices,
    ThresholdPlan,
    propose_operating_point,
    require_valid_prices,
    threshold_plan,
)
from fieldray.audit.units import Case, CountingRule, shifted_uncertain_zone
from fieldray.domain.finding import Category
from fieldray.domain.image import ImageHeader
from fieldray.errors import UsageProblem
from outcomes import operating_point

PATIENTS = CountingRule(unit="patient")


def case(patient: str, score: float | None, truth: bool, category: Category = "unsure", sex: str = "") -> Case:
    return Case(
        image_key=f"{patient}-{score}", row_id=1, patient_key=patient, truth=truth, score=score, category=category,
        header=ImageHeader(patient_sex=sex),
    )  # fmt: skip


# Four people with the condition: a with two images, b, c without a score, and d, who is read first whatever the score.
# Five people without the condition.
CASES = [
    case("a", 0.9, True), case("a", 0.2, True), case("b", 0.4, True), case("c", None, True, "refused"),
    case("d", 0.05, True, "read_first"),
    case("p", 0.6, False), case("q", 0.3, False), case("r", 0.3, False), case("s", 0.1, False),
    case("t", None, False, "refused"),
]  # fmt: skip


def made(cases: list[Case], *, prices: ScreeningPrices | None = None, points: tuple[float, ...] = ()) -> ThresholdPlan:
    found = threshold_plan(cases, points, rule=PATIENTS, base_point=None, prevalence=0.1, prices=prices)
    assert found is not None
    return found


def test_referred_detected_and_missed_are_counted_by_patient() -> None:
    found = made(CASES)
    assert (found.units, found.units_not_assessed, found.positives_not_assessed) == (9, 2, 1)
    steps = found.rows_by_subgroup[ALL_UNITS_SUBGROUP]
    assert list(steps) == [0.1, 0.3, 0.4, 0.6, 0.9]
    step = steps[0.4]  # a, b and d of four with the condition; p of five without it
    assert (step.sensitivity.count, step.sensitivity.of) == (3, 4)
    assert (step.specificity.count, step.specificity.of) == (4, 5)
    # Of 1,000 people 100 have the condition: 75 detected, 25 missed; of 900 without it a fifth is referred: 180.
    assert (step.detected, step.missed, step.referred) == pytest.approx((75, 25, 255))
    assert step.ppv is not None and step.ppv.value == pytest.approx(75 / 255)
    assert step.npv is not None and step.npv.value == pytest.approx(720 / 745)
    assert (step.cost, step.cost_per_detected) == (None, None)
    # At 0.1 and 0.3 the same three are detected: the highest such threshold stands for 80 to 100 %.
    assert found.shown_thresholds == (0.4, 0.9)


def test_costs_count_screening_everybody_and_testing_the_referred() -> None:
    step = made(CASES, prices=ScreeningPrices(screening_price=2.0, test_price=20.0)).rows_by_subgroup[
        ALL_UNITS_SUBGROUP
    ][0.4]
    assert step.cost == pytest.approx(1000 * 2 + 255 * 20)
    assert step.cost_per_detected == pytest.approx(7100 / 75)
    nobody = [one for one in CASES if one.patient_key not in "acd"]
    assert (
        made(nobody, points=(0.7,), prices=ScreeningPrices(screening_price=2.0, test_price=20.0))
        .rows_by_subgroup[ALL_UNITS_SUBGROUP][0.7]
        .cost_per_detected
        is None
    )
    for wrong in (
        ScreeningPrices(screening_price=-1.0),
        ScreeningPrices(test_price=float("nan")),
        ScreeningPrices(second_reading_price=float("inf")),
    ):
        with pytest.raises(UsageProblem, match="A cost must be a number"):
            require_valid_prices(wrong)


def test_the_plan_has_a_step_at_each_threshold_in_use() -> None:
    cases = [case("a", 0.29, True), case("b", 0.2899, True), case("p", 0.1234, False)]
    found = made(cases, points=(0.55,))
    # Rounded down to thousandths: a score is never below the threshold at which it is referred.
    assert list(found.rows_by_subgroup[ALL_UNITS_SUBGROUP]) == [0.123, 0.289, 0.29, 0.55]
    assert found.rows_by_subgroup[ALL_UNITS_SUBGROUP][0.289].sensitivity.count == 2
    assert 0.55 in found.shown_thresholds
    assert (
        found.rows_by_subgroup[ALL_UNITS_SUBGROUP][0.55].detected == 0
        and found.rows_by_subgroup[ALL_UNITS_SUBGROUP][0.55].ppv is None
    )


def test_large_groups_have_steps_at_the_same_thresholds() -> None:
    cases = [
        case(f"{sex}{n}", 0.01 * n + (sex == "M") * 0.1, n % 2 == 1, sex=sex) for sex in "FM" for n in range(1, 51)
    ]
    small = [case(f"o{n}", 0.5, n % 2 == 1, sex="O") for n in range(10)]
    found = made([*cases, *small])
    assert list(found.rows_by_subgroup) == [ALL_UNITS_SUBGROUP, ("sex", "F"), ("sex", "M")]
    assert all(
        list(steps) == list(found.rows_by_subgroup[ALL_UNITS_SUBGROUP]) for steps in found.rows_by_subgroup.values()
    )
    # Of 25 women with the condition those with 0.41, 0.43 ... 0.49 score 0.41 or above; of the men those from 0.31 on.
    assert found.rows_by_subgroup["sex", "F"][0.41].sensitivity.count == 5
    assert found.rows_by_subgroup["sex", "M"][0.41].sensitivity.count == 10


def test_without_negatives_there_is_no_plan() -> None:
    both = [case("a", 0.9, True), case("a", 0.1, False)]  # one patient, with an image of either kind
    assert threshold_plan(both, (), rule=PATIENTS, base_point=None, prevalence=0.5, prices=None) is None


def test_a_chosen_threshold_is_proposed_with_its_figures() -> None:
    cases = [case(str(n), n / 20, n % 3 == 0) for n in range(1, 20)]
    found = propose_operating_point(
        cases, label="opacity", base_point=None, rule=CountingRule(), wanted=ProposalGoal(threshold=0.5)
    )
    # Positives are 3, 6 ... 18 twentieths: 12, 15 and 18 are at 0.5 or above. Negatives below it: 1, 2, 4, 5, 7, 8.
    assert (found.threshold, found.sensitivity.count, found.sensitivity.of) == (0.5, 3, 6)
    assert (found.specificity.count, found.specificity.of) == (6, 13)
    assert found.specificity.low <= 6 / 13 <= found.specificity.high
    for wrong in (0.95, 1.2, -0.1, float("nan")):
        with pytest.raises(UsageProblem, match="is not between 0 and 1, or detects no image with the condition"):
            propose_operating_point(
                cases, label="opacity", base_point=None, rule=CountingRule(), wanted=ProposalGoal(threshold=wrong)
            )


# ---- the highest threshold with the wanted sensitivity


def _cases() -> list[Case]:
    """Positives score 0.1 to 0.95, negatives 0.05 to 0.45; one image has no score."""
    scored = [(0.05 * step, step >= 8 or step % 3 == 0) for step in range(1, 20)]
    return [case(f"p{n}", score, truth, "normal") for n, (score, truth) in enumerate([*scored, (None, True)])]


@pytest.mark.parametrize("wanted", [0.5, 0.9, 1.0])
def test_the_proposed_threshold_is_the_highest_with_the_wanted_sensitivity(wanted: float) -> None:
    cases = _cases()
    found = propose_operating_point(
        cases, label="opacity", base_point=None, rule=CountingRule(), wanted=ProposalGoal(sensitivity=wanted)
    )
    positives = sum(one.truth for one in cases)  # one of these 15 has no score, so 14 can be referred
    caught = [one.score for one in cases if one.truth and one.score is not None and one.score >= found.threshold]
    assert (found.sensitivity.count, found.sensitivity.of) == (len(caught), 15) == (len(caught), positives)
    assert found.reaches_goal == (wanted < 1) == (len(caught) >= wanted * positives)
    assert len(caught) - 1 < wanted * positives
    assert found.image_count == found.patient_count == 20
    assert found.unsure_low == found.threshold == found.unsure_high


@pytest.mark.parametrize("wanted", [0.4, 0.8, 1.0])
def test_the_proposed_threshold_is_the_lowest_with_the_wanted_specificity(wanted: float) -> None:
    found = propose_operating_point(
        _cases(), label="opacity", base_point=None, rule=CountingRule(), wanted=ProposalGoal(specificity=wanted)
    )
    negatives = sorted(one.score for one in _cases() if not one.truth and one.score is not None)
    spared = sum(score < found.threshold for score in negatives)
    assert (found.specificity.count, found.specificity.of) == (spared, 5) and found.reaches_goal
    assert spared >= 5 * wanted > spared - 1
    assert found.sensitivity.low <= found.sensitivity.value <= found.sensitivity.high


def test_the_specificity_interval_includes_the_choice_of_the_threshold() -> None:
    found = propose_operating_point(
        _cases(), label="opacity", base_point=None, rule=CountingRule(), wanted=ProposalGoal(sensitivity=0.9)
    )
    alone = [one.score for one in _cases() if not one.truth and one.score is not None]
    value = sum(score < found.threshold for score in alone) / len(alone)
    assert found.specificity.value == pytest.approx(value)
    assert found.specificity.low <= value <= found.specificity.high


def test_the_uncertain_zone_moves_with_the_threshold_in_log_odds() -> None:
    pattern = operating_point(threshold=0.5, unsure_low=0.4, unsure_high=0.6)
    low, high = shifted_uncertain_zone(pattern, 0.8)
    assert math.log(low / (1 - low)) == pytest.approx(math.log(0.8 / 0.2) + math.log(0.4 / 0.6))
    assert math.log(high / (1 - high)) == pytest.approx(math.log(0.8 / 0.2) + math.log(0.6 / 0.4))


@pytest.mark.parametrize("threshold", [0.0, 1e-12, 0.5, 1 - 1e-12, 1.0])
def test_the_uncertain_zone_contains_its_threshold_and_stays_within_0_and_1(threshold: float) -> None:
    low, high = shifted_uncertain_zone(operating_point(threshold=0.5, unsure_low=0.0, unsure_high=0.9), threshold)
    assert 0 == low <= threshold <= high <= 1


@pytest.mark.parametrize("wanted", [0.0, -0.1, 1.01, float("nan")])
def test_an_invalid_sensitivity_is_refused(wanted: float) -> None:
    with pytest.raises(UsageProblem, match="sensitivity"):
        propose_operating_point(
            _cases(), label="opacity", base_point=None, rule=CountingRule(), wanted=ProposalGoal(sensitivity=wanted)
        )
