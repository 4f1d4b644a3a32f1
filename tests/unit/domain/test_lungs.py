"""From a mask and its checks to the lung fields of an image."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fieldray.domain.image import CoordinateMap
from fieldray.domain.lung_thirds import (
    FEATURE_WEIGHTS,
    LEFT_LUNG_INTERCEPT,
    THIRD_INTERCEPTS,
    THIRDS_PER_LUNG,
    features_of_thirds,
    split_into_halves,
    split_into_thirds,
    whiteness_of_lungs,
)
from fieldray.domain.lungs import (
    READ_FIRST_CODES,
    LungMeasurement,
    evidence_inside,
    find_one_lung,
    min_evidence_inside,
    mirror_half,
)
from fieldray.domain.model import LungRules
from fieldray.reasons import reason
from lungs import COLUMNS, ROWS, RULES, SIDE, WHOLE, answered, drawn, lungs, two_lungs
from tiny_models import tiny_manifest


def test_a_frontal_chest_image_is_found_with_its_areas() -> None:
    found = lungs()
    assert (found.is_frontal_chest, found.has_lungs, found.refusal, found.notes) == (True, True, None, ())
    # 200 and 160 of 1600 cells; what is on the right of the image is the patient's left
    assert (found.right_lung_area_share, found.left_lung_area_share) == pytest.approx((0.125, 0.1))
    assert (found.cut_off_sides, found.rotation_degrees) == ((), 0)


@pytest.mark.parametrize(
    ("scores", "code"),
    [
        ({"frontal_chest": 0.02}, "not_frontal_chest"),
        ({"rotated_90": 0.9}, "rotated"),
        ({"rotated_270": 0.9}, "rotated"),
        ({"rotated_180": 0.9}, "upside_down"),
        ({"inverted": 0.9}, "inverted"),
        ({"inverted": 0.9, "rotated_180": 0.9}, "upside_down"),
        ({"frontal_chest": 0.02, "inverted": 0.9, "rotated_180": 0.9}, "not_frontal_chest"),
        ({"mirrored": 0.9}, None),
    ],
)
def test_checks_that_fail_refuse_the_image(scores: dict[str, float], code: str | None) -> None:
    refusal = lungs(**scores).refusal
    assert (refusal.code if refusal else None) == code


def test_the_strongest_rotation_counts_and_other_body_parts_get_no_notes() -> None:
    assert lungs(rotated_90=0.7, rotated_270=0.8).rotation_degrees == 270
    hand = lungs(frontal_chest=0.01, rotated_90=0.9, inverted=0.9, mirrored=0.9)
    assert (hand.rotation_degrees, hand.is_inverted, hand.is_mirrored, hand.has_lungs) == (0, False, False, False)


def test_thresholds_are_taken_from_the_pack() -> None:
    strict = LungRules(mask_threshold=0.9, thresholds={**RULES.thresholds, "frontal_chest": 0.95})
    assert lungs(rules=strict).unseen_lungs == ("left", "right")  # the check doubts the chest
    assert lungs(two_lungs() * np.float32(0.8), rules=strict, frontal_chest=0.99).right_lung_area_share == 0
    with pytest.raises(ValueError, match="checks must be"):
        LungRules(mask_threshold=0.5, thresholds={})


def test_a_mirrored_image_swaps_the_sides_and_gets_a_note() -> None:
    found = lungs(mirrored=0.8)
    assert (found.left_lung_area_share, found.right_lung_area_share) == pytest.approx((0.125, 0.1))
    assert [note.code for note in found.notes] == ["perhaps_mirrored"]


@pytest.mark.parametrize("given", [{}, {"frontal_chest": 0.0, "header_says_chest": True}])
def test_a_chest_by_check_or_header_without_lungs_is_read_first(given: dict[str, Any]) -> None:
    found = lungs(np.zeros((SIDE, SIDE), np.float32), **given)
    assert (found.is_frontal_chest, found.has_lungs, found.refusal) == (True, False, None)
    assert found.read_first_reason is not None and found.read_first_reason.text == (
        "Hardly any lung was found: the lungs cover only 0.0 % of the image. In a chest X-ray, both lungs together "
        "cover at least 3.0 % of the image."
    )
    box = found.crop_box(rows=ROWS, columns=COLUMNS, margin=0.1)
    assert (box.top, box.left, box.height, box.width) == (0, 0, ROWS, COLUMNS)


def test_the_lung_region_crop_includes_lungs_that_are_not_seen() -> None:
    white = np.where(np.arange(SIDE) < SIDE // 2, two_lungs(), np.float32(0))
    size = {"rows": ROWS, "columns": COLUMNS, "margin": 0.1}
    whole = lungs().crop_box(**size)
    for seen in (two_lungs(), white, np.zeros_like(white)):
        assert lungs(seen, region_shares=two_lungs()).crop_box(**size, crop="lung_region") == whole
        assert lungs(seen, region_shares=two_lungs()).crop_box(**size) == lungs(seen).crop_box(
            **size
        )  # the plain lung crop
        assert lungs(seen).crop_box(**size, crop="lung_region") == lungs(seen).crop_box(
            **size
        )  # the network has no lung region
    assert lungs(region_shares=np.zeros_like(white)).crop_box(**size, crop="lung_region") == whole


def test_a_doubted_chest_with_a_mask_of_two_lungs_is_accepted() -> None:
    """As with lungs full of pneumonia; a hand has no such mask."""
    doubted = lungs(frontal_chest=0.1)
    assert (doubted.refusal, doubted.unseen_lungs, doubted.has_lungs) == (None, ("left", "right"), True)
    assert lungs(frontal_chest=0.1, rotated_90=0.9).rotation_degrees == 90
    small, narrow, soft, one = two_lungs(), two_lungs(), two_lungs(), two_lungs()
    small[10:14] = 0
    narrow[:, :12] = narrow[:, 31:] = 0
    narrow[10:38, 12:31] = 1
    soft[:, :5] = soft[:, 33:] = 0.4
    one[:, 25:] = 0
    for mask in (small, narrow, soft, one):
        assert lungs(mask, frontal_chest=0.1).refusal is not None
        assert lungs(mask).refusal is None


@pytest.mark.parametrize(
    ("hidden", "scores", "unseen", "code"),
    [
        ((slice(0), slice(0)), {}, (), None),
        ((slice(0, 22), slice(20, 40)), {}, ("left",), "left_lung_smaller"),  # 64 of 160 cells are left, against 200
        ((slice(0, 21), slice(0, 20)), {}, (), None),  # 90 of 200 are left, against 160
        ((slice(0, 23), slice(0, 20)), {}, ("right",), "right_lung_smaller"),
        ((slice(0, 40), slice(0, 20)), {}, ("right",), "right_lung_not_found"),
        ((slice(0, 40), slice(0, 20)), {"mirrored": 0.8}, ("left",), "left_lung_not_found"),
    ],
)
def test_an_unseen_lung_makes_the_image_read_first(
    hidden: tuple[slice, slice], scores: dict[str, float], unseen: tuple[str, ...], code: str | None
) -> None:
    shares = two_lungs()
    shares[hidden] = 0
    found = lungs(shares, **scores)
    assert found.refusal is None
    assert found.unseen_lungs == unseen
    assert (found.read_first_reason.code if found.read_first_reason else None) == code
    assert found.read_first_reason in (found.notes[0] if code else None, None)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        # 64 cells of 1600 against 200
        (
            {"hidden": np.s_[0:22, 20:40]},
            "The left lung is far smaller than the right lung. Share of the image: left lung 4.0 %, right lung 12.5 %.",
        ),
        ({"hidden": np.s_[0:40, 0:20]}, "The right lung was not found. The left lung covers 10.0 % of the image."),
        (
            {"frontal_chest": 0.499},
            "The program doubts that this image is a frontal chest X-ray: the certainty is 0.49, and at least 0.50 "
            "is expected. Opacities in both lungs can lower the certainty.",
        ),
        # air 40, soft tissue 200: 190 is 150 of 160
        (
            {"white": [np.s_[24:30, 25:33]]},
            "The lower third of the left lung is denser than the lower third of the right lung. "
            "Density: left lung 94 %, right lung 0 % (air 0 %, soft tissue 100 %).",
        ),
        (
            {"white": [np.s_[10:16, 5:15]]},
            "The upper third of the right lung is denser than the upper third of the left lung. "
            "Density: right lung 94 %, left lung 0 % (air 0 %, soft tissue 100 %).",
        ),
        (
            {"white": [np.s_[10:16, 5:15], np.s_[24:30, 25:33]]},
            "In each lung, one third (upper, middle or lower) is dense. "
            "Density: left lung 94 %, right lung 94 % (air 0 %, soft tissue 100 %).",
        ),
    ],
)
def test_the_reason_for_read_first_names_the_measurement(made: dict[str, Any], said: str) -> None:
    shares, grey = two_lungs(), np.where(two_lungs() > 0, np.uint8(40), np.uint8(200))
    for part in made.get("white", ()):
        shares[part] *= np.float32(0.7)
        grey[part] = np.where(two_lungs()[part] > 0, np.uint8(190), grey[part])
    if "hidden" in made:
        shares[made["hidden"]] = 0
    scores = {name: value for name, value in made.items() if name == "frontal_chest"}
    found = lungs(shares, grey=grey, **scores)
    assert found.read_first_reason is not None and found.read_first_reason.text == said
    assert found.notes[0] == found.read_first_reason and found.read_first_reason.code in READ_FIRST_CODES


def test_a_result_without_its_measurement_names_the_lung() -> None:
    """A result of an earlier version, or one where the outline alone decided."""
    shares = two_lungs()
    shares[:22, 20:] = 0
    found = lungs(shares)
    denser_opposite = LungMeasurement("upper", 0.8, 0.9)
    for by in (None, denser_opposite):
        assert replace(found, unseen_measurement=by).read_first_reason == reason("left_lung_unseen")
    assert {"left_lung_unseen", "right_lung_unseen", "lungs_unseen"} < READ_FIRST_CODES
    assert found.unseen_lungs_code == "left_lung_unseen"
    assert replace(found, unseen_lungs=("left", "right"), unseen_measurement=None).read_first_reason == reason(
        "lungs_unseen"
    )
    assert lungs().unseen_lungs_code == ""


@pytest.mark.parametrize(
    ("whiter", "unseen"),
    [(None, ()), ((slice(10, 30), slice(25, 33)), ("left",)), ((slice(10, 30), slice(5, 15)), ("right",))],
)
def test_a_lung_as_white_as_its_surroundings_counts_as_unseen(
    whiter: tuple[slice, slice] | None, unseen: tuple[str, ...]
) -> None:
    grey = np.where(two_lungs() > 0, np.uint8(40), np.uint8(200))
    grey[25:30, 25:33] = 120  # a heart
    if whiter:
        grey[whiter] = 190
    finely = np.repeat(np.repeat(grey, 2, axis=0), 2, axis=1)  # the network's input is finer than its mask
    assert lungs(grey=finely).unseen_lungs == unseen
    assert lungs(grey=finely, mirrored=0.9).unseen_lungs == tuple({"left": "right", "right": "left"}[s] for s in unseen)
    assert lungs().unseen_lungs == ()


@pytest.mark.parametrize("rows", [slice(10, 16), slice(16, 24), slice(22, 30)])
@pytest.mark.parametrize(("columns", "unseen"), [(slice(5, 15), "right"), (slice(25, 33), "left")])
def test_a_lung_with_a_white_uncertain_third_counts_as_unseen(rows: slice, columns: slice, unseen: str) -> None:
    shares, grey = two_lungs(), np.where(two_lungs() > 0, np.uint8(40), np.uint8(200))
    shares[rows, columns] = 0.7
    grey[rows, columns] = 190
    assert lungs(shares, grey=grey).unseen_lungs == (unseen,)
    grey[10:30, 5:15] = grey[10:30, 25:33] = 40  # white nowhere, and as uncertain as the other lung
    shares[rows, 5:15] = shares[rows, 25:33] = 0.7
    assert lungs(shares, grey=grey).unseen_lungs == ()


@pytest.mark.parametrize(
    ("shares", "scores"),
    [
        (1.0, {"frontal_chest": 0.4}),
        (1.0, {"rotated_180": 0.9}),
        (1.0, {"inverted": 0.9}),
        (0.0, {}),
        (0.7, {}),
        (np.s_[20:], {}),
        (np.s_[:, 20:], {}),
    ],
)
def test_a_half_that_is_no_plain_chest_shows_no_lung(shares: Any, scores: dict[str, float]) -> None:
    mask = two_lungs()
    if isinstance(shares, float):
        mask *= np.float32(shares)  # 0.7: lungs that the network found but could not decide
    else:
        mask[shares] = 0
    assert find_one_lung(answered(mask, **scores), RULES, kept_side="left") is None
    one = find_one_lung(answered(mirrored=0.9), RULES, kept_side="left")
    assert one is not None and one.unseen_lungs == ("left",) and one.right_lung_area_share == pytest.approx(0.125)


def test_mirror_half_replaces_one_half_by_the_mirrored_other() -> None:
    values = np.arange(10, dtype=np.uint8).reshape(1, 2, 5, 1)
    assert mirror_half(values, kept_side="left")[0, 0, :, 0].tolist() == [0, 1, 2, 1, 0]
    assert mirror_half(values[:, :, :4], kept_side="right")[0, :, :, 0].tolist() == [[3, 2, 2, 3], [8, 7, 7, 8]]


def test_the_crop_includes_the_side_of_an_unseen_lung() -> None:
    shares = two_lungs()
    shares[:, :20] = 0
    box = lungs(shares).crop_box(rows=ROWS, columns=COLUMNS, margin=0.0)
    assert (box.left, box.width) == pytest.approx(
        (70, 260), abs=0.1
    )  # the lung from column 250 to 330, and its mirror image
    assert lungs().crop_box(rows=ROWS, columns=COLUMNS, margin=0.0).left == pytest.approx(50, abs=0.1)


@pytest.mark.parametrize(
    ("part", "sides"),
    [
        ((slice(0, 20), slice(5, 15)), ("top",)),
        ((slice(20, 40), slice(5, 15)), ("bottom",)),
        ((slice(10, 30), slice(0, 10)), ("left",)),
        ((slice(10, 30), slice(30, 40)), ("right",)),
        ((slice(0, 40), slice(0, 40)), ("top", "bottom", "left", "right")),
        ((slice(0, 20), slice(5, 7)), ()),  # two cells of forty: only a tip
    ],
)
def test_lungs_that_reach_the_border_are_cut_off(part: tuple[slice, slice], sides: tuple[str, ...]) -> None:
    found = lungs(drawn(part))
    assert found.cut_off_sides == sides
    assert [note.code for note in found.notes if note != found.read_first_reason] == [
        f"lungs_cut_off_{s}" for s in sides
    ]


def test_the_border_is_that_of_the_image_not_of_the_tensor() -> None:
    """A tall image has 10 padding columns on each side; the lungs reach the image's edge, not the tensor's."""
    found = lungs(drawn(np.s_[10:30, 10:18]), cells_to_image=CoordinateMap(20.0, 0.0, 20.0, -200.0))
    assert found.cut_off_sides == ("left",)
    # 160 cells of 20 x 20 pixels in an image of 800 x 400
    assert found.right_lung_area_share == pytest.approx(0.2)


def test_small_spots_are_dropped_and_large_second_parts_kept() -> None:
    shares = two_lungs()
    shares[38, 38] = 1
    shares[32:36, 5:11] = 1  # 24 cells: more than a tenth of the larger lung
    found = lungs(shares)
    assert found.mask.sum() == 200 + 160 + 24
    assert found.right_lung_area_share == pytest.approx((200 + 24) / 1600)


def test_an_arm_in_the_mask_is_not_taken_for_a_lung() -> None:
    shares = drawn(np.s_[10:30, 8:17], np.s_[10:30, 20:29])
    alone = lungs(shares)
    shares[12:30, 34:38] = 1  # as long as a lung, and less than half as wide
    with_arm = lungs(shares)
    assert np.array_equal(alone.mask, with_arm.mask)
    assert alone.crop_box(rows=ROWS, columns=COLUMNS, margin=0.05) == with_arm.crop_box(
        rows=ROWS, columns=COLUMNS, margin=0.05
    )
    shares[12:30, 34:40] = 1  # so large that the two lungs cannot be told from the three parts
    assert lungs(shares).mask[:, 34:40].any()


def test_a_lung_in_two_parts_is_kept_whole() -> None:
    shares = drawn(np.s_[10:30, 8:17], np.s_[10:23, 20:29], np.s_[24:30, 20:29])
    assert np.array_equal(lungs(shares).mask, shares > 0)


def test_connected_lungs_are_divided_in_the_middle() -> None:
    found = lungs(drawn(np.s_[10:30, 5:35]))
    assert (found.left_lung_area_share, found.right_lung_area_share) == pytest.approx((0.1875, 0.1875), abs=0.02)
    alone = lungs(drawn(np.s_[10:30, 24:34]))
    assert (alone.left_lung_area_share, alone.right_lung_area_share) == pytest.approx((0.125, 0.0))


def test_the_box_holds_the_lungs_and_a_margin_inside_the_image() -> None:
    box = lungs().crop_box(rows=ROWS, columns=COLUMNS, margin=0.0)
    # rows 10 to 30 of 20 pixels, columns 5 to 33 of 10 pixels
    assert (box.top, box.left, box.height, box.width) == pytest.approx((200.0, 50.0, 400.0, 280.0), abs=0.1)
    wide = lungs().crop_box(rows=ROWS, columns=COLUMNS, margin=0.25)
    # 100 more rows above and below, 70 more columns: only 50 are left of the lungs
    assert (wide.top, wide.left, wide.height, wide.width) == pytest.approx((100.0, 0.0, 600.0, 400.0), abs=0.2)
    whole = lungs(np.zeros((SIDE, SIDE), np.float32)).crop_box(rows=ROWS, columns=COLUMNS, margin=0.0)
    assert (whole.top, whole.left, whole.height, whole.width) == (0.0, 0.0, 800.0, 400.0)


def test_a_small_change_of_the_mask_moves_the_box_a_little() -> None:
    shares = drawn(np.s_[10:30, 8:17], np.s_[10:30, 20:29])
    tops = []
    for share in (0.0, 0.25, 0.49, 0.51, 0.75, 1.0):  # of the row above both lungs
        shares[9, 8:29] = share * (shares[10, 8:29] > 0)
        tops.append(lungs(shares).crop_box(rows=ROWS, columns=COLUMNS, margin=0.0).top)
    # by a whole row of 20 pixels in all, and nowhere by more than the step of the mask's value
    assert (tops[0], tops[-1]) == pytest.approx((200.0, 180.0), abs=0.1)
    assert all(0 <= before - after <= 20 * 0.36 for before, after in itertools.pairwise(tops))


def test_the_mask_has_the_images_size_and_an_outline_around_each_lung() -> None:
    found = lungs()
    mask = found.mask_at_image_size(rows=ROWS, columns=COLUMNS)
    assert mask[400, 100] and mask[400, 290] and not mask[400, 200]
    assert mask.mean() == pytest.approx(0.225, abs=0.005)
    assert len(found.outlines()) == 2


# ---- evidence


def test_evidence_is_weighted_by_the_area_inside_the_lungs() -> None:
    # 2 x 2 cells over the image; all evidence in the upper left one: rows 0 to 400, columns 0 to 200. The lung in it
    # covers rows 200 to 400 and columns 50 to 150: a quarter.
    evidence = np.array([[3.0, 0.0], [0.0, 0.0]], np.float32)
    cells = CoordinateMap(400.0, 0.0, 200.0, 0.0)
    assert evidence_inside(evidence, cells, lungs(), rows=ROWS, columns=COLUMNS) == pytest.approx(0.25)
    # The cell to the right has the other lung in columns 250 to 330: a fifth of its area; with three times the weight:
    # (0.25 * 1 + 0.2 * 3) / 4
    evidence = np.array([[1.0, 3.0], [0.0, 0.0]], np.float32)
    assert evidence_inside(evidence, cells, lungs(), rows=ROWS, columns=COLUMNS) == pytest.approx(0.2125)
    # The same if that lung is not seen, but the network gives its region.
    white = np.where(np.arange(SIDE) < SIDE // 2, two_lungs(), np.float32(0))
    for region, share in ((None, 0.25 / 4), (two_lungs(), 0.2125)):
        found = lungs(white, region_shares=region)
        assert evidence_inside(evidence, cells, found, rows=ROWS, columns=COLUMNS) == pytest.approx(share)


def test_evidence_outside_the_image_is_not_counted() -> None:
    # One cell over rows 200 to 600 and columns -100 to 150; of what is inside the image, columns 50 to 150 are lung.
    evidence = np.ones((1, 1), np.float32)
    cells = CoordinateMap(400.0, 200.0, 250.0, -100.0)
    assert evidence_inside(evidence, cells, lungs(), rows=ROWS, columns=COLUMNS) == pytest.approx(100 / 150)
    beyond = CoordinateMap(400.0, 2000.0, 250.0, 0.0)
    assert evidence_inside(evidence, beyond, lungs(), rows=ROWS, columns=COLUMNS) is None
    assert evidence_inside(np.zeros((4, 4), np.float32), WHOLE, lungs(), rows=ROWS, columns=COLUMNS) is None


@pytest.mark.parametrize(
    ("metrics", "limit"),
    [
        ({}, None),
        ({"evidence_inside": {"limit": 0.42}}, 0.42),
        ({"evidence_inside": {"limit": 0.98}}, 0.75),  # "only 97 % lies inside" would be no warning
        ({"evidence_inside": {"limit": 3}}, None),
        ({"evidence_inside": {"limit": "much"}}, None),
        ({"evidence_inside": 0.3}, None),
    ],
)
def test_the_evidence_limit_is_taken_from_the_packs_metrics(metrics: dict[str, object], limit: float | None) -> None:
    assert min_evidence_inside(tiny_manifest(metrics=metrics)) == limit


# ---- white thirds, on masks of a few cells whose measurements can be worked out by hand

_OUTSIDE = 10  # a grey that would move every figure if it were counted


@pytest.mark.parametrize(
    ("middle", "left", "right"),
    [(2.0, [1, 0], [2, 3]), (2.5, [2, 1, 0], [3, 4, 5]), (-5.0, [0], [1]), (99.0, [4], [5])],
)
def test_halves_begin_at_the_middle_and_are_equally_wide(middle: float, left: list[int], right: list[int]) -> None:
    assert split_into_halves(np.array([[0, 1, 2, 3, 4, 5]]), middle).tolist() == [[left], [right]]


def test_thirds_divide_both_lungs_extent_and_count_the_outer_half_below() -> None:
    lungs = np.zeros((2, 9, 7), bool)
    lungs[0, 1:8, 1:6] = True
    lungs[1, 2:4, 1:3] = True  # within the other lung's rows and columns
    # rows 1 to 7 are divided at 1, 3.33, 5.67 and 8; columns 1 to 5 have their middle in column 3
    for (place, counted), (rows, columns) in zip(
        split_into_thirds(lungs),
        [(slice(1, 3), slice(1, 6)), (slice(3, 6), slice(3, 6)), (slice(6, 8), slice(3, 6))],
        strict=True,
    ):
        whole, outer = np.zeros((2, 9, 7), bool)
        whole[rows, 1:6] = True
        outer[rows, columns] = True
        np.testing.assert_array_equal(place, whole)
        np.testing.assert_array_equal(counted, outer)


def test_without_lungs_all_thirds_are_empty() -> None:
    found = split_into_thirds(np.zeros((2, 4, 4), bool))
    assert len(found) == THIRDS_PER_LUNG
    assert not any(part.any() for pair in found for part in pair)


def _pair() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mask values and lungs (9, 8) around column 4, and grey at twice their size: only every other pixel counts.

    The left lung as seen is 6 rows of 2 columns without its lowest outer cell; the right one is 4 rows of 2.
    """
    is_lung = np.zeros((8, 8), bool)
    is_lung[1:7, 1:3] = True
    is_lung[6, 1] = False
    is_lung[1:5, 5:7] = True
    shares = np.where(is_lung, 255, 0).astype(np.uint8)
    shares[1:3, 1:3] = [[26, 229], [25, 230]]  # the upper two of these four are just uncertain
    shares[3, 5] = 128
    cells = np.full((8, 8), _OUTSIDE, np.uint8)
    cells[1:7, 3] = [100, 110, 120, 130, 140, 150]
    cells[1:7, 4] = [160, 170, 180, 190, 200, 210]
    cells[5:7, 5:7] = [[225, 220], [230, 235]]
    cells[6, 1] = 240
    cells[1:3, 1:3] = [[30, 110], [110, 110]]
    cells[3:5, 1] = [40, 80]
    cells[3:7, 2] = 250  # beside the heart: not counted below the upper third
    cells[5, 1] = 96
    cells[1:5, 5:7] = 60
    grey = np.full((18, 16), 99, np.uint8)
    grey[::2, ::2] = np.pad(cells, ((1, 0), (0, 0)), constant_values=_OUTSIDE)
    return np.pad(shares, ((1, 0), (0, 0))), np.pad(is_lung, ((1, 0), (0, 0))), grey


