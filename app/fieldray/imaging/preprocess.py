"""Preprocessing: from an image to display grey levels and to the network's input, for training and screening alike.

Every result is an exact area average of the image over boxes of at least one pixel. An image smaller than the result
is enlarged by linear interpolation. Large images are first averaged over whole blocks of pixels, down to at least twice
the wanted size. Grey levels are mapped at that size, so that neither time nor result depends much on the resolution of
the detector.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fieldray.domain.image import Box, CoordinateMap, Image, NetworkInput, Window
from fieldray.domain.model import InputSpec
from fieldray.errors import UnsuitableImage
from fieldray.imaging.reduction import LARGEST_REDUCTION, block_means
from fieldray.reasons import reason

_AUTO_WINDOW_SIDE: Final = 256
_COARSE_SIDE: Final = 64
_TAILS: Final = (1.0, 99.0)

Grey = NDArray[np.float32]
Pixels = NDArray[Any]


def to_display(image: Image, window: Window | None = None) -> NDArray[np.uint8]:
    """Return the image at full resolution as grey levels 0..255, uint8 (rows, columns).

    window  display window in the units of `image.pixels`; by default the window of `grey_level_table`
    """
    return np.take(grey_level_table(image, window), image.pixels)


def grey_level_table(image: Image, window: Window | None = None) -> NDArray[np.uint8]:
    """Return the grey level 0..255 of each pixel value: uint8 (256,) for pixels of 8 bits, (65536,) for 16 bits.

    Pixel padding is black.

    window  display window in the units of `image.pixels`; by default the window of the file, or else a window over the
            1st to 99th percentile of the pixels
    """
    levels = 256 if image.pixels.dtype == np.uint8 else 65536
    shown = _shown(np.arange(levels, dtype=np.float32), image, window or _window_in_use(image))
    table = np.rint(shown).astype(np.uint8)
    if image.padding_value is not None:
        table[image.padding_value] = 0
    return table


def default_window(image: Image) -> Window:
    """Return the display window of an image's file, or else a window over the 1st to 99th percentile of its pixels.

    The window is in the units of `image.pixels`. For an image with a VOI LUT but no window, the percentiles are used,
    too.
    """
    return image.window or _percentile_window(image)


def with_default_window(image: Image) -> Image:
    """Return the image with its default window set, so that the window is computed only once.

    An image whose file has a window or VOI LUT is returned unchanged.
    """
    if image.window is not None or image.voi_lut is not None:
        return image
    return replace(image, window=default_window(image))


def to_network_input(image: Image, spec: InputSpec, *, box: Box | None = None) -> NetworkInput:
    """Make the network input that `spec` describes, and the map from the input to pixels of the image.

    The input is (1, height, width, channels) uint8.

    box  part of the image to use instead of the whole image, for an input that is cropped to the lungs
    """
    region = _region(_fitted(image, box), spec)
    grey = _resample(image, region)
    if spec.intensity == "percentile":
        grey = _stretched(grey)
    plane = np.zeros((spec.height, spec.width), np.uint8)
    plane[region.target_top :, region.target_left :][: region.height, : region.width] = np.rint(grey)
    values = np.repeat(plane[None, :, :, None], spec.channels, axis=3)
    return NetworkInput(values=values, input_to_image=_pixel_map(image, region))


def thumbnail(image: Image, side: int = 64) -> NDArray[np.uint8]:
    """Return the image as displayed by default, reduced to a longer side of `side` pixels: uint8 (h, w)."""
    rows, columns = image.reduced_size
    longer = max(rows, columns)
    height, width = max(1, round(rows * side / longer)), max(1, round(columns * side / longer))
    whole = _Region(0.0, 0.0, rows, columns, 0, 0, height, width)
    return np.rint(_resample(image, whole)).astype(np.uint8)


def block_thumbnail(image: Image, side: int) -> NDArray[np.uint8]:
    """Return the image as displayed by default, averaged over whole blocks of pixels: uint8 (h, w).

    The longer side has at most `side` pixels. Blocks in the last row and column may be smaller than other blocks. The
    function is several times as fast as `thumbnail`.
    """
    shorter, longer = sorted(image.pixels.shape)
    block = max(1, math.ceil(longer / side))
    if block > min(shorter, LARGEST_REDUCTION):  # far too narrow, or huge
        return thumbnail(image, side)
    return np.rint(_shown_in_blocks(image, block, _window_in_use(image))).astype(np.uint8)


# ---- regions of the image and of the network's input


@dataclass(frozen=True, slots=True)
class _Region:
    """A region of the image, and the part of the network's input that the region fills.

    top, left, rows, columns  the region in pixels of the image (edges)
    target_top, target_left, height, width
                              the part of the input, in pixels
    """

    top: float
    left: float
    rows: float
    columns: float
    target_top: int
    target_left: int
    height: int
    width: int


def _fitted(image: Image, box: Box | None) -> Box:
    """Return the region from which the network's input is made, in pixels of `image.pixels`.

    box  region in pixels of the file, `step` of which make one pixel of `image.pixels`; None for the whole image
    """
    if box is None:
        rows, columns = image.reduced_size
        return Box(top=0.0, left=0.0, height=rows, width=columns)
    top, left, rows, columns = (side / image.reduction_factor for side in (box.top, box.left, box.height, box.width))
    return Box(top=top, left=left, height=rows, width=columns)


def _region(fitted: Box, spec: InputSpec) -> _Region:
    rows, columns = (side * (1 - 2 * spec.margin) for side in (fitted.height, fitted.width))
    top, left = fitted.top + fitted.height * spec.margin, fitted.left + fitted.width * spec.margin
    if spec.fit == "crop":
        step = min(rows / spec.height, columns / spec.width)
        kept_rows, kept_columns = spec.height * step, spec.width * step
        top, left = top + (rows - kept_rows) / 2, left + (columns - kept_columns) / 2
        rows, columns = kept_rows, kept_columns
    height, width = spec.height, spec.width
    if spec.fit == "pad":
        step = max(rows / spec.height, columns / spec.width)
        height, width = max(1, round(rows / step)), max(1, round(columns / step))
    return _Region(top, left, rows, columns, (spec.height - height) // 2, (spec.width - width) // 2, height, width)


def _pixel_map(image: Image, region: _Region) -> CoordinateMap:
    """Return the map from the network's input to pixels of the file.

    The map is scaled by `image.step` for an image that was read at a reduced resolution.
    """
    row_scale, column_scale = (
        image.reduction_factor * region.rows / region.height,
        image.reduction_factor * region.columns / region.width,
    )
    return CoordinateMap(
        row_scale=row_scale,
        row_offset=image.reduction_factor * region.top - region.target_top * row_scale,
        column_scale=column_scale,
        column_offset=image.reduction_factor * region.left - region.target_left * column_scale,
    )


# ---- area averages


def _resample(image: Image, region: _Region) -> Grey:
    """Return a region of the image as displayed by default: grey 0..255, float32 (region.height, region.width)."""
    fitting = min(int(region.rows // (2 * region.height)), int(region.columns // (2 * region.width)))
    block = min(max(1, fitting), LARGEST_REDUCTION)
    window = _window_in_use(image)  # from the whole image, not only from the region
    down = _blocks_of(region.top, region.rows, block, image.pixels.shape[0])
    across = _blocks_of(region.left, region.columns, block, image.pixels.shape[1])
    inside = image.pixels[down.start * block : down.stop * block, across.start * block : across.stop * block]
    shown = _shown_in_blocks(replace(image, pixels=inside), block, window)
    lines = _averaged(shown, region.top / block, region.rows / block, region.height, of=down)
    columns = _averaged(
        np.ascontiguousarray(lines.T), region.left / block, region.columns / block, region.width, of=across
    )
    grey: Grey = columns.T.clip(0, 255)
    return grey


@dataclass(frozen=True, slots=True)
class _Blocks:
    """A range of blocks along one side of an image.

    start, stop  index of the first block, and index after the last block
    count        number of blocks of the whole side
    """

    start: int
    stop: int
    count: int


def _blocks_of(start: float, extent: float, block: int, side: int) -> _Blocks:
    """Return the blocks that a region needs along one side of the image, with two more at each end.

    start, extent  start and length of the region along this side, in pixels
    block          pixels per block
    side           pixels of the whole side
    """
    count = -(-side // block)
    first = min(max(0, math.floor(start / block) - 2), count - 1)
    return _Blocks(first, max(first + 1, min(count, math.ceil((start + extent) / block) + 2)), count)


def _shown_in_blocks(image: Image, block: int, window: Window | None) -> Grey:
    """Return the means over block x block pixels as grey levels 0..255.

    window  display window; None to use the image's VOI LUT
    """
    means = block_means(_without_padding(image), block)
    return _shown(means.astype(np.float32, copy=False), image, window)


def _averaged(values: Grey, start: float, extent: float, count: int, *, of: _Blocks | None = None) -> Grey:
    """Average rows (n, m) over `count` equal parts of [start, start + extent): float32 (count, m).

    of  the part of all rows that `values` contains; None if `values` contains all rows
    """
    held = of or _Blocks(0, len(values), len(values))
    first, weights = _weights(held.count, start, extent, count)
    values = np.ascontiguousarray(values)  # otherwise each step would copy all values
    averages: Grey = values[first - held.start]
    averages *= weights[0][:, None]
    part = np.empty_like(averages)
    for offset, share in enumerate(weights[1:], start=1):  # beyond `values` a share is 0
        at = np.minimum(first + offset, held.stop - 1) - held.start
        averages += np.multiply(values.take(at, axis=0, out=part, mode="clip"), share[:, None], out=part)
    return averages


@lru_cache(maxsize=32)
def _weights(size: int, start: float, extent: float, count: int) -> tuple[NDArray[np.intp], Grey]:
    """Return which of `size` pixels make up each of `count` outputs over [start, start + extent), and their shares.

    The first array (count,) is the first pixel of each output. The second array (n, count) float32 is the share of this
    pixel and of each following pixel; the shares of an output add up to 1. An output covers extent / count pixels, but
    at least one. If extent / count is below one, the result is linear interpolation between two pixels.
    """
    step = extent / count
    centres = start + (np.arange(count) + 0.5) * step
    half = max(step, 1.0) / 2
    first = np.floor(centres - half).clip(0, size - 1).astype(np.intp)
    pixels = first + np.arange(int(2 * half) + 2)[:, None]
    overlap = np.minimum(centres + half, pixels + 1) - np.maximum(centres - half, pixels)
    overlap = np.where(pixels < size, overlap.clip(0, None), 0)
    overlap = overlap[: int(np.flatnonzero(overlap.any(axis=1))[-1]) + 1]  # rows without any share are dropped
    weights: Grey = (overlap / overlap.sum(axis=0)).astype(np.float32)
    return first, weights


def with_square_pixels(image: Image, aspect: float) -> Image:
    """Resample an image to square pixels, by averaging along the axis of the finer pixels.

    aspect  height of a pixel divided by its width
    """
    if aspect == 1:
        return image
    pixels = _without_padding(image)

    def fewer(values: Pixels) -> Grey:
        lines = np.ascontiguousarray(values.T if aspect > 1 else values, np.float32)
        averaged = _averaged(lines, 0.0, len(lines), max(1, round(len(lines) * min(aspect, 1 / aspect))))
        return averaged.T if aspect > 1 else averaged

    found = np.rint(fewer(pixels)).astype(pixels.dtype)
    if image.padding_value is not None:
        found[fewer(image.pixels == image.padding_value) > 0.5] = image.padding_value
    side = image.spacing_mm and max(image.spacing_mm)
    return replace(
        image,
        pixels=np.ascontiguousarray(found),
        file_rows=found.shape[0],
        file_columns=found.shape[1],
        spacing_mm=(side, side) if side else None,
        notes=(*image.notes, "pixels_not_square"),
    )


def _without_padding(image: Image) -> Pixels:
    """Return the pixels with padding ("no data") as black. Averages then contain no padding values."""
    if image.padding_value is None:
        return image.pixels
    return np.where(image.pixels == image.padding_value, image.pixels.dtype.type(0), image.pixels)


# ---- grey levels


def _window_in_use(image: Image) -> Window | None:
    """Return the window to apply; None if the file's VOI LUT is used rather than a window."""
    return None if image.voi_lut is not None else default_window(image)


