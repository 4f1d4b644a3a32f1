"""One unit and one counting rule: table, plan, proposal, groups and comparison count alike; checked by a recount."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score, roc_auc_score

from fieldray.audit.figures import Audit, compute_audit
from fieldray.audit.report import (
    ALL_UNITS_SUBGROUP,
    ProposalGoal,
    ScreeningPrices,
    ThresholdPlan,
    ThresholdProposal,
    propose_operating_point,
    threshold_plan,
)
from fieldray.audit.units import Case, CountingRule
from fieldray.domain import metrics
from fieldray.domain.finding import Category
from fieldray.domain.image import ImageHeader
from fieldray.domain.metrics import COUNTING_UNITS, ReferralRule, Unit
from fieldray.reasons import reason
from outcomes import POINT

RULES = [CountingRule(unit=unit, refers=refers) for unit, refers in product(COUNTING_UNITS, ("above", "unsure"))]  # type: ignore[arg-type]


def image(number: int, score: float | None, truth: bool, category: Category, **known: object) -> Case:
    values = {"patient_key": f"p{number}", "exam_key": f"e{number}", "header": ImageHeader(), **known}
    return Case(image_key=f"{number}.png", row_id=number, truth=truth, score=score, category=category, **values)  # type: ignore[arg-type]


def drawn(count: int = 600) -> list[Case]:
    """Images of 150 patients and of twice as many examinations; one in ten is refused, one in twelve read first."""
    generator = np.random.default_rng(4)
    cases = []
    for number in range(count):
        patient = int(generator.integers(150))
        truth = bool(generator.random() < (0.6 if patient % 3 == 0 else 0.1))
        score = round(float(np.clip(generator.normal(0.6 if truth else 0.4, 0.2), 0, 1)), 3)
        kind = generator.random()
        is_first = kind > 0.92
        known = {"patient_key": f"p{patient}", "exam_key": f"p{patient}-{generator.integers(2)}"}
        header = ImageHeader(patient_sex="FM"[patient % 2])
        if kind < 0.1:
            made = image(number, None, truth, "refused", header=header, reason=reason("view", view="LL"), **known)
        else:
            category: Category = "read_first" if is_first else "abnormal" if score >= 0.6 else "normal"
            category = "unsure" if category == "normal" and score >= 0.4 else category
            made = image(number, score, truth, category, header=header, **known)
        cases.append(made)
    return cases


def counted(cases: list[Case], unit: Unit, edge: float) -> dict[str, list[tuple[bool, bool, bool, float]]]:
    """For each unit: has the condition, is referred, was assessed, and its highest score."""
    members = defaultdict(list)
    for case in cases:
        members[{"image": case.image_key, "exam": case.exam_key, "patient": case.patient_key}[unit]].append(case)
    found = []
    for own in members.values():
        scores = [case.score for case in own if case.score is not None]
        is_first = any(case.category == "read_first" for case in own)
        referred = is_first or any(score >= edge for score in scores)
        found.append((any(case.truth for case in own), referred, bool(scores) or is_first, max(scores, default=-1)))
    return found  # type: ignore[return-value]


def everything(
    cases: list[Case],
    rule: CountingRule,
    *,
    wanted: ProposalGoal | None = None,
    prices: ScreeningPrices | None = None,
) -> tuple[Audit, ThresholdProposal, ThresholdPlan]:
    found = compute_audit(cases, [POINT], rule=rule)
    proposal = propose_operating_point(
        cases, label="opacity", base_point=POINT, rule=rule, wanted=wanted or ProposalGoal()
    )
    thresholds = (POINT.threshold, proposal.threshold)
    planned = threshold_plan(cases, thresholds, rule=rule, base_point=POINT, prevalence=0.1, prices=prices)
    assert planned is not None
    return found, proposal, planned


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.unit}-{rule.refers}")
def test_table_plan_and_proposal_count_the_same(rule: CountingRule) -> None:
    cases = drawn()
    edge = 0.5 if rule.refers == "above" else 0.4
    found, proposal, planned = everything(cases, rule)
    units = counted(cases, rule.unit, edge)
    at, step = found.points[0], planned.rows_by_subgroup[ALL_UNITS_SUBGROUP][0.5]
    with_it, without = ([one for one in units if one[0] == side] for side in (True, False))
    assert (found.unit_count, found.positive_count, found.assessed_unit_count) == (
        len(units),
        len(with_it),
        sum(one[2] for one in units),
    )
    assert (at.detected_share.count, at.detected_share.of) == (sum(one[1] for one in with_it), len(with_it))
    assert (at.falsely_referred_share.count, at.falsely_referred_share.of) == (
        sum(one[1] for one in without),
        len(without),
    )
    assert at.sensitivity.of == sum(one[2] for one in with_it) and at.sensitivity.count == at.detected_share.count
    assert at.specificity.of - at.specificity.count == at.falsely_referred_share.count
    assert step.sensitivity == at.detected_share
    assert step.specificity.value == pytest.approx(1 - at.falsely_referred_share.value)
    again = planned.rows_by_subgroup[ALL_UNITS_SUBGROUP][proposal.threshold]
    assert (again.sensitivity, again.specificity.count) == (proposal.sensitivity, proposal.specificity.count)
    scored = [one for one in units if one[3] >= 0]
    assert found.auc.value == pytest.approx(roc_auc_score([one[0] for one in scored], [one[3] for one in scored]))
    # Missed and falsely referred units together are the list of disagreements.
    assert sum(case.truth for case in found.misclassified) == len(with_it) - at.detected_share.count
    assert sum(not case.truth for case in found.misclassified) == at.falsely_referred_share.count
    (why,) = found.not_assessed
    assert (why.reason.code, why.positive_count + why.negative_count) == (
        "view",
        found.unit_count - found.assessed_unit_count,
    )
    groups = {group.name: group.points[0] for group in found.subgroups}
    for sex, own in groups.items():
        mine = counted([case for case in cases if case.header.patient_sex == sex], rule.unit, edge)
        assert own.detected_share.count == sum(one[0] and one[1] for one in mine)
        assert planned.rows_by_subgroup["sex", sex][0.5].sensitivity == own.detected_share


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.unit}-{rule.refers}")
@pytest.mark.parametrize("aim", ["sensitivity", "specificity"])
def test_a_proposal_is_the_nearest_threshold_that_reaches_the_aim(rule: CountingRule, aim: str) -> None:
    cases, share = drawn(), 0.6  # three in ten patients without the condition are read first
    wanted = ProposalGoal(sensitivity=share) if aim == "sensitivity" else ProposalGoal(specificity=share)
    _, proposal, planned = everything(cases, rule, wanted=wanted)
    own = getattr(proposal, aim)
    assert own.value >= share and proposal.reaches_goal
    # The next score on the other side would no longer reach the aim.
    edge = rule.referral_score_at(proposal.threshold, POINT)
    scores = {one[3] for one in counted(cases, rule.unit, 2.0) if one[3] >= 0 and not one[1]}  # one[1]: read first
    if aim == "sensitivity":
        worse = min(score for score in scores if score >= edge) + 1e-9
    else:
        worse = max(score for score in scores if score < edge)
    units = counted(cases, rule.unit, worse)
    hits = [one[1] == (aim == "sensitivity") for one in units if one[0] == (aim == "sensitivity")]
    assert np.mean(hits) < share
    assert proposal.threshold in planned.shown_thresholds


def test_uncertain_units_are_a_column_with_a_price_of_their_own() -> None:
    cases = drawn()
    found, _, planned = everything(
        cases,
        CountingRule(unit="patient"),
        prices=ScreeningPrices(screening_price=1.0, test_price=10.0, second_reading_price=4.0),
    )
    step = planned.rows_by_subgroup[ALL_UNITS_SUBGROUP][0.5]
    shares = [found.points[0].class_shares_by_truth[side]["unsure"].value for side in (True, False)]
    assert step.unsure == pytest.approx(1000 * (0.1 * shares[0] + 0.9 * shares[1]))
    assert step.cost == pytest.approx(1000 + 10 * step.referred + 4 * step.unsure)


@pytest.mark.parametrize("refers", ["above", "unsure"])
def test_an_aim_that_no_threshold_reaches_is_reported(refers: ReferralRule) -> None:
    cases = [image(n, None, True, "refused") for n in range(3)] + [image(9, 0.7, True, "abnormal")]
    cases += [image(20 + n, 0.2, False, "read_first") for n in range(3)] + [image(30, 0.1, False, "normal")]
    rule = CountingRule(refers=refers)
    for wanted in (ProposalGoal(sensitivity=0.9), ProposalGoal(specificity=0.9)):
        proposal = propose_operating_point(cases, label="opacity", base_point=POINT, rule=rule, wanted=replace(wanted))
        assert not proposal.reaches_goal and 0 <= proposal.threshold <= 1
        assert (proposal.sensitivity.value, proposal.specificity.value) <= (0.25, 0.25)


def test_patients_with_both_labels_or_several_examinations_are_reported() -> None:
    days = ("20200101", "20210101", "20200105")
    cases = [
        image(n, 0.2 + 0.2 * n, n == 2, "normal", patient_key="A", exam_key=f"e{n}", header=ImageHeader(study_date=day))
        for n, day in enumerate(days)
    ]
    cases += [image(10 + n, 0.1 * n, n > 4, "normal", patient_key=f"B{n}") for n in range(9)]
    notes = {
        note.code: dict(note.parameters)
        for note in compute_audit(cases, [POINT], rule=CountingRule(unit="patient")).notes
    }
    assert notes["audit_both_labels"] == {"count": "1", "numbers": "A"}
    assert notes["audit_several_exams"] == {"count": "1", "days": "366"}
    by_exam = {note.code for note in compute_audit(cases, [POINT], rule=CountingRule(unit="exam")).notes}
    assert "audit_both_labels" in by_exam and "audit_several_exams" not in by_exam


def test_kappas_are_those_of_scikit_learn_and_their_interval_is_that_of_fleiss() -> None:
    cases = drawn()
    generator = np.random.default_rng(8)
    readers = {
        name: {case.image_key: case.truth != (generator.random() < 0.2) for case in cases} for name in ("A", "B")
    }
    found = {(one.first, one.second): one for one in compute_audit(cases, [POINT], readers=readers).agreements}
    assert list(found) == [("pack", "reference"), ("pack", "A"), ("pack", "B"), ("A", "B")]
    pack = [case.category == "read_first" or (case.score or 0) >= 0.5 for case in cases]
    said = {"pack": pack, "reference": [case.truth for case in cases]}
    said |= {name: list(own.values()) for name, own in readers.items()}
    for (first, second), one in found.items():
        assert one.kappa == pytest.approx(cohen_kappa_score(said[first], said[second]))
        assert one.agreed_count == sum(a == b for a, b in zip(said[first], said[second], strict=True))
    # statsmodels 0.15.0, cohens_kappa([[20, 5], [10, 15]]): kappa_low 0.151092, kappa_upp 0.648908
    first = np.repeat([True, True, False, False], [20, 5, 10, 15])
    second = np.repeat([True, False, True, False], [20, 5, 10, 15])
    value, low, high = metrics.kappa(first, second, patients=[str(n) for n in range(50)]) or (0, 0, 0)
    assert (value, low, high) == pytest.approx((0.4, 0.151092, 0.648908), abs=1e-6)
    assert metrics.kappa(first, first | True, patients=[str(n) for n in range(50)]) is not None
    assert metrics.kappa(first | True, first | True, patients=[str(n) for n in range(50)]) is None
