"""Outlines of the lungs: what is one, and where it pulls."""

from __future__ import annotations

import numpy as np
import pytest

from fieldray.comparison.compare import outline, outline_pull
from fieldray.comparison.matching import IDENTITY, Affine
from fieldray.domain.comparison import FRAME_SIDE

STILL = IDENTITY.displacement()


def disc(radius: float, *, column: float = 256) -> np.ndarray:
    """A mask of the frame."""
    down, across = np.mgrid[:FRAME_SIDE, :FRAME_SIDE]
    return np.asarray(np.hypot(down - 256, across - column) < radius)


def test_an_outline_is_the_rim_of_a_mask_and_of_the_frame() -> None:
    mask = np.zeros((6, 6), bool)
    mask[:4, :3] = True
    inside = {(row, column) for row in range(1, 3) for column in range(1, 2)}
    rim = {(row, column) for row in range(4) for column in range(3)} - inside
    assert {tuple(point) for point in outline(mask).astype(int)} == rim


def test_it_pulls_by_its_distance_less_a_slack() -> None:
    points, targets = outline_pull(outline(disc(110)), outline(disc(100)), STILL)
    pulled = np.hypot(*(targets - points).T)
    assert len(points) > 40
    assert np.median(pulled) == pytest.approx(8, abs=0.7)
    outward = ((targets - points) * (points - 256)).sum(axis=1)
    assert (outward > 0).all()


def test_nearly_the_same_outline_does_not_pull() -> None:
    points, targets = outline_pull(outline(disc(101)), outline(disc(100)), STILL)
    np.testing.assert_array_equal(points, targets)


def test_what_is_out_of_reach_does_not_pull() -> None:
    points, _ = outline_pull(outline(disc(40, column=400)), outline(disc(40, column=100)), STILL)
    assert len(points) == 0


def test_no_outline_pulls_nowhere() -> None:
    nothing = outline(np.zeros((FRAME_SIDE, FRAME_SIDE), bool))
    assert [len(found) for found in outline_pull(nothing, outline(disc(40)), STILL)] == [0, 0]
    assert [len(found) for found in outline_pull(outline(disc(40)), nothing, STILL)] == [0, 0]


def test_what_is_known_of_the_displacement_is_taken_into_account() -> None:
    aside = Affine(np.eye(2), np.array([0.0, 30.0])).displacement()
    points, targets = outline_pull(outline(disc(100, column=286)), outline(disc(100)), aside)
    np.testing.assert_allclose(targets - points, np.tile([0.0, 30.0], (len(points), 1)), atol=1e-3)
