"""Figures of a test: AUC, sensitivity, specificity, thresholds, calibration. Their intervals are in `intervals`.

NumPy alone: the program that a clinic installs computes them too.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fieldray.domain.model import Calibration

# exp(700) is about 1e304, near the largest number of 64 bits; what lies further out is 0 or 1 to any precision of use.
_FARTHEST: Final = 700.0


def sigmoid(logits: ArrayLike) -> NDArray[np.float64]:
    """1 / (1 + exp(-x)) in [0, 1], float64 of the same shape; infinities are allowed."""
    return np.asarray(1 / (1 + np.exp(np.minimum(-np.asarray(logits, np.float64), _FARTHEST))))


Scores = NDArray[np.float64]
Truth = NDArray[np.bool_]

_SMALLEST: Final = 1e-7


def auc(scores: Scores, truth: Truth) -> float:
    """Area under the ROC curve (Mann-Whitney, ties count half); nan if a class is missing."""
    positive, negative = int(truth.sum()), int((~truth).sum())
    if not positive or not negative:
        return math.nan
    levels, rank = np.unique(scores, return_inverse=True)
    of_positives, of_negatives = (np.bincount(rank[own], minlength=len(levels)) for own in (truth, ~truth))
    # For each positive the negatives below it, and half of those that are equal.
    beaten = np.cumsum(of_negatives) - of_negatives / 2
    return float((of_positives * beaten).sum() / (positive * negative))


def sensitivity(scores: Scores, truth: Truth, *, threshold: float) -> float:
    """Share of the positives at or above the threshold; nan without positives."""
    return float((scores[truth] >= threshold).mean()) if truth.any() else math.nan


def specificity(scores: Scores, truth: Truth, *, threshold: float) -> float:
    """Share of the negatives below the threshold; nan without negatives."""
    return float((scores[~truth] < threshold).mean()) if (~truth).any() else math.nan


def threshold_for_sensitivity(scores: Scores, truth: Truth, *, wanted: float) -> float:
    """The highest threshold at which the sensitivity is at least `wanted`, halfway to the next lower score."""
    positive = np.sort(scores[truth])
    allowed = math.floor((1 - wanted) * len(positive) + 1e-9)
    highest = positive[allowed]
    below = scores[scores < highest]
    return float((highest + (below.max() if len(below) else 0.0)) / 2)


def threshold_for_balance(scores: Scores, truth: Truth) -> float:
    """The threshold with the largest sensitivity + specificity (Youden's index), in the middle of its interval."""
    levels = np.unique(scores)
    middles = np.concatenate([[levels[0] / 2], (levels[1:] + levels[:-1]) / 2])
    gains = [sensitivity(scores, truth, threshold=t) + specificity(scores, truth, threshold=t) for t in middles]
    best = np.flatnonzero(np.isclose(gains, max(gains)))
    return float(middles[best[len(best) // 2]])


def specificity_at_sensitivity(scores: Scores, truth: Truth, *, wanted: float) -> float:
    """The specificity where the sensitivity is at least `wanted` on the same images."""
    return specificity(scores, truth, threshold=threshold_for_sensitivity(scores, truth, wanted=wanted))


def logit(scores: Scores) -> Scores:
    """log(s / (1 - s)), with scores clipped to just inside 0..1."""
    clipped = np.clip(scores, _SMALLEST, 1 - _SMALLEST)
    odds: Scores = np.log(clipped / (1 - clipped))
    return odds


def calibrated(scores: Scores, calibration: Calibration) -> Scores:
    """What `domain.finding.calibrate` gives, for an array."""
    return sigmoid(calibration.slope * logit(scores) + calibration.intercept)


def calibration_error(scores: Scores, truth: Truth, *, bins: int = 10) -> float:
    """Expected calibration error: the mean distance of score and observed share, over bins of equal numbers."""
    parts = [part for part in np.array_split(np.argsort(scores, kind="stable"), bins) if len(part)]
    return float(sum(len(part) * abs(scores[part].mean() - truth[part].mean()) for part in parts) / len(scores))
