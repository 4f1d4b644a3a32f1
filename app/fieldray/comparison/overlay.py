"""The prior laid over the current image as a whole: moved, turned, scaled, and then by an affine mapping.

Where the lungs of both are gives the first guess; a coarse search over scales and angles, each place by one normalised
cross-correlation, decides. The same search with the prior mirrored, or with black and white swapped, says whether one
of the two images is: such images are named, never put right in silence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fieldray.comparison.features import Grey, band_pass, locally_normalised
from fieldray.comparison.mesh import Affine, sampled_at
from fieldray.comparison.ncc import correlate
from fieldray.domain.comparison import FRAME_SIDE
from fieldray.domain.mask import Mask

_COARSE: Final = 4  # pixels of the frame that one of the search stands for, each way
_REACH: Final = 20  # of those pixels: how far the search looks around the guess
_SCALES: Final = (0.87, 0.93, 1.0, 1.07, 1.15)
_ANGLES: Final = (-9.0, -4.5, 0.0, 4.5, 9.0)  # degrees
_MARGIN: Final = 0.1  # of the lungs' extent, around them
_WIDE: Final = (3.0, 24.0)  # band-pass of the search, pixels of the frame


@dataclass(frozen=True, slots=True)
class Overlay:
    """How the prior lies over the current image.

    similarity           NCC of the structure around the lungs, at this place
    mirrored_similarity  the best with the prior mirrored
    inverted_similarity  the best with the prior's black and white swapped
    """

    affine: Affine
    similarity: float
    mirrored_similarity: float
    inverted_similarity: float


def lay_over(prior: Grey, current: Grey, *, prior_lungs: Mask, current_lungs: Mask) -> Overlay:
    """The best of the coarse search. Structures as `structure` gives them; masks (rows, columns) with some lung."""
    small = _coarse(prior), _coarse(current)
    box = _box(current_lungs)
    scale = _extent(prior_lungs) / _extent(current_lungs)
    guess = _Guess(_centre(current_lungs), _centre(prior_lungs), scale)
    plain = _search(*small, box, guess)
    mirrored_guess = _Guess(guess.centre, _centre(prior_lungs[:, ::-1]), guess.scale)
    mirrored = _search(small[0][:, ::-1], small[1], box, mirrored_guess)
    return Overlay(
        affine=plain.affine,
        similarity=plain.best,
        mirrored_similarity=mirrored.best,
        inverted_similarity=-plain.worst,
    )


def structure(pixels: NDArray[np.uint8]) -> Grey:
    """An image (rows, columns) reduced to what lasts: ribs, heart and diaphragm, whatever the exposure."""
    return locally_normalised(band_pass(pixels, fine_px=_WIDE[0], coarse_px=_WIDE[1])[:, :, 0])


@dataclass(frozen=True, slots=True)
class _Found:
    affine: Affine
    best: float
    worst: float


@dataclass(frozen=True, eq=False, slots=True)
class _Guess:
    """Middles of the lungs in the current image and in the prior (pixels of the frame), and how much larger there."""

    centre: NDArray[np.float64]
    prior_centre: NDArray[np.float64]
    scale: float


def _search(prior: Grey, current: Grey, box: tuple[slice, slice], guess: _Guess) -> _Found:
    """Over scales and angles, all at once; `box` of the current image is the template."""
    template = current[box]
    matrices = [share * guess.scale * _turn(angle) for share in _SCALES for angle in _ANGLES]
    rows = np.arange(box[0].start - _REACH, box[0].stop + _REACH, dtype=np.float64)
    columns = np.arange(box[1].start - _REACH, box[1].stop + _REACH, dtype=np.float64)
    across, down = np.meshgrid(columns - guess.centre[1] / _COARSE, rows - guess.centre[0] / _COARSE)
    views = []
    for matrix in matrices:
        places = [
            matrix[axis, 0] * down + matrix[axis, 1] * across + guess.prior_centre[axis] / _COARSE for axis in range(2)
        ]
        views.append(sampled_at(prior, *places))
    surfaces = correlate(np.stack(views), template[None])
    one, row, column = np.unravel_index(int(surfaces.argmax()), surfaces.shape)
    shift = np.array([row - _REACH, column - _REACH], float) * _COARSE
    matrix = matrices[int(one)]
    # prior = matrix @ (current + shift - centre) + prior_centre
    affine = Affine(matrix, guess.prior_centre + matrix @ (shift - guess.centre))
    return _Found(affine, float(surfaces.max()), float(surfaces.min()))


def _turn(angle: float) -> NDArray[np.float64]:
    radians = np.deg2rad(angle)
    return np.array([[np.cos(radians), -np.sin(radians)], [np.sin(radians), np.cos(radians)]])


def _coarse(image: Grey) -> Grey:
    side = FRAME_SIDE // _COARSE
    means: Grey = image.reshape(side, _COARSE, side, _COARSE).mean(axis=(1, 3))
    return means


def _centre(lungs: Mask) -> NDArray[np.float64]:
    """Of the box around the lungs, in pixels of the frame: a large heart does not move it."""
    rows, columns = np.flatnonzero(lungs.any(axis=1)), np.flatnonzero(lungs.any(axis=0))
    return np.array([rows[0] + rows[-1], columns[0] + columns[-1]]) / 2


def _extent(lungs: Mask) -> float:
    """Width of the lungs: a deep breath changes it less than the height."""
    columns = np.flatnonzero(lungs.any(axis=0))
    return float(columns[-1] - columns[0] + 1)


def _box(lungs: Mask) -> tuple[slice, slice]:
    """Around the lungs with a margin, in pixels of the search."""
    spans = []
    for axis in (1, 0):
        filled = np.flatnonzero(lungs.any(axis=axis))
        more = _MARGIN * (filled[-1] - filled[0])
        start, stop = max(0.0, filled[0] - more), min(float(FRAME_SIDE), filled[-1] + more)
        spans.append(slice(int(start) // _COARSE, max(int(stop) // _COARSE, int(start) // _COARSE + 8)))
    return spans[0], spans[1]
