from __future__ import annotations

import math

import numpy as np
import pytest

from fieldray.domain.finding import calibrate
from fieldray.domain.metrics import sigmoid
from fieldray.domain.model import Calibration


def test_without_a_calibration_a_score_stays() -> None:
    assert calibrate(0.3, None) == 0.3


def test_a_calibration_works_on_the_logit() -> None:
    # logit(0.8) = ln 4; 2 ln 4 - ln 2 = ln 8; sigmoid(ln 8) = 8/9
    assert calibrate(0.8, Calibration(2.0, -math.log(2))) == pytest.approx(8 / 9, abs=1e-12)


@pytest.mark.parametrize("slope", [50.0, 1e3, 1e308])
@pytest.mark.parametrize(("score", "calibrated"), [(0.0, 0.0), (0.49, 0.0), (0.51, 1.0), (1.0, 1.0)])
def test_a_steep_calibration_is_a_step(slope: float, score: float, calibrated: float) -> None:
    """A logit of -16.1 (of 1e-7) times 50 is beyond what exp can give in 64 bits."""
    found = calibrate(score, Calibration(slope, 0.0))
    assert 0.0 <= found <= 1.0
    assert found == pytest.approx(calibrated, abs=0.15 if slope == 50 else 1e-12)
    assert calibrate(score, Calibration(1.0, -1e308 if score < 0.5 else 1e308)) == pytest.approx(calibrated)


def test_the_logistic_function_over_all_numbers() -> None:
    values = np.array([-math.inf, -1e308, -800.0, -2.0, 0.0, 2.0, 800.0, 1e308, math.inf])
    # e^-2 = 0.1353352832366127
    middle = 0.1353352832366127 / 1.1353352832366127
    wanted = [0, 0, 0, middle, 0.5, 1 - middle, 1, 1, 1]
    np.testing.assert_allclose(sigmoid(values), wanted, atol=1e-15)
    assert np.all(np.diff(sigmoid(np.linspace(-50, 30, 200))) > 0)
    assert sigmoid(values.reshape(3, 3)).shape == (3, 3)
