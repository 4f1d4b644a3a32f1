"""The benchmark of the comparison: warps, copies and opacities that it makes have the stated truth."""

from __future__ import annotations

import numpy as np

from benchmarks.comparison_pairs import insert_opacity, make_warped_copy, part_of_patient, random_displacement
from fieldray.comparison.matching import min_jacobian, warp
from pairs import chest


def test_all_images_of_a_patient_are_in_one_part() -> None:
    parts = [part_of_patient(f"patient {number}") for number in range(200)]
    assert parts == [part_of_patient(f"patient {number}") for number in range(200)]
    assert 60 < parts.count("choose") < 140


def test_warps_reach_half_to_all_of_8_percent_and_do_not_fold() -> None:
    generator = np.random.default_rng(1)
    for _ in range(5):
        warp = random_displacement(generator)
        assert 0.04 * 512 - 0.1 <= np.hypot(warp[..., 0], warp[..., 1]).max() <= 0.08 * 512 + 0.1
        assert min_jacobian(warp) > 0


def test_a_warped_copy_has_at_each_position_the_pixel_at_position_plus_displacement() -> None:
    copy = make_warped_copy(chest(), np.random.default_rng(2))
    expected = warp(chest().pixels, copy.displacement)
    assert np.corrcoef(expected.ravel(), copy.image.pixels.ravel())[0, 1] > 0.99


def test_an_opacity_is_denser_in_its_core_and_nothing_else_changes() -> None:
    image, core = insert_opacity(chest(), np.random.default_rng(3))
    more = image.pixels.astype(int) - chest().pixels
    assert more[core].min() >= 0
    assert more[core].mean() > 2
    assert (more < 0).sum() == 0
    assert core.any()
