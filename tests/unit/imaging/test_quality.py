"""Refusals by header and pixels, images that pass, and notes on how an image was taken."""

from __future__ import annotations

import datetime
import io
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import PIL.ImageFilter
import pytest
from numpy.typing import NDArray

from fieldray.domain.image import CoordinateMap, Correction, Image, ImageHeader, Window
from fieldray.domain.model import HeaderRules
from fieldray.imaging.quality import (
    are_empty_folders,
    check_header,
    check_pixels,
    incomplete_image_notes,
    lung_quality_notes,
)
from fieldray.imaging.reduction import block_means
from fieldray.imaging.synthetic import chest_phantom
from lungs import COLUMNS, ROWS, lungs, two_lungs
from phantoms import saved

RULES = HeaderRules()
IMAGE = chest_phantom(400, 400, 3, abnormal=False)


def _code(rules: HeaderRules = RULES, *, finds_lungs: bool = False, **header: Any) -> str | None:
    why = check_header(ImageHeader(**header), rules, finds_lungs=finds_lungs)
    return why.code if why else None


def test_an_empty_header_passes() -> None:
    assert _code() is None
    assert _code(body_part_examined="UNKNOWN", view_position="n/a") is None


@pytest.mark.parametrize(
    ("field", "passing", "refused"),
    [
        ("modality", "CR DX dx", "CT MR US MG OT SR"),
        ("body_part_examined", "Chest,PORT CHEST,CHEST_TO_ABDOMEN,THORAX", "HAND SKULL ABDOMEN EXTREMITY"),
        ("view_position", "PA,ap,AP ERECT,PA_ERECT,AP/SUPINE", "LL RL LATERAL LLO CC LAPA"),
    ],
)
def test_which_values_of_a_header_field_pass_or_refuse(field: str, passing: str, refused: str) -> None:
    codes = {"body_part_examined": "body_part", "view_position": "view"}
    usual = {"modality": "CR", "body_part_examined": "CHEST", "view_position": "PA"}
    for value in passing.split("," if "," in passing else " "):
        assert _code(**usual | {field: value}) is None, value
    for value in refused.split():
        assert _code(**usual | {field: value}) == codes.get(field, field), value


def test_an_unsuitable_header_is_refused_until_overruled() -> None:
    raw, bone = {"presentation_intent_type": "FOR PROCESSING"}, {"image_type": "DERIVED\\PRIMARY\\BONE"}
    for finds_lungs in (True, False):
        assert _code(**raw, finds_lungs=finds_lungs) == "for_processing"
        assert _code(**bone, finds_lungs=finds_lungs) == "image_type"
    assert _code(patient_orientation="P\\F", finds_lungs=True) == "view"
    assert check_header(ImageHeader(**raw, **bone), RULES, overruled_codes=("for_processing", "image_type")) is None


@pytest.mark.parametrize(("age", "code"), [(None, None), (0.9, "age"), (1.0, None), (5.9, None), (6.0, "age")])
def test_an_age_outside_the_packs_range_is_refused(age: float | None, code: str | None) -> None:
    assert _code(HeaderRules(ages_years=(1, 5)), patient_age_years=age) == code
    assert _code(patient_age_years=age) is None


@pytest.mark.parametrize(
    ("stated", "contrary", "code"),
    [(3.0, 5.2, None), (3.0, 2.0, None), (3.0, 44.0, "ages_contradict"), (44.0, 3.0, "ages_contradict")],
)
def test_one_of_two_contradictory_ages_is_enough_to_refuse(stated: float, contrary: float, code: str | None) -> None:
    assert _code(HeaderRules(ages_years=(1, 5)), patient_age_years=stated, contrary_age_years=contrary) == code


@pytest.mark.parametrize(
    ("years", "code"), [(17, "born_too_late"), (3, "born_too_late"), (18, None), (40, None), (-1, None)]
)
def test_without_an_image_date_a_child_of_today_is_refused(years: int, code: str | None) -> None:
    adults = HeaderRules(ages_years=(18, 95))
    header = ImageHeader(patient_birth_date=f"{datetime.date.today().year - years}0101")
    why = check_header(header, adults, overruled_codes=("view", "body_part"))
    assert (why.code if why else None) == code
    assert check_header(replace(header, patient_age_years=44.0), adults) is None


@pytest.mark.parametrize(
    ("header", "code"), [({"view_position": "CHEST"}, "view"), ({"body_part_examined": "COEUR"}, "body_part")]
)
def test_unknown_header_terms_pass_if_lungs_are_searched_for(header: dict[str, str], code: str) -> None:
    assert _code(finds_lungs=True, **header) is None
    assert _code(**header) == code
    assert _code(finds_lungs=True, view_position="LL") == "view"


def _pixel_code(pixels: NDArray[Any], **fields: Any) -> str | None:
    why = check_pixels(Image(pixels=pixels, **fields))
    return why.code if why else None


