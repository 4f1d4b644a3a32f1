"""What is compared: an image reduced to its structure. A network's features come by the same door as these.

`Features` turns an image (rows, columns) into (rows, columns, channels) float32 of the same size.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Grey = NDArray[np.float32]
Features = Callable[[NDArray[Any]], Grey]

# Standard deviations of the two Gaussians of the band-pass, in pixels of a frame of 512.
FINE_PX: Final = 1.5
COARSE_PX: Final = 8.0
# Around how many pixels of a frame mean and deviation are taken where an image is normalised.
LOCAL_PX: Final = 32.0
_REACH: Final = 3.5  # standard deviations of a Gaussian that are summed
_LEAST_DEVIATION: Final = 2.0  # grey levels: what is flatter is noise, and not made to look like structure


def raw(image: NDArray[Any]) -> Grey:
    """The image as it is."""
    grey: Grey = image.astype(np.float32)[..., None]
    return grey


def band_pass(image: NDArray[Any], *, fine_px: float = FINE_PX, coarse_px: float = COARSE_PX) -> Grey:
    """Difference of two Gaussians: without the noise below, and the brightness above, the sizes of ribs and vessels."""
    grey = image.astype(np.float32)
    return (blurred(grey, fine_px) - blurred(grey, coarse_px))[..., None]


def blurred(image: Grey, sigma_px: float) -> Grey:
    """Weighted by a Gaussian along rows and columns; at the border the image goes on as its own reflection."""
    down, across = _gaussian(image.shape[0], sigma_px), _gaussian(image.shape[1], sigma_px)
    smooth: Grey = down @ image @ across.T
    return smooth


def locally_normalised(image: NDArray[Any], *, sigma_px: float = LOCAL_PX) -> Grey:
    """Less its local mean, over its local standard deviation: exposure and processing fall away."""
    grey = image.astype(np.float32)
    centred = grey - blurred(grey, sigma_px)
    deviation = np.sqrt(blurred(np.square(centred), sigma_px).clip(0, None))
    normal: Grey = centred / np.maximum(deviation, _LEAST_DEVIATION)
    return normal


@lru_cache(maxsize=32)
def _gaussian(size: int, sigma_px: float) -> Grey:
    """(size, size) weights, each row adding up to 1: a product of matrices is the fastest filter of NumPy's."""
    reach = min(int(np.ceil(_REACH * sigma_px)), size - 1)
    offsets = np.arange(-reach, reach + 1)
    weights = np.exp(-0.5 * np.square(offsets / sigma_px)) if sigma_px > 0 else (offsets == 0).astype(float)
    places = np.arange(size)[:, None] + offsets
    places = np.where(places < 0, -places - 1, places)
    places = np.where(places >= size, 2 * size - places - 1, places)
    matrix = np.zeros((size, size))
    np.add.at(matrix, (np.arange(size)[:, None], places), weights / weights.sum())
    return matrix.astype(np.float32)
