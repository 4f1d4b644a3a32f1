"""The logistic function, for one number or an array, over the whole range of numbers."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

# exp(700) is about 1e304, near the largest number of 64 bits; what lies further out is 0 or 1 to any precision of use.
_FARTHEST: Final = 700.0


def sigmoid(logits: ArrayLike) -> NDArray[np.float64]:
    """1 / (1 + exp(-x)) in [0, 1], float64 of the same shape; infinities are allowed."""
    return np.asarray(1 / (1 + np.exp(np.minimum(-np.asarray(logits, np.float64), _FARTHEST))))