def test_third_measurements_of_two_unlike_lungs() -> None:
    """Soft tissue is 180, the median of the 17 cells beside the lungs. Air is 40: of the left lung's 11 cells a tenth
    is darker, all of the right one are 60. So 40 becomes 0 and 180 becomes 1. The darkest quarter: upper left of
    30, 110, 110, 110 it is 90; middle left of 40 and 80 it is 50; lower left 96. On the right
    it is 60, 60, and 220 where no lung was found.
    """
    area, height = math.log(11 / 8), math.log(6 / 4)
    left = [
        [1, 1, 0.5, 0, (90 - 60) / 140, (90 - 40) / 140, area, height],
        [1, 1, 0, 0.25, (50 - 60) / 140, (50 - 40) / 140, area, height],
        [1, 0, 0, 0, (96 - 220) / 140, (96 - 40) / 140, area, height],
    ]
    right = [
        [1, 1, 0, 0.5, (60 - 90) / 140, (60 - 40) / 140, -area, -height],
        [1, 1, 0.25, 0, (60 - 50) / 140, (60 - 40) / 140, -area, -height],
        [0, 1, 0, 0, (220 - 96) / 140, (220 - 40) / 140, -area, -height],
    ]
    np.testing.assert_allclose(features_of_thirds(*_pair(), 4.0), [left, right], atol=1e-12)


