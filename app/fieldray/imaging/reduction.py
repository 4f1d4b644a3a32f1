"""How far a file is read below its own resolution for screening, and area averages of integers.

**The rule.** A pack's input needs so many pixels down and across the whole image (`target_size`). A file is read at
the largest step (one pixel for step x step of the file's) that its format offers and that leaves

- `COVER` times what is needed where a lower resolution costs next to nothing in quality: JPEG by its own smaller
  transform (steps 1, 2, 4, 8), and everything that must be decoded whole and is then averaged over blocks (any step);
- `WAVELET_COVER` times for JPEG 2000 and HTJ2K (steps 1, 2, 4, ..., as many as the stream has levels), where each
  level more costs four times as much, and the level is a picture made by a low pass and not by skipping.

Read in full, and averaged afterwards where that leaves the decision as it is: what has colour or a palette, a stream
that is tiled, has fewer levels, or is not what its header says, and wavelets with pixel padding, whose value would be
blended with its neighbours'. Where the lower resolution cannot be decoded the whole image decides what is wrong.

The preprocessing averages over blocks of the same size before it maps grey levels, and averages taken here are not
rounded, so they give the same tensor. JPEG and wavelets give one that differs by a fraction of a grey level; such an
image is marked as approximate, and a borderline one is refined: screening reads it again (`REFINEMENT` times what is
needed, which for JPEG is mostly all of it): what is left of the difference is a seventh.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fieldray.domain.image import Detail
from fieldray.domain.model import InputSpec

COVER: Final = 2.0
WAVELET_COVER: Final = 1.25
REFINEMENT: Final = 4.0
JPEG_REDUCTIONS: Final = (1, 2, 4, 8)
# Blocks of 128 x 128 values of 65535 still add up in 32 bits.
LARGEST_REDUCTION: Final = 128
_WIDE: Final[Mapping[str, type[np.number[Any]]]] = {"i": np.int32, "u": np.uint32, "f": np.float32}


@dataclass(frozen=True, slots=True)
class TargetSize:
    """Pixels down and across the whole image that a tensor takes, one for each of its own.

    of_longer  whether the image is shrunk until its longer side fits, so that the other has pixels to spare
    """

    rows: float
    columns: float
    of_longer: bool = False

    @property
    def turned(self) -> TargetSize:
        """The same of an image that is still to be turned by a quarter."""
        return TargetSize(self.columns, self.rows, self.of_longer)


def target_size(spec: InputSpec, *, times: float = 1.0) -> TargetSize:
    """What `spec` takes, with the margin that it cuts off; so many `times` as much down and across."""
    kept = (1 - 2 * spec.margin) / times
    return TargetSize(spec.height / kept, spec.width / kept, of_longer=spec.fit == "pad")


def target_size_for(spec: InputSpec, detail: Detail) -> TargetSize | None:
    """What is read of an image for a network; None for all of it."""
    if detail == "full":
        return None
    return target_size(spec, times=REFINEMENT if detail == "finer" else 1.0)


def largest_reduction(
    rows: int, columns: int, needed: TargetSize, *, cover: float = COVER, steps: Iterable[int] | None = None
) -> int:
    """The largest of `steps` (any whole number if not given) that leaves `cover` x what is needed; 1 or more."""
    ratios = (rows / (cover * needed.rows), columns / (cover * needed.columns))
    most = min(int(max(ratios) if needed.of_longer else min(ratios)), LARGEST_REDUCTION)
    if steps is None:
        return max(1, most)
    return max((step for step in steps if step <= most), default=1)


def block_sums(values: NDArray[Any], step: int, *, highest: int | None = None) -> NDArray[Any]:
    """Sums over step x step values; what is left at the lower and right edge makes smaller blocks.

    values   (rows, columns) integers of 8 or 16 bits in this machine's byte order, or averages of such
    highest  the highest of them, or more, where somebody has looked already
    Gives 32-bit integers (ceil(rows / step), ceil(columns / step)), exact up to `LARGEST_REDUCTION`; float32
    of averages.
    """
    lines = _sums_of_lines(values, step, highest)
    sums: NDArray[Any] = lines[:, ::step].astype(_WIDE[values.dtype.kind])
    for offset in range(1, step):
        part = lines[:, offset::step]
        sums[:, : part.shape[1]] += part
    return sums


def block_means(values: NDArray[Any], step: int, *, highest: int | None = None) -> NDArray[Any]:
    """Means over step x step integers, not rounded: float32; `values` themselves for a `step` of 1."""
    if step == 1:
        return values
    means = block_sums(values, step, highest=highest).astype(np.float32)
    means *= np.float32(1 / step**2)
    rows_left, columns_left = (side % step for side in values.shape)
    if rows_left:
        means[-1] *= np.float32(step / rows_left)
    if columns_left:
        means[:, -1] *= np.float32(step / columns_left)
    return means


def _sums_of_lines(values: NDArray[Any], step: int, highest: int | None) -> NDArray[Any]:
    """Sums of `step` neighbouring rows, in 16 bits where they fit: twice as fast as 32."""
    whole = values.shape[0] // step
    wide: type[np.number[Any]]
    if values.dtype.kind == "u":
        highest = int(values.max()) if highest is None else highest
        wide = np.uint16 if highest * step < 2**16 else np.uint32
    else:
        wide = _WIDE[values.dtype.kind]
    blocks = values[: whole * step].reshape(whole, step, values.shape[1])
    sums: NDArray[Any] = np.add.reduce(blocks, axis=1, dtype=wide)
    if whole * step == values.shape[0]:
        return sums
    rest = np.add.reduce(values[whole * step :], axis=0, dtype=wide, keepdims=True)
    return np.concatenate([sums, rest])
