"""Targets from a better network: what it thinks of every class says more than the one that is right.

Hinton et al. 2015, arXiv:1503.02531. The cross-entropy with a mixture of two targets is the mixture of the two
cross-entropies, so training needs nothing but other targets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from fieldray.adaptation.engine import EngineSettings, open_engine
from fieldray.adaptation.fit import Labelled
from fieldray.adaptation.specification import Specification

_BATCH: Final = 500


def taught(
    data: Labelled,
    specification: Specification,
    weights: Mapping[str, NDArray[np.float32]],
    *,
    share: float,
    temperature: float,
    settings: EngineSettings,
) -> Labelled:
    """The same images with targets (n, labels) that are to `share` the teacher's softmax at a temperature."""
    engine = open_engine(specification, weights, settings=settings)
    parts = [engine.logits(data.images[at : at + _BATCH]) for at in range(0, len(data), _BATCH)]
    logits = np.concatenate(parts).astype(np.float64) / temperature
    soft = softmax(logits, axis=1)
    return Labelled(data.images, ((1 - share) * data.targets + share * soft).astype(np.float32))
