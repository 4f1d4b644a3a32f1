"""Draw pictures that compare true lung masks with predicted masks."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

from fieldray_adapt.files import write_atomically

PixelArray = NDArray[np.uint8]


_TRUTH_COLOUR: Final = (60, 220, 90)
_FOUND_COLOUR: Final = (255, 90, 60)
_PANEL_SIDE: Final = 192


def draw_panel(
    path: Path, images: Iterable[PixelArray], masks: Iterable[PixelArray], predicted: Iterable[NDArray[np.float32]]
) -> None:
    """Write a PNG file with a row of three pictures for each image: image, true mask, predicted mask.

    `predicted` are arrays with the predicted share of lung in each pixel, 0..1.
    """
    rows = [
        np.hstack([_sized(image), _sized(mask), _sized((share * 255).astype(np.uint8))])
        for image, mask, share in zip(images, masks, predicted, strict=True)
    ]
    write_atomically(path, png_bytes(np.vstack(rows)))


def draw_overlay(
    image: PixelArray, truth: NDArray[np.bool_], predicted: NDArray[np.bool_], *, side: int = 256
) -> PixelArray:
    """Draw the true lung outline in green and the predicted lung outline in red on an image.

    Returns a colour picture (side, side, 3) uint8.
    """
    drawn = np.repeat(np.asarray(Image.fromarray(image).resize((side, side)))[..., None], 3, axis=2)
    for mask, colour in ((truth, _TRUTH_COLOUR), (predicted, _FOUND_COLOUR)):
        sized = np.asarray(Image.fromarray(mask).resize((side, side), Image.Resampling.NEAREST))
        drawn[sized & ~ndimage.binary_erosion(sized)] = colour
    return drawn


def png_bytes(pixels: PixelArray) -> bytes:
    """Return a picture as the bytes of a PNG file. The picture is uint8, (rows, columns) or (rows, columns, 3)."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def _sized(image: PixelArray) -> PixelArray:
    return np.asarray(Image.fromarray(image).resize((_PANEL_SIDE, _PANEL_SIDE), Image.Resampling.BILINEAR))