def test_without_cells_beside_the_lungs_soft_tissue_is_white() -> None:
    grey = np.full((6, 4), 162, np.uint8)
    grey[:2] = 100
    facts = features_of_thirds(np.full((6, 4), 255, np.uint8), np.ones((6, 4), bool), grey, 2.0)
    np.testing.assert_allclose(facts[:, :, 5], [[0, 62 / 155, 62 / 155]] * 2, atol=1e-12)
    np.testing.assert_array_equal(facts[:, :, 4], 0)


def test_lungs_outside_both_halves_have_neutral_measurements() -> None:
    """The middle lies at the edge, so each half is one column. Air is 0 and soft tissue 4, counted as 8 at least."""
    is_lung = np.zeros((6, 8), bool)
    is_lung[:, 7] = is_lung[0, 6] = True
    facts = features_of_thirds(np.where(is_lung, 255, 0).astype(np.uint8), is_lung, np.full((6, 8), 4, np.uint8), 1.0)
    expected = np.zeros((2, THIRDS_PER_LUNG, len(FEATURE_WEIGHTS)))
    expected[:, :, 5] = 4 / 8
    np.testing.assert_array_equal(facts, expected)


def test_measurements_of_one_small_lung_and_no_other() -> None:
    """Measurements compare mask values of any size; a missing lung counts as one cell."""
    is_lung = np.zeros((5, 4), bool)
    is_lung[1:4, 1] = True
    facts = features_of_thirds(np.zeros((5, 4), np.uint8), is_lung, np.full((5, 4), 50, np.uint8), 2.0)
    left = [1, 0, 0, 0, 0, 0, math.log(3), math.log(3)]
    right = [0, 1, 0, 0, 0, 0, -math.log(3), -math.log(3)]
    np.testing.assert_allclose(facts, [[left] * 3, [right] * 3], atol=1e-12)


