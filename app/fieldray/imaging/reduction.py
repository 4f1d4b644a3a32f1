"""The reduced resolution at which a file is read for screening, and area averages of integers.

**The rule.** The input of a pack needs a number of rows and columns across the whole image (`target_size`). A file is
read at the largest step (one pixel for step x step pixels of the file) that its format offers and that leaves at least

- `BLOCK_OVERSAMPLING` times the needed size, if a lower resolution costs almost no quality: JPEG by a smaller transform
  (steps 1, 2, 4, 8), and files that must be decoded in full and are then averaged over blocks (any step);
- `WAVELET_OVERSAMPLING` times the needed size, for JPEG 2000 and HTJ2K (steps 1, 2, 4, ..., as many as the stream has
  levels). Each level of twice the resolution takes four times as long to decode. A level is low-pass filtered, not
  made by skipping pixels.

Some files are read in full and averaged afterwards: files with colour or a palette; streams that are tiled, have too
few levels or differ from their header; and wavelets with pixel padding, whose value would be blended with its
neighbours. If the lower resolution cannot be decoded, the file is read in full resolution. Damage is then reported.

The preprocessing averages over blocks of an equal size before it maps grey levels. Averages taken in this module are
not rounded, so the network input does not change. JPEG and wavelets at a reduced resolution change the input by a
fraction of a grey level. Such an image is marked as approximate. If the result of an approximate image is borderline,
the image is read again at `FINE_DETAIL_FACTOR` times the needed size, for JPEG usually in full resolution. The change
of the input is then a seventh as large.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from fieldray.domain.finding import NARROW_MARGIN_MIN_OVERSAMPLING
from fieldray.domain.image import Box, Image, ImageDetail
from fieldray.domain.model import InputSpec

T = TypeVar("T")

BLOCK_OVERSAMPLING: Final = 2.0
WAVELET_OVERSAMPLING: Final = 1.25
FINE_DETAIL_FACTOR: Final = 4.0
ASSUMED_LUNG_SIDE_SHARE: Final = 0.6  # share of the image's height and width that lungs are assumed to take up
JPEG_REDUCTIONS: Final = (1, 2, 4, 8)
# Blocks of 128 x 128 values of 65535 still add up in 32 bits.
LARGEST_REDUCTION: Final = 128
_WIDE: Final[Mapping[str, type[np.number[Any]]]] = {"i": np.int32, "u": np.uint32, "f": np.float32}


@dataclass(frozen=True, slots=True)
class TargetSize:
    """The number of rows and columns across the whole image that a network's input needs.

    needs_only_longer_side  whether only the longer side must reach its number, as for an image that is shrunk until the
                            longer side fits
    """

    rows: float
    columns: float
    needs_only_longer_side: bool = False

    @property
    def rotated_by_90(self) -> TargetSize:
        """The target size for an image that will be rotated by 90 degrees: rows and columns swapped."""
        return TargetSize(self.columns, self.rows, self.needs_only_longer_side)


class DecodedFileCache:
    """A cache of one decoded file, from which smaller resolutions are made while the file is processed.

    parsed  attribute for the reader of DICOM files: the header and the position of the pixels; None until the header is
            read
    """

    def __init__(self) -> None:
        self._kept: Any = None
        self.parsed: Any = None

    @property
    def has_decoded_file(self) -> bool:
        """Whether the cache contains the fully decoded file."""
        return self._kept is not None

    def get_or_decode(self, decode: Callable[[], T]) -> T:
        """Return the fully decoded file. Only the first call calls `decode`; later calls return the kept result."""
        if self._kept is None:
            self._kept = decode()
        kept: T = self._kept
        return kept


def target_size(spec: InputSpec, *, factor: float = 1.0) -> TargetSize:
    """Return the number of rows and columns across the whole image that a network's input needs.

    The rows and columns include parts of the image that are cut off before the input is made. For an input cropped to
    the lungs, the lungs are assumed to take up `ASSUMED_LUNG_SIDE_SHARE` of the image, because the file is read before
    the lungs are found.

    factor  factor by which rows and columns are multiplied
    """
    kept = (ASSUMED_LUNG_SIDE_SHARE if spec.crop != "none" else 1 - 2 * spec.margin) / factor
    return TargetSize(
        spec.height / kept, spec.width / kept, needs_only_longer_side=spec.fit == "pad" and spec.crop == "none"
    )


def target_size_for_all(*specs: InputSpec, factor: float = 1.0) -> TargetSize | None:
    """Return the size of the whole image that is enough for each of several network inputs.

    specs   the inputs; with no input the result is None, which means full resolution
    factor  factor by which rows and columns are multiplied
    """
    if not specs:
        return None
    sizes = [target_size(spec, factor=factor) for spec in specs]
    return TargetSize(
        max(size.rows for size in sizes),
        max(size.columns for size in sizes),
        needs_only_longer_side=all(size.needs_only_longer_side for size in sizes),
    )


def target_size_for_crop(spec: InputSpec, box: Box, image: Image, detail: ImageDetail) -> TargetSize | None:
    """Return the size to which the whole image must be read, so that a part of the image is fine enough for an input.

    The result is None if the image as read is already fine enough.

    box     the part, in pixels of the file
    image   the image as read. If a codec reduced the image, the part needs one pixel for each input pixel
    detail  "fine" needs `NARROW_MARGIN_MIN_OVERSAMPLING` pixels for each input pixel, so that few results are
            borderline; "finer" needs `FINE_DETAIL_FACTOR` times the needed size
    """
    pixels = min(box.height / spec.height, box.width / spec.width) / image.reduction_factor
    least, wanted = (1.0, 1.0 / WAVELET_OVERSAMPLING) if image.has_approximate_pixels else (BLOCK_OVERSAMPLING, 1.0)
    if detail == "fine":
        least, wanted = NARROW_MARGIN_MIN_OVERSAMPLING, NARROW_MARGIN_MIN_OVERSAMPLING / WAVELET_OVERSAMPLING
    if detail == "finer":
        least, wanted = FINE_DETAIL_FACTOR * WAVELET_OVERSAMPLING, FINE_DETAIL_FACTOR
    if image.reduction_factor == 1 or pixels >= least:
        return None
    rows, columns = image.file_rows / box.height, image.file_columns / box.width
    return TargetSize(wanted * rows * spec.height, wanted * columns * spec.width)


def largest_reduction(
    rows: int,
    columns: int,
    needed_size: TargetSize,
    *,
    oversampling: float = BLOCK_OVERSAMPLING,
    steps: Iterable[int] | None = None,
) -> int:
    """Return how far a file's resolution may be reduced: the largest step that leaves `oversampling` times the needed
    size.

    A step of n means one pixel for n x n pixels of the file. The result is at least 1.

    rows, columns  numbers of rows and columns of the image in its file
    needed_size    the size that the network's input needs
    steps          the steps that the format offers; by default every whole number
    """
    ratios = (rows / (oversampling * needed_size.rows), columns / (oversampling * needed_size.columns))
    most = min(int(max(ratios) if needed_size.needs_only_longer_side else min(ratios)), LARGEST_REDUCTION)
    if steps is None:
        return max(1, most)
    return max((step for step in steps if step <= most), default=1)


def block_sums(values: NDArray[Any], step: int, *, max_value: int | None = None) -> NDArray[Any]:
    """Return the sums of an array over blocks of step x step values. Blocks at the lower and right edge may be smaller.

    values     (rows, columns) integers of 8 or 16 bits in this machine's byte order, or averages of such integers
    max_value  an upper bound of the values; None if not known

    Returns integers of 16 or 32 bits (ceil(rows / step), ceil(columns / step)), exact up to `LARGEST_REDUCTION`;
    float32 for averages.
    """
    if values.dtype.kind == "u" and max_value is None:
        max_value = int(values.max())
    lines = _summed(values, step, max_value)
    sums: NDArray[Any] = lines[:, ::step].astype(_wide(values, step**2, max_value))
    for offset in range(1, step):
        part = lines[:, offset::step]
        sums[:, : part.shape[1]] += part
    return sums


def block_means(values: NDArray[Any], step: int, *, max_value: int | None = None) -> NDArray[Any]:
    """Return the means of an array over blocks of step x step values: float32, not rounded.

    A step of 1 returns the values unchanged. The parameters are those of `block_sums`.
    """
    if step == 1:
        return values
    means = block_sums(values, step, max_value=max_value).astype(np.float32)
    means *= np.float32(1 / step**2)
    rows_left, columns_left = (side % step for side in values.shape)
    if rows_left:
        means[-1] *= np.float32(step / rows_left)
    if columns_left:
        means[:, -1] *= np.float32(step / columns_left)
    return means


def _summed(values: NDArray[Any], step: int, highest: int | None) -> NDArray[Any]:
    """Return the sums of every `step` neighbouring rows."""
    sums: NDArray[Any] = values[::step].astype(_wide(values, step, highest))
    for offset in range(1, step):
        part = values[offset::step]
        sums[: len(part)] += part
    return sums


def _wide(values: NDArray[Any], count: int, highest: int | None) -> type[np.number[Any]]:
    """Return the NumPy type for sums of `count` values: 16 bits if the sums fit, which is twice as fast as 32."""
    fits = highest is not None and values.dtype.kind == "u" and highest * count < 2**16
    return np.uint16 if fits else _WIDE[values.dtype.kind]
