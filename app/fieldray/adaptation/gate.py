"""The out-of-distribution gate: how far an image's pooled features may lie from those of the training images."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fieldray.domain.model import OodGate

Features = NDArray[np.float32]


def fit_gate(training: Features, validation: Features, *, components: int, keeps: float) -> OodGate:
    """Whitening by the training features' main components; the limit lets `keeps` of the validation images through.

    The smallest components kept are noise of the integers; a floor of a thousandth of the mean variance tames them.
    """
    mean = training.mean(0, dtype=np.float64)
    covariance = np.cov((training - mean).T) + 1e-12 * np.eye(training.shape[1])
    variances, directions = np.linalg.eigh(covariance)
    chosen = np.argsort(variances)[::-1][: min(components, len(variances))]
    floor = 1e-3 * float(variances.mean())
    projection = directions[:, chosen] / np.sqrt(np.maximum(variances[chosen], floor))
    loose = OodGate(mean=mean.astype(np.float32), projection=projection.astype(np.float32), limit=1.0)
    limit = float(np.quantile(distances(loose, validation), keeps))
    return OodGate(mean=loose.mean, projection=loose.projection, limit=limit)


def distances(gate: OodGate, features: Features) -> NDArray[np.float64]:
    """Distance (n,) of each image's features (n, f), by the gate's own rule."""
    return np.array([gate.distance(row) for row in features])
