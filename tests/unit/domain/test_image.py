from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldray.domain.image import Image, PixelMap, Tensor, Window


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
def test_only_averages_of_pixels_are_fractions(kind: type, step: int, is_allowed: bool) -> None:
    pixels = np.zeros((2, 2), kind)
    if is_allowed:
        assert Image(pixels=pixels, step=step).is_reduced == (step > 1)
        return
    with pytest.raises(TypeError, match="uint8 or uint16"):
        Image(pixels=pixels, step=step)


def test_a_pixel_stands_for_at_least_one() -> None:
    with pytest.raises(ValueError, match="1 or more"):
        Image(pixels=np.zeros((2, 2), np.uint8), step=0)


def test_what_was_read_cannot_be_written() -> None:
    image = Image(pixels=np.zeros((2, 2), np.uint8))
    tensor = Tensor(values=np.zeros((1, 2, 2, 1), np.uint8), pixel_map=PixelMap(1, 0, 1, 0))
    for values in (image.pixels, tensor.values):
        with pytest.raises(ValueError, match="read-only"):
            values[0] = 1


def test_a_reduced_image_fills_its_last_pixels_in_part() -> None:
    assert Image(pixels=np.zeros((3, 5), np.uint8)).extent == (3, 5)
    reduced = Image(pixels=np.zeros((3, 5), np.float32), step=4, full_rows=10, full_columns=20)
    assert reduced.extent == (2.5, 5)


@pytest.mark.parametrize(
    "values", [np.zeros((2, 2, 1), np.uint8), np.zeros((2, 2, 2, 1), np.uint8), np.zeros((1, 2, 2, 1))]
)
def test_a_tensor_is_one_image_of_bytes(values: np.ndarray) -> None:
    with pytest.raises(ValueError, match="uint8"):
        Tensor(values=values, pixel_map=PixelMap(1, 0, 1, 0))
