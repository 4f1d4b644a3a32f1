"""What `fieldray compare` writes into a folder, and what it takes away."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fieldray.domain.comparison import (
    DENSER,
    FRAME_SIDE,
    Aligned,
    Alignment,
    ChangeRegion,
    Incomparable,
    PairComparison,
)
from fieldray.domain.image import Box
from fieldray.errors import UsageProblem
from fieldray.reasons import reason
from fieldray.reports.images import pair_overlay, pair_text, require_pair_files, write_comparison
from pairs import chest

REGION = ChangeRegion(box=Box(top=100, left=50, rows=40, columns=60), area_px=1800, strength=6.25)


@pytest.fixture
def compared() -> PairComparison:
    change = np.zeros((FRAME_SIDE, FRAME_SIDE), np.float32)
    change[100:140, 50:110] = 6.25
    alignment = Alignment(
        displacement=np.full((FRAME_SIDE, FRAME_SIDE, 2), 3.0, np.float32),
        matches=(),
        similarity_before=0.2,
        similarity_after=0.6,
        least_jacobian=1.0,
    )
    aligned = Aligned(alignment=alignment, warped_prior=chest().pixels.copy(), change=change, regions=(REGION,))
    return PairComparison(prior=chest(), current=chest(), aligned=aligned)


@pytest.fixture
def refused() -> PairComparison:
    return PairComparison(prior=chest(), current=chest(), problem=Incomparable(reason=reason("compare_unlike")))


def test_three_files_and_none_of_a_refused_pair(
    tmp_path: Path, compared: PairComparison, refused: PairComparison
) -> None:
    written = write_comparison(tmp_path, compared, inputs=())
    assert {path.name for path in written} == {"warped_prior.png", "overlay.png", "displacement.npy"}
    assert np.load(tmp_path / "displacement.npy")[7, 9].tolist() == [3.0, 3.0]
    (tmp_path / "notes.txt").write_text("mine")
    assert write_comparison(tmp_path, refused, inputs=()) == ()
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_file_of_another_origin_stays(tmp_path: Path, refused: PairComparison) -> None:
    Image.new("L", (8, 8)).save(tmp_path / "overlay.png")
    with pytest.raises(UsageProblem):
        require_pair_files(tmp_path, inputs=())
    with pytest.raises(UsageProblem):
        write_comparison(tmp_path, refused, inputs=())
    assert (tmp_path / "overlay.png").exists()


def test_the_overlay_shows_regions_and_says_what_it_is(compared: PairComparison) -> None:
    assert compared.aligned is not None
    picture = pair_overlay(chest(), compared.aligned)
    assert picture.size[0] == FRAME_SIDE
    assert picture.size[1] > FRAME_SIDE
    assert picture.getpixel((48, 110)) == DENSER  # two pixels left of the box
    below = np.asarray(picture)[FRAME_SIDE:]
    assert below.any() and not below[-2:].any() and not below[:, -4:].any()  # nothing of the words is cut off


def test_the_json_has_boxes_areas_and_strengths(compared: PairComparison) -> None:
    facts = json.loads(pair_text(compared))
    assert facts["regions"] == [
        {"box": {"left": 50, "top": 100, "width": 60, "height": 40}, "area": 1800, "strength": 6.25}
    ]
    # 3 rows and 3 columns everywhere: 4.243
    assert (facts["displacement_median_px"], facts["displacement_p95_px"]) == (4.243, 4.243)
    assert facts["notice"].startswith("Research use only.")
