"""A spring mesh over the frame: matches pull at it, springs hold it together, and its rest is the displacement.

Nodes lie `SPACING_PX` apart and reach one spacing beyond the frame. Between them the displacement is a cubic B-spline,
which has no folds and no edges of its own. Springs between neighbours want both ends displaced alike, and stiffer ones
want what lies in a row to stay in it. All of it is linear, so that the rest is found by solving one system. References:
S. Saalfeld et al., Elastic volume reconstruction from series of ultra-thin microscopy sections, Nature Methods 2012;
D. Rueckert et al., Nonrigid registration using free-form deformations, IEEE TMI 1999.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fieldray.domain.comparison import FRAME_SIDE

Points = NDArray[np.float64]
Displacement = NDArray[np.float32]

SPACING_PX: Final = 32
_NODES: Final = FRAME_SIDE // SPACING_PX + 3
_STRETCH: Final = 0.02
_BEND: Final = 0.2
LEAST_JACOBIAN: Final = 0.15
_STIFFER: Final = 2.0
_MOST_TRIES: Final = 16


@dataclass(frozen=True, eq=False, slots=True)
class Affine:
    """prior = matrix @ current + offset, both as (row, column) in pixels of their frames (pixel centres)."""

    matrix: NDArray[np.float64]
    offset: NDArray[np.float64]

    def at(self, points: Points) -> Points:
        """Where points (n, 2) lead."""
        return points @ self.matrix.T + self.offset

    def displacement(self) -> Displacement:
        """Over the whole frame."""
        rows, columns = np.arange(FRAME_SIDE)[:, None, None], np.arange(FRAME_SIDE)[None, :, None]
        moved = rows * (self.matrix[:, 0] - (1, 0)) + columns * (self.matrix[:, 1] - (0, 1)) + self.offset
        return moved.astype(np.float32)


IDENTITY: Final = Affine(np.eye(2), np.zeros(2))


def relaxed(
    points: Points, targets: Points, weights: NDArray[np.float64], *, rest: Affine, stiffness: float = 1.0
) -> tuple[Displacement, Points]:
    """The mesh at rest.

    Parameters
    ----------
    points, targets
        (n, 2) rows and columns: where matches lie in the current frame and in the prior's.
    weights
        (n,) 0 or more: how hard each pulls.
    rest
        Where the springs want everything to be.
    stiffness
        Of the springs; doubled until nothing is folded.

    Returns
    -------
    The displacement over the frame, and what it is at the points (n, 2), float64.
    """
    basis = _at(points)
    pull = targets - rest.at(points)
    straight = rest.displacement()
    for _ in range(_MOST_TRIES):
        nodes = _solved(basis, pull, weights, stiffness)
        field = straight + _over_frame(nodes)
        if least_jacobian(field) >= LEAST_JACOBIAN:
            return field, basis @ nodes + rest.at(points) - points
        stiffness *= _STIFFER
    return straight, rest.at(points) - points


def _solved(basis: Points, pull: Points, weights: NDArray[np.float64], stiffness: float) -> Points:
    matrix = basis.T @ (weights[:, None] * basis) + stiffness * _springs()
    return np.linalg.solve(matrix, basis.T @ (weights[:, None] * pull))


def least_jacobian(displacement: Displacement) -> float:
    """Smallest determinant of the derivative of place + displacement, over all squares of four pixels."""
    down, across = np.diff(displacement, axis=0), np.diff(displacement, axis=1)
    least = np.inf
    for rows in (down[:, :-1], down[:, 1:]):
        for columns in (across[:-1], across[1:]):
            determinant = (1 + rows[..., 0]) * (1 + columns[..., 1]) - rows[..., 1] * columns[..., 0]
            least = min(least, float(determinant.min()))
    return least


# ---- splines and springs


def _weights(places: NDArray[Any]) -> Points:
    """(n, nodes) weights of a cubic B-spline at places along one side, in pixels."""
    scaled = np.asarray(places, np.float64) / SPACING_PX + 1  # node 0 lies one spacing before the frame
    distance = np.abs(scaled[:, None] - np.arange(_NODES))
    near = 2 / 3 - np.square(distance) + 0.5 * distance**3
    far = (2 - distance.clip(0, 2)) ** 3 / 6
    weights: Points = np.where(distance < 1, near, far)
    return weights


def _at(points: Points) -> Points:
    """(n, nodes * nodes) weights of the nodes at points."""
    down, across = _weights(points[:, 0]), _weights(points[:, 1])
    return (down[:, :, None] * across[:, None, :]).reshape(len(points), -1)


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
    """The springs' energy as a matrix (nodes * nodes, nodes * nodes)."""
    stretch, bend, one = np.diff(np.eye(_NODES), axis=0), np.diff(np.eye(_NODES), 2, axis=0), np.eye(_NODES)
    energy = np.zeros((_NODES**2, _NODES**2))
    for weight, difference in ((_STRETCH, stretch), (_BEND, bend)):
        along = difference.T @ difference
        energy += weight * (np.kron(along, one) + np.kron(one, along))
    twist = stretch.T @ stretch
    energy += 2 * _BEND * np.kron(twist, twist) + 1e-9 * np.eye(_NODES**2)
    return energy


# ---- warping


def warped(image: NDArray[Any], displacement: NDArray[Any]) -> NDArray[np.float32]:
    """An image of the prior in the current image's place, interpolated linearly; beyond its border 0.

    Parameters
    ----------
    image
        (rows, columns) or (rows, columns, channels).
    displacement
        (height, width, 2) rows and columns in pixels of `image`.
    """
    rows = np.arange(displacement.shape[0], dtype=np.float32)[:, None] + displacement[..., 0]
    columns = np.arange(displacement.shape[1], dtype=np.float32)[None, :] + displacement[..., 1]
    return sampled_at(image, rows, columns)


def sampled_at(image: NDArray[Any], rows: NDArray[Any], columns: NDArray[Any]) -> NDArray[np.float32]:
    """Values of an image at places (index 0 is the centre of the first pixel), interpolated linearly; beyond it 0."""
    height, width = image.shape[:2]
    values = image.reshape(height * width, -1).astype(np.float32, copy=False)
    top, left = np.floor(rows.clip(0, height - 1)).astype(np.intp), np.floor(columns.clip(0, width - 1)).astype(np.intp)
    top, left = np.minimum(top, max(height - 2, 0)), np.minimum(left, max(width - 2, 0))
    down = (rows - top).astype(np.float32).clip(0, 1)[..., None]
    across = (columns - left).astype(np.float32).clip(0, 1)[..., None]
    first = top * width + left
    below, right = (width if height > 1 else 0), (1 if width > 1 else 0)
    upper = values[first] * (1 - across) + values[first + right] * across
    lower = values[first + below] * (1 - across) + values[first + below + right] * across
    mixed = upper * (1 - down) + lower * down
    is_inside = (rows > -1) & (rows < height) & (columns > -1) & (columns < width)
    mixed *= is_inside[..., None]
    found: NDArray[np.float32] = mixed.reshape(*rows.shape, *image.shape[2:])
    return found


def points_in_prior(points: Points, field: Displacement) -> Points:
    """Where points (n, 2) of the current frame lie in the prior's."""
    rows, columns = (points[:, axis].clip(0, FRAME_SIDE - 1) for axis in range(2))
    return points + sampled_at(field, rows, columns)
