from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldray.domain.image import NO_CORRECTION, CoordinateMap, Correction, Image, NetworkInput, Window, WindowFunction
from fieldray.imaging.preprocess import to_display


@given(st.floats(), st.floats())
def test_a_window_has_a_width_above_zero_and_is_finite(center: float, width: float) -> None:
    if width > 0 and math.isfinite(center + width):
        assert Window(center, width).function == "LINEAR"
        return
    with pytest.raises(ValueError, match="above 0 and finite"):
        Window(center, width)


@pytest.mark.parametrize("shape", [(4,), (0, 4), (4, 0), (4, 4, 1)])
def test_an_image_has_rows_and_columns(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="rows, columns"):
        Image(pixels=np.zeros(shape, np.uint8))


@pytest.mark.parametrize(
    ("kind", "step", "is_allowed"),
    [
        (np.uint8, 1, True),
        (np.uint16, 1, True),
        (np.float32, 1, False),
        (np.float32, 2, True),
        (np.uint16, 2, True),
        (np.int16, 1, False),
        (np.float64, 2, False),
    ],
)
def test_only_averaged_pixels_may_be_floats(kind: type, step: int, is_allowed: bool) -> None:
    pixels = np.zeros((2, 2), kind)
    if is_allowed:
        assert Image(pixels=pixels, reduction_factor=step).reduction_factor == step
        return
    with pytest.raises(TypeError, match="uint8 or uint16"):
        Image(pixels=pixels, reduction_factor=step)


def test_the_reduction_step_is_at_least_one() -> None:
    with pytest.raises(ValueError, match="1 or more"):
        Image(pixels=np.zeros((2, 2), np.uint8), reduction_factor=0)


def test_pixels_of_an_image_are_read_only() -> None:
    image = Image(pixels=np.zeros((2, 2), np.uint8))
    tensor = NetworkInput(values=np.zeros((1, 2, 2, 1), np.uint8), input_to_image=CoordinateMap(1, 0, 1, 0))
    for values in (image.pixels, tensor.values):
        with pytest.raises(ValueError, match="read-only"):
            values[0] = 1


def test_a_reduced_image_fills_its_last_pixels_in_part() -> None:
    assert Image(pixels=np.zeros((3, 5), np.uint8)).reduced_size == (3, 5)
    reduced = Image(pixels=np.zeros((3, 5), np.float32), reduction_factor=4, file_rows=10, file_columns=20)
    assert reduced.reduced_size == (2.5, 5)


@pytest.mark.parametrize(
    "values", [np.zeros((2, 2, 1), np.uint8), np.zeros((2, 2, 2, 1), np.uint8), np.zeros((1, 2, 2, 1))]
)
def test_a_tensor_is_one_image_of_bytes(values: np.ndarray) -> None:
    with pytest.raises(ValueError, match="uint8"):
        NetworkInput(values=values, input_to_image=CoordinateMap(1, 0, 1, 0))


# ---- an image corrected by turning or swapping grey: positions of its pixels, and how they are shown

LYING = np.array([[1, 2, 3], [4, 5, 6]], np.uint8)


@pytest.mark.parametrize(
    ("degrees", "expected"),
    [
        (0, [[1, 2, 3], [4, 5, 6]]),
        (90, [[3, 6], [2, 5], [1, 4]]),
        (180, [[6, 5, 4], [3, 2, 1]]),
        (270, [[4, 1], [5, 2], [6, 3]]),
    ],
)
def test_a_turn_is_anticlockwise_and_can_be_undone(degrees: int, expected: list[list[int]]) -> None:
    turn = Correction(degrees)
    assert turn.rotate(LYING).tolist() == expected
    assert turn.inverse.rotate(turn.rotate(LYING)).tolist() == LYING.tolist()
    inverted = Correction(degrees, inverts_grey=True)
    assert inverted.apply_to_grey(LYING).tolist() == (255 - np.array(expected)).tolist()
    assert inverted.inverse.apply_to_grey(inverted.apply_to_grey(LYING)).tolist() == LYING.tolist()


def test_an_image_is_turned_by_quarters() -> None:
    with pytest.raises(ValueError, match="not by 45 degrees"):
        Correction(45)


def test_size_and_spacing_turn_with_the_image() -> None:
    image = Image(pixels=LYING, spacing_mm=(0.1, 0.2), file_rows=4, file_columns=5, reduction_factor=2)
    side, over = image.corrected(Correction(90)), image.corrected(Correction(180))
    assert (side.pixels.shape, side.spacing_mm, side.reduced_size) == ((3, 2), (0.2, 0.1), (2.5, 2.0))
    assert (over.pixels.shape, over.spacing_mm, over.reduced_size) == ((2, 3), (0.1, 0.2), (2.0, 2.5))
    assert image.corrected(NO_CORRECTION) is image


RAMP = np.arange(0, 4096, 3, dtype=np.uint16).reshape(-1, 2)


@pytest.mark.parametrize("function", ["LINEAR", "LINEAR_EXACT", "SIGMOID"])
def test_swapped_grey_is_shown_as_the_negative_and_keeps_its_values(function: WindowFunction) -> None:
    image = Image(pixels=RAMP, window=Window(1800.0, 900.0, function), value_scale=2.0, value_offset=-1000.0)
    swapped = image.corrected(Correction(inverts_grey=True))
    assert np.abs(to_display(swapped).astype(int) - (255 - to_display(image).astype(int))).max() <= 1
    values = swapped.pixels * swapped.value_scale + swapped.value_offset
    assert np.array_equal(values, image.pixels * image.value_scale + image.value_offset)


def test_a_voi_lut_is_swapped_and_what_is_no_data_stays_black() -> None:
    table = (np.arange(2**16) // 2).astype(np.uint16)
    pixels = np.array([[0, 65535], [30000, 7]], np.uint16)
    image = Image(pixels=pixels, voi_lut=table, padding_value=7)
    shown, swapped = to_display(image), to_display(image.corrected(Correction(inverts_grey=True)))
    assert np.abs(swapped.astype(int) - (255 - shown.astype(int)))[:, 0].max() <= 1
    assert (shown[1, 1], swapped[1, 1]) == (0, 0)


def test_averages_of_a_reduced_reading_are_swapped_too() -> None:
    means = np.linspace(0, 255, 64, dtype=np.float32).reshape(8, 8)
    image = Image(pixels=means, reduction_factor=2, window=Window(100.0, 120.0, "LINEAR_EXACT"))
    swapped = image.corrected(Correction(inverts_grey=True))
    assert swapped.pixels.dtype == np.float32 and swapped.window is not None and image.window is not None
    before = (image.pixels - image.window.center) / image.window.width
    after = (swapped.pixels - swapped.window.center) / swapped.window.width
    assert np.abs(before + after).max() < 1e-3
    assert replace(swapped, window=None).pixels.min() > 0
