"""Operations on masks and on maps of shares: connected parts, outline, enlarging, overlap with boxes, compression.

A map of shares says how much of each cell of a grid is covered, for example by the lungs: 0 (nothing) to 255 (the whole
cell). A mask says only whether a cell is inside.

The module uses NumPy alone: an operation on a mask of 256 x 256 takes a millisecond or two. A compressed mask takes
about a kilobyte.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from fieldray.domain.image import CoordinateMap

CellShares = NDArray[np.uint8]
Mask = NDArray[np.bool_]
_BLOCK_ROWS: Final = 256


def components(mask: Mask) -> NDArray[np.intp]:
    """Number the connected parts (4 neighbours) of a mask (rows, columns) from 1, in reading order; 0 is outside.

    Adjacent cells of the mask in one row form a stretch. The stretches of each row are joined with the stretches of the
    row above (Rosenfeld and Pfaltz 1966), for all rows at once. Each stretch takes the lowest number among the
    stretches that touch it, until no number changes.
    """
    starts, ends = _runs(mask)
    above, below = _touching(starts, ends, row_length=mask.shape[1] + 1)
    parts = np.arange(len(starts))
    while (parts[above] != parts[below]).any():
        lowest = np.minimum(parts[above], parts[below])
        np.minimum.at(parts, parts[above], lowest)
        np.minimum.at(parts, parts[below], lowest)
        while not np.array_equal(shorter := parts[parts], parts):
            parts = shorter
    numbers = np.unique(parts, return_inverse=True)[1] + 1
    labels = np.zeros(mask.shape, np.intp)
    labels[mask] = np.repeat(numbers, ends - starts)
    return labels


def _runs(mask: Mask) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the starts and ends of the runs of set cells in a mask, in reading order.

    Starts and ends are indices into one line of all rows, in which an unset cell follows each row.
    """
    padded = np.zeros(mask.shape[0] * (mask.shape[1] + 1) + 1, np.int8)
    padded[1:].reshape(mask.shape[0], mask.shape[1] + 1)[:, :-1] = mask
    steps = np.diff(padded)
    return np.flatnonzero(steps == 1), np.flatnonzero(steps == -1)


