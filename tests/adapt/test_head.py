"""The head fitted again to the features that the int8 network really gives."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fieldray_adapt.quantise import PENALTY_SHARE, Answers, refit_head
from fieldray_adapt.specification import Weights

RNG = np.random.default_rng(0)
FEATURES = RNG.random((400, 6)).astype(np.float32)
KERNEL = np.array([1.0, -2.0, 0.5, 0.0, 3.0, -1.0], np.float32)
WEIGHTS = Weights({"class_maps/kernel": KERNEL.reshape(1, 1, 6, 1), "class_maps/bias": np.array([0.25], np.float32)})


def _answers(features: NDArray[np.float32], logits: NDArray[np.float32]) -> Answers:
    return Answers(scores=logits[:, None], features=features, class_maps=logits[:, None, None, None])


def _logits(weights: Weights, features: NDArray[np.float32]) -> NDArray[np.float32]:
    return (features @ weights["class_maps/kernel"].reshape(-1) + weights["class_maps/bias"]).astype(np.float32)


def test_a_constant_shift_of_the_features_is_taken_back() -> None:
    whole = _answers(FEATURES, _logits(WEIGHTS, FEATURES))
    shifted = FEATURES + np.array([0.1, 0, -0.2, 0, 0.05, 0.3], np.float32)
    refitted = refit_head(WEIGHTS, whole=whole, integer=_answers(shifted, _logits(WEIGHTS, shifted)))
    np.testing.assert_allclose(_logits(refitted, shifted), _logits(WEIGHTS, FEATURES), atol=1e-4)


def test_noise_in_one_feature_moves_weight_to_the_others() -> None:
    # the last two features say the same; the first of them arrives as noise
    twins = FEATURES.copy()
    twins[:, 5] = twins[:, 4]
    noisy = twins.copy()
    noisy[:, 4] = RNG.random(400)
    target = _logits(WEIGHTS, twins)
    before = np.abs(_logits(WEIGHTS, noisy) - target).mean()
    refitted = refit_head(WEIGHTS, whole=_answers(twins, target), integer=_answers(noisy, target))
    # variance 1/12 of a feature against the penalty: of the useless weight 0.083 / (0.083 + 0.3) = 22 % go
    share = (1 / 12) / (1 / 12 + PENALTY_SHARE)
    assert np.abs(_logits(refitted, noisy) - target).mean() < before * (1 - share / 2)