def _shown(values: Grey, image: Image, window: Window | None) -> Grey:
    """Map pixel values to grey levels 0..255.

    window  display window; None to use the image's VOI LUT
    """
    if window is None:
        assert image.voi_lut is not None
        index = np.rint(values).astype(np.intp).clip(0, len(image.voi_lut) - 1)
        return np.take(image.voi_lut, index).astype(np.float32) * np.float32(255 / 65535)
    return apply_window(values, window)


def apply_window(values: Grey, window: Window) -> Grey:
    """Map pixel values to grey levels 0..255 by a display window.

    The formulas are those of DICOM PS3.3 C.11.2.1.2.1, C.11.2.1.3.1 and C.11.2.1.3.2.

    values  float32 of any shape, in the units of the window

    Returns float32 of the same shape, not rounded.
    """
    if window.function == "SIGMOID":
        exponent = (-4 * (values - window.center) / window.width).clip(-80, 80)
        curve = np.float32(255) / (1 + np.exp(exponent, dtype=np.float32))
        sigmoid: Grey = curve.astype(np.float32, copy=False)
        return sigmoid
    center, width = window.center, window.width
    if window.function == "LINEAR":
        # A window of width 1 is a step; the standard's formula divides by width - 1.
        center, width = center - 0.5, max(width - 1, 1e-3)
    share: Grey = values - np.float32(center)
    share *= np.float32(1 / width)
    share += np.float32(0.5)
    share *= np.float32(255)
    return np.clip(share, 0, 255, out=share)


