"""The values of a comparison: their checks at creation, positions, lengths and colours."""

from __future__ import annotations

import numpy as np
import pytest

from fieldray.domain.comparison import (
    DENSER_COLOUR,
    FRAME_SIDE,
    LESS_DENSE_COLOUR,
    WEAKEST_SHOWN_CHANGE,
    AlignedPair,
    Alignment,
    ChangeRegion,
    ComparisonProblem,
    FramedImage,
    MatchedSquare,
    PairComparison,
    change_colours,
    comparison_json,
)
from fieldray.domain.image import Box, CoordinateMap
from fieldray.reasons import reason

WHOLE = (FRAME_SIDE, FRAME_SIDE, 2)


def match(*, kept: bool = True) -> MatchedSquare:
    return MatchedSquare(row=1, column=2, is_kept=kept)


def alignment(**changes: object) -> Alignment:
    values = {
        "displacement": np.zeros(WHOLE, np.float32),
        "matches": (match(), match(kept=False), match()),
        "similarity_before": 0.1,
        "similarity_after": 0.5,
        "min_jacobian": 0.9,
    }
    return Alignment(**{**values, **changes})  # type: ignore[arg-type]


def framed(*, scale: float, top: float) -> FramedImage:
    pixels, nothing = np.zeros(WHOLE[:2], np.uint8), np.zeros(WHOLE[:2], bool)
    return FramedImage(pixels=pixels, lungs=nothing, frame_to_image=CoordinateMap(scale, top, scale, 0.0))


def test_a_position_is_mapped_to_the_other_image_and_back() -> None:
    rows, columns = np.mgrid[:FRAME_SIDE, :FRAME_SIDE].astype(np.float32)
    bent = np.stack([8 + 6 * np.sin(columns / 60), -5 + 6 * np.cos(rows / 60)], axis=2).astype(np.float32)
    flat = np.zeros(WHOLE[:2], np.float32)
    aligned = AlignedPair(
        alignment=alignment(displacement=bent), warped_prior=flat.astype(np.uint8), change=flat, regions=()
    )
    pair = PairComparison(prior=framed(scale=4.0, top=0.0), current=framed(scale=2.0, top=100.0), aligned_pair=aligned)
    row, column = pair.position_in_prior(300.0, 400.0)  # (100, 200) of the frame
    # The first pixel's centre lies at 0.5.
    down, across = 8 + 6 * np.sin(199.5 / 60), -5 + 6 * np.cos(99.5 / 60)
    assert (row, column) == pytest.approx((4 * (100 + down), 4 * (200 + across)), abs=2e-3)
    assert pair.position_in_current(row, column) == pytest.approx((300.0, 400.0), abs=2e-3)
    many = pair.position_in_current(*pair.position_in_prior(np.array([[300.0, 400.0]]), np.array([[400.0, 500.0]])))
    assert np.array(many) == pytest.approx(np.array([[[300.0, 400.0]], [[400.0, 500.0]]]), abs=2e-3)


def test_an_incomparable_pair_maps_no_position() -> None:
    pair = PairComparison(prior=None, current=None, problem=ComparisonProblem(reason=reason("compare_cut")))
    for lead in (pair.position_in_prior, pair.position_in_current):
        with pytest.raises(ValueError, match="nothing of this pair"):
            lead(1.0, 1.0)


def test_matches_are_counted_and_lengths_measured() -> None:
    field = np.zeros(WHOLE, np.float32)
    field[:256] = (3, 4)
    found = alignment(displacement=field)
    assert (found.kept_match_count, found.rejected_match_count) == (2, 1)
    inside = np.zeros(WHOLE[:2], bool)
    inside[:100] = True
    assert found.displacement_percentile_px(50, inside=inside) == 5.0
    assert found.displacement_percentile_px(50, inside=np.zeros(WHOLE[:2], bool)) == pytest.approx(
        2.5
    )  # half 0, half 5


@pytest.mark.parametrize(
    "changes", [{"displacement": np.zeros((4, 4, 2), np.float32)}, {"min_jacobian": 0.0}, {"min_jacobian": -1.0}]
)
def test_an_alignment_that_folds_or_does_not_fit_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        alignment(**changes)


def test_a_pair_has_a_result_or_a_problem() -> None:
    with pytest.raises(ValueError, match="comparable or has a problem"):
        PairComparison(prior=None, current=None)
    done = PairComparison(prior=None, current=None, problem=ComparisonProblem(reason=reason("blank"), image="prior"))
    assert not done.is_comparable
    assert comparison_json(done) == {
        "comparable": False,
        "reason_code": "blank",
        "similarity_before": None,
        "similarity_after": None,
        "displacement_median_px": None,
        "displacement_p95_px": None,
        "matches": 0,
        "rejected": 0,
        "regions": [],
    }


def test_colours_tell_the_sign_and_begin_at_the_noise() -> None:
    change = np.array([[0.0, WEAKEST_SHOWN_CHANGE - 0.1, WEAKEST_SHOWN_CHANGE + 0.1, 99.0, -99.0]], np.float32)
    colours = change_colours(change)[0]
    assert colours[:, 3].tolist()[:2] == [0, 0]
    assert 0 < colours[2, 3] < colours[3, 3] == 255
    assert tuple(colours[3, :3]) == DENSER_COLOUR
    assert tuple(colours[4, :3]) == LESS_DENSE_COLOUR


def test_changed_pixels_outside_regions_have_no_colour() -> None:
    change = np.zeros(WHOLE[:2], np.float32)
    change[10:20, 30:50] = 6  # the region,
    change[12, 40] = -3  # less dense pixels within its box,
    change[100, 100] = 9  # and a changed pixel elsewhere
    region = ChangeRegion(box=Box(top=10, left=30, height=10, width=20), area_px=199, strength=6.0)
    pixels = np.zeros(WHOLE[:2], np.uint8)
    done = AlignedPair(alignment=alignment(), warped_prior=pixels, change=change, regions=(region,))
    assert np.count_nonzero(done.shown_change) == 199
    assert done.shown_change.max() == 6
