"""Figures against values worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix, roc_auc_score, roc_curve

from fieldray.domain import metrics
from fieldray.domain.finding import calibrate
from fieldray.domain.model import Calibration
from fieldray_adapt.evaluate import fit_calibration, fit_logistic, shortcut_scores

SCORES = np.array([0.1, 0.2, 0.2, 0.6, 0.7, 0.9])
TRUTH = np.array([False, False, True, False, True, True])


def test_auc_counts_ties_half() -> None:
    # pairs (positive, negative): 0.2 beats 0.1, ties 0.2, loses to 0.6 = 1.5; 0.7 and 0.9 beat all three: 7.5 of 9
    assert metrics.auc(SCORES, TRUTH) == pytest.approx(7.5 / 9)
    assert math.isnan(metrics.auc(SCORES, np.ones(6, bool)))


def test_shares_at_a_threshold() -> None:
    assert metrics.sensitivity(SCORES, TRUTH, threshold=0.7) == pytest.approx(2 / 3)
    assert metrics.specificity(SCORES, TRUTH, threshold=0.6) == pytest.approx(2 / 3)


def test_thresholds_reach_what_is_asked() -> None:
    # all three positives are caught from 0.2 on; halfway to the next lower score 0.1 is 0.15
    assert metrics.threshold_for_sensitivity(SCORES, TRUTH, wanted=0.95) == pytest.approx(0.15)
    # two of three allowed: from 0.7 on, halfway to 0.6
    assert metrics.threshold_for_sensitivity(SCORES, TRUTH, wanted=0.6) == pytest.approx(0.65)
    assert metrics.specificity_at_sensitivity(SCORES, TRUTH, wanted=0.95) == pytest.approx(1 / 3)
    # Youden: at 0.65 sensitivity 2/3 and specificity 1
    assert metrics.threshold_for_balance(SCORES, TRUTH) == pytest.approx(0.65)


def test_calibration_recovers_the_chance() -> None:
    generator = np.random.default_rng(2)
    true_logit = generator.normal(-0.5, 1.5, 6000)
    truth = generator.random(6000) < 1 / (1 + np.exp(-true_logit))
    raw = 1 / (1 + np.exp(-(2 * true_logit + 1)))  # over-confident and shifted: slope 0.5, intercept -0.5 undo it
    found = fit_calibration(raw, truth)
    assert found.slope == pytest.approx(0.5, abs=0.05) and found.intercept == pytest.approx(-0.5, abs=0.1)
    better = metrics.calibrated(raw, found)
    assert metrics.calibration_error(better, truth) < 0.02 < metrics.calibration_error(raw, truth)


def test_arrays_are_calibrated_as_single_scores_are() -> None:
    calibration = Calibration(slope=1.7, intercept=-0.3)
    expected = [calibrate(score, calibration) for score in (0.0, 0.3, 1.0)]
    np.testing.assert_allclose(metrics.calibrated(np.array([0.0, 0.3, 1.0]), calibration), expected)


@pytest.mark.parametrize("slope", [0.3, 1.0, 500.0])
def test_a_steep_calibration_overflows_nowhere(slope: float) -> None:
    found = metrics.calibrated(np.array([0.0, 0.5, 1.0]), Calibration(slope=slope, intercept=0.0))
    assert found[1] == 0.5 and 0 <= found[0] < 0.5 < found[2] <= 1


def test_figures_are_those_of_scikit_learn() -> None:
    generator = np.random.default_rng(4)
    for count in (12, 50, 400):
        truth = generator.random(count) < 0.4
        scores = np.round(np.clip(generator.normal(0.4 + 0.2 * truth, 0.2), 0.001, 0.999), 2)  # with ties
        assert metrics.auc(scores, truth) == pytest.approx(roc_auc_score(truth, scores))
        matrix = confusion_matrix(truth, scores >= 0.5)
        assert metrics.sensitivity(scores, truth, threshold=0.5) == pytest.approx(matrix[1, 1] / matrix[1].sum())
        assert metrics.specificity(scores, truth, threshold=0.5) == pytest.approx(matrix[0, 0] / matrix[0].sum())
        false_positive, true_positive, _ = roc_curve(truth, scores, drop_intermediate=False)
        for wanted in (0.8, 0.9, 1.0):
            expected = 1 - false_positive[true_positive >= wanted - 1e-9].min()
            assert metrics.specificity_at_sensitivity(scores, truth, wanted=wanted) == pytest.approx(expected)
        best = metrics.threshold_for_balance(scores, truth)
        gained = metrics.sensitivity(scores, truth, threshold=best) + metrics.specificity(scores, truth, threshold=best)
        assert gained == pytest.approx(1 + (true_positive - false_positive).max())


def test_a_logistic_regression_is_where_its_loss_is_least() -> None:
    generator = np.random.default_rng(5)
    features = generator.normal(size=(200, 3))
    truth = generator.random(200) < metrics.sigmoid(features @ [1.0, -2.0, 0.0] + 0.5)
    found = fit_logistic(features, truth, ridge=30.0)
    missed = metrics.sigmoid(features @ found[:-1] + found[-1]) - truth
    # the gradient of the log loss with the ridge, and of the intercept without it
    np.testing.assert_allclose(features.T @ missed + 30.0 * found[:-1], 0, atol=1e-8)
    assert abs(missed.sum()) < 1e-8


def test_a_perfect_separation_stays_finite() -> None:
    truth = np.arange(40) >= 20
    found = fit_calibration(np.where(truth, 0.99, 0.01), truth)
    assert math.isfinite(found.slope) and found.slope > 0


def test_a_shortcut_learns_nothing_from_one_class() -> None:
    pixels = np.random.default_rng(0).normal(size=(6, 4))
    assert shortcut_scores(pixels, np.ones(6, bool), pixels[:2]).tolist() == [0.5, 0.5]
