"""An image as the matcher sees it: each pixel against the mean and the deviation of what surrounds it.

Exposure, scatter and the archive's grey levels change broadly; what two images of one patient share is fine. Eight bits
then hold the fine, and not the difference between lung and abdomen.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_MIDDLE: Final = 128.0
_LEVELS_PER_DEVIATION: Final = 42.0
"""Three deviations to each side fill eight bits."""
_LEAST_DEVIATION: Final = 4.0
"""Grey levels of 255 added to the deviation, so that the noise of empty air is not blown up."""


def locally_normalised(image: NDArray[Any], *, radius_px: int) -> NDArray[np.uint8]:
    """(value - local mean) / (local deviation + 4), 42 levels a deviation about 128: uint8 (rows, columns).

    Parameters
    ----------
    image
        (rows, columns), grey levels 0..255 of any type.
    radius_px
        Half the side of the two boxes that are averaged over, one after another, 1 or more.

    Raises
    ------
    ValueError
        For another number of axes, or no radius.
    """
    if image.ndim != 2 or radius_px < 1:
        raise ValueError("an image of rows and columns and a radius of at least one pixel are needed")
    fine = image.astype(np.float32)
    fine -= _smooth(fine, radius_px)
    deviation = np.sqrt(_smooth(fine * fine, radius_px).clip(0))
    levels = _MIDDLE + _LEVELS_PER_DEVIATION * fine / (deviation + np.float32(_LEAST_DEVIATION))
    return np.asarray(np.rint(levels).clip(0, 255), np.uint8)


def _smooth(plane: NDArray[np.float32], radius_px: int) -> NDArray[np.float32]:
    """Two box means along each axis; the border counts as going on."""
    for _ in range(2):  # each turns the plane over, so that it stands as it was
        plane = _row_means(_row_means(plane, radius_px), radius_px).T
    return np.ascontiguousarray(plane)


def _row_means(plane: NDArray[np.float32], radius_px: int) -> NDArray[np.float32]:
    rows, columns = plane.shape
    width = 2 * radius_px + 1
    padded = np.pad(plane, ((0, 0), (radius_px, radius_px)), mode="edge")
    totals = np.zeros((rows, columns + width), np.float64)
    np.cumsum(padded, axis=1, out=totals[:, 1:])
    return np.asarray((totals[:, width:] - totals[:, :-width]) / width, np.float32)