@pytest.mark.parametrize("shape", [(64, 64), (160, 128), (1024, 860), (500, 1200)])
def test_ordinary_images_pass(shape: tuple[int, int]) -> None:
    image = chest_phantom(*shape, 3, abnormal=True)
    assert _pixel_code(image) is None
    assert _pixel_code((image >> 4).astype(np.uint8)) is None


FRAMED = np.pad(np.full((260, 300), 1500, np.uint16), ((40, 0), (0, 0)))


PIXELS: Mapping[str, tuple[NDArray[Any], dict[str, Any], str | None]] = {
    # all values between 61,440 and 65,535
    "12 bits, inverted in a header that says 16": ((65535 - IMAGE).astype(np.uint16), {}, None),
    "few rows": (IMAGE[:63], {}, "too_small"),
    "few columns": (IMAGE[:, :63], {}, "too_small"),
    "low": (IMAGE[:150], {}, "aspect"),
    "narrow": (IMAGE[:, :150], {}, "aspect"),
    "low, but not too low": (IMAGE[:160], {}, None),
    "small because it was read reduced": (
        chest_phantom(60, 50, 3, abnormal=False),
        {"reduction_factor": 4, "file_rows": 480, "file_columns": 400},
        None,
    ),
    **{f"all {grey}": (np.full((200, 200), grey, np.uint16), {}, "blank") for grey in (0, 2000, 65535)},
    "noise": (np.random.default_rng(1).normal(3000, 30, (1000, 1000)).astype(np.uint16), {}, "blank"),
    "one grey in a frame of padding": (FRAMED, {"padding_value": 0}, "blank"),
    # contrast is measured from the value that stands for 0
    "few greys, signed": ((32768 + IMAGE // 16).astype(np.uint16), {"value_offset": -32768.0}, None),
    "few greys, MONOCHROME1": (
        (65535 - IMAGE // 16).astype(np.uint16),
        {"value_scale": -1.0, "value_offset": 65535.0},
        None,
    ),
    "few greys, far from 0": ((40000 + IMAGE // 16).astype(np.uint16), {}, "blank"),
}


@pytest.mark.parametrize("name", PIXELS)
def test_size_shape_and_contrast_decide_whether_an_image_is_refused(name: str) -> None:
    pixels, fields, code = PIXELS[name]
    assert _pixel_code(pixels, **fields) == code


@pytest.mark.parametrize("base", [0, 30_000, 60_000])
def test_an_offset_image_with_a_window_is_not_blank(base: int) -> None:
    assert _pixel_code((base + IMAGE // 10).astype(np.uint16), window=Window(base + 200, 400, "LINEAR_EXACT")) is None
    flat = (base + np.random.default_rng(1).normal(200, 30, (1000, 1000))).astype(np.uint16)
    assert _pixel_code(flat, window=Window(base + 200, 400, "LINEAR_EXACT")) == ("blank" if base else None)


def test_only_folders_without_files_are_empty(tmp_path: Path) -> None:
    (tmp_path / "empty" / "deeper").mkdir(parents=True)
    (tmp_path / "full" / "deeper").mkdir(parents=True)
    (tmp_path / "full" / "deeper" / "note.txt").touch()
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "studies").symlink_to(tmp_path / "full", target_is_directory=True)
    found = {name: are_empty_folders([tmp_path / name]) for name in ("empty", "full", "linked", "gone")}
    assert found == {"empty": True, "full": False, "linked": False, "gone": False}
    assert not are_empty_folders([tmp_path / "empty", tmp_path / "full"])


# ---- images that may lack a part, or detail

LUNGS_END = 600  # of 800 rows


def _with_lower_part(begins: int, grey: int) -> Image:
    pixels = np.random.default_rng(1).integers(40, 200, (ROWS, COLUMNS)).astype(np.uint8)
    pixels[begins:] = grey
    return Image(pixels=pixels)


def _as_jpeg(image: Image) -> Image:
    return Image(pixels=np.asarray(PIL.Image.open(io.BytesIO(saved(PIL.Image.fromarray(image.pixels), "JPEG")))).copy())


@pytest.mark.parametrize("grey", [0, 1, 128, 255])
@pytest.mark.parametrize(
    "way", [lambda image: image, _as_jpeg, lambda image: image.corrected(Correction(inverts_grey=True))]
)
def test_an_empty_lower_part_near_the_lungs_is_noted(grey: int, way: Callable[[Image], Image]) -> None:
    for begins, is_cut in ((LUNGS_END - 40, True), (LUNGS_END + 30, True), (LUNGS_END + 50, False), (780, False)):
        image = way(_with_lower_part(begins, grey))
        assert incomplete_image_notes(image, lungs()) == (("lower_part_dark",) if is_cut else ()), begins
    for unknown in (None, lungs(frontal_chest=0.01)):
        assert incomplete_image_notes(way(_with_lower_part(LUNGS_END + 50, grey)), unknown) == ("lower_part_dark",)
        assert incomplete_image_notes(way(_with_lower_part(740, grey)), unknown) == ()


def test_an_empty_lower_part_is_noted_at_lower_resolution_and_16_bits() -> None:
    pixels = _with_lower_part(LUNGS_END - 40, 0).pixels.astype(np.uint16) * 16 + 5
    rough = Image(pixels=block_means(pixels, 2), reduction_factor=2, file_rows=ROWS, file_columns=COLUMNS)
    assert (
        incomplete_image_notes(Image(pixels=pixels), lungs())
        == incomplete_image_notes(rough, lungs())
        == ("lower_part_dark",)
    )
    assert (
        incomplete_image_notes(Image(pixels=np.full((ROWS, COLUMNS), 9, np.uint8)), lungs()) == ()
    )  # a blank image has another reason


def test_blurred_and_enlarged_images_have_too_little_detail() -> None:
    vessels = np.kron(np.random.default_rng(3).integers(0, 24, (256, 256)), np.ones((4, 4), int))
    chest = PIL.Image.fromarray(((chest_phantom(1024, 1024, 3, abnormal=False) >> 5) + vessels).astype(np.uint8))
    tiny = chest.resize((64, 64), PIL.Image.Resampling.BOX)
    enlarged = tiny.resize((512, 512), PIL.Image.Resampling.BICUBIC)
    for spoilt in (chest.filter(PIL.ImageFilter.GaussianBlur(15)), tiny, enlarged):
        assert incomplete_image_notes(Image(pixels=np.asarray(spoilt).copy()), None) == ("little_detail",)
    for whole in (chest, chest.resize((224, 224), PIL.Image.Resampling.BOX)):
        assert incomplete_image_notes(Image(pixels=np.asarray(whole).copy()), None) == ()


# ---- notes on how an image was taken


def _taken(
    *, degrees: float = 0.0, higher: float = 1.0, grey: Callable[[NDArray[np.uint8]], NDArray[np.uint8]] = lambda g: g
) -> tuple[str, ...]:
    """The notes on two lungs, 100 wide together and 120 high, tilted or scaled in height; the greys are noise."""
    side, turn = 256, math.radians(degrees)
    down, across = np.mgrid[0:side, 0:side] - side / 2
    sideways, along = across * math.cos(turn) + down * math.sin(turn), down * math.cos(turn) - across * math.sin(turn)
    inside = (((np.abs(sideways) - 30) / 20) ** 2 + (along / (60 * higher)) ** 2) < 1
    pixels = np.random.default_rng(1).integers(80, 180, (side, side)).astype(np.uint8)
    pixels[0, :2] = 0, 255
    image = Image(pixels=grey(pixels))
    found = lungs(
        inside.astype(np.float32), cells_to_image=CoordinateMap(1.0, 0.0, 1.0, 0.0), image_rows=side, image_columns=side
    )
    assert not found.unseen_lungs and not found.refusal
    return lung_quality_notes(image, found)


@pytest.mark.parametrize(("degrees", "is_told"), [(0, False), (5, False), (-5, False), (15, True), (-15, True)])
def test_tilted_lungs_are_noted(degrees: float, is_told: bool) -> None:
    assert _taken(degrees=degrees) == (("lungs_tilted",) if is_told else ())


def test_lungs_that_are_low_for_their_width_are_noted() -> None:
    assert _taken(higher=0.6) == ()  # 72 high
    assert _taken(higher=0.5) == ("lungs_low",)


@pytest.mark.parametrize(
    ("grey", "code"),
    [
        (lambda grey: np.maximum(grey, 95) - np.uint8(95), "lungs_black"),
        (lambda grey: np.minimum(grey, 160), "lungs_white"),
        (lambda grey: (grey // 14).astype(np.uint8), "lungs_few_greys"),
        (lambda grey: (grey // 4).astype(np.uint8), None),
        (lambda grey: np.maximum(grey, 83), None),  # 4 in 100
    ],
)
def test_over_and_underexposed_lungs_are_noted(
    grey: Callable[[NDArray[np.uint8]], NDArray[np.uint8]], code: str | None
) -> None:
    assert _taken(grey=grey) == ((code,) if code else ())


def test_refused_or_one_sided_images_get_no_quality_notes() -> None:
    grey = Image(pixels=np.full((ROWS, COLUMNS), 7, np.uint8))
    assert lung_quality_notes(grey, lungs(rotated_90=0.9)) == ()
    assert lung_quality_notes(grey, lungs(frontal_chest=0.01)) == ()
    assert lung_quality_notes(grey, lungs()) == ()  # too few cells to judge the greys
    one = two_lungs()
    one[:, 20:] = 0
    assert (
        lung_quality_notes(Image(pixels=np.arange(ROWS * COLUMNS, dtype=np.uint16).reshape(ROWS, -1)), lungs(one)) == ()
    )


def test_quality_notes_come_with_the_others_and_change_no_class() -> None:
    found = replace(lungs(mirrored=0.9), quality=("lungs_tilted", "lungs_low"))
    assert [note.code for note in found.notes] == ["perhaps_mirrored", "lungs_tilted", "lungs_low"]
    assert (found.read_first_reason, found.refusal) == (None, None)
