"""One image in every kind of file gives one picture with square pixels; faulty files end with a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fieldray.domain.image import Image, ImageRef
from fieldray.domain.model import InputSpec
from fieldray.errors import Unreadable, UnsuitableImage
from fieldray.imaging.preprocess import to_display, to_network_input
from fieldray.imaging.reading import decode_image_bytes
from fieldray.imaging.reduction import target_size
from fieldray.imaging.synthetic import chest_phantom
from phantoms import LOSSLESS, write_collection, write_dicom
from raised import raises

IMAGE = chest_phantom(160, 128, 7, abnormal=False)


def _read(path: Path, *, frame: int = 0) -> Image:
    return decode_image_bytes(path.read_bytes(), ImageRef(path=path, frame=frame))


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_collection(tmp_path_factory.mktemp("collection"))


def test_every_kind_shows_the_same_picture(collection: list[Path]) -> None:
    expected = IMAGE / 4095 * 255
    assert len(collection) == 51
    for path in collection:
        image = _read(path)
        if path.name == "grey-16.png":
            # nothing says how 16 bits are to be shown, so percentiles are used
            assert image.window is None
            np.testing.assert_array_equal(image.pixels, IMAGE << 4)
            continue
        # JPEG at quality 95 is 1.1 levels off on average, rounding to 8 bits 0.3
        difference = np.abs(to_display(image) - expected).mean()
        assert difference < (1.5 if "jp" in path.suffix or "baseline" in path.name else 0.9), path.name


def test_frames_are_read_one_by_one(tmp_path: Path) -> None:
    images = np.stack([IMAGE, IMAGE[::-1], IMAGE // 2])
    changes = {"NumberOfFrames": 3, "PixelData": images.astype("<u2").tobytes()}
    path = write_dicom(tmp_path / "frames.dcm", IMAGE, changes=changes)
    for frame in range(3):
        np.testing.assert_array_equal(_read(path, frame=frame).pixels, images[frame])
    with raises(Unreadable, "truncated"):
        _read(path, frame=3)
    path = write_dicom(tmp_path / "frames.dcm", IMAGE, changes={"NumberOfFrames": 2})  # the second frame is missing
    np.testing.assert_array_equal(_read(path, frame=0).pixels, IMAGE)
    with pytest.raises(Unreadable):
        _read(path, frame=1)


def test_a_codestream_of_another_size_is_not_decoded(tmp_path: Path) -> None:
    for name in ("jpeg2000-lossless", "jpegls-lossless", "jpeg-lossless-sv1"):
        path = write_dicom(tmp_path / f"{name}.dcm", IMAGE, transfer_syntax=LOSSLESS[name])
        data = path.read_bytes().replace(b"\x28\x00\x10\x00US\x02\x00\xa0\x00", b"\x28\x00\x10\x00US\x02\x00\xa2\x00")
        with raises(Unreadable, "size_mismatch"):
            decode_image_bytes(data, ImageRef(path=path))


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "empty"),
        (b"MZ" + bytes(126) + b"DICM" + bytes(300), "executable"),
        (b"\xfe\xed\xfa\xcf" + bytes(124) + b"DICM" + bytes(300), "executable"),
    ],
)
def test_data_that_is_no_image_file_is_refused(data: bytes, code: str) -> None:
    with raises(Unreadable, code):
        decode_image_bytes(data, ImageRef(path=Path("x")))


@pytest.mark.parametrize(
    "data",
    [b"hello, world" * 30, b"MZ" + bytes(99), b"\xca\xfe\xba\xbe" * 90, b"PK\x03\x04" + bytes(100), bytes(1000)],
)
def test_other_files_are_refused(data: bytes) -> None:
    with raises(UnsuitableImage, "not_an_image"):
        decode_image_bytes(data, ImageRef(path=Path("x")))


# ---- pixels that are not square are resampled when a file is read: all later steps get square ones

SPEC = InputSpec(height=64, width=64, fit="pad")
SQUARE = chest_phantom(160, 128, 3, abnormal=False)
WIDE, TALL = np.repeat(SQUARE, 2, axis=1), np.repeat(SQUARE, 3, axis=0)


def _written(folder: Path, pixels: np.ndarray[Any, Any], *, reduced: bool = False, **options: Any) -> Image:
    changes = {"ImagerPixelSpacing": None} | options.pop("changes")
    path = write_dicom(folder / "a.dcm", pixels, changes=changes, **options)
    return decode_image_bytes(
        path.read_bytes(), ImageRef(path=path), needed_size=target_size(SPEC) if reduced else None
    )


@pytest.mark.parametrize(
    ("pixels", "changes", "spacing_mm"),
    [
        (WIDE, {"PixelSpacing": [0.2, 0.1]}, (0.2, 0.2)),
        (WIDE, {"ImagerPixelSpacing": [0.2, 0.1]}, (0.2, 0.2)),
        (WIDE, {"PixelAspectRatio": [2, 1]}, None),
        (TALL, {"PixelAspectRatio": [1, 3]}, None),
        (TALL, {"PixelSpacing": [0.1, 0.3], "PixelAspectRatio": [1, 1]}, (0.3, 0.3)),
    ],
)
def test_the_image_is_the_one_with_square_pixels(
    pixels: np.ndarray[Any, Any], changes: dict[str, Any], spacing_mm: tuple[float, float] | None, tmp_path: Path
) -> None:
    for reduced in (False, True):
        image = _written(tmp_path, pixels, changes=changes, reduced=reduced)
        np.testing.assert_array_equal(image.pixels, SQUARE)
        assert (image.file_rows, image.file_columns, image.reduction_factor) == (160, 128, 1)
        assert image.spacing_mm == (None if spacing_mm is None else pytest.approx(spacing_mm))
        assert "pixels_not_square" in image.notes


@pytest.mark.parametrize("changes", [{"PixelSpacing": [0.1, 100]}, {"PixelAspectRatio": [1000, 1]}])
def test_impossible_pixel_aspect_ratios_are_ignored(changes: dict[str, Any], tmp_path: Path) -> None:
    np.testing.assert_array_equal(_written(tmp_path, SQUARE, changes=changes).pixels, SQUARE)


@pytest.mark.parametrize("name", ["jpeg2000-lossless", "rle", "deflated"])
@pytest.mark.parametrize("photometric", ["MONOCHROME1", "RGB"])
def test_every_kind_of_file_gives_square_pixels(name: str, photometric: str, tmp_path: Path) -> None:
    if photometric == "RGB" and name == "jpeg2000-lossless":
        pytest.skip("the phantoms are grey there")
    options: dict[str, Any] = {"transfer_syntax": LOSSLESS[name], "photometric": photometric}
    square = to_network_input(_written(tmp_path, SQUARE, changes={}, **options), SPEC)
    wide = _written(tmp_path, WIDE, changes={"PixelAspectRatio": [2, 1]}, reduced=True, **options)
    np.testing.assert_array_equal(to_network_input(wide, SPEC).values, square.values)
    assert to_network_input(wide, SPEC).input_to_image == square.input_to_image


@pytest.mark.parametrize(
    "changes", [{}, {"PixelAspectRatio": [1, 1]}, {"PixelSpacing": [0.1, 0.1005]}, {"PixelAspectRatio": [0, 1]}]
)
def test_square_pixels_stay_unchanged(changes: dict[str, Any], tmp_path: Path) -> None:
    image = _written(tmp_path, WIDE, changes=changes)
    np.testing.assert_array_equal(image.pixels, WIDE)
    assert "pixels_not_square" not in image.notes


def test_padding_stays_padding_in_resampled_pixels(tmp_path: Path) -> None:
    framed = SQUARE.copy()
    framed[:, :20] = 0
    square = _written(tmp_path, framed, changes={"PixelPaddingValue": 0})
    wide = _written(
        tmp_path, np.repeat(framed, 2, axis=1), changes={"PixelPaddingValue": 0, "PixelAspectRatio": [2, 1]}
    )
    np.testing.assert_array_equal(wide.pixels, square.pixels)
    assert wide.padding_value == square.padding_value == 0