def test_measurements_are_limited_to_three_and_need_contrast() -> None:
    is_lung = np.zeros((12, 8), bool)
    is_lung[3:9, :4] = True
    is_lung[8, 3] = False  # 23 cells: ln 23 is 3.14
    grey = np.full((12, 8), 100, np.uint8)
    grey[is_lung] = 98  # 2 of 255 darker; the difference counts as 8 at least
    facts = features_of_thirds(np.zeros((12, 8), np.uint8), is_lung, grey, 4.0)
    np.testing.assert_array_equal(facts[:, 0, 6], [3.0, -3.0])
    np.testing.assert_allclose(facts[:, 0, 7], [math.log(6), -math.log(6)])
    np.testing.assert_allclose(facts[1, :, 4], 2 / 8)


def test_each_third_has_its_own_whiteness() -> None:
    facts = np.zeros((2, THIRDS_PER_LUNG, len(FEATURE_WEIGHTS)))
    facts[1, 1, 2] = 1.0
    upper, middle, lower = THIRD_INTERCEPTS
    left, right = (
        [upper + LEFT_LUNG_INTERCEPT, middle + LEFT_LUNG_INTERCEPT, lower + LEFT_LUNG_INTERCEPT],
        [upper, middle + FEATURE_WEIGHTS[2], lower],
    )
    np.testing.assert_allclose(whiteness_of_lungs(facts), [left, right])
