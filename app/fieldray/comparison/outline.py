"""Outlines of the lungs, which want to lie over each other where templates find nothing to hold on to."""

from __future__ import annotations

from typing import Final

import numpy as np

from fieldray.comparison.mesh import Displacement, Points, points_in_prior
from fieldray.domain.mask import Mask

_EVERY: Final = 8  # points along an outline
_SLACK_PX: Final = 2.0  # two outlines of the same lungs differ by as much for nothing
_REACH_PX: Final = 48.0


def outline(lungs: Mask) -> Points:
    """Pixels (n, 2) of a mask (rows, columns) that touch what is not of it."""
    padded = np.pad(lungs, 1)
    inner = padded[:-2, 1:-1] & padded[2:, 1:-1] & padded[1:-1, :-2] & padded[1:-1, 2:]
    return np.argwhere(lungs & ~inner).astype(np.float64)


def outline_pull(prior: Points, current: Points, field: Displacement) -> tuple[Points, Points]:
    """Points of the current outline, and where in the prior its outline wants each to be.

    Parameters
    ----------
    prior, current
        (n, 2) each, as `outline` gives them.
    field
        What is known of the displacement, from the current frame to the prior's.

    Returns
    -------
    Points of the current frame (m, 2) and of the prior's (m, 2): those nearest on the prior's outline, less a slack.
    Points that have none within reach are left out.
    """
    if not len(prior) or not len(current):
        return np.zeros((0, 2)), np.zeros((0, 2))
    points = current[::_EVERY]
    places = points_in_prior(points, field)
    away = prior[None] - places[:, None]
    distances = np.sqrt(np.square(away).sum(axis=2))
    nearest, each = distances.argmin(axis=1), np.arange(len(points))
    distance = distances[each, nearest]
    share = (distance - _SLACK_PX).clip(0, None) / distance.clip(_SLACK_PX, None)
    targets = places + share[:, None] * away[each, nearest]
    is_near = distance < _REACH_PX
    return points[is_near], targets[is_near]
