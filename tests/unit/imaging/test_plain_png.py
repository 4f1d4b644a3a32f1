"""Grey PNG by the quicker way, and what is left to the other."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image as Picture
from PIL.PngImagePlugin import PngInfo

from fieldray.errors import Unreadable
from fieldray.imaging.raster import decode_grey_png, decode_png

GREY = (np.add.outer(np.arange(50), 3 * np.arange(70)) % 256).astype(np.uint8)


def _png(values: NDArray[Any], **options: Any) -> bytes:
    stream = io.BytesIO()
    Picture.fromarray(values).save(stream, "PNG", **options)
    return stream.getvalue()


def _with_chunk(data: bytes, kind: bytes, content: bytes) -> bytes:
    """`data` with one more chunk after its header."""
    chunk = struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
    return data[:33] + chunk + data[33:]


@pytest.mark.parametrize("values", [GREY, GREY.astype(np.uint16) * 257 + 3], ids=["8 bits", "16 bits"])
def test_the_pixels_are_what_pillow_reads(values: NDArray[Any]) -> None:
    data = _png(values)
    for written in (data, _with_chunk(data, b"gAMA", struct.pack(">I", 45_455)), _with_chunk(data, b"sBIT", b"\x05")):
        np.testing.assert_array_equal(decode_grey_png(written), values)
        np.testing.assert_array_equal(np.asarray(Picture.open(io.BytesIO(written))), values)


def test_words_about_the_picture_change_nothing() -> None:
    words = PngInfo()
    words.add_text("Software", "a scanner")
    np.testing.assert_array_equal(decode_grey_png(_png(GREY, pnginfo=words)), GREY)


def test_whatever_may_turn_it_or_let_it_be_seen_through_is_left_to_pillow() -> None:
    turned = Picture.Exif()
    turned[0x0112] = 6
    raw, metadata = PngInfo(), PngInfo()
    raw.add_text("Raw profile type exif", "x", zip=True)
    metadata.add_itxt("XML:com.adobe.xmp", '<x tiff:Orientation="6"/>')
    for data in (
        _png(GREY, exif=turned),
        _png(GREY, pnginfo=raw),
        _png(GREY, pnginfo=metadata),
        _png(GREY, transparency=7),
        _png(np.stack([GREY] * 3, axis=2)),
        _png(GREY > 100),
    ):
        assert decode_grey_png(data) is None


def test_a_damaged_one_is_left_to_pillow() -> None:
    data = _png(GREY)
    middle = data.index(b"IDAT") + 40
    for damaged in (
        data[:20],
        data[:middle],
        data[:-20],
        data[:middle] + bytes([data[middle] ^ 4]) + data[middle + 1 :],
    ):
        assert decode_grey_png(damaged) is None


@pytest.mark.parametrize("kept", range(24, 60))
def test_a_png_that_ends_in_its_header_is_incomplete(kept: int) -> None:
    made = io.BytesIO()
    Picture.fromarray(np.zeros((40, 30), np.uint16)).save(made, "PNG")
    with pytest.raises(Unreadable) as found:
        decode_png(made.getvalue()[:kept])
    assert found.value.reason.code in ("truncated", "damaged")
