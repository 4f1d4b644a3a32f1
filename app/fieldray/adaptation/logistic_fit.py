"""Logistic regression, and the calibration of scores by it (Platt scaling)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from fieldray.domain.metrics import Scores, Truth, logit
from fieldray.domain.model import Calibration


def fit_logistic(features: NDArray[np.float64], truth: Truth, *, ridge: float) -> NDArray[np.float64]:
    """Weights (n + 1,), the last the intercept, which `ridge` spares, of a logistic regression.

    Raises ValueError where a class is missing.
    """
    fitted = LogisticRegression(C=1 / ridge, solver="newton-cholesky", tol=1e-10).fit(features, truth)
    return np.append(fitted.coef_[0], fitted.intercept_)


def fit_calibration(scores: Scores, truth: Truth) -> Calibration:
    """Platt scaling of raw scores on images not trained on; the small ridge keeps a perfect separation finite."""
    slope, intercept = fit_logistic(logit(scores)[:, None], truth, ridge=0.1)
    return Calibration(slope=max(float(slope), 0.05), intercept=float(intercept))
