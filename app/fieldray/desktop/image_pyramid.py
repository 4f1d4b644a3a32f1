"""An image made ready for the screen: a pyramid of halved sizes, window presets, and what is cut out of it to be drawn.

numpy only; it is built in the background and only read afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fieldray.domain.image import Image, Window
from fieldray.imaging.preprocess import default_window, display_table

Pixels = NDArray[np.uint8] | NDArray[np.uint16]

_SMALLEST_SIDE: Final = 128

# Windows 2 to 5 as percentiles of the image: a radiograph has no absolute scale as CT has. 1 is what the file asks.
_PRESET_PERCENTILES: Final = ((0.0, 100.0), (1.0, 75.0), (25.0, 99.8), (10.0, 90.0))


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Picture:
    """levels[k] is the image at 1 / 2**k of its size; presets are the windows of keys 1 to 5 (None: by the file)."""

    image: Image
    levels: tuple[Pixels, ...]
    start_window: Window
    presets: tuple[Window | None, ...]

    @property
    def rows(self) -> int:
        return int(self.image.pixels.shape[0])

    @property
    def columns(self) -> int:
        return int(self.image.pixels.shape[1])

    def table(self, window: Window | None, *, inverted: bool) -> NDArray[np.uint8]:
        """Grey level 0..255 by pixel value."""
        table = display_table(self.image, window)
        return np.uint8(255) - table if inverted else table

    def level_for(self, pixel_side: float) -> int:
        """The coarsest level that is no coarser than the screen; `pixel_side` is one image pixel's side on it."""
        level = 0
        while level + 1 < len(self.levels) and pixel_side * 2 ** (level + 1) <= 1.0:
            level += 1
        return level


def pyramid_of(image: Image) -> Picture:
    """Build the pyramid (about a third more memory than the image) and the presets."""
    levels: list[Pixels] = [image.pixels]
    while min(levels[-1].shape) >= 2 * _SMALLEST_SIDE:
        levels.append(_halved(levels[-1]))
    start = default_window(image)
    presets = tuple(_percentile_window(levels[-1], low, high) for low, high in _PRESET_PERCENTILES)
    return Picture(image=image, levels=tuple(levels), start_window=start, presets=(None, *presets))


def cut(level: Pixels, table: NDArray[np.uint8], *, top: int, bottom: int, left: int, right: int) -> NDArray[np.uint8]:
    """Rows top..bottom and columns left..right of a level as grey levels, contiguous uint8."""
    return table.take(level[top:bottom, left:right])


def _halved(pixels: Pixels) -> Pixels:
    """Means over 2 x 2 pixels; an odd last row or column is left out."""
    rows, columns = (side // 2 * 2 for side in pixels.shape)
    total = np.full((rows // 2, columns // 2), 2, np.uint32)
    for row, column in ((0, 0), (0, 1), (1, 0), (1, 1)):
        total += pixels[row:rows:2, column:columns:2]
    halved = total >> np.uint32(2)
    return halved.astype(np.uint8) if pixels.dtype == np.uint8 else halved.astype(np.uint16)


def _percentile_window(pixels: Pixels, low: float, high: float) -> Window:
    bottom, top = np.percentile(pixels, (low, high))
    return Window(float(bottom + top) / 2, max(float(top - bottom), 1.0), "LINEAR_EXACT")
