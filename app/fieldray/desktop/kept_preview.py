"""A preview at the size of the image it stands for, so that map, outline and measures lie where they belong."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray
from PySide6.QtCore import Qt
from PySide6.QtGui import QImage

from fieldray.desktop.image_painting import Picture, pyramid_of
from fieldray.domain.image import Image, Window

_MOST_PIXELS: Final = 2**26
_AS_IT_IS: Final = Window(127.5, 255.0, "LINEAR_EXACT")  # what was kept is grey levels as shown


def enlarged(pixels: NDArray[np.uint8], *, rows: int, columns: int) -> Picture | None:
    """Grey levels (h, w) as an image of (rows, columns); None where the image is too large for that."""
    if min(rows, columns) < 1 or rows * columns > _MOST_PIXELS:
        return None
    grey = np.ascontiguousarray(pixels)
    small = QImage(grey.tobytes(), grey.shape[1], grey.shape[0], grey.shape[1], QImage.Format.Format_Grayscale8)
    large = small.scaled(
        columns, rows, Qt.AspectRatioMode.IgnoreAspectRatio, Qt.TransformationMode.SmoothTransformation
    ).convertToFormat(QImage.Format.Format_Grayscale8)
    lines = np.frombuffer(large.constBits(), np.uint8).reshape(rows, large.bytesPerLine())
    return pyramid_of(Image(pixels=lines[:, :columns].copy(), window=_AS_IT_IS))
