"""Chest images drawn by code."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fieldray.imaging.discover import discover
from fieldray.imaging.synthetic import chest_phantom, write_studies


def test_the_same_seed_gives_the_same_image() -> None:
    first, again, other = (chest_phantom(200, 160, seed, abnormal=False) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).mean() > 0.5
    assert first.dtype == np.uint16
    assert first.max() <= 4095


def test_lungs_are_dark_the_spine_is_bright_and_opacities_show() -> None:
    for seed in range(5):
        normal, abnormal = (chest_phantom(400, 400, seed, abnormal=flag).astype(float) for flag in (False, True))
        spine, lung = normal[100:300, 195:205].mean(), normal[100:250, 100:140].mean()
        assert spine > lung + 400
        brighter = abnormal - normal
        # the border is drawn in both alike; the opacity adds, and only inside the lungs
        assert np.percentile(brighter, 99.5) > 300
        assert (np.abs(brighter) < 5).mean() > 0.6


def test_written_studies_are_found_by_discovery(tmp_path: Path) -> None:
    written = write_studies(tmp_path / "demo", count=4)
    refs = list(discover([tmp_path]))
    assert tuple(ref.path for ref in refs) == written
    assert len({ref.patient_study_key for ref in refs}) == 4
    assert {(ref.header.modality, ref.header.body_part_examined, ref.header.view_position) for ref in refs} == {
        ("DX", "CHEST", "PA")
    }
    assert all(path.read_bytes()[:128] == bytes(128) for path in written)
