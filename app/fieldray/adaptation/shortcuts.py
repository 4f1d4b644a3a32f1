"""Shortcuts: what is not the finding but may separate the classes, the border's pixels and a 16 x 16 thumbnail.

A network that scores no better than these has learned nothing about lungs. Each is a logistic regression on
standardised pixels, fitted on the training images and evaluated on the test images, like the network.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from fieldray.adaptation.duplicates import thumbnails
from fieldray.adaptation.logistic_fit import fit_logistic
from fieldray.domain.logistic import sigmoid

_THUMBNAIL_SIDE: Final = 16
_BORDER_SHARE: Final = 0.06
_BORDER_POINTS: Final = 64
_MOST_IMAGES: Final = 4000
_RIDGE: Final = 30.0


def border_pixels(images: NDArray[np.uint8]) -> NDArray[np.float64]:
    """(n, 256): the outermost 6 % of the image, averaged over 64 stretches of each side."""
    height, width = images.shape[1:3]
    deep = max(1, round(_BORDER_SHARE * min(height, width)))
    grey = images[:, :, :, 0]
    sides = [grey[:, :deep].mean(1), grey[:, -deep:].mean(1), grey[:, :, :deep].mean(2), grey[:, :, -deep:].mean(2)]
    points = np.linspace(0, 1, _BORDER_POINTS)
    return np.concatenate(
        [np.stack([np.interp(points, np.linspace(0, 1, side.shape[1]), line) for line in side]) for side in sides],
        axis=1,
    )


def thumbnail_pixels(images: NDArray[np.uint8]) -> NDArray[np.float64]:
    """(n, 256): the image as 16 x 16 pixels."""
    return thumbnails(images, side=_THUMBNAIL_SIDE)


def shortcut_scores(
    training: NDArray[np.float64], truth: NDArray[np.bool_], evaluated: NDArray[np.float64], *, seed: int = 0
) -> NDArray[np.float64]:
    """Scores (n,) of `evaluated` pixels by a logistic regression on the training pixels, at most 4000 drawn ones."""
    chosen = np.random.default_rng(seed).permutation(len(training))[:_MOST_IMAGES]
    mean, spread = training[chosen].mean(0), training[chosen].std(0) + 1e-6
    if len(np.unique(truth[chosen])) < 2:
        return np.full(len(evaluated), 0.5)  # of one class alone nothing can be learned
    weights = fit_logistic((training[chosen] - mean) / spread, truth[chosen], ridge=_RIDGE)
    return sigmoid(((evaluated - mean) / spread) @ weights[:-1] + weights[-1])