def coarse_means(image: Image, side: int = _COARSE_SIDE) -> Grey:
    """Return the means of an image's pixels over blocks: float32 (n,), in the units of `image.pixels`, without padding.

    side  approximate number of blocks along the shorter side
    """
    block = min(max(1, min(image.pixels.shape) // side), LARGEST_REDUCTION)
    means = block_means(image.pixels, block).astype(np.float32, copy=False)
    if image.padding_value is not None:
        is_data = block_means((image.pixels == image.padding_value).view(np.uint8), block) == 0
        means = means[is_data] if is_data.any() else means
    return means.reshape(-1)


def percentiles(values: Grey, percents: Sequence[float]) -> list[float]:
    """Return percentiles (`percents`, 0..100) exactly like `numpy.percentile`, but several times as fast for pixels.

    values  float32 of any shape, not empty, without NaN

    Each percentile is computed by a separate call of `numpy.partition`, which uses vector instructions only for a
    single position.
    """
    flat = values.reshape(-1)
    found = []
    for percent in percents:
        position = (len(flat) - 1) * (np.float64(percent) / 100)
        below = min(int(position), len(flat) - 1)
        parted = np.partition(flat, below)
        low, high, share = parted[below], parted[below + 1 :].min(initial=np.inf), position - below
        high = low if below + 1 == len(flat) else high
        step = high - low
        found.append(float(high - step * (1 - share) if share >= 0.5 else low + step * share))  # rounded as NumPy does
    return found


def _percentile_window(image: Image) -> Window:
    """Return a window over the 1st to 99th percentile of block means.

    The number of blocks does not depend on the resolution, and noise averages out within a block.
    """
    low, high = percentiles(coarse_means(image, _AUTO_WINDOW_SIDE), _TAILS)
    return Window(float(low + high) / 2, max(float(high - low), 1.0), "LINEAR_EXACT")


def _stretched(grey: Grey) -> Grey:
    """Stretch the 1st to 99th percentile of an image to 0..255; an image without contrast is unchanged."""
    low, high = percentiles(grey, _TAILS)
    if high - low < 1:
        return grey
    stretched: Grey = ((grey - low) * (255 / (high - low))).clip(0, 255).astype(np.float32)
    return stretched


# A grey image saved as colour JPEG, or by a screenshot tool, has pixels that are a few levels off grey.
_TOLERANCE_LEVELS: Final = 12
_TINTED_SHARE: Final = 0.001


def grey_from_rgb(values: NDArray[Any]) -> NDArray[Any]:
    """Convert an RGB image without tint, (rows, columns, 3) uint8 or uint16, to grey levels (rows, columns).

    Raises UnsuitableImage `colour` if more than one pixel in a thousand is tinted by more than 12 of 256 levels.
    """
    red, green, blue = (values[:, :, channel] for channel in range(3))
    spread = np.maximum(np.maximum(red, green), blue) - np.minimum(np.minimum(red, green), blue)
    tolerance = _TOLERANCE_LEVELS * (np.iinfo(values.dtype).max // 255)
    if np.count_nonzero(spread > tolerance) > _TINTED_SHARE * spread.size:
        raise UnsuitableImage(reason("colour"))
    return np.ascontiguousarray(green)
