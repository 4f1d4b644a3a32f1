"""Filtered images, normalised cross-correlation (NCC) of templates with images, and the spring mesh.

A filtered image shows structure without brightness: (rows, columns, channels) float32 of the size of the image.

NCC(F_i, T) = (F_i - mean F_i) . (T - mean T) / (|F_i - mean F_i| |T - mean T|), for every window F_i of the template's
size (valid mode). The numerator is a correlation with the centred template, by FFT (convolution theorem). The norm of a
window is the root of S2 - S1^2 / t: t pixels with sum S1 and sum of squares S2. The image is centred first, because the
difference of two large numbers would lose digits. References: D. Buniatyan, synopsis of the thesis on NCCNet, equation
4, with norms in the place of standard deviations; J. P. Lewis, Fast normalized cross-correlation, 1995.

The mesh turns matches into a smooth displacement over the frame. Matches pull at the nodes of the mesh, and springs
connect the nodes. Nodes lie `MESH_SPACING_PX` apart and extend one spacing beyond the frame. Between nodes the
displacement is a cubic B-spline, which adds no folds and no edges. Springs between neighbours resist unequal
displacement, and stiffer springs keep a row of nodes straight. All forces are linear, so the mesh at rest is the
solution of one linear system. References: S. Saalfeld et al., Elastic volume reconstruction from series of ultra-thin
microscopy sections, Nature Methods 2012; D. Rueckert et al., Nonrigid registration using free-form deformations, IEEE
TMI 1999.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fieldray.domain.comparison import FRAME_SIDE, sample_at

GreyFloatImage = NDArray[np.float32]

# Standard deviations of the two Gaussians of the band-pass, in pixels of a frame of 512.
FINE_SIGMA_PX: Final = 1.5
COARSE_SIGMA_PX: Final = 8.0
# Standard deviation of the Gaussian window for local mean and deviation, in pixels of a frame of 512.
LOCAL_SIGMA_PX: Final = 32.0
_REACH: Final = 3.5  # half width of a Gaussian filter, in standard deviations
_MIN_DEVIATION: Final = 2.0  # grey levels: flatter parts are noise, which must not look like structure


def band_pass(
    image: NDArray[Any], *, fine_px: float = FINE_SIGMA_PX, coarse_px: float = COARSE_SIGMA_PX
) -> GreyFloatImage:
    """Filter an image by a difference of two Gaussians. Returns (rows, columns, 1) float32.

    The result shows structures of the size of ribs and vessels. Finer noise and coarser brightness are removed.

    fine_px, coarse_px  standard deviations of the two Gaussians in pixels
    """
    grey = image.astype(np.float32)
    return (blur(grey, fine_px) - blur(grey, coarse_px))[..., None]


def blur(image: GreyFloatImage, sigma_px: float) -> GreyFloatImage:
    """Blur an image (rows, columns) with a Gaussian along rows and columns. The border is reflected."""
    down, across = _gaussian(image.shape[0], sigma_px), _gaussian(image.shape[1], sigma_px)
    smooth: GreyFloatImage = np.matmul(np.matmul(down, image), across.T)
    return smooth


def normalise_locally(image: NDArray[Any]) -> GreyFloatImage:
    """Subtract the local mean of an image and divide by the local standard deviation.

    The result hardly depends on exposure and processing.
    """
    grey = image.astype(np.float32)
    centred = grey - blur(grey, LOCAL_SIGMA_PX)
    deviation = np.sqrt(blur(np.square(centred), LOCAL_SIGMA_PX).clip(0, None))
    normal: GreyFloatImage = (centred / np.maximum(deviation, _MIN_DEVIATION)).astype(np.float32, copy=False)
    return normal


@lru_cache(maxsize=32)
def _gaussian(size: int, sigma_px: float) -> GreyFloatImage:
    """Return the weights (size, size) of a Gaussian filter; each row adds up to 1.

    The filter is a matrix, because a matrix product is the fastest way to filter in NumPy.
    """
    reach = min(int(np.ceil(_REACH * sigma_px)), size - 1)
    offsets = np.arange(-reach, reach + 1)
    weights = np.exp(-0.5 * np.square(offsets / sigma_px)) if sigma_px > 0 else (offsets == 0).astype(float)
    indices = np.arange(size)[:, None] + offsets
    indices = np.where(indices < 0, -indices - 1, indices)
    indices = np.where(indices >= size, 2 * size - indices - 1, indices)
    matrix = np.zeros((size, size))
    np.add.at(matrix, (np.arange(size)[:, None], indices), weights / weights.sum())
    return matrix.astype(np.float32)


CorrelationSurface = NDArray[np.float64]

# A window is flat if its variance is below this share of the image's mean square. Rounding errors are far smaller.
_FLAT_SHARE: Final = 1e-9


def correlate(searches: NDArray[Any], templates: NDArray[Any]) -> CorrelationSurface:
    """Return the normalised cross-correlation (NCC) of templates with every window of images, n pairs at a time.

    Parameters
    ----------
    searches
        Images to search: (n, rows, columns) or (n, rows, columns, channels). One image may serve all templates (n = 1).
    templates
        (n, height, width), or with as many channels as the images. A template is no larger than the images. One
        template may serve all images (n = 1).

    Returns
    -------
    (n, rows - height + 1, columns - width + 1) float64 in -1..1, the mean over channels. The value is 0 where the
    window or the template is flat.

    Raises
    ------
    ValueError
        If a template is larger than the image, if the channels differ, or if the templates are empty.
    """
    images, patterns = _with_channels(searches), _with_channels(templates)
    (rows, columns), (height, width) = images.shape[2:], patterns.shape[2:]
    if images.shape[1] != patterns.shape[1] or height > rows or width > columns or not patterns.size:
        raise ValueError(f"templates {templates.shape} do not fit into {searches.shape}")
    images = images - images.mean(axis=(2, 3), keepdims=True)
    patterns = patterns - patterns.mean(axis=(2, 3), keepdims=True)
    products = _products(images, patterns)
    energies = _energies(images, height, width)
    norms = np.square(patterns).sum(axis=(2, 3), keepdims=True)
    least = _FLAT_SHARE * height * width * np.square(images).mean(axis=(2, 3), keepdims=True)
    least_norm = _FLAT_SHARE * height * width * np.square(_with_channels(templates)).mean(axis=(2, 3), keepdims=True)
    is_flat = (energies <= least) | (norms <= least_norm)
    scale = np.sqrt(np.where(is_flat, 1.0, energies * norms))
    surface: CorrelationSurface = np.where(is_flat, 0.0, products / scale).clip(-1, 1).mean(axis=1)
    return surface


def _with_channels(arrays: NDArray[Any]) -> NDArray[np.float64]:
    """Convert (n, rows, columns) or (n, rows, columns, channels) to (n, channels, rows, columns) float64."""
    if arrays.ndim not in (3, 4):
        raise ValueError(f"(n, rows, columns) or (n, rows, columns, channels), not {arrays.shape}")
    wide = arrays[:, None] if arrays.ndim == 3 else np.moveaxis(arrays, 3, 1)
    return wide.astype(np.float64)


def _products(images: NDArray[np.float64], patterns: NDArray[np.float64]) -> NDArray[np.float64]:
    """Correlate images with patterns in all windows, by FFT: the numerator of the NCC.

    The FFT needs only the image's size, because windows inside the image do not wrap around.
    """
    (rows, columns), (height, width) = images.shape[2:], patterns.shape[2:]
    spectrum = np.fft.rfft2(images) * np.conj(np.fft.rfft2(patterns, s=(rows, columns)))
    return np.fft.irfft2(spectrum, s=(rows, columns))[:, :, : rows - height + 1, : columns - width + 1]


def _energies(images: NDArray[np.float64], height: int, width: int) -> NDArray[np.float64]:
    """Return the squared norm of every centred window: the sum of squares minus S1^2 / t, 0 or more.

    S1 is the sum over the window, and t the number of pixels in the window.
    """
    sums, squares = _window_sums(images, height, width), _window_sums(np.square(images), height, width)
    energies: NDArray[np.float64] = (squares - np.square(sums) / (height * width)).clip(0, None)
    return energies


def _window_sums(values: NDArray[np.float64], height: int, width: int) -> NDArray[np.float64]:
    """Return the sum of the values in every window (height, width), from cumulative sums."""
    totals = np.zeros((*values.shape[:2], values.shape[2] + 1, values.shape[3] + 1))
    np.cumsum(values, axis=2, out=totals[:, :, 1:, 1:])
    np.cumsum(totals[:, :, 1:, 1:], axis=3, out=totals[:, :, 1:, 1:])
    down = totals[:, :, height:] - totals[:, :, :-height]
    sums: NDArray[np.float64] = down[:, :, :, width:] - down[:, :, :, :-width]
    return sums


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Peaks:
    """The highest value of each of n correlation surfaces, and the second highest value at a distance from the first.

    rows, columns   (n,) float64: position of the highest value, to a fraction of a pixel
    highest         (n,) float64: the highest value
    second_highest  (n,) float64: the highest value at `exclusion_px` or more from the first value
    is_at_border    (n,) bool: whether the highest value is at the border, so that the true position may be outside
    """

    rows: NDArray[np.float64]
    columns: NDArray[np.float64]
    highest: NDArray[np.float64]
    second_highest: NDArray[np.float64]
    is_at_border: NDArray[np.bool_]


def find_peaks(surfaces: CorrelationSurface, *, exclusion_px: int) -> Peaks:
    """Find the highest value of each surface, and the second highest value at a distance from the first.

    Parameters
    ----------
    surfaces
        Correlation surfaces (n, rows, columns), as `correlate` returns them.
    exclusion_px
        Minimum distance of the second value from the first, in rows or in columns. A nearer value would belong to the
        slope of the first peak.

    Raises
    ------
    ValueError
        If the surface is too small for the exclusion zone.
    """
    number, rows, columns = surfaces.shape
    if exclusion_px < 1 or max(rows, columns) // 2 < exclusion_px:
        raise ValueError(f"a surface of {rows} x {columns} is too small for an exclusion of {exclusion_px} px")
    best = surfaces.reshape(number, -1).argmax(axis=1)
    row, column = np.divmod(best, columns)
    each = np.arange(number)
    away_down = np.abs(np.arange(rows)[None, :] - row[:, None]) >= exclusion_px
    away_across = np.abs(np.arange(columns)[None, :] - column[:, None]) >= exclusion_px
    outside = away_down[:, :, None] | away_across[:, None, :]
    second = np.where(outside, surfaces, -np.inf).reshape(number, -1).max(axis=1)
    return Peaks(
        rows=row + _vertex(surfaces, each, row, column, axis=1),
        columns=column + _vertex(surfaces, each, row, column, axis=2),
        highest=surfaces[each, row, column],
        second_highest=second,
        is_at_border=(row == 0) | (row == rows - 1) | (column == 0) | (column == columns - 1),
    )


def subpixel_bias(images: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return, for each template, how far `find_peaks` misses the position of an exact copy in an image.

    The parabola fit of `find_peaks` has this bias: a window that moves loses some pixels and gains different pixels, so
    the two neighbours of an exact peak differ in height. Subtract the bias from the positions of `find_peaks`.

    Parameters
    ----------
    images
        Templates with one more pixel on each side: (n, side + 2, side + 2), or with channels.

    Returns
    -------
    The bias in rows and in columns, in pixels: (n,) float64 each, -0.5..0.5.
    """
    values = _with_channels(images)
    side = values.shape[2] - 2
    template = _unit(values[:, :, 1:-1, 1:-1])
    surfaces = np.zeros((len(values), 3, 3))
    for row, column in ((1, 1), (0, 1), (2, 1), (1, 0), (1, 2)):
        window = _unit(values[:, :, row : row + side, column : column + side])
        surfaces[:, row, column] = np.einsum("ncij,ncij->nc", window, template).mean(axis=1)
    each, middle = np.arange(len(values)), np.ones(len(values), np.intp)
    return _vertex(surfaces, each, middle, middle, axis=1), _vertex(surfaces, each, middle, middle, axis=2)


