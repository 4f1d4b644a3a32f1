"""Colour that is really grey."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fieldray.errors import Unusable
from fieldray.reasons import reason

# A grey image saved as colour JPEG, or by a screen-shot tool, is a few levels off grey here and there.
_TOLERANCE_LEVELS: Final = 12
_TINTED_SHARE: Final = 0.001


def grey_of_colour(values: NDArray[Any]) -> NDArray[Any]:
    """The grey of (rows, columns, 3) uint8 or uint16 whose channels are equal but for small errors.

    Raises Unusable `colour` where more than one pixel in a thousand is tinted by more than 12 of 256 levels.
    """
    red, green, blue = (values[:, :, channel] for channel in range(3))
    spread = np.maximum(np.maximum(red, green), blue) - np.minimum(np.minimum(red, green), blue)
    tolerance = _TOLERANCE_LEVELS * (np.iinfo(values.dtype).max // 255)
    if np.count_nonzero(spread > tolerance) > _TINTED_SHARE * spread.size:
        raise Unusable(reason("colour"))
    return np.ascontiguousarray(green)
