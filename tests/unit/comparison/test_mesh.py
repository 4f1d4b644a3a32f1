"""The mesh: matches pull, springs hold, nothing folds."""

from __future__ import annotations

import numpy as np
import pytest

from fieldray.comparison.matching import IDENTITY, LEAST_JACOBIAN, Affine, least_jacobian, relaxed, warped
from fieldray.domain.comparison import FRAME_SIDE, sampled_at

GRID = np.stack(np.meshgrid(np.arange(20, 500, 40.0), np.arange(20, 500, 40.0), indexing="ij"), -1).reshape(-1, 2)


def test_without_matches_the_mesh_rests_where_the_springs_want_it() -> None:
    rest = Affine(np.array([[1.1, 0.0], [0.05, 0.9]]), np.array([3.0, -4.0]))
    field, moved = relaxed(GRID, GRID, np.zeros(len(GRID)), rest=rest)
    np.testing.assert_allclose(field, rest.displacement(), atol=1e-3)
    np.testing.assert_allclose(moved, rest.at(GRID) - GRID, atol=1e-6)
    # at row 100, column 200: 1.1 * 100 + 3 - 100 = 13; 0.05 * 100 + 0.9 * 200 - 4 - 200 = -19
    np.testing.assert_allclose(rest.displacement()[100, 200], (13, -19), atol=1e-4)


def test_matches_that_agree_are_followed() -> None:
    targets = GRID + 6 * np.sin(GRID / 120)
    field, moved = relaxed(GRID, targets, np.ones(len(GRID)), rest=IDENTITY, stiffness=0.1)
    np.testing.assert_allclose(moved, targets - GRID, atol=0.5)
    assert field.shape == (FRAME_SIDE, FRAME_SIDE, 2)
    assert field.dtype == np.float32


def test_matches_that_cross_do_not_fold_the_mesh() -> None:
    targets = GRID + np.random.default_rng(1).normal(0, 60, GRID.shape)
    field, _ = relaxed(GRID, targets, np.ones(len(GRID)), rest=IDENTITY, stiffness=0.01)
    assert least_jacobian(field) >= LEAST_JACOBIAN


def test_the_jacobian_tells_scale_and_folds() -> None:
    shrunk = Affine(np.diag([0.5, 0.8]), np.zeros(2)).displacement()
    assert least_jacobian(shrunk) == pytest.approx(0.4, abs=1e-4)
    mirrored = Affine(np.diag([1.0, -1.0]), np.zeros(2)).displacement()
    assert least_jacobian(mirrored) == pytest.approx(-1, abs=1e-4)


def test_warping_takes_what_lies_at_place_and_displacement() -> None:
    image = np.arange(48, dtype=np.float32).reshape(6, 8)
    shift = np.zeros((6, 8, 2), np.float32)
    shift[..., 0], shift[..., 1] = 1, 2
    np.testing.assert_array_equal(warped(image, shift)[:5, :6], image[1:, 2:])
    assert (warped(image, shift)[5] == 0).all()  # beyond the last row
    np.testing.assert_array_equal(warped(image, np.zeros((6, 8, 2))), image)


def test_samples_are_interpolated_by_channel() -> None:
    image = np.stack([[[0.0, 10.0], [20.0, 30.0]], [[1.0, 1.0], [1.0, 1.0]]], axis=-1)
    # a quarter down, half across: 0.75 * 5 + 0.25 * 25
    found = sampled_at(image, np.array([0.25]), np.array([0.5]))
    np.testing.assert_allclose(found, [[10.0, 1.0]])
