"""Thresholds, calibration, shares and areas against values worked out by hand or published."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest
from scipy.stats import binomtest, rankdata
from sklearn.metrics import confusion_matrix, roc_auc_score, roc_curve

from fieldray.domain import metrics
from fieldray.domain.finding import calibrate
from fieldray.domain.metrics import (
    Share,
    auc,
    auc_difference,
    auc_estimate,
    bootstrap_interval,
    share_difference,
    share_of_hits,
)
from fieldray.domain.model import Calibration
from fieldray_adapt.evaluation.evaluate import fit_calibration, fit_logistic, shortcut_scores
from fieldray_adapt.evaluation.figures import figure_text

SCORES = np.array([0.1, 0.2, 0.2, 0.6, 0.7, 0.9])
TRUTH = np.array([False, False, True, False, True, True])
ONE_EACH = list("abcdef")


def test_thresholds_reach_the_wanted_sensitivity_or_specificity() -> None:
    # all three positives are detected from 0.2 on; halfway to the next lower score 0.1 is 0.15
    assert metrics.threshold_for_sensitivity(SCORES, TRUTH, wanted=0.95) == pytest.approx(0.15)
    # two of three allowed: from 0.7 on, halfway to 0.6
    assert metrics.threshold_for_sensitivity(SCORES, TRUTH, wanted=0.6) == pytest.approx(0.65)
    found = metrics.specificity_at_sensitivity(SCORES, TRUTH, wanted=0.95, patients=ONE_EACH)
    assert found.value == pytest.approx(1 / 3)
    # Youden: at 0.65 sensitivity 2/3 and specificity 1
    assert metrics.threshold_for_youden_index(SCORES, TRUTH) == pytest.approx(0.65)
    assert math.isnan(auc(SCORES, np.ones(6, bool)))


def test_a_balanced_threshold_holds_at_the_worst_of_several_hospitals() -> None:
    # the large hospital alone would take 0.5, where half of the small one's images without the finding are positive
    scores = np.array([0.1, 0.2, 0.3, 0.4, 0.6, 0.7, 0.8, 0.9, 0.3, 0.65, 0.75, 0.9])
    truth = np.array([False] * 4 + [True] * 4 + [False, False, True, True])
    hospitals = np.array(["large"] * 8 + ["small"] * 4)
    assert metrics.threshold_for_youden_index(scores[:8], truth[:8]) == pytest.approx(0.5)
    # between 0.65 and 0.7 the small one's sum is 2 and the large one's 1.75; at 0.5 they are 1.5 and 2
    assert metrics.threshold_for_youden_index(scores, truth, groups=hospitals) == pytest.approx(0.675)


def test_calibration_recovers_the_true_probability() -> None:
    generator = np.random.default_rng(2)
    true_logit = generator.normal(-0.5, 1.5, 6000)
    truth = generator.random(6000) < 1 / (1 + np.exp(-true_logit))
    raw = 1 / (1 + np.exp(-(2 * true_logit + 1)))  # over-confident and shifted: slope 0.5, intercept -0.5 undo it
    found = fit_calibration(raw, truth)
    assert found.slope == pytest.approx(0.5, abs=0.05) and found.intercept == pytest.approx(-0.5, abs=0.1)
    better = metrics.calibrate_scores(raw, found)
    assert metrics.calibration_error(better, truth) < 0.02 < metrics.calibration_error(raw, truth)


@pytest.mark.parametrize(("slope", "intercept"), [(1.7, -0.3), (0.3, 0.0), (1.0, 0.0), (500.0, 0.0)])
def test_arrays_are_calibrated_like_single_scores(slope: float, intercept: float) -> None:
    """Also where a steep calibration would overflow."""
    calibration = Calibration(slope=slope, intercept=intercept)
    expected = [calibrate(score, calibration) for score in (0.0, 0.3, 0.5, 1.0)]
    np.testing.assert_allclose(metrics.calibrate_scores(np.array([0.0, 0.3, 0.5, 1.0]), calibration), expected)


def _shares(scores: metrics.Scores, truth: metrics.Truth, threshold: float) -> list[float]:
    people = [str(number) for number in range(len(truth))]
    measures = metrics.sensitivity, metrics.specificity
    return [measure(scores, truth, threshold=threshold, patients=people).value for measure in measures]


def test_figures_equal_those_of_scikit_learn() -> None:
    generator = np.random.default_rng(4)
    for count in (12, 50, 400):
        truth = generator.random(count) < 0.4
        scores = np.round(np.clip(generator.normal(0.4 + 0.2 * truth, 0.2), 0.001, 0.999), 2)  # with ties
        assert metrics.auc(scores, truth) == pytest.approx(roc_auc_score(truth, scores))
        people = [str(number) for number in range(count)]
        matrix = confusion_matrix(truth, scores >= 0.5)
        assert _shares(scores, truth, 0.5) == pytest.approx(
            [matrix[1, 1] / matrix[1].sum(), matrix[0, 0] / matrix[0].sum()]
        )
        false_positive, true_positive, _ = roc_curve(truth, scores, drop_intermediate=False)
        for wanted in (0.8, 0.9, 1.0):
            expected = 1 - false_positive[true_positive >= wanted - 1e-9].min()
            found = metrics.specificity_at_sensitivity(scores, truth, wanted=wanted, patients=people)
            assert found.value == pytest.approx(expected)
        best = metrics.threshold_for_youden_index(scores, truth)
        assert sum(_shares(scores, truth, best)) == pytest.approx(1 + (true_positive - false_positive).max())


def test_a_logistic_regression_minimises_its_loss() -> None:
    generator = np.random.default_rng(5)
    features = generator.normal(size=(200, 3))
    truth = generator.random(200) < metrics.sigmoid(features @ [1.0, -2.0, 0.0] + 0.5)
    found = fit_logistic(features, truth, ridge=30.0)
    missed = metrics.sigmoid(features @ found[:-1] + found[-1]) - truth
    # the gradient of the log loss with the ridge penalty, and of the intercept without it
    np.testing.assert_allclose(features.T @ missed + 30.0 * found[:-1], 0, atol=1e-8)
    assert abs(missed.sum()) < 1e-8


def test_a_perfect_separation_stays_finite() -> None:
    truth = np.arange(40) >= 20
    found = fit_calibration(np.where(truth, 0.99, 0.01), truth)
    assert math.isfinite(found.slope) and found.slope > 0


def test_a_shortcut_learns_nothing_from_one_class() -> None:
    pixels = np.random.default_rng(0).normal(size=(6, 4))
    assert shortcut_scores(pixels, np.ones(6, bool), pixels[:2]).tolist() == [0.5, 0.5]


# ---- intervals against published and other programs' values, at the edges, and with many images of one patient


def _people(count: int, *, images_each: int = 1) -> list[str]:
    return [f"p{number // images_each}" for number in range(count)]


@pytest.mark.parametrize(("hits", "of"), [(0, 1), (1, 1), (0, 11), (63, 63), (62, 63), (48, 63), (5, 400), (200, 400)])
def test_a_share_has_the_wilson_interval(hits: int, of: int) -> None:
    found = share_of_hits(np.arange(of) < hits, patients=_people(of))
    theirs = binomtest(hits, of).proportion_ci(method="wilson")
    assert (found.count, found.of, found.value) == (hits, of, hits / of)
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high), abs=1e-6)
    assert found.low <= found.value <= found.high and found.low < found.high


def test_63_of_63_has_a_lower_limit_below_one() -> None:
    # 63 / (63 + 1.96^2) = 0.943: the lowest share for which 63 of 63 is plausible
    assert figure_text(Share(63, 63, 1.0, 63 / (63 + 1.96**2), 1.0)) == ("63 of 63: 1.000 (0.943 to 1.000)")
    assert share_of_hits(np.ones(63, bool), patients=_people(63)).low == pytest.approx(0.943, abs=5e-4)


def test_many_images_of_one_patient_do_not_narrow_the_interval() -> None:
    one, many = np.arange(40) < 30, np.repeat(np.arange(40) < 30, 4)
    single, fourfold = (
        share_of_hits(one, patients=_people(40)),
        share_of_hits(many, patients=_people(160, images_each=4)),
    )
    assert (single.low, single.high) == pytest.approx((fourfold.low, fourfold.high)) and fourfold.of == 160
    # one patient with 97 of 100 images weighs nearly as one alone: 100^2 / (97^2 + 3)
    assert metrics.effective_image_count(["a"] * 97 + ["b", "c", "d"]) == pytest.approx(1.0625, abs=1e-3)
    scores, truth = np.linspace(0, 1, 40), one[::-1]
    once = auc_estimate(scores, truth, patients=_people(40))
    again = auc_estimate(np.repeat(scores, 4), np.repeat(truth, 4), patients=_people(160, images_each=4))
    assert (once.value, once.low, once.high) == pytest.approx((again.value, again.low, again.high))


def test_an_area_of_one_has_an_interval() -> None:
    truth = np.arange(40) < 20
    found = auc_estimate(truth.astype(float), truth, patients=_people(40))
    assert found.value == found.high == 1.0 and 0.85 < found.low < 0.95
    upside_down = auc_estimate((~truth).astype(float), truth, patients=_people(40))
    assert upside_down.value == upside_down.low == 0.0 and upside_down.high == pytest.approx(1 - found.low)
    with pytest.raises(ValueError, match="a class has no images"):
        auc_estimate(np.ones(4), np.ones(4, bool), patients=_people(4))
    with pytest.raises(ValueError, match="needs images"):
        share_of_hits(np.zeros(0, bool), patients=[])


@pytest.mark.parametrize("true_area", [0.75, 0.97, 0.99])
def test_intervals_of_areas_cover_the_truth_as_often_as_stated(true_area: float) -> None:
    generator, truth = np.random.default_rng(7), np.arange(40) < 20
    apart, held = NormalDist().inv_cdf(true_area) * 2**0.5, 0
    for _ in range(200):
        found = auc_estimate(generator.normal(apart * truth, 1.0), truth, patients=_people(40))
        held += found.low <= true_area <= found.high
    # of 200 at 95 %: 190, minus four standard deviations of 3; drawing patients again covered 140 at 0.99
    assert held >= 178


def test_a_difference_of_two_perfect_areas_has_an_interval() -> None:
    truth = np.arange(40) < 20
    value, low, high = auc_difference(np.column_stack([truth, truth * 2.0]), truth, patients=_people(40))
    assert value == 0 and low == pytest.approx(-high) and 0.05 < high < 0.15
    generator = np.random.default_rng(1)
    scores = generator.normal(truth[:, None] * [1.5, 1.0], 1.0)
    value, low, high = auc_difference(scores, truth, patients=_people(40))
    assert low < value < high and value == pytest.approx(auc(scores[:, 1], truth) - auc(scores[:, 0], truth))


def delong(scores: np.ndarray, truth: np.ndarray) -> tuple[float, float]:
    """Difference of two areas and its variance by midranks (Sun and Xu, IEEE Signal Process Lett 21 (2014) 1389)."""
    m, n = int(truth.sum()), int((~truth).sum())
    areas, of_positives, of_negatives = [], [], []
    for column in scores.T:
        together = rankdata(np.concatenate([column[truth], column[~truth]]))
        areas.append((together[:m].sum() - m * (m + 1) / 2) / (m * n))
        of_positives.append((together[:m] - rankdata(column[truth])) / n)
        of_negatives.append(1 - (together[m:] - rankdata(column[~truth])) / m)
    covariance = np.cov(of_positives) / m + np.cov(of_negatives) / n
    return areas[1] - areas[0], covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1]


@pytest.mark.parametrize(("positives", "negatives"), [(35, 65), (4, 90), (60, 3)])
def test_a_difference_of_areas_equals_delong_with_one_image_per_patient(positives: int, negatives: int) -> None:
    generator, truth = np.random.default_rng(3), np.arange(positives + negatives) < positives
    scores = np.round(generator.normal(truth[:, None] * [1.5, 1.0], 1.0), 1)  # with ties
    known, variance = delong(scores, truth)
    value, low, high = auc_difference(scores, truth, patients=_people(len(truth)))
    assert value == pytest.approx(known, abs=1e-12)
    assert (low, high) == pytest.approx((known - 1.959964 * variance**0.5, known + 1.959964 * variance**0.5), abs=1e-9)
    assert value == pytest.approx(roc_auc_score(truth, scores[:, 1]) - roc_auc_score(truth, scores[:, 0]))


def test_several_images_per_patient_do_not_narrow_a_difference_of_areas() -> None:
    generator, truth = np.random.default_rng(3), np.arange(100) < 40
    scores = generator.normal(truth[:, None] * [1.5, 1.0], 1.0)
    once = auc_difference(scores, truth, patients=_people(100))
    again = auc_difference(np.tile(scores, (4, 1)), np.tile(truth, 4), patients=_people(100) * 4)
    assert again == pytest.approx(once)
    alone = auc_difference(np.tile(scores, (4, 1)), np.tile(truth, 4), patients=_people(400))
    assert alone[2] - alone[1] == pytest.approx(
        (once[2] - once[1]) / 2, rel=0.03
    )  # with 400 patients the interval is half as wide


def test_a_difference_of_paired_shares_has_newcombes_interval() -> None:
    # Complete responses of 161 people before and after consolidation (Cavo et al. 2012), both, one alone, neither:
    # method 10 is -0.0621 (-0.1186 to -0.0046) in the tests of the R package contingencytables 3.1.0.
    table = 59, 6, 16, 80
    before, after = (np.repeat(hits, table) for hits in ([True, True, False, False], [True, False, True, False]))
    found = share_difference(after, before, patients=_people(161))
    assert found == pytest.approx((-0.0621, -0.1186, -0.0046), abs=5e-5)
    assert share_difference(before, after, patients=_people(161)) == pytest.approx((0.0621, 0.0046, 0.1186), abs=5e-5)
    twice = share_difference(np.tile(after, 2), np.tile(before, 2), patients=_people(161) * 2)
    assert twice == pytest.approx(found)
    with pytest.raises(ValueError, match="needs images"):
        share_difference(after[:0], before[:0], patients=[])


@pytest.mark.parametrize("table", [(20, 0, 0, 0), (0, 0, 0, 20), (0, 20, 0, 0), (0, 0, 20, 0), (19, 0, 1, 0)])
def test_an_extreme_difference_of_shares_has_an_interval_inside_the_scale(table: tuple[int, ...]) -> None:
    first, second = (np.repeat(hits, table) for hits in ([True, True, False, False], [True, False, True, False]))
    value, low, high = share_difference(first, second, patients=_people(20))
    assert -1 <= low <= value <= high <= 1 and low < high


def test_bootstrap_draws_patients_not_images() -> None:
    generator = np.random.default_rng(1)
    truth = np.arange(400) % 2 == 0
    scores = np.clip(0.5 + 0.2 * (truth - 0.5) + 0.2 * generator.standard_normal(400), 0, 1)
    value, low, high = bootstrap_interval(auc, scores, truth, patients=_people(400))
    assert low < value < high < low + 0.15
    # The same images, each four times: drawn by patient, they narrow nothing.
    _, lower, higher = bootstrap_interval(auc, np.tile(scores, 4), np.tile(truth, 4), patients=_people(400) * 4)
    assert higher - lower == pytest.approx(high - low, rel=0.25)
    with pytest.raises(ValueError, match="no value"):
        bootstrap_interval(auc, scores, truth | True, patients=_people(400))


def test_a_specificity_at_a_sensitivity_has_the_wider_interval() -> None:
    truth = np.arange(30) < 20
    perfect = metrics.specificity_at_sensitivity(truth * 1.0, truth, wanted=0.95, patients=_people(30))
    # 10 of 10 negatives: 10 / (10 + 1.96^2)
    assert (perfect.count, perfect.of, perfect.value, perfect.high) == (10, 10, 1.0, 1.0)
    assert perfect.low == pytest.approx(10 / (10 + 1.96**2), abs=1e-3)
    scores = np.random.default_rng(3).normal(truth * 1.0, 1.0)
    found = metrics.specificity_at_sensitivity(scores, truth, wanted=0.9, patients=_people(30))
    assert found.low <= found.value <= found.high and found.high - found.low > 0.4
