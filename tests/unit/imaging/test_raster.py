"""PNG and JPEG files, and the small JPEGs that are stored as previews."""

from __future__ import annotations

import io
import struct
import zlib
from itertools import pairwise
from pathlib import Path
from typing import Any

import imagecodecs
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image as Picture
from PIL import ImageOps
from PIL.PngImagePlugin import PngInfo

from fieldray.domain.finding import PREVIEW_SIDE
from fieldray.domain.image import Image, ImageRef
from fieldray.errors import InputProblem, Unreadable, UnsuitableImage
from fieldray.imaging.identify import JPEG_RESTART_MARKERS, identify, jpeg_markers
from fieldray.imaging.preprocess import block_thumbnail, thumbnail
from fieldray.imaging.reading import decode_image_bytes, decode_preview, encode_preview
from fieldray.imaging.reduction import TargetSize
from fieldray.imaging.synthetic import chest_phantom
from fieldray.workers.pool import WorkerPool
from phantoms import saved
from raised import raises

GREY = np.arange(64, dtype=np.uint8).reshape(8, 8) * 4


def _read(data: bytes) -> Image:
    return decode_image_bytes(data, ImageRef(path=Path("x")))


def _decoded(picture: Picture.Image, kind: str = "PNG", **options: Any) -> Image:
    return _read(saved(picture, kind, **options))


def _rgb(red: NDArray[Any], green: NDArray[Any], blue: NDArray[Any]) -> Picture.Image:
    return Picture.fromarray(np.stack([red, green, blue], axis=2).astype(np.uint8))


