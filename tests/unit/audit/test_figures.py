"""An audit's figures against scikit-learn and against values worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score, roc_curve

from fieldray.audit import figures
from fieldray.audit.cases import ReferenceLabels, truths_from_verdicts
from fieldray.audit.drift import measure_drift, score_histogram
from fieldray.audit.units import Case, CountingRule, make_cases
from fieldray.domain.finding import Category, FailedOutcome, Finding, ScreenedOutcome, decide
from fieldray.domain.image import ImageHeader, ImageRef
from fieldray.domain.metrics import Share, share_of_hits
from fieldray.domain.run import StoredResult, Verdict
from fieldray.errors import UsageProblem
from outcomes import POINT, failed, screened


def case(number: int, score: float | None, truth: bool, category: Category | None = None, **header: object) -> Case:
    usual: Category = (
        "refused" if score is None else "abnormal" if score >= 0.6 else "normal" if score < 0.4 else "unsure"
    )
    return Case(
        image_key=f"{number}.png",
        row_id=number,
        patient_key=f"p{number}",
        truth=truth,
        score=score,
        category=category or usual,
        header=ImageHeader(**header),  # type: ignore[arg-type]
    )


def drawn(count: int, seed: int = 1) -> list[Case]:
    generator = np.random.default_rng(seed)
    truth = generator.random(count) < 0.4
    scores = np.round(1 / (1 + np.exp(-generator.normal(np.where(truth, 0.8, -0.8), 1.2))), 2)  # with ties
    views = np.where(generator.random(count) < 0.5, "PA", "AP")
    rows = zip(scores, truth, views, strict=True)
    return [case(i, float(s), bool(t), view_position=str(v)) for i, (s, t, v) in enumerate(rows)]


def test_figures_equal_those_of_scikit_learn() -> None:
    cases = drawn(400)
    scores, truth, _ = figures.arrays_of_scored_cases(cases)
    found = figures.compute_audit(cases, [POINT])
    assert found.auc.value == pytest.approx(roc_auc_score(truth, scores), abs=1e-12)
    alarms, hits, _ = roc_curve(truth, scores, drop_intermediate=False)
    np.testing.assert_allclose(found.roc_points, list(zip(alarms, hits, strict=True)), atol=1e-12)
    at = found.points[0]
    assert at.sensitivity.value == pytest.approx((scores[truth] >= 0.5).mean(), abs=1e-12)
    assert at.specificity.value == pytest.approx((scores[~truth] < 0.5).mean(), abs=1e-12)
    assert at.ppv and at.ppv.value == pytest.approx(truth[scores >= 0.5].mean(), abs=1e-12)
    assert at.npv and at.npv.value == pytest.approx((~truth[scores < 0.5]).mean(), abs=1e-12)


def test_predictive_values_at_another_prevalence() -> None:
    # sensitivity 0.9, specificity 0.8, prevalence 0.1: 0.09 / (0.09 + 0.18) = 1/3; 0.72 / (0.72 + 0.01)
    hits, spared = Share(90, 100, 0.9, 0.8, 0.95), Share(80, 100, 0.8, 0.7, 0.9)
    positive, negative = figures.predictive_values(hits, spared, prevalence=0.1)
    assert positive and positive.value == pytest.approx(1 / 3) and positive.low < 1 / 3 < positive.high
    assert negative and negative.value == pytest.approx(0.72 / 0.73)


def test_perfect_shares_have_intervals_and_empty_shares_have_no_value() -> None:
    all_right, none = Share(20, 20, 1.0, 0.8, 1.0), Share(0, 20, 0.0, 0.0, 0.2)
    positive, _ = figures.predictive_values(all_right, all_right, prevalence=0.05)
    assert positive and positive.value == positive.high == 1 and 0 < positive.low < 0.6
    positive, negative = figures.predictive_values(none, all_right, prevalence=0.05)
    assert positive is None and negative


# The interval of the ratio R of two shares, rightly called a and wrongly called b, found by bisection: at each end the
# distance a - R b equals its own interval, hypot(a - low, R (high - b)) or hypot(high - a, R (b - low)), by Wilson.
@pytest.mark.parametrize(
    ("hits", "spared", "which", "expected"),
    [
        ((18, 20), (5, 50), 1, (0.900, 0.690, 0.975)),
        ((2, 20), (95, 100), 0, (0.182, 0.048, 0.475)),
        ((0, 20), (45, 50), 0, (0.0, 0.0, 0.178)),
    ],
)
def test_intervals_of_predictive_values_follow_from_the_ratio_of_shares(
    hits: tuple[int, int], spared: tuple[int, int], which: int, expected: tuple[float, float, float]
) -> None:
    found = figures.predictive_values(made_share(*hits), made_share(*spared), prevalence=0.1)[which]
    assert found and (found.value, found.low, found.high) == pytest.approx(expected, abs=5e-4)


def made_share(count: int, of: int) -> Share:
    return share_of_hits(np.arange(of) < count, patients=[str(i) for i in range(of)])


def test_shares_of_all_images_include_images_without_a_score() -> None:
    cases = [*drawn(60), case(100, None, True), case(101, None, False, "failed")]
    found = figures.compute_audit(cases, [POINT])
    assert (found.image_count, found.assessed_unit_count, found.refused_share.count) == (62, 60, 1)
    assert found.unsure_share.count == sum(0.4 <= (c.score or 0) < 0.6 for c in cases)
    assert sum(sum(by.values()) for by in found.counts_by_category_and_truth.values()) == 62
    assert "audit_no_score" in {note.code for note in found.notes}


def test_subgroups_need_enough_images_of_both_kinds() -> None:
    cases = [*drawn(200), *(case(1000 + i, 0.9, True, view_position="LL") for i in range(50))]
    assert {(group.attribute, group.name) for group in figures.compute_audit(cases, [POINT]).subgroups} == {
        ("view", "AP"),
        ("view", "PA"),
    }


def test_disagreements_are_sorted_by_certainty() -> None:
    cases = [case(1, 0.95, False), case(2, 0.7, False), case(3, 0.01, True), case(4, 0.5, True), case(5, 0.9, True)]
    found = figures.compute_audit([*cases, case(6, 0.1, False)], [POINT])
    assert [one.row_id for one in found.misclassified] == [3, 1, 2]


def test_calibration_bins_hold_all_images_and_observed_shares() -> None:
    cases = drawn(400)
    scores, truth, patients = figures.arrays_of_scored_cases(cases)
    bins = figures.calibration_bins(scores, truth, patients=patients)
    assert len(bins) == 10 and sum(b.positive_share.of for b in bins) == 400
    assert sum(b.positive_share.count for b in bins) == truth.sum()
    assert [b.mean_score for b in bins] == sorted(b.mean_score for b in bins)
    assert len(figures.calibration_bins(scores[:30], truth[:30], patients=patients[:30])) == 1


def test_images_needed_is_the_smallest_number_with_the_wanted_width() -> None:
    for value in (0.5, 0.9, 1.0):
        number = figures.images_needed_for_interval(value)
        widths = []
        for count in (number - 1, number):
            # round() moves the share a little; the promised width is that of the exact share
            z, n = 1.959964, count
            widths.append(z / (1 + z * z / n) * np.sqrt(value * (1 - value) / n + z * z / (4 * n * n)))
        assert widths[1] <= 0.05 < widths[0]
    hits = np.zeros(figures.images_needed_for_interval(0.5), bool)
    hits[: len(hits) // 2] = True
    found = share_of_hits(hits, patients=[str(i) for i in range(len(hits))])
    assert found.high - found.low == pytest.approx(0.1, abs=2e-3)


@pytest.mark.parametrize("prevalence", [0.0, 1.0, -1, float("nan"), 5])
def test_an_invalid_prevalence_is_refused(prevalence: float) -> None:
    with pytest.raises(UsageProblem, match="prevalence"):
        figures.compute_audit(drawn(50), [POINT], prevalence=prevalence)


def test_labels_of_one_class_only_cannot_be_audited() -> None:
    with pytest.raises(UsageProblem, match="are in the same group"):
        figures.compute_audit([case(i, 0.1 * i, True) for i in range(5)] + [case(9, None, False)], [POINT])


def _stored(number: int, score: float | None, verdict: str | None, **others: float) -> StoredResult:
    ref = ImageRef(path=Path(f"/x/{number}.png"))
    outcome: ScreenedOutcome | FailedOutcome = failed(ref)
    if score is not None:
        findings = tuple(
            Finding(label=label, score=own, point=POINT, decision=decide(own, POINT))
            for label, own in ({"opacity": score} | others).items()
        )
        outcome = replace(screened(ref), findings=findings)
    given = Verdict(choice=verdict) if verdict else None  # type: ignore[arg-type]
    return StoredResult(result_id=number, row_id=number, run_id=1, outcome=outcome, is_reused=False, verdict=given)


def test_verdicts_confirm_or_reverse_an_answer_or_give_no_label() -> None:
    results = [
        _stored(1, 0.9, "agree"), _stored(2, 0.9, "disagree"), _stored(3, 0.1, "agree"), _stored(4, 0.1, "disagree"),
        _stored(5, 0.5, "agree"), _stored(6, 0.9, "unsure"), _stored(7, 0.9, None), _stored(8, None, "agree"),
    ]  # fmt: skip
    truths = truths_from_verdicts(results, label="opacity")
    assert truths == {"/x/1.png": True, "/x/2.png": False, "/x/3.png": False, "/x/4.png": True}
    made = list(
        make_cases(results, ReferenceLabels(truth_by_image=truths, patient_by_image={"/x/1.png": "A"}), label="opacity")
    )
    assert [(one.patient_key, one.score) for one in made] == [
        ("A", 0.9),
        ("/x/2.png", 0.9),
        ("/x/3.png", 0.1),
        ("/x/4.png", 0.1),
    ]
    assert all(one.score is None for one in make_cases(results, ReferenceLabels(truth_by_image=truths), label="other"))


@pytest.mark.parametrize("number", ["", "ANONYMOUS", "0"])
def test_placeholder_patient_ids_are_not_counted_as_one_patient(number: str) -> None:
    headers = [ImageHeader(patient_id=number, study_instance_uid=f"1.2.{n // 2}") for n in range(6)]
    results = [
        replace(one, outcome=replace(one.outcome, ref=replace(one.outcome.ref, header=header)))
        for one, header in ((_stored(n, n / 6, None), header) for n, header in enumerate(headers))
    ]
    truths = {one.outcome.ref.key: one.row_id % 2 == 0 for one in results}
    found = figures.compute_audit(
        list(make_cases(results, ReferenceLabels(truth_by_image=truths), label="opacity")), [POINT]
    )
    assert found.patient_count == 3 and "audit_patients_unknown" in {note.code for note in found.notes}


def test_each_of_two_labels_is_judged_separately() -> None:
    results = [
        _stored(1, 0.9, "agree", mass=0.1), _stored(2, 0.9, "disagree", mass=0.1), _stored(3, 0.1, "agree", mass=0.2),
        _stored(4, 0.1, "disagree", mass=0.2), _stored(5, 0.9, "agree", mass=0.95), _stored(6, 0.5, None, mass=0.1),
    ]  # fmt: skip
    # A verdict on a normal image holds for both labels; any other verdict holds for the deciding label.
    assert truths_from_verdicts(results, label="opacity") == {"/x/1.png": True, "/x/2.png": False, "/x/3.png": False}
    assert truths_from_verdicts(results, label="mass") == {"/x/3.png": False, "/x/5.png": True}
    truths = {f"/x/{number}.png": number == 5 for number in range(1, 7)}
    made = list(make_cases(results, ReferenceLabels(truth_by_image=truths), label="mass"))
    assert [one.category for one in made] == ["normal"] * 4 + ["abnormal", "normal"]
    found = figures.compute_audit(made, [POINT])
    assert found.misclassified == () and found.unsure_share.count == 0


def test_drift_is_reported_only_beyond_chance() -> None:
    generator = np.random.default_rng(3)
    reference = score_histogram(list(generator.beta(2, 4, 2000)))
    outs = [
        measure_drift(score_histogram(list(generator.beta(2, 4, 80))), reference, quantity="scores").exceeds_limit
        for _ in range(300)
    ]
    assert np.mean(outs) < 0.1  # reference and runs are of one population: about 5 in 100 exceed the limit
    moved = measure_drift(score_histogram(list(generator.beta(4, 2, 80))), reference, quantity="scores")
    assert moved.exceeds_limit and moved.image_count == 80 and moved.reference_image_count == 2000


def test_psi_equals_a_value_by_hand_and_empty_bins_are_refused() -> None:
    # shares (30.5, 70.5) of 101 and (50.5, 50.5): (0.302 - 0.5) ln(0.302 / 0.5) + (0.698 - 0.5) ln(0.698 / 0.5)
    assert measure_drift([30, 70], [50, 50], quantity="scores").index == pytest.approx(0.16592, abs=1e-5)
    with pytest.raises(ValueError, match="bins"):
        measure_drift([0, 0], [1, 1], quantity="scores")


def test_detected_counts_refused_positives_as_not_detected() -> None:
    """366 of 381 with a score are 96.1 %, and of all 400 with the condition 91.5 %."""
    ill = [case(n, 0.9, True) for n in range(366)] + [case(n, 0.1, True) for n in range(366, 381)]
    refused = [case(n, None, True) for n in range(381, 400)]
    well = [case(n, 0.1, False) for n in range(400, 500)] + [case(n, 0.45, False) for n in range(500, 510)]
    at = figures.performance_at([*ill, *refused, *well], POINT, rule=CountingRule(), prevalence=0.5)
    assert (at.sensitivity.count, at.sensitivity.of) == (366, 381)
    assert (at.detected_share.count, at.detected_share.of) == (366, 400)
    counts = {truth: {name: own.count for name, own in of.items()} for truth, of in at.class_shares_by_truth.items()}
    assert counts == {
        True: {"abnormal": 366, "unsure": 0, "normal": 15, "refused": 19},
        False: {"abnormal": 0, "unsure": 10, "normal": 100, "refused": 0},
    }
    assert at.class_shares_by_truth[True]["refused"] == made_share(19, 400)


def test_read_first_counts_as_referred_and_has_its_own_column() -> None:
    units = [
        case(0, 0.1, True, "read_first"),
        case(1, 0.9, True),
        case(2, 0.1, False),
        case(3, 0.2, False, "read_first"),
    ]
    at = figures.performance_at(units, POINT, rule=CountingRule(), prevalence=0.5)
    assert [(one.count, one.of) for one in (at.detected_share, at.sensitivity)] == [(2, 2), (2, 2)]
    assert [(one.count, one.of) for one in (at.falsely_referred_share, at.specificity)] == [(1, 2), (1, 2)]
    assert list(at.class_shares_by_truth[True]) == ["read_first", "abnormal", "unsure", "normal", "refused"]
    assert at.class_shares_by_truth[True]["read_first"].count == 1
    # The list of disagreements follows the rule: a normal image that is read first is a false referral.
    assert [one.row_id for one in figures.compute_audit([*units, case(4, 0.3, True)], [POINT]).misclassified] == [4, 3]
