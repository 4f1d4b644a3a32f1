"""What is shown and what the network sees, for any image, window and input."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from fieldray.domain.image import Image, PixelMap, Window
from fieldray.domain.model import InputSpec
from fieldray.imaging.preprocess import (
    display_table,
    percentiles,
    shrunk,
    thumbnail,
    to_display,
    to_tensor,
    with_window,
)
from properties import WINDOWS, images, specs

FITS_INSIDE = specs(fit=st.sampled_from(["stretch", "crop"]))


def edges(pixel_map: PixelMap, spec: InputSpec) -> tuple[float, float, float, float]:
    """Top, bottom, left and right of the tensor in the image's pixels."""
    top, left = pixel_map.row_offset, pixel_map.column_offset
    return (
        top, top + spec.height * pixel_map.row_scale, left, left + spec.width * pixel_map.column_scale,
    )  # fmt: skip


# ---- windows


@given(images(longest=4), WINDOWS)
def test_a_brighter_pixel_is_never_shown_darker(image: Image, window: Window) -> None:
    table = display_table(image, window).astype(int)
    assert len(table) == (256 if image.pixels.dtype == np.uint8 else 65536)
    assert np.all(np.diff(table) >= 0)
    np.testing.assert_array_equal(to_display(image, window), table[image.pixels])


@given(images())
def test_every_image_is_shown_in_a_thumbnail_of_its_shape(image: Image) -> None:
    small = thumbnail(image)
    rows, columns = image.pixels.shape
    assert (small.dtype, max(small.shape)) == (np.uint8, 64)
    assert abs(small.shape[0] * columns - small.shape[1] * rows) <= max(rows, columns)


# ---- tensors


@given(images(), specs())
def test_a_tensor_is_what_was_asked_for(image: Image, spec: InputSpec) -> None:
    values = to_tensor(image, spec).values
    assert (values.shape, values.dtype) == ((1, spec.height, spec.width, spec.channels), np.uint8)
    assert (values == values[..., :1]).all() and not values.flags.writeable
    np.testing.assert_array_equal(values, to_tensor(image, spec).values)


@given(images(), specs())
def test_a_mirrored_image_gives_the_mirrored_tensor(image: Image, spec: InputSpec) -> None:
    """But where pixels are first averaged in blocks, which begin on the left, or hardly any contrast is stretched.

    A pad of an odd number of columns is split one way only, so those columns are not compared.
    """
    there, mirrored = (
        to_tensor(Image(pixels=pixels), spec)
        for pixels in (image.pixels.copy(), np.ascontiguousarray(image.pixels[:, ::-1]))
    )
    assume(there.pixel_map.finest < 4)
    if spec.intensity == "percentile":
        plain = to_tensor(image, replace(spec, intensity="as_displayed")).values
        assume(np.ptp(plain) >= 32)
    if spec.fit == "pad":
        spec_columns = spec.width * there.pixel_map.column_scale
        if abs(2 * there.pixel_map.column_offset + spec_columns - image.pixels.shape[1]) > 1e-6 * spec_columns:
            return
    difference = there.values.astype(int) - mirrored.values[:, :, ::-1]
    assert abs(difference).max() <= (1 if spec.intensity == "as_displayed" else 4)


@given(images(), specs())
def test_an_image_on_its_side_gives_the_tensor_on_its_side(image: Image, spec: InputSpec) -> None:
    turned_spec = InputSpec(
        height=spec.width, width=spec.height, channels=spec.channels, intensity=spec.intensity, fit=spec.fit,
        margin=spec.margin,
    )  # fmt: skip
    there = to_tensor(image, spec).values
    turned = to_tensor(Image(pixels=np.ascontiguousarray(image.pixels.T)), turned_spec).values
    difference = there.astype(int) - turned.transpose(0, 2, 1, 3)
    assert abs(difference).max() <= (1 if spec.intensity == "as_displayed" else 3)


# ---- the way back