def test_transparent_pixels_are_composited_on_black() -> None:
    alpha = np.full_like(GREY, 128)
    alpha[0] = 0
    image = _decoded(Picture.merge("LA", (Picture.fromarray(GREY), Picture.fromarray(alpha))))
    np.testing.assert_array_equal(image.pixels, (GREY.astype(int) * alpha + 127) // 255)
    assert "alpha_over_black" in image.notes


def test_a_transparent_palette_entry_is_black() -> None:
    picture = Picture.fromarray(GREY).convert("P")
    index = int(np.asarray(picture)[5, 5])
    image = _decoded(picture, transparency=index)
    assert image.pixels[5, 5] == 0
    assert image.pixels[7, 7] == GREY[7, 7]


def test_colour_is_refused_and_a_tint_of_a_few_levels_is_not() -> None:
    near = np.clip(GREY.astype(int) + 10, 0, 255)
    assert "grey_from_colour" in _decoded(_rgb(GREY, GREY, near)).notes
    with raises(UnsuitableImage, "colour"):
        _decoded(_rgb(GREY, GREY, np.clip(GREY.astype(int) + 40, 0, 255)))


def test_a_small_coloured_mark_on_a_grey_image_is_no_colour_image() -> None:
    image = np.tile(GREY, (20, 20))
    marked = image.copy()
    marked[3, :20] = 255
    # 20 of 25,600 pixels: below one in a thousand
    assert _decoded(_rgb(marked, image, image)).pixels.shape == (160, 160)


@pytest.mark.parametrize(("orientation", "turns"), [(1, 0), (3, 2), (6, 3), (8, 1)])
def test_exif_orientation_turns_the_picture(orientation: int, turns: int) -> None:
    exif = Picture.Exif()
    exif[0x0112] = orientation
    flat = np.zeros((32, 16), np.uint8)
    flat[:8, :8] = 255
    image = _decoded(Picture.fromarray(flat), "JPEG", quality=100, exif=exif)
    # np.rot90 turns counter-clockwise; orientation 6 is to be turned by 90 degrees clockwise
    assert np.abs(image.pixels.astype(int) - np.rot90(flat, turns)).max() <= 2


def test_damaged_exif_is_ignored() -> None:
    image = _decoded(Picture.fromarray(GREY), "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xffgarbage")
    assert image.pixels.shape == (8, 8)


# ---- all bits, and all images of a file


WIDE = chest_phantom(96, 80, 7, abnormal=True)  # twelve bits
NARROW = (WIDE >> 4).astype(np.uint8)


def _problem(data: bytes) -> str:
    with pytest.raises(InputProblem) as caught:
        _read(data)
    return caught.value.reason.code


END = b"\xff\xd9"
ORIENTED = Picture.Exif()
ORIENTED[0x0112] = 6


def _jpeg(mode: str = "L", **options: Any) -> bytes:
    return saved(Picture.fromarray(NARROW).convert(mode), "JPEG", quality=95, **options)


def test_sixteen_bits_in_colour_and_with_alpha_are_kept() -> None:
    opaque = np.full_like(WIDE, 65535)
    for channels in ((WIDE, WIDE, WIDE), (WIDE, opaque), (WIDE, WIDE, WIDE, opaque)):
        values = np.ascontiguousarray(np.dstack(channels))
        np.testing.assert_array_equal(_read(imagecodecs.png_encode(values)).pixels, WIDE)
    half = _read(imagecodecs.png_encode(np.ascontiguousarray(np.dstack([WIDE, opaque // 2]))))
    assert np.abs(half.pixels.astype(int) * 2 - WIDE).max() <= 2 and "alpha_over_black" in half.notes


@pytest.mark.parametrize("orientation", range(1, 9))
def test_16_bit_pixels_are_turned_like_8_bit_ones(orientation: int) -> None:
    exif = Picture.Exif()
    exif[0x0112] = orientation
    shallow = saved(_rgb(NARROW, NARROW, NARROW), exif=exif)
    expected = np.asarray(ImageOps.exif_transpose(Picture.open(io.BytesIO(shallow))).convert("L"))
    np.testing.assert_array_equal(_read(shallow).pixels, expected)
    chunk = struct.pack(">I", len(exif.tobytes()[6:])) + b"eXIf" + exif.tobytes()[6:]
    deep = imagecodecs.png_encode(np.ascontiguousarray(np.dstack([NARROW.astype(np.uint16)] * 3)))
    turned = _read(deep[:33] + chunk + struct.pack(">I", zlib.crc32(chunk[4:])) + deep[33:])
    np.testing.assert_array_equal(turned.pixels, expected)


def test_jpegs_of_other_depths_keep_their_values_or_are_refused() -> None:
    twelve = _read(imagecodecs.jpeg8_encode(WIDE, level=98, bitspersample=12)).pixels
    assert np.abs(twelve.astype(int) - WIDE).max() < 30
    for bits in (12, 16):
        lossless = imagecodecs.jpeg8_encode(WIDE, lossless=True, bitspersample=bits)
        np.testing.assert_array_equal(_read(lossless).pixels, WIDE)
    assert _problem(imagecodecs.jpegls_encode(WIDE)) == "unsupported_compression"


@pytest.mark.parametrize("stray", [bytes(7), b"\xff\0" * 2, b"\xff" * 5, b"\0", b"ab"])
def test_stray_bytes_before_a_marker_are_skipped(stray: bytes) -> None:
    whole = _jpeg()
    second = 4 + struct.unpack(">H", whole[4:6])[0]
    data = whole[:second] + stray + whole[second:]
    np.testing.assert_array_equal(_read(data).pixels, _read(whole).pixels)
    found = identify(io.BytesIO(data), ImageRef(path=Path("x")))
    assert isinstance(found, list) and found[0].header.rows == 96


@pytest.mark.parametrize("options", [{}, {"progressive": True}])
def test_a_jpeg_without_only_its_end_marker_is_read_with_a_note(options: dict[str, Any]) -> None:
    whole = _jpeg(**options)
    for data in (whole[:-2], whole[:-1], whole[:-2] + bytes(500)):
        image = _read(data)
        np.testing.assert_array_equal(image.pixels, _read(whole).pixels)
        assert image.notes == ("end_was_missing",)
    for data in (whole[:-4], whole[:-40], whole[: len(whole) // 2], whole[: len(whole) // 2] + bytes(len(whole))):
        assert _problem(data) == "truncated"


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"restart_marker_rows": 1}, {"exif": ORIENTED}])
def test_a_scan_cut_before_the_end_marker_is_truncated(options: dict[str, Any]) -> None:
    for mode in ("L", "RGB"):
        whole = _jpeg(mode, **options)
        for lacking in (6, 10, 42, len(whole) // 4, len(whole) // 2):
            cut = whole[:-lacking]
            assert _problem(cut + END) == _problem(cut + b"\xff" + END + bytes(99)) == "truncated"
        parts = {"progressive": [0xC4], "restart_marker_rows": JPEG_RESTART_MARKERS}.get(next(iter(options), ""), ())
        for start in [at - 2 for marker, at in jpeg_markers(whole) if marker in parts][2:]:  # scans or intervals
            assert _problem(whole[:start]) == _problem(whole[:start] + END) == "truncated"
    at = whole.index(b"\xff\0", len(whole) // 2)
    assert _problem(whole[: at + 1] + b"\xd9" + whole[at + 2 :]) == "truncated"  # one byte became an end marker
    flat = Picture.fromarray(np.full_like(NARROW, 128))
    assert np.ptp(_decoded(flat, "JPEG", **options).pixels) == 0  # as grey as the filling of a cut image


def test_a_cut_scan_is_found_although_the_image_is_read_at_an_eighth() -> None:
    """Low resolutions of a progressive JPEG need few scans, but a cut file must be refused at every resolution."""
    grey = (chest_phantom(512, 512, 7, abnormal=True) // 16).astype(np.uint8)
    whole = saved(Picture.fromarray(grey), "JPEG", progressive=True)
    needed, ref = TargetSize(32, 32), ImageRef(path=Path("x"))
    assert decode_image_bytes(whole, ref, needed_size=needed).pixels.shape == (64, 64)  # an eighth
    markers = [(marker, at) for marker, at in jpeg_markers(whole) if marker not in JPEG_RESTART_MARKERS]
    scans = [(start, after - 2) for (marker, start), (_, after) in pairwise(markers) if marker == 0xDA]
    assert len(scans) > 3
    for start, end in scans:
        cut = whole[: (start + end) // 2] + whole[end:]
        for size in (needed, None):
            with raises(Unreadable, "truncated"):
                decode_image_bytes(cut, ref, needed_size=size)


def test_a_second_image_of_at_least_the_same_size_is_refused() -> None:
    first, second = (Picture.fromarray(values) for values in (NARROW, 255 - NARROW))
    for kind in ("MPO", "PNG"):
        assert _problem(saved(first, kind, save_all=True, append_images=[second])) == "several_images"
    assert _problem(saved(first) * 2) == "several_images"
    assert _problem(_jpeg() * 2) == "several_images"
    for one, other in ((saved(first), _jpeg()), (_jpeg(), saved(first)), (saved(first), saved(second, "JPEG"))):
        assert _problem(one + other) == "several_images"
    larger = saved(Picture.fromarray(np.kron(NARROW, np.ones((2, 2), np.uint8))), "JPEG")
    assert _problem(_jpeg() + larger) == "several_images"
    still = saved(first, save_all=True, append_images=[second], default_image=True)
    assert _problem(still) == "several_images"  # the still image next to an animation is one more image
    np.testing.assert_array_equal(_decoded(first, save_all=True, default_image=False).pixels, NARROW)


def test_smaller_embedded_pictures_are_noted() -> None:
    small = saved(Picture.fromarray(NARROW[::4, ::4]), "JPEG")
    assert _read(_jpeg() + small).notes == ("further_images",)
    exif = Picture.Exif()
    exif[0x010E] = "\xff\xd8\xff, which begins no image here"
    assert _read(_jpeg(exif=exif) + b"a camera's own words").notes == ()


# ---- PNG, equal to Pillow


RAMP = (np.add.outer(np.arange(50), 3 * np.arange(70)) % 256).astype(np.uint8)


def _png(values: NDArray[Any], **options: Any) -> bytes:
    return saved(Picture.fromarray(values), **options)


def _with_chunk(data: bytes, kind: bytes, content: bytes) -> bytes:
    """`data` with one more chunk after its header."""
    chunk = struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
    return data[:33] + chunk + data[33:]


@pytest.mark.parametrize("values", [RAMP, RAMP.astype(np.uint16) * 257 + 3], ids=["8 bits", "16 bits"])
def test_png_pixels_equal_those_of_pillow(values: NDArray[Any]) -> None:
    data, words = _png(values), PngInfo()
    words.add_text("Software", "a scanner")
    more = (_with_chunk(data, b"gAMA", struct.pack(">I", 45_455)), _with_chunk(data, b"sBIT", b"\x05"))
    for written in (data, *more, _png(values, pnginfo=words)):
        np.testing.assert_array_equal(_read(written).pixels, values)
        np.testing.assert_array_equal(np.asarray(Picture.open(io.BytesIO(written))), values)


def test_png_with_orientation_or_transparency_equals_pillow() -> None:
    turned = Picture.Exif()
    turned[0x0112] = 6
    raw, metadata = PngInfo(), PngInfo()
    raw.add_text("Raw profile type exif", "x", zip=True)
    metadata.add_itxt("XML:com.adobe.xmp", '<x tiff:Orientation="6"/>')
    for data in (
        _png(RAMP, exif=turned),
        _png(RAMP, pnginfo=raw),
        _png(RAMP, pnginfo=metadata),
        _png(RAMP, transparency=7),
        _png(np.stack([RAMP] * 3, axis=2)),
        _png(RAMP > 100),
    ):
        with Picture.open(io.BytesIO(data)) as picture:
            expected = np.asarray(ImageOps.exif_transpose(picture).convert("L"))
        np.testing.assert_array_equal(_read(data).pixels, expected)


def test_a_cut_or_damaged_png_is_refused() -> None:
    data = _png(RAMP)
    middle = data.index(b"IDAT") + 40
    changed = data[:middle] + bytes([data[middle] ^ 4]) + data[middle + 1 :]
    for broken in (changed, *(data[:kept] for kept in (*range(24, 60), middle, len(data) - 30))):
        assert _problem(broken) in ("truncated", "damaged"), len(broken)
    np.testing.assert_array_equal(_read(data + b"\0\0\0\1What follows the end").pixels, RAMP)


# ---- previews: small, like the image, and the only format that is decoded


@pytest.mark.parametrize("shape", [(1000, 700), (300, 512), (40, 30), (30, 9000), (20_000, 3)])
def test_a_preview_is_small_and_shows_the_image(shape: tuple[int, int]) -> None:
    image = Image(pixels=chest_phantom(*shape, 3, abnormal=True))
    small = block_thumbnail(image, PREVIEW_SIDE)
    assert max(small.shape) <= PREVIEW_SIDE and small.dtype == np.uint8
    back = decode_preview(encode_preview(small))
    assert back.shape == small.shape
    if min(shape) >= 300:
        assert np.abs(back.astype(int) - small).mean() < 4
        exact = thumbnail(image, max(small.shape))
        assert np.abs(exact.astype(int)[: small.shape[0], : small.shape[1]].mean() - small.mean()) < 2
        assert len(encode_preview(small)) < 16_384


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xd8\xff\xe0 cut short",
        encode_preview(np.zeros((64, 64), np.uint8))[:100],
        saved(Picture.new("L", (PREVIEW_SIDE + 1, 10)), "JPEG"),
        saved(Picture.new("RGB", (10, 10)), "JPEG"),
    ],
)
def test_other_data_is_a_damaged_preview(data: bytes) -> None:
    with pytest.raises(Unreadable):
        decode_preview(data)


def test_a_preview_is_decoded_in_a_child_process() -> None:
    grey = np.tile(np.arange(0, 200, 2, dtype=np.uint8), (50, 1))
    with WorkerPool(1, timeout_s=60, memory_limit_mb=2048) as pool:
        back = pool.read_preview(encode_preview(grey))
        assert back.shape == grey.shape and np.abs(back.astype(int) - grey).max() < 12
        with pytest.raises(Unreadable):
            pool.read_preview(b"damaged")
