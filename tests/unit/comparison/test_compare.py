"""Drawn chests compared: a known warp is recovered, a change is found, and incomparable pairs are named."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fieldray.comparison.compare import (
    COMPARE,
    CompareRequest,
    change_regions,
    compare,
    credible_peak_mask,
    handle,
    measure_change,
)
from fieldray.comparison.matching import Peaks, blur, normalise_locally
from fieldray.domain.comparison import FRAME_SIDE, FramedImage, PairComparison, comparison_json
from fieldray.processes.child import encode_message
from pairs import chest, framed, moved, smooth_warp

_UNLIKE = {"compare_unlike", "compare_no_matches"}


@pytest.fixture(scope="module")
def warp() -> np.ndarray:
    return smooth_warp(3)


@pytest.fixture(scope="module")
def found(warp: np.ndarray) -> PairComparison:
    return compare(chest(), moved(chest(), warp))


def test_a_known_warp_is_recovered(found: PairComparison, warp: np.ndarray) -> None:
    assert found.problem is None
    lungs = moved(chest(), warp).lungs
    errors = np.hypot(*np.moveaxis(found.aligned_pair.alignment.displacement - warp, -1, 0))[lungs]
    assert np.median(errors) < 1.5
    assert np.percentile(errors, 95) < 4
    assert found.aligned_pair.alignment.min_jacobian > 0
    assert found.aligned_pair.alignment.similarity_after > found.aligned_pair.alignment.similarity_before


def test_matches_are_kept_or_rejected(found: PairComparison) -> None:
    assert found.alignment.kept_match_count
    assert found.alignment.kept_match_count + found.alignment.rejected_match_count == len(found.alignment.matches)


def test_a_match_is_kept_if_it_is_similar_and_clearly_better_than_the_next() -> None:
    places = np.zeros(4)
    first, second = np.array([0.3, 0.29, 0.9, 0.9]), np.array([0.27, 0.0, 0.89, 0.1])
    peaks = Peaks(rows=places, columns=places, highest=first, second_highest=second, is_at_border=places.astype(bool))
    assert credible_peak_mask(peaks).tolist() == [True, False, False, True]
    at_border = replace(peaks, is_at_border=np.array([False, False, False, True]))
    assert credible_peak_mask(at_border).tolist() == [True, False, False, False]


def test_an_image_compared_with_itself_has_no_regions() -> None:
    done = compare(chest(), chest())
    assert done.aligned_pair.alignment.displacement_percentile_px(100) < 1e-4
    assert done.aligned_pair.regions == ()
    assert comparison_json(done)["regions"] == []


def test_an_added_opacity_is_found_at_its_position(warp: np.ndarray) -> None:
    current = moved(chest(), warp)
    rows, columns = np.nonzero(current.lungs)
    row, column = int(np.median(rows)), int(np.percentile(columns, 20))
    down, across = np.mgrid[:FRAME_SIDE, :FRAME_SIDE]
    opacity = 30 * np.exp(-0.5 * (np.hypot(down - row, across - column) / 14) ** 2)
    done = compare(chest(), framed(current.pixels + opacity, current.lungs))
    strongest = done.aligned_pair.regions[0]
    assert strongest.is_denser
    assert strongest.box.top <= row <= strongest.box.top + strongest.box.height
    assert strongest.box.left <= column <= strongest.box.left + strongest.box.width


@pytest.mark.parametrize(
    ("pixels", "codes"),
    [
        (255 - chest().pixels, {"compare_inverted"}),
        (np.random.default_rng(1).normal(128, 40, (FRAME_SIDE, FRAME_SIDE)), _UNLIKE),
        (np.full((FRAME_SIDE, FRAME_SIDE), 90), _UNLIKE),
    ],
    ids=["inverted", "noise", "flat"],
)
def test_incomparable_images_are_refused_with_a_reason(pixels: np.ndarray, codes: set[str]) -> None:
    assert _code(compare(framed(pixels, chest().lungs), chest())) in codes


@pytest.mark.parametrize("which", ["prior", "current"])
def test_too_little_of_the_lungs_names_the_image(which: str) -> None:
    without = framed(chest().pixels, np.zeros((FRAME_SIDE, FRAME_SIDE)))
    done = compare(without, chest()) if which == "prior" else compare(chest(), without)
    assert (done.problem.reason.code, done.problem.image) == ("compare_cut", which)


def answered(prior: FramedImage) -> PairComparison:
    """The child's answer for this prior image."""
    return COMPARE.decode_answer(handle(encode_message(CompareRequest(prior=prior, current=chest()), call="compare")))


def test_the_child_gives_the_same_result_as_the_function() -> None:
    answer = answered(chest())
    plain = compare(chest(), chest())
    assert comparison_json(answer) == comparison_json(plain)
    assert answer.reliability == plain.reliability
    assert answer.alignment is not None and plain.alignment is not None
    assert answer.alignment.matches == plain.alignment.matches


def test_the_child_reports_a_mirrored_image_without_correcting_it() -> None:
    answer = answered(framed(chest().pixels[:, ::-1], chest().lungs[:, ::-1]))
    assert _code(answer) == "compare_mirrored"
    assert answer.alignment is not None


# ---- parts of the comparison


def test_a_region_needs_a_core_and_some_area() -> None:
    change = np.zeros((FRAME_SIDE, FRAME_SIDE), np.float32)
    change[100:120, 200:210] = 3.5
    change[110, 205] = 6.0
    change[300:320, 300:320] = 4.0  # no core
    change[400, 400] = -9.0  # no area
    (region,) = change_regions(change)
    assert (region.box.top, region.box.left, region.box.height, region.box.width) == (100, 200, 20, 10)
    assert (region.area_px, region.strength) == (200, 6.0)


def test_no_change_without_lungs_to_compare() -> None:
    few = np.zeros((FRAME_SIDE, FRAME_SIDE), bool)
    few[:20, :20] = True
    small = framed(chest().pixels, few)
    assert not measure_change(small, small, np.zeros((FRAME_SIDE, FRAME_SIDE, 2), np.float32)).any()


def test_a_blur_keeps_the_mean_of_a_flat_image() -> None:
    flat = np.full((40, 60), 7.0, np.float32)
    np.testing.assert_allclose(blur(flat, 6), flat, rtol=1e-5)
    np.testing.assert_allclose(blur(flat, 0), flat, rtol=1e-5)


def test_local_normalising_takes_exposure_away() -> None:
    pixels = chest().pixels.astype(np.float32)
    first, second = normalise_locally(pixels), normalise_locally(0.8 * pixels + 30)
    assert np.abs(first - second).mean() < 0.1


def _code(comparison: PairComparison) -> str:
    assert comparison.aligned_pair is None
    return comparison.problem.reason.code