@given(images(), FITS_INSIDE)
def test_a_tensor_lies_inside_the_image_and_about_its_middle(image: Image, spec: InputSpec) -> None:
    (rows, columns), (top, bottom, left, right) = image.pixels.shape, edges(to_tensor(image, spec).pixel_map, spec)
    assert -1e-9 <= top < bottom <= rows + 1e-9
    assert -1e-9 <= left < right <= columns + 1e-9
    assert abs(top + bottom - rows) < 1e-9 * rows + 1e-9
    assert abs(left + right - columns) < 1e-9 * columns + 1e-9


@given(images(), specs(fit=st.just("pad")))
def test_a_padded_tensor_holds_all_that_is_not_cut_off(image: Image, spec: InputSpec) -> None:
    (rows, columns), (top, bottom, left, right) = image.pixels.shape, edges(to_tensor(image, spec).pixel_map, spec)
    assert top <= rows * spec.margin + 1e-9 and bottom >= rows * (1 - spec.margin) - 1e-9
    assert left <= columns * spec.margin + 1e-9 and right >= columns * (1 - spec.margin) - 1e-9


@given(images(longest=24), specs(), st.integers(2, 8))
@settings(max_examples=50)
def test_an_image_read_at_a_lower_resolution_has_the_same_way_back(image: Image, spec: InputSpec, step: int) -> None:
    rows, columns = image.pixels.shape
    whole = Image(pixels=np.repeat(np.repeat(image.pixels, step, axis=0), step, axis=1))
    reduced = Image(pixels=image.pixels, window=None, step=step, full_rows=rows * step, full_columns=columns * step)
    one, other = (to_tensor(made, spec).pixel_map for made in (whole, reduced))
    np.testing.assert_allclose(
        [one.row_scale, one.row_offset, one.column_scale, one.column_offset],
        [other.row_scale, other.row_offset, other.column_scale, other.column_offset],
        rtol=1e-9, atol=1e-9,
    )  # fmt: skip


@given(st.integers(16, 48), st.integers(16, 48), specs(), st.data())
def test_a_bright_spot_is_found_again(rows: int, columns: int, spec: InputSpec, data: st.DataObject) -> None:
    """A spot of one pixel lies within a pixel of where the map says that the tensor's brightest place is."""
    row, column = data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, columns - 1))
    pixels = np.zeros((rows, columns), np.uint8)
    pixels[row, column] = 255
    tensor = to_tensor(Image(pixels=pixels, window=Window(127.5, 255.0, "LINEAR_EXACT")), spec)
    plane, way = tensor.values[0, :, :, 0], tensor.pixel_map
    if not plane.any():  # cut off, or too small a share of a tensor's pixel
        return
    at_row, at_column = np.unravel_index(np.argmax(plane), plane.shape)
    assert abs((at_row + 0.5) * way.row_scale + way.row_offset - (row + 0.5)) <= max(1.0, way.row_scale) + 1e-6
    at = (at_column + 0.5) * way.column_scale + way.column_offset
    assert abs(at - (column + 0.5)) <= max(1.0, way.column_scale) + 1e-6


# ---- done quickly, with the same result


@given(
    arrays(np.float32, st.integers(1, 300), elements=st.floats(-100, 70_000, width=32)),
    st.sampled_from([1.0, 0.01, 1e-4]),
)
def test_percentiles_are_those_of_numpy(values: NDArray[np.float32], scale: float) -> None:
    values = (values * np.float32(scale)).astype(np.float32)  # from all of 16 bits down to one whole part
    assert percentiles(values, (1.0, 50.0, 99.0)) == np.percentile(values, (1.0, 50.0, 99.0)).tolist()


@given(images(longest=90), FITS_INSIDE)
def test_a_window_that_is_written_down_changes_nothing(image: Image, spec: InputSpec) -> None:
    known = with_window(image)
    assert (known.window is None) == (image.voi_lut is not None)
    np.testing.assert_array_equal(shrunk(known, 64), shrunk(image, 64))
    np.testing.assert_array_equal(to_tensor(known, spec).values, to_tensor(image, spec).values)
