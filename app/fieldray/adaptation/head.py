"""Fit the head to the integers that reach it.

Quantisation noise adds up over the residual stages, so that the features of the int8 network differ from the float
network's, partly always in the same direction. The head is linear and comes last, so it can be fitted again: ridge
regression of the float network's logits on the int8 network's features, drawn towards the head there was. It learns
from the network's own answers and needs no labels. Bias correction (Nagel et al., ICCV 2019) is its limit for a large
penalty.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import Ridge

from fieldray.adaptation.answers import Answers
from fieldray.adaptation.weights import Weights

PENALTY_SHARE: Final = 0.3
_KERNEL: Final = "class_maps/kernel"
_BIAS: Final = "class_maps/bias"


def refit_head(weights: Mapping[str, NDArray[np.float32]], *, whole: Answers, integer: Answers) -> Weights:
    """The weights with a head (1, 1, features, labels) that gives the float logits from the int8 features.

    whole, integer    answers of the float and the int8 file to the same training images
    Raises ValueError if they differ in number.
    """
    if len(whole) != len(integer):
        raise ValueError("the two files answered different images")
    kernel = weights[_KERNEL].reshape(-1, weights[_KERNEL].shape[-1]).astype(np.float64)
    features = integer.features.astype(np.float64)
    missing = whole.class_maps.mean(axis=(2, 3), dtype=np.float64) - features @ kernel
    fitted = Ridge(alpha=PENALTY_SHARE * len(features), solver="cholesky").fit(features, missing)
    change, bias = fitted.coef_.reshape(-1, len(features[0])).T, np.atleast_1d(fitted.intercept_)
    refitted = Weights({name: np.array(array) for name, array in weights.items()})
    refitted[_KERNEL] = (kernel + change).reshape(weights[_KERNEL].shape).astype(np.float32)
    refitted[_BIAS] = bias.astype(np.float32)
    return refitted
