"""PNG and JPEG."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image as Picture

from fieldray.domain.image import Image
from fieldray.domain.study import ImageRef
from fieldray.errors import Unusable
from fieldray.imaging.decode import decode
from fieldray.imaging.preprocess import to_display

GREY = np.arange(64, dtype=np.uint8).reshape(8, 8) * 4


def _decoded(picture: Picture.Image, kind: str = "PNG", **options: Any) -> Image:
    stream = io.BytesIO()
    picture.save(stream, kind, **options)
    return decode(stream.getvalue(), ImageRef(path=Path("x")))


def _rgb(red: NDArray[Any], green: NDArray[Any], blue: NDArray[Any]) -> Picture.Image:
    return Picture.fromarray(np.stack([red, green, blue], axis=2).astype(np.uint8))


def test_eight_bits_are_shown_as_stored() -> None:
    np.testing.assert_array_equal(to_display(_decoded(Picture.fromarray(GREY))), GREY)


def test_one_bit_is_black_and_white() -> None:
    image = _decoded(Picture.fromarray(GREY > 100))
    np.testing.assert_array_equal(image.pixels, np.where(GREY > 100, 255, 0))


def test_sixteen_bits_are_kept() -> None:
    wide = GREY.astype(np.uint16) * 257
    np.testing.assert_array_equal(_decoded(Picture.fromarray(wide)).pixels, wide)


def test_what_is_see_through_is_laid_over_black() -> None:
    alpha = np.full_like(GREY, 128)
    alpha[0] = 0
    image = _decoded(Picture.merge("LA", (Picture.fromarray(GREY), Picture.fromarray(alpha))))
    np.testing.assert_array_equal(image.pixels, (GREY.astype(int) * alpha + 127) // 255)
    assert "alpha_over_black" in image.notes


def test_a_see_through_palette_entry_is_black() -> None:
    picture = Picture.fromarray(GREY).convert("P")
    index = int(np.asarray(picture)[5, 5])
    image = _decoded(picture, transparency=index)
    assert image.pixels[5, 5] == 0
    assert image.pixels[7, 7] == GREY[7, 7]


def test_colour_is_refused_and_a_tint_of_a_few_levels_is_not() -> None:
    near = np.clip(GREY.astype(int) + 10, 0, 255)
    assert "grey_from_colour" in _decoded(_rgb(GREY, GREY, near)).notes
    with pytest.raises(Unusable) as caught:
        _decoded(_rgb(GREY, GREY, np.clip(GREY.astype(int) + 40, 0, 255)))
    assert caught.value.reason.code == "colour"


def test_a_small_coloured_mark_on_a_grey_image_is_no_colour_image() -> None:
    image = np.tile(GREY, (20, 20))
    marked = image.copy()
    marked[3, :20] = 255
    # 20 of 25,600 pixels: below one in a thousand
    assert _decoded(_rgb(marked, image, image)).pixels.shape == (160, 160)


@pytest.mark.parametrize(("orientation", "turns"), [(1, 0), (3, 2), (6, 3), (8, 1)])
def test_exif_turns_the_picture(orientation: int, turns: int) -> None:
    exif = Picture.Exif()
    exif[0x0112] = orientation
    flat = np.zeros((32, 16), np.uint8)
    flat[:8, :8] = 255
    image = _decoded(Picture.fromarray(flat), "JPEG", quality=100, exif=exif)
    # np.rot90 turns counter-clockwise; orientation 6 is to be turned by 90 degrees clockwise
    assert np.abs(image.pixels.astype(int) - np.rot90(flat, turns)).max() <= 2


def test_damaged_exif_says_nothing() -> None:
    image = _decoded(Picture.fromarray(GREY), "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xffgarbage")
    assert image.pixels.shape == (8, 8)


def test_sixteen_bit_colour_that_is_grey() -> None:
    chunk = _png_rgb16(np.full((4, 4), 40_000, np.uint16))
    assert decode(chunk, ImageRef(path=Path("x"))).pixels.max() == 40_000 >> 8


def _png_rgb16(values: NDArray[np.uint16]) -> bytes:
    """A 16-bit RGB PNG, which Pillow does not write."""
    import struct
    import zlib

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows, columns = values.shape
    lines = np.repeat(values[:, :, None], 3, axis=2).astype(">u2")
    raw = b"".join(b"\0" + line.tobytes() for line in lines)
    header = struct.pack(">IIBBBBB", columns, rows, 16, 2, 0, 0, 0)
    parts = [chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(raw)), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)
