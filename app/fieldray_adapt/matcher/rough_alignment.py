"""One image laid over another roughly: shift, scale along each axis, rotation, by the best correlation of both, small.

Two images of one patient may lie a fifth of their side apart. What learns or matches in windows of some tens of pixels
needs them nearer than that. The result is an image that has been moved: nobody is told how.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import fft, ndimage

Grey = NDArray[np.uint8]
Matrix = tuple[float, float, float, float, float, float]
_SIDE: Final = 64
_SCALES: Final = (-0.24, -0.16, -0.08, 0.0, 0.08, 0.16, 0.24)
"""In powers of e; first alike along both axes, then apart by a step."""
_APART: Final = (-0.08, 0.0, 0.08)
_DEGREES: Final = (-6.0, -3.0, 0.0, 3.0, 6.0)
_FINE, _COARSE = 1.0, 8.0
_LEAST_SHARED: Final = 0.5
_LEAST: Final = 1e-9
_SIZE: Final = (2 * _SIDE, 2 * _SIDE)


def roughly_aligned(moving: Grey, fixed: Grey) -> tuple[Grey, float]:
    """The moving image over the fixed one, both (side, side) uint8, and how well they then correlate, -1..1."""
    target, small = _Target(fixed), _small(moving)
    alike = [(degrees, scale, scale) for degrees in _DEGREES for scale in _SCALES]
    degrees, down, across = max(alike, key=lambda motion: target.compare(small, motion)[0])
    nearby = [(degrees, down + more, across + other) for more in _APART for other in _APART]
    score, matrix = max((target.compare(small, motion) for motion in nearby), key=lambda found: found[0])
    scale = len(fixed) / _SIDE
    whole = (matrix[0], matrix[1], matrix[2] * scale, matrix[3], matrix[4], matrix[5] * scale)
    return _moved(moving, whole), score


class _Target:
    """The fixed image, small, in spectra that all motions are compared with."""

    def __init__(self, fixed: Grey) -> None:
        details = _details(_small(fixed))
        self._spectra = [fft.rfft2(plane, _SIZE) for plane in (details, details**2, np.ones_like(details))]

    def compare(self, small: Grey, motion: tuple[float, float, float]) -> tuple[float, Matrix]:
        """How well an image fits that was turned and scaled so, at the best shift, and the whole motion."""
        degrees, down, across = motion
        matrix = _about_middle(degrees, math.exp(down), math.exp(across))
        score, (rows, columns) = self._best_shift(_details(_moved(small, matrix)))
        return score, _shifted(matrix, rows, columns)

    def _best_shift(self, moved: NDArray[np.float64]) -> tuple[float, tuple[int, int]]:
        """The cosine of what both share, of those shifts at which they share half their area or more."""
        values, squares, inside = self._spectra
        own, own_squares, own_inside = (
            np.conj(fft.rfft2(plane, _SIZE)) for plane in (moved, moved**2, np.ones_like(moved))
        )
        products = fft.irfft2(values * own, _SIZE)
        norms = fft.irfft2(squares * own_inside, _SIZE) * fft.irfft2(inside * own_squares, _SIZE)
        is_wide = fft.irfft2(inside * own_inside, _SIZE) > _LEAST_SHARED * _SIDE**2
        cosines = np.where(is_wide, products / np.sqrt(np.maximum(norms, _LEAST)), -1.0)
        row, column = np.unravel_index(int(cosines.argmax()), _SIZE)
        rows, columns = ((int(place) + _SIDE) % (2 * _SIDE) - _SIDE for place in (row, column))
        return float(cosines.max()), (rows, columns)


def _small(image: Grey) -> Grey:
    return np.asarray(Image.fromarray(image).resize((_SIDE, _SIDE), Image.Resampling.BOX))


def _details(image: Grey) -> NDArray[np.float64]:
    values = image.astype(np.float64)
    return np.asarray(ndimage.gaussian_filter(values, _FINE) - ndimage.gaussian_filter(values, _COARSE))


def _about_middle(degrees: float, down: float, across: float) -> Matrix:
    """From a place (x, y) of the result to one of the source, in pixels of the small image."""
    cosine, sine, middle = math.cos(math.radians(degrees)), math.sin(math.radians(degrees)), _SIDE / 2
    a, b, d, e = cosine * across, sine * down, -sine * across, cosine * down
    return (a, b, middle - (a + b) * middle, d, e, middle - (d + e) * middle)


def _shifted(matrix: Matrix, rows: int, columns: int) -> Matrix:
    """The result moved down and right by so many pixels."""
    a, b, c, d, e, f = matrix
    return (a, b, c - a * columns - b * rows, d, e, f - d * columns - e * rows)


def _moved(image: Grey, matrix: Matrix) -> Grey:
    picture = Image.fromarray(image)
    return np.asarray(
        picture.transform(picture.size, Image.Transform.AFFINE, matrix, resample=Image.Resampling.BILINEAR)
    )
