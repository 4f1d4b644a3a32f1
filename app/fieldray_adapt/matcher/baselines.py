"""What the encoder is measured against: the image as it is, normalised by its surroundings, or passed through a band.

Each takes images (n, rows, columns) uint8 and gives features (n, rows, columns, channels) float32.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from fieldray.domain.local_contrast import locally_normalised

Grey = NDArray[np.uint8]
Planes = NDArray[np.float32]
Describe = Callable[[Grey], Planes]

FINE_PX: Final = (1.0, 2.0, 3.0)
COARSE_PX: Final = (8.0, 12.0, 20.0, 30.0)


def raw(images: Grey) -> Planes:
    """The grey levels."""
    return images.astype(np.float32)[..., None]


def band_pass(images: Grey, *, fine_px: float, coarse_px: float) -> Planes:
    """The difference of two Gaussians of these standard deviations, in pixels."""
    values = images.astype(np.float32)
    near, far = (ndimage.gaussian_filter(values, (0, sigma, sigma)) for sigma in (fine_px, coarse_px))
    passed: Planes = (near - far)[..., None]
    return passed


def normalised(images: Grey, *, radius_px: int) -> Planes:
    """What the encoder sees, without the encoder."""
    return np.stack([locally_normalised(image, radius_px=radius_px) for image in images]).astype(np.float32)[..., None]


def bands() -> dict[tuple[float, float], Describe]:
    """The band-passes among which the validation pairs choose, by their two standard deviations."""
    return {
        (fine, coarse): partial(band_pass, fine_px=fine, coarse_px=coarse) for fine in FINE_PX for coarse in COARSE_PX
    }