def _unit(windows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Centre windows and scale them to length 1. Flat windows become 0."""
    centred = windows - windows.mean(axis=(2, 3), keepdims=True)
    unit: NDArray[np.float64] = centred / np.sqrt(np.square(centred).sum(axis=(2, 3), keepdims=True)).clip(1e-12, None)
    return unit


def join_peaks(parts: Sequence[Peaks]) -> Peaks:
    """Join the results of several calls of `find_peaks` into one object, in the order of `parts`."""
    return Peaks(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in Peaks.__slots__})


def _vertex(
    surfaces: CorrelationSurface, each: NDArray[np.intp], row: NDArray[np.intp], column: NDArray[np.intp], *, axis: int
) -> NDArray[np.float64]:
    """Return the subpixel offset (-0.5..0.5) of a peak, from a parabola through the peak and its two neighbours."""
    last = surfaces.shape[axis] - 1
    index = row if axis == 1 else column
    before, behind = (index - 1).clip(0), (index + 1).clip(None, last)
    rows = (before, behind) if axis == 1 else (row, row)
    columns = (column, column) if axis == 1 else (before, behind)
    left, top, right = (
        surfaces[each, rows[0], columns[0]],
        surfaces[each, row, column],
        surfaces[each, rows[1], columns[1]],
    )
    bend = left - 2 * top + right
    shift = np.where(bend < 0, 0.5 * (left - right) / np.where(bend < 0, bend, -1.0), 0.0)
    found: NDArray[np.float64] = np.where((index > 0) & (index < last), shift, 0.0).clip(-0.5, 0.5)
    return found


Points = NDArray[np.float64]
Displacement = NDArray[np.float32]

MESH_SPACING_PX: Final = 32
_NODES: Final = FRAME_SIDE // MESH_SPACING_PX + 3
_STRETCH: Final = 0.02
_BEND: Final = 0.2
MIN_JACOBIAN: Final = 0.15
_STIFFER: Final = 2.0
_MAX_TRIES: Final = 16


@dataclass(frozen=True, eq=False, slots=True)
class Affine:
    """An affine mapping from the current frame to the prior's frame: prior = matrix @ current + offset.

    Positions are (row, column) in pixels of the frames (pixel centres).
    """

    matrix: NDArray[np.float64]
    offset: NDArray[np.float64]

    def map_points(self, points: Points) -> Points:
        """Map points (n, 2) of the current frame to the prior's frame."""
        return points @ self.matrix.T + self.offset

    def displacement(self) -> Displacement:
        """Return the displacement (rows, columns, 2) of the mapping over the whole frame, in pixels."""
        rows, columns = np.arange(FRAME_SIDE)[:, None, None], np.arange(FRAME_SIDE)[None, :, None]
        moved = rows * (self.matrix[:, 0] - (1, 0)) + columns * (self.matrix[:, 1] - (0, 1)) + self.offset
        return moved.astype(np.float32)


IDENTITY_AFFINE: Final = Affine(np.eye(2), np.zeros(2))


def relax_mesh(
    points: Points, targets: Points, weights: NDArray[np.float64], *, rest: Affine, stiffness: float = 1.0
) -> tuple[Displacement, Points]:
    """Return the displacement of the mesh when the pull of the matches balances the pull of the springs.

    Parameters
    ----------
    points, targets
        (n, 2) rows and columns: positions of matches in the current frame and in the prior's frame.
    weights
        (n,) 0 or more: the strength with which each match pulls.
    rest
        The mapping to which the springs pull.
    stiffness
        Stiffness of the springs. The stiffness is doubled until the mesh has no folds.

    Returns
    -------
    The displacement over the frame (rows, columns, 2) float32, and the displacement at the points (n, 2) float64, both
    in pixels. If no stiffness prevents folds, both displacements are taken from `rest`.
    """
    down, across = _weights(points[:, 0]), _weights(points[:, 1])
    basis = (down[:, :, None] * across[:, None, :]).reshape(len(points), -1)  # (n, nodes * nodes)
    pull = targets - rest.map_points(points)
    straight = rest.displacement()
    for _ in range(_MAX_TRIES):
        matrix = basis.T @ (weights[:, None] * basis) + stiffness * _springs()
        nodes = np.linalg.solve(matrix, np.matmul(basis.T, weights[:, None] * pull))
        field: Displacement = np.add(straight, _over_frame(np.asarray(nodes, np.float64)))
        if min_jacobian(field) >= MIN_JACOBIAN:
            return field, basis @ nodes + rest.map_points(points) - points
        stiffness *= _STIFFER
    return straight, rest.map_points(points) - points


def min_jacobian(displacement: Displacement) -> float:
    """Return the smallest Jacobian determinant of position + displacement, over all 2 x 2 squares of pixels.

    A value of 0 or less means that the displacement folds the image.
    """
    down, across = np.diff(displacement, axis=0), np.diff(displacement, axis=1)
    least = np.inf
    for rows in (down[:, :-1], down[:, 1:]):
        for columns in (across[:-1], across[1:]):
            determinant = (1 + rows[..., 0]) * (1 + columns[..., 1]) - rows[..., 1] * columns[..., 0]
            least = min(least, float(determinant.min()))
    return least


# ---- splines and springs


def _weights(offsets: NDArray[Any]) -> Points:
    """Return the weights (n, nodes) of a cubic B-spline at n positions along one side, in pixels."""
    scaled = np.asarray(offsets, np.float64) / MESH_SPACING_PX + 1  # node 0 lies one spacing before the frame
    distance = np.abs(scaled[:, None] - np.arange(_NODES))
    near = 2 / 3 - np.square(distance) + 0.5 * distance**3
    far = (2 - distance.clip(0, 2)) ** 3 / 6
    weights: Points = np.where(distance < 1, near, far)
    return weights


def _over_frame(nodes: Points) -> Displacement:
    along = _along_frame()
    grid = nodes.reshape(_NODES, _NODES, 2).astype(np.float32)
    field = np.stack([along @ grid[:, :, axis] @ along.T for axis in range(2)], axis=-1)
    return np.ascontiguousarray(field, np.float32)


@lru_cache(maxsize=1)
def _along_frame() -> NDArray[np.float32]:
    return _weights(np.arange(FRAME_SIDE)).astype(np.float32)


@lru_cache(maxsize=1)
def _springs() -> Points:
    """Return the matrix (nodes * nodes, nodes * nodes) of the springs' energy, for displacements of the nodes."""
    stretch, bend, one = np.diff(np.eye(_NODES), axis=0), np.diff(np.eye(_NODES), 2, axis=0), np.eye(_NODES)
    energy = np.zeros((_NODES**2, _NODES**2))
    for weight, difference in ((_STRETCH, stretch), (_BEND, bend)):
        along = difference.T @ difference
        energy += weight * (np.kron(along, one) + np.kron(one, along))
    twist = stretch.T @ stretch
    energy += 2 * _BEND * np.kron(twist, twist) + 1e-9 * np.eye(_NODES**2)
    return energy


# ---- warping


def warp(image: NDArray[Any], displacement: NDArray[Any]) -> NDArray[np.float32]:
    """Warp an image of the prior to the current image, with linear interpolation; 0 beyond the border.

    Parameters
    ----------
    image
        (rows, columns) or (rows, columns, channels).
    displacement
        (height, width, 2) rows and columns, in pixels of `image`.
    """
    rows = np.arange(displacement.shape[0], dtype=np.float32)[:, None] + displacement[..., 0]
    columns = np.arange(displacement.shape[1], dtype=np.float32)[None, :] + displacement[..., 1]
    return sample_at(image, rows, columns)


def points_in_prior(points: Points, displacement: Displacement) -> Points:
    """Map points (n, 2) of the current frame to the prior's frame by a displacement."""
    rows, columns = (points[:, axis].clip(0, FRAME_SIDE - 1) for axis in range(2))
    return points + sample_at(displacement, rows, columns)
