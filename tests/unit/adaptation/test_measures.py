"""Figures against values worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fieldray.adaptation import measures
from fieldray.domain.finding import calibrate
from fieldray.domain.model import Calibration

SCORES = np.array([0.1, 0.2, 0.2, 0.6, 0.7, 0.9])
TRUTH = np.array([False, False, True, False, True, True])


def test_auc_counts_ties_half() -> None:
    # pairs (positive, negative): 0.2 beats 0.1, ties 0.2, loses to 0.6 = 1.5; 0.7 and 0.9 beat all three: 7.5 of 9
    assert measures.auc(SCORES, TRUTH) == pytest.approx(7.5 / 9)
    assert math.isnan(measures.auc(SCORES, np.ones(6, bool)))


def test_shares_at_a_threshold() -> None:
    assert measures.sensitivity(SCORES, TRUTH, threshold=0.7) == pytest.approx(2 / 3)
    assert measures.specificity(SCORES, TRUTH, threshold=0.6) == pytest.approx(2 / 3)


def test_thresholds_reach_what_is_asked() -> None:
    # all three positives are caught from 0.2 on; halfway to the next lower score 0.1 is 0.15
    assert measures.threshold_for_sensitivity(SCORES, TRUTH, wanted=0.95) == pytest.approx(0.15)
    # two of three allowed: from 0.7 on, halfway to 0.6
    assert measures.threshold_for_sensitivity(SCORES, TRUTH, wanted=0.6) == pytest.approx(0.65)
    assert measures.specificity_at_sensitivity(SCORES, TRUTH, wanted=0.95) == pytest.approx(1 / 3)
    # Youden: at 0.65 sensitivity 2/3 and specificity 1
    assert measures.threshold_for_balance(SCORES, TRUTH) == pytest.approx(0.65)


def test_the_interval_holds_the_value_and_counts_patients_not_images() -> None:
    generator = np.random.default_rng(1)
    truth = np.arange(400) % 2 == 0
    scores = np.clip(0.5 + 0.2 * (truth - 0.5) + 0.2 * generator.standard_normal(400), 0, 1)
    single = measures.bootstrap(measures.auc, scores, truth, patients=[str(i) for i in range(400)])
    assert single.low < single.value < single.high < single.low + 0.15
    # The same films, each four times: four times as many images tell no more when drawn by patient.
    again = measures.bootstrap(
        measures.auc, np.tile(scores, 4), np.tile(truth, 4), patients=[str(i) for i in range(400)] * 4
    )
    assert again.high - again.low == pytest.approx(single.high - single.low, rel=0.25)
    with pytest.raises(ValueError, match="no value"):
        measures.bootstrap(measures.auc, scores, truth | True, patients=["a"] * 400)


def test_calibration_recovers_the_chance() -> None:
    generator = np.random.default_rng(2)
    true_logit = generator.normal(-0.5, 1.5, 6000)
    truth = generator.random(6000) < 1 / (1 + np.exp(-true_logit))
    raw = 1 / (1 + np.exp(-(2 * true_logit + 1)))  # over-confident and shifted: slope 0.5, intercept -0.5 undo it
    found = measures.fit_calibration(raw, truth)
    assert found.slope == pytest.approx(0.5, abs=0.05) and found.intercept == pytest.approx(-0.5, abs=0.1)
    better = measures.calibrated(raw, found)
    assert measures.calibration_error(better, truth) < 0.02 < measures.calibration_error(raw, truth)


def test_arrays_are_calibrated_as_single_scores_are() -> None:
    calibration = Calibration(slope=1.7, intercept=-0.3)
    expected = [calibrate(score, calibration) for score in (0.0, 0.3, 1.0)]
    np.testing.assert_allclose(measures.calibrated(np.array([0.0, 0.3, 1.0]), calibration), expected)


def test_a_perfect_separation_stays_finite() -> None:
    truth = np.arange(40) >= 20
    found = measures.fit_calibration(np.where(truth, 0.99, 0.01), truth)
    assert math.isfinite(found.slope) and found.slope > 0
