"""What is read for the network that finds the lungs, and the crop that follows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Picture

from fieldray.domain.image import Box, Image, Turn
from fieldray.domain.model import HeaderRules, InputSpec
from fieldray.domain.study import ImageRef
from fieldray.imaging.answers import (
    image_of,
    image_request,
    preview_of,
    preview_request,
    read_request,
    read_result,
    shown_of,
    shown_request,
)
from fieldray.imaging.preprocess import thumbnail, to_display, to_tensor
from fieldray.imaging.reduction import LUNGS_EXTENT, target_size, target_size_for
from fieldray.imaging.service import handle
from fieldray.imaging.synthetic import chest_phantom
from phantoms import write_dicom

WHOLE = InputSpec(height=32, width=32)
LUNGS = InputSpec(height=48, width=48, fit="pad")
CROPPED = InputSpec(height=32, width=32, crop="lungs", intensity="as_displayed")


def gradient() -> Image:
    """120 x 100: the grey level is the row."""
    return Image(pixels=np.repeat(np.arange(120, dtype=np.uint8)[:, None], 100, axis=1))


def test_a_box_is_fitted_as_if_it_were_the_image() -> None:
    image = gradient()
    box = Box(top=40.0, left=10.0, rows=64.0, columns=32.0)
    part = Image(pixels=image.pixels[40:104, 10:42].copy(), window=image.window)
    tensor, alone = to_tensor(image, CROPPED, box=box), to_tensor(part, WHOLE)
    assert tensor.values.shape == alone.values.shape
    # two rows of the box make one of the tensor
    assert (tensor.pixel_map.row_scale, tensor.pixel_map.row_offset) == (2.0, 40.0)
    assert (tensor.pixel_map.column_scale, tensor.pixel_map.column_offset) == (1.0, 10.0)
    assert (np.diff(tensor.values[0, :, 0, 0].astype(int)) >= 0).all()


def test_the_whole_image_as_a_box_is_the_whole_image() -> None:
    box = Box(top=0.0, left=0.0, rows=120.0, columns=100.0)
    for spec in (WHOLE, LUNGS):
        assert np.array_equal(to_tensor(gradient(), spec, box=box).values, to_tensor(gradient(), spec).values)


def test_a_box_is_in_pixels_of_the_file_however_the_file_was_read() -> None:
    pixels = chest_phantom(256, 256, 3, abnormal=False)
    full = Image(pixels=pixels)
    means = pixels.reshape(128, 2, 128, 2).mean((1, 3)).astype(np.float32)
    half = Image(pixels=means, step=2, full_rows=256, full_columns=256, window=full.window)
    box = Box(top=32.0, left=64.0, rows=128.0, columns=96.0)
    first, second = to_tensor(full, CROPPED, box=box), to_tensor(half, CROPPED, box=box)
    assert first.pixel_map == second.pixel_map
    # a column of the tensor is three of the file: averages of two cannot be divided exactly
    assert np.abs(first.values.astype(int) - second.values.astype(int)).mean() < 1.5


def test_what_is_cropped_is_read_finer_and_both_networks_get_enough() -> None:
    needed = target_size(CROPPED)
    assert (needed.rows, needed.columns) == pytest.approx((32 / LUNGS_EXTENT, 32 / LUNGS_EXTENT))
    both = target_size_for(WHOLE, "needed", lungs=LUNGS)
    assert both is not None
    assert (both.rows, both.columns, both.of_longer) == (48.0, 48.0, False)
    assert target_size_for(WHOLE, "needed") == target_size(WHOLE)
    assert target_size_for(WHOLE, "full", lungs=LUNGS) is None


@pytest.fixture
def ref(tmp_path: Path) -> ImageRef:
    path = tmp_path / "image.png"
    Picture.fromarray((chest_phantom(400, 300, 5, abnormal=True) >> 4).astype(np.uint8)).save(path)
    return ImageRef(path=path)


def test_a_child_answers_with_both_inputs(ref: ImageRef) -> None:
    found = read_result(handle(read_request(ref, WHOLE, rules=None, detail="needed", lungs=LUNGS)), ref)
    assert found.tensor is not None and found.lungs is not None
    assert found.tensor.values.shape == (1, 32, 32, 1)
    assert found.lungs.values.shape == (1, 48, 48, 1)
    # fitted by its longer side: 400 rows on 48, and as wide
    assert found.lungs.pixel_map.row_scale == pytest.approx(400 / 48)
    assert found.image is None
    alone = read_result(handle(read_request(ref, WHOLE, rules=None, detail="needed", lungs=None)), ref)
    assert alone.lungs is None


def test_for_a_crop_it_answers_with_the_image_that_is_cropped_here(ref: ImageRef) -> None:
    found = read_result(handle(read_request(ref, CROPPED, rules=None, detail="needed", lungs=LUNGS)), ref)
    assert found.tensor is None and found.lungs is not None and found.image is not None
    assert (found.facts.rows, found.facts.columns, found.facts.pixel_map) == (400, 300, None)
    tensor = found.cropped(CROPPED, Box(top=100.0, left=60.0, rows=200.0, columns=180.0))
    assert tensor.values.shape == (1, 32, 32, 1)
    assert (tensor.pixel_map.row_offset, tensor.pixel_map.column_offset) == (100.0, 60.0)
    whole = read_result(handle(read_request(ref, WHOLE, rules=None, detail="needed", lungs=None)), ref)
    with pytest.raises(ValueError, match="not read to be cropped"):
        whole.cropped(CROPPED, Box(top=0.0, left=0.0, rows=1.0, columns=1.0))


@pytest.mark.parametrize("turn", [Turn(90), Turn(180), Turn(270), Turn(90, swaps_grey=True)])
def test_what_lies_wrong_is_read_as_the_same_image_upright(turn: Turn, tmp_path: Path) -> None:
    upright, lying = tmp_path / "upright.png", tmp_path / "lying.png"
    pixels = chest_phantom(400, 320, 5, abnormal=True) >> 8
    Picture.fromarray(pixels.astype(np.uint8)).save(upright)
    Picture.fromarray(turn.back.shown(pixels.astype(np.uint8))).save(lying)
    asked = {"rules": None, "detail": "full", "lungs": LUNGS}
    right, wrong = ImageRef(path=upright), ImageRef(path=lying, turn=turn)
    first, second = (read_result(handle(read_request(ref, CROPPED, **asked)), ref) for ref in (right, wrong))
    assert (second.facts.rows, second.facts.columns) == (400, 320)
    assert first.lungs is not None and second.lungs is not None
    assert second.lungs.pixel_map == first.lungs.pixel_map
    for mine, its in ((first.lungs.values, second.lungs.values), (first.facts.thumbnail, second.facts.thumbnail)):
        assert mine is not None and its is not None
        assert np.abs(mine.astype(int) - its.astype(int)).max() <= 2
    box = Box(top=40.0, left=60.0, rows=200.0, columns=180.0)
    crops = first.cropped(CROPPED, box).values.astype(int) - second.cropped(CROPPED, box).values.astype(int)
    assert np.abs(crops).max() <= 2
    reduced = {**asked, "detail": "needed"}  # nobody turns what was reduced
    again = read_result(handle(read_request(wrong, CROPPED, **reduced)), wrong)
    assert again.lungs is not None and np.array_equal(again.lungs.values, second.lungs.values)
    shown = [image_of(handle(image_request(ref, content_sha256=""))) for ref in (right, wrong)]
    assert np.abs(to_display(shown[0]).astype(int) - to_display(shown[1]).astype(int)).max() <= 1
    small = shown_of(handle(shown_request(wrong, content_sha256="", side=100)))
    assert (small.rows, small.columns) == (400, 320)
    assert np.abs(small.pixels.astype(int) - thumbnail(shown[0], 100).astype(int)).max() <= 2
    kept = [preview_of(handle(preview_request(found.facts.preview))) for found in (first, second)]
    assert kept[1].shape == turn.back.shown(kept[0]).shape  # as its file lies


def test_what_a_person_overrules_of_a_header_is_waived_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "side.dcm"
    said = {"ViewPosition": "LL", "PatientAge": "040Y"}
    write_dicom(path, chest_phantom(200, 160, 5, abnormal=True) >> 4, changes=said)
    ref = ImageRef(path=path)
    adults = HeaderRules(views=("PA", "AP"), ages_years=(18, 120))

    def problem(rules: HeaderRules, *waives: str) -> str | None:
        asked = read_request(ref, WHOLE, rules=rules, detail="needed", lungs=None, waives=waives)
        why = read_result(handle(asked), ref).problem
        return why.code if why else None

    assert (problem(adults), problem(adults, "view")) == ("view", None)
    assert problem(replace(adults, ages_years=(1, 5)), "view") == "age"
