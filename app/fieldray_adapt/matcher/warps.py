"""Known warps and changes of exposure: what the truth of the evaluation is made of. The training reads none of it.

Point p of a warped image shows what the image has at p + d(p), so that a template cut from the warped image belongs at
its own place plus d, in the image as it was. Displacements are rows and columns in pixels.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

Grey = NDArray[np.uint8]
Field = NDArray[np.float32]
_KNOTS: Final = 4
_LEAST_JACOBIAN: Final = 0.5
_SMALLER: Final = 0.85


def draw_warp(side: int, *, largest_px: float, generator: np.random.Generator) -> Field:
    """A smooth random displacement (side, side, 2) whose longest vector has `largest_px`, without folds.

    Where the drawn one would press an area below 0.5 of itself, it is made smaller by steps.
    """
    knots = generator.standard_normal((2, _KNOTS, _KNOTS)).astype(np.float32)
    planes = [Image.fromarray(one).resize((side, side), Image.Resampling.BICUBIC) for one in knots]
    field = np.stack([np.asarray(plane) for plane in planes], axis=-1)
    field = field * np.float32(largest_px / np.hypot(field[..., 0], field[..., 1]).max())
    while jacobian(field).min() < _LEAST_JACOBIAN:
        field = field * np.float32(_SMALLER)
    return np.asarray(field, np.float32)


def jacobian(field: Field) -> Field:
    """The determinant at each pixel of p -> p + d(p): (rows, columns); below 0 the image folds over."""
    (row_by_row, row_by_column), (column_by_row, column_by_column) = (np.gradient(field[..., axis]) for axis in (0, 1))
    return np.asarray((1 + row_by_row) * (1 + column_by_column) - row_by_column * column_by_row, np.float32)


def warp(image: Grey, field: Field) -> Grey:
    """The warped image (rows, columns) uint8, interpolated linearly; beyond the border the border goes on."""
    places = np.moveaxis(field, -1, 0) + np.indices(image.shape, np.float32)
    return np.asarray(ndimage.map_coordinates(image, places, order=1, mode="nearest"), np.uint8)


def expose_mildly(image: Grey, generator: np.random.Generator) -> Grey:
    """Another exposure with the same detector: gamma, contrast, a little noise."""
    return _quantised(_noisy(_toned(image / 255, generator, most=0.15), generator, most=0.015))


def expose_strongly(image: Grey, generator: np.random.Generator) -> Grey:
    """Another exposure, detector and day: scatter, gamma, contrast, blur, noise, opacities, and tubes on top."""
    values = image / 255
    scatter = generator.uniform(0.2, 0.6)
    values = (1 - scatter) * values + scatter * ndimage.gaussian_filter(values, 0.08 * len(image))
    values = _toned(values, generator, most=0.4)
    for _ in range(int(generator.integers(1, 5))):
        values = _opacified(values, generator)
    for _ in range(int(generator.integers(0, 4))):
        values = _with_tube(values, generator)
    values = ndimage.gaussian_filter(values, generator.uniform(0.3, 1.6))
    values = _noisy(values, generator, most=0.03)
    low, high = np.percentile(values, (1, 99))  # as the program prepares every image
    return _quantised((values - low) / max(high - low, 0.01))


def _quantised(values: NDArray[Any]) -> Grey:
    return np.asarray(np.rint(values.clip(0, 1) * 255), np.uint8)


def _toned(values: NDArray[Any], generator: np.random.Generator, *, most: float) -> NDArray[Any]:
    gamma, contrast = np.exp(generator.uniform(-most, most, 2))
    toned: NDArray[Any] = (values.clip(0, 1) ** gamma - 0.5) * contrast + 0.5 + generator.uniform(-most, most) / 5
    return toned


def _noisy(values: NDArray[Any], generator: np.random.Generator, *, most: float) -> NDArray[Any]:
    """Noise of the photons, more where it is bright, over two pixels."""
    noise = ndimage.gaussian_filter(generator.standard_normal(values.shape), 0.6)
    noisy: NDArray[Any] = values + generator.uniform(0, most) * noise / noise.std() * np.sqrt(values.clip(0.05, 1))
    return noisy


def _opacified(values: NDArray[Any], generator: np.random.Generator) -> NDArray[Any]:
    side = values.shape[0]
    down, across = np.indices(values.shape)
    (row, column), reach = generator.uniform(0.15, 0.85, 2) * side, generator.uniform(0.03, 0.15) * side
    blob = np.exp(-((down - row) ** 2 + (across - column) ** 2) / (2 * reach**2))
    opacified: NDArray[Any] = values + generator.uniform(-0.1, 0.25) * blob
    return opacified


def _with_tube(values: NDArray[Any], generator: np.random.Generator) -> NDArray[Any]:
    """A bright line across the image, straight or bent, two to five pixels wide."""
    side = values.shape[0]
    share = np.linspace(0, 1, 4 * side)
    ends = generator.uniform(0, side, (3, 2))
    curve = (1 - share)[:, None] ** 2 * ends[0] + 2 * (share * (1 - share))[:, None] * ends[1]
    rows, columns = (curve + share[:, None] ** 2 * ends[2]).round().astype(int).clip(0, side - 1).T
    line = np.zeros(values.shape)
    line[rows, columns] = 1
    wide = ndimage.gaussian_filter(ndimage.grey_dilation(line, size=int(generator.integers(2, 6))), 0.7)
    tubed: NDArray[Any] = values + generator.uniform(0.1, 0.35) * wide
    return tubed
