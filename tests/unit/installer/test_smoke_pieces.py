"""What the smoke test itself stands on: what may be said, and what is on the screen."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import numpy as np
import pydicom
import pytest
from PIL import Image
from pydicom.uid import (
    DigitalXRayImageStorageForPresentation,
    ExplicitVRLittleEndian,
    JPEGLosslessSV1,
    RLELossless,
)

import screen_picture
import smoke_images
from clean_root import Done, plain_address
from expectation import APT, Unexpected, expect
from fieldray.imaging.codecs.jpeg import decode_jpeg
from fieldray.imaging.codecs.rle import decode_run_lengths
from fieldray.imaging.raster import decode_grey_png
from smoke_test import missing_packages


def done(code: int = 0, output: str = "", errors: str = "") -> Done:
    return Done("a command", code, tuple(output.splitlines()), tuple(errors.splitlines()))


def test_what_was_expected_passes() -> None:
    expect(done(output="12 images\nRan on cpu"), output=(r"\d+ images", r"\?Ran on .*", r"\?Never said"))


@pytest.mark.parametrize(
    ("ended", "told"),
    [
        (done(code=3), "ended with 3, not 0"),
        (done(output="12 images\nsegmentation fault"), "output, not expected: segmentation fault"),
        (done(output="12 images", errors="a warning"), "errors, not expected: a warning"),
        (done(), r"output, missing: \d+ images"),
        (done(output="12 images and more"), "output, not expected: 12 images and more"),
    ],
)
def test_anything_else_fails(ended: Done, told: str) -> None:
    with pytest.raises(Unexpected) as caught:
        expect(ended, output=(r"\d+ images",))
    assert told in str(caught.value)


def test_the_package_systems_usual_words_are_known_and_no_others() -> None:
    expect(done(output="Setting up fieldray (0.1.0) ...\nReading package lists..."), output=APT)
    for word in ("W: something odd", "dpkg: warning: x", "E: broken"):
        with pytest.raises(Unexpected):
            expect(done(output=word), output=APT)


def test_programs_that_are_missing_are_named_by_their_packages() -> None:
    programs = {"sh": "dash", "no-such-program": "b-package", "nor-this": "a-package", "nor-that": "a-package"}
    assert missing_packages(programs) == ["a-package", "b-package"]


def test_a_mirror_may_be_named_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "mirrors.txt").write_text("http://first.example/linux/\tpriority:1\nhttp://second.example/linux/\n")
    assert plain_address(f"mirror+file:{tmp_path}/mirrors.txt/") == "http://first.example/linux/"
    assert plain_address("http://only.example/linux/") == "http://only.example/linux/"


def dump(pixels: np.ndarray) -> bytes:
    """As `xwd` writes a screen of 24 bits: a header, one colour of 12 bytes, four bytes a pixel (blue first)."""
    rows, columns = pixels.shape[:2]
    name = b"xwdump\0\0"
    line = columns * 4 + 8  # padded
    header = struct.pack(
        ">25I", 100 + len(name), 7, 2, 24, columns, rows, 0, 0, 32, 0, 32, 32, line, 4, 0, 0, 0, 8, 0, 1,
        columns, rows, 0, 0, 0,
    )  # fmt: skip
    lines = b""
    for row in pixels:
        four = np.zeros((columns, 4), np.uint8)
        four[:, :3] = row[:, ::-1]
        lines += four.tobytes() + b"\0" * 8
    return header + name + b"\0" * 12 + lines


def test_a_screen_becomes_a_png(tmp_path: Path) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    pixels[2, 3] = (0xB3, 0x37, 0x0B)
    picture = screen_picture.read_xwd(dump(pixels))
    picture.save(tmp_path / "screen.png")
    with Image.open(tmp_path / "screen.png") as read:
        assert np.array_equal(np.asarray(read), pixels)
    assert picture.count("#b3370b") == 1
    assert picture.count("#b3370a") == 0


def test_another_kind_of_dump_is_refused() -> None:
    data = bytearray(dump(np.zeros((2, 2, 3), np.uint8)))
    data[44:48] = struct.pack(">I", 16)  # bits a pixel
    with pytest.raises(ValueError, match="32 bits a pixel"):
        screen_picture.read_xwd(bytes(data))


def plain_image(values: np.ndarray) -> bytes:
    dataset = pydicom.Dataset()
    dataset.SOPClassUID = DigitalXRayImageStorageForPresentation
    dataset.SOPInstanceUID = "2.25.1"
    dataset.Rows, dataset.Columns = values.shape
    dataset.SamplesPerPixel, dataset.PhotometricInterpretation = 1, "MONOCHROME2"
    dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit, dataset.PixelRepresentation = 16, 12, 11, 0
    dataset.PixelData = values.astype("<u2").tobytes()
    dataset["PixelData"].VR = "OW"
    dataset.file_meta = pydicom.dataset.FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    written = io.BytesIO()
    pydicom.dcmwrite(written, dataset, enforce_file_format=True)
    return written.getvalue()


def test_a_image_in_other_forms_is_the_same_image() -> None:
    """As the program's own decoders read it, through pydicom and Pillow."""
    values = np.random.default_rng(7).integers(0, 4096, (37, 300), dtype=np.uint16)
    values[5:20] = 4095  # runs for RLE
    forms = smoke_images.other_forms(plain_image(values))
    for name, syntax in {"rle.dcm": RLELossless, "lossless.dcm": JPEGLosslessSV1}.items():
        dataset = pydicom.dcmread(io.BytesIO(forms[name]))
        assert dataset.file_meta.TransferSyntaxUID == syntax
        assert np.array_equal(dataset.pixel_array, values), name
        frame = pydicom.encaps.get_frame(dataset.PixelData, 0)
        own = decode_run_lengths(frame, 37, 300, "u2") if name == "rle.dcm" else decode_jpeg(frame)
        assert own is not None and np.array_equal(own, values), name
    assert np.array_equal(decode_grey_png(forms["picture.png"]), values << 4)
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(forms["picture.png"]))), values << 4)


def test_only_a_plain_image_of_twelve_bits_is_rewritten() -> None:
    values = np.zeros((4, 4), np.uint16)
    with pytest.raises(ValueError, match="not a plain image"):
        smoke_images.other_forms(plain_image(values).replace(b"US\2\0\x0c\0", b"US\2\0\x0a\0"))