def _touching(
    starts: NDArray[np.intp], ends: NDArray[np.intp], *, row_length: int
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the pairs of runs that touch vertically: indices of the upper runs and indices of the lower runs."""
    first = np.searchsorted(ends, starts - row_length, side="right")
    counts = np.searchsorted(starts, ends - row_length, side="left") - first
    below = np.repeat(np.arange(len(starts)), counts)
    offset = np.arange(len(below)) - np.repeat(counts.cumsum() - counts, counts)
    return first[below] + offset, below


# ---- overlap with boxes


def interval_overlaps(first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the length by which each interval of `first` overlaps each interval of `second`: (n, m).

    first, second  the ends of adjacent intervals in ascending order: n + 1 ends for n intervals, m + 1 ends for m
    """
    ends = np.minimum(first[1:, None], second[None, 1:])
    starts = np.maximum(first[:-1, None], second[None, :-1])
    lengths: NDArray[np.float64] = (ends - starts).clip(0, None)
    return lengths


def cell_edges(
    cells_to_image: CoordinateMap, shape: tuple[int, int]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return where the rows and the columns of a grid of cells begin and end, in pixels of the image.

    The result is two arrays of borders in ascending order: (rows + 1,) and (columns + 1,).

    cells_to_image  maps cells of the grid to the image
    shape           rows and columns of the grid
    """
    rows, columns = shape
    return (
        np.arange(rows + 1, dtype=np.float64) * cells_to_image.row_scale + cells_to_image.row_offset,
        np.arange(columns + 1, dtype=np.float64) * cells_to_image.column_scale + cells_to_image.column_offset,
    )


# ---- enlarging to the size of the image


def enlarge(shares: CellShares, cells_to_image: CoordinateMap, *, rows: int, columns: int, threshold: int) -> Mask:
    """Enlarge a map of shares linearly to the size of an image, and compare each pixel with a threshold.

    Returns the mask (rows, columns) bool of the pixels at or above the threshold.

    shares          (rows, columns) uint8: how much of each cell is covered, 0..255
    cells_to_image  maps cells to pixels of the image
    rows, columns   size of the image in pixels
    threshold       share (0..255) from which a pixel is inside
    """
    mask = np.empty((rows, columns), bool)
    across = _linear(columns, cells_to_image.column_scale, cells_to_image.column_offset, shares.shape[1])
    down = _linear(rows, cells_to_image.row_scale, cells_to_image.row_offset, shares.shape[0])
    wide = _mixed(shares.T.astype(np.float32), across).T
    for start in range(0, rows, _BLOCK_ROWS):  # the whole as float32 would take four times the image
        part = slice(start, start + _BLOCK_ROWS)
        mask[part] = _mixed(wide, tuple(array[part] for array in down)) >= threshold
    return mask


InterpolationWeights = tuple[NDArray[Any], ...]


def _linear(count: int, scale: float, offset: float, size: int) -> InterpolationWeights:
    """Return weights for the linear interpolation of cells at the centres of `count` pixels.

    The three arrays (count,) are the index of the cell before, the index of the cell after, and the weight of the cell
    after.
    """
    positions = ((np.arange(count) + 0.5 - offset) / scale - 0.5).clip(0, size - 1)
    before = np.floor(positions).astype(np.intp)
    return before, np.minimum(before + 1, size - 1), (positions - before).astype(np.float32)


def _mixed(values: NDArray[np.float32], weights: InterpolationWeights) -> NDArray[np.float32]:
    before, behind, share = weights
    mixed: NDArray[np.float32] = values[before] + (values[behind] - values[before]) * share[:, None]
    return mixed


# ---- outline


# Marching squares: the sum of the corners inside (above left 8, above right 4, below right 2, below left 1) gives the
# sides between which the outline runs, with the inside on its right.
_TOP, _RIGHT, _BOTTOM, _LEFT = range(4)
_WAYS: Final[Mapping[int, tuple[tuple[int, int], ...]]] = {
    1: ((_LEFT, _BOTTOM),),
    2: ((_BOTTOM, _RIGHT),),
    3: ((_LEFT, _RIGHT),),
    4: ((_RIGHT, _TOP),),
    5: ((_RIGHT, _TOP), (_LEFT, _BOTTOM)),
    6: ((_BOTTOM, _TOP),),
    7: ((_LEFT, _TOP),),
    8: ((_TOP, _LEFT),),
    9: ((_TOP, _BOTTOM),),
    10: ((_TOP, _LEFT), (_BOTTOM, _RIGHT)),
    11: ((_TOP, _RIGHT),),
    12: ((_RIGHT, _LEFT),),
    13: ((_RIGHT, _BOTTOM),),
    14: ((_BOTTOM, _LEFT),),
}
Point = tuple[float, float]


def outlines(shares: CellShares, cells_to_image: CoordinateMap, *, threshold: int) -> tuple[tuple[Point, ...], ...]:
    """Return closed polygons around the cells whose share reaches a threshold.

    Each polygon is a list of points (x, y) in pixels of the image, found by marching squares (Lorensen and Cline 1987).

    shares          (rows, columns) uint8: how much of each cell is covered, 0..255
    cells_to_image  maps cells to pixels of the image
    threshold       share from which a cell is inside
    """
    level = threshold - 0.5  # shares are whole numbers, so no share equals the level
    field = np.pad(shares.astype(np.float64), 1)
    inside = (field > level).astype(np.uint8)
    case = 8 * inside[:-1, :-1] + 4 * inside[:-1, 1:] + 2 * inside[1:, 1:] + inside[1:, :-1]
    following: dict[Point, Point] = {}
    positions = np.nonzero((case > 0) & (case < 15))
    values = field.tolist()  # single values of a list are read faster than those of an array
    for row, column, one in zip(*(part.tolist() for part in (*positions, case[positions])), strict=True):
        for begin, end in _WAYS[one]:
            following[_crossing(values, level, row, column, begin)] = _crossing(values, level, row, column, end)
    return tuple(tuple(_in_image(point, cells_to_image) for point in loop) for loop in _loops(following))


def _crossing(field: Sequence[Sequence[float]], level: float, row: int, column: int, side: int) -> Point:
    """Return the point (row, column) where the outline crosses one side of a square of four neighbouring cells.

    field        the shares, padded by one cell; a whole number in the returned point is the centre of a cell
    level        the share at which the outline runs
    row, column  the upper left cell of the square
    side         `_TOP`, `_RIGHT`, `_BOTTOM` or `_LEFT`
    """
    if side in (_TOP, _BOTTOM):
        row += side == _BOTTOM
        return float(row), column + _part(field[row][column], field[row][column + 1], level)
    column += side == _RIGHT
    return row + _part(field[row][column], field[row + 1][column], level), float(column)


def _part(first: float, second: float, level: float) -> float:
    return (level - first) / (second - first)


def _loops(following: dict[Point, Point]) -> Iterator[list[Point]]:
    while following:
        begin, point = following.popitem()
        loop = [begin]
        while point != begin:
            loop.append(point)
            point = following.pop(point)
        yield loop


def _in_image(point: Point, pixel_map: CoordinateMap) -> Point:
    """Map a point (row, column) of a mask padded by one cell to the image. Returns (x, y) in pixels of the image."""
    row, column = pixel_map.to_image(point[0] - 0.5, point[1] - 0.5)
    return column, row


# ---- compression for the database


_MAX_CELLS: Final = 2**22  # the largest input that a network may have


@dataclass(frozen=True, slots=True)
class CompressedShares:
    """A map of shares (such as the share of lung in each cell, 0..255) in compressed form.

    For every cell the object stores whether the cell is inside the mask. The exact share is stored only for cells along
    the edge of the mask. After decompression, all other cells are 0 (outside) or 255 (inside). The mask and its outline
    stay exact, because both depend only on the cells along the edge.

    rows, columns  size of the map
    threshold      share from which a cell is inside the mask, 0..255
    data           the compressed bytes
    """

    rows: int
    columns: int
    threshold: int
    data: bytes

    @classmethod
    def compress(cls, shares: CellShares, threshold: int) -> Self:
        """Compress a map of shares: (rows, columns) uint8, how much of each cell is covered, 0..255.

        threshold  share from which a cell is inside the mask
        """
        (rows, columns), mask = shares.shape, shares >= threshold
        values = shares[_along_edge(mask)].tobytes()
        return cls(rows, columns, threshold, zlib.compress(np.packbits(mask).tobytes() + values))

    @property
    def shares(self) -> CellShares:
        """The decompressed map: (rows, columns) uint8, how much of each cell is covered, 0..255. Read-only.

        Raises ValueError for damaged data.
        """
        return _unpacked(self)


@lru_cache(maxsize=4)  # the shares of an image are needed several times
def _unpacked(kept: CompressedShares) -> CellShares:
    size = kept.rows * kept.columns
    if min(kept.rows, kept.columns) < 1 or size > _MAX_CELLS or not 0 < kept.threshold <= 255:
        raise ValueError(f"no mask has {kept.rows} x {kept.columns} cells from {kept.threshold} on")
    data, bits = _decompressed(kept.data, 2 * size), (size + 7) // 8
    mask = np.unpackbits(np.frombuffer(data, np.uint8, bits), count=size).reshape(kept.rows, kept.columns) > 0
    shares, edge = np.where(mask, np.uint8(255), np.uint8(0)), _along_edge(mask)
    shares[edge] = np.frombuffer(data, np.uint8, offset=bits)
    if not np.array_equal(shares >= kept.threshold, mask):
        raise ValueError("shares that are not those of their mask")
    shares.flags.writeable = False
    return shares


def _along_edge(mask: Mask) -> Mask:
    """Return the cells along the edge of a mask: all cells of the 2 x 2 squares that are only partly inside.

    Cells beyond the borders of the array count as outside.
    """
    field = np.zeros((mask.shape[0] + 2, mask.shape[1] + 2), bool)
    field[1:-1, 1:-1] = mask
    above, below = field[:-1], field[1:]
    some, every = above | below, above & below
    is_mixed: Mask = (some[:, :-1] | some[:, 1:]) & ~(every[:, :-1] & every[:, 1:])
    edge: Mask = is_mixed[:-1, :-1] | is_mixed[:-1, 1:] | is_mixed[1:, :-1] | is_mixed[1:, 1:]
    return edge


def _decompressed(data: bytes, most: int) -> bytes:
    """Decompress data. Raises ValueError if the data is damaged or decompresses to more than `most` bytes."""
    stream = zlib.decompressobj()
    try:
        found = stream.decompress(data, most)
    except zlib.error as error:
        raise ValueError("a mask that cannot be decompressed") from error
    if not stream.eof:
        raise ValueError("a mask that has no end")
    return found
