"""Codecs: one registration adds a compression, in full and reduced; and what codecs use of libraries' internals."""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import imagecodecs
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image as Picture
from pydicom import dcmread
from pydicom.dataset import Dataset
from pydicom.encaps import encapsulate, get_frame
from pydicom.uid import (
    HTJ2K,
    JPEG2000,
    UID,
    ExplicitVRBigEndian,
    ExplicitVRLittleEndian,
    HTJ2KLossless,
    JPEG2000Lossless,
    JPEGBaseline8Bit,
    JPEGExtended12Bit,
    JPEGLossless,
    JPEGLSLossless,
    JPEGLSNearLossless,
    RLELossless,
)

from benchmarks.image_files import set_compressed_frame
from fieldray.domain.image import ImageRef
from fieldray.domain.model import InputSpec
from fieldray.errors import Unreadable
from fieldray.imaging.codec import Codec, Frame, codecs
from fieldray.imaging.codecs.jpeg2000 import bits_and_decomposition_levels, decode_jpeg2000
from fieldray.imaging.codecs.rle import CODEC as RLE
from fieldray.imaging.identify import identify
from fieldray.imaging.reading import decode_image_bytes
from fieldray.imaging.reduction import TargetSize, largest_reduction, target_size
from fieldray.imaging.synthetic import chest_phantom, dicom_dataset
from phantoms import LOSSLESS, LOSSY, saved, scaled, write_dicom

SYNTAX = UID("1.2.826.0.1.3680043.8.498.1.2.3.4")  # an invented private transfer syntax
IMAGE = chest_phantom(416, 360, 7, abnormal=True)
# 69.6 pixels are needed of each side; a step of 2 leaves more than twice as many: 360 // 139.1 = 2
NEEDED = target_size(InputSpec(height=64, width=64, margin=0.04, intensity="as_displayed"))


def _decode(frame: Frame) -> NDArray[np.uint16]:
    return np.frombuffer(zlib.decompress(frame.codestream), "<" + frame.value_type).reshape(frame.rows, frame.columns)


def _reduced(frame: Frame, needed: TargetSize) -> tuple[NDArray[np.uint16], int] | None:
    step = largest_reduction(frame.rows, frame.columns, needed)
    return (_decode(frame)[::step, ::step], step) if step > 1 else None


CODEC = Codec(name="zlib", transfer_syntaxes=frozenset({SYNTAX}), decode=_decode, decode_reduced=_reduced)


@pytest.fixture
def registered(request: pytest.FixtureRequest) -> Iterator[Codec]:
    codec = replace(CODEC, **getattr(request, "param", {}))
    codecs()[codec.name] = codec
    yield codec
    del codecs()[codec.name]


def _write(path: Path, *, size: tuple[int, int] = IMAGE.shape) -> Path:
    dataset: Dataset = dicom_dataset(IMAGE, study_number=1)
    set_compressed_frame(dataset, zlib.compress(IMAGE.tobytes()))
    dataset.Rows, dataset.Columns = size
    dataset.file_meta.TransferSyntaxUID = SYNTAX
    dataset.save_as(path, implicit_vr=False, little_endian=True, force_encoding=True)
    return path


def _read(path: Path, needed: TargetSize | None = None) -> NDArray[np.uint16]:
    return decode_image_bytes(path.read_bytes(), ImageRef(path=path), needed_size=needed).pixels


def _frame(path: Path) -> bytes:
    return get_frame(dcmread(path).PixelData, 0, number_of_frames=1)


def _with_frame(path: Path, stream: bytes) -> Path:
    """The image as JPEG 2000, with this stream instead of its own."""
    dataset = dcmread(write_dicom(path, IMAGE))
    set_compressed_frame(dataset, stream)
    dataset.file_meta.TransferSyntaxUID = JPEG2000Lossless
    dataset.save_as(path)
    return path


def _wavelets(picture: NDArray[np.uint16], **options: Any) -> bytes:
    return saved(Picture.fromarray(picture), "JPEG2000", no_jp2=True, **options)


def test_a_registered_codec_reads_in_full_and_reduced(registered: Codec, tmp_path: Path) -> None:
    path = _write(tmp_path / "image.dcm")
    np.testing.assert_array_equal(_read(path), IMAGE)
    image = decode_image_bytes(path.read_bytes(), ImageRef(path=path), needed_size=NEEDED)
    assert (image.reduction_factor, image.has_approximate_pixels, image.file_rows, image.file_columns) == (
        2,
        True,
        416,
        360,
    )
    np.testing.assert_array_equal(image.pixels, IMAGE[::2, ::2])


def test_a_compression_without_a_codec_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match=rf"transfer syntax .* not supported \({re.escape(SYNTAX)}\)"):
        _read(_write(tmp_path / "image.dcm"))


@pytest.mark.parametrize("registered", [{"decode_reduced": None}], indirect=True)
def test_a_codec_without_reduced_reading_averages_the_whole_image(registered: Codec, tmp_path: Path) -> None:
    image = decode_image_bytes(
        _write(tmp_path / "i.dcm").read_bytes(), ImageRef(path=tmp_path / "i.dcm"), needed_size=NEEDED
    )
    assert (image.reduction_factor, image.has_approximate_pixels) == (2, False)


def test_decoded_values_of_another_shape_are_refused(registered: Codec, tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match="damaged"):
        _read(_write(tmp_path / "image.dcm", size=(400, 360)))


def test_every_compression_has_one_codec() -> None:
    uids = [uid for codec in codecs().values() for uid in codec.transfer_syntaxes]
    assert len(uids) == len(set(uids))
    compressed = {uid for uid in (*LOSSLESS.values(), *LOSSY.values()) if uid.is_encapsulated}
    assert compressed <= set(uids)


# ---- internals of libraries: each of these tests fails when a new version changes them


def test_pillow_reads_a_lower_resolution_of_a_given_size(tmp_path: Path) -> None:
    """`decode_jpeg2000` sets Pillow's `_size`, since Pillow and the standard round 823 x 719 at 1/4 differently."""
    image = chest_phantom(823, 719, 7, abnormal=False)
    path = write_dicom(tmp_path / "image.dcm", image, transfer_syntax=JPEG2000Lossless)
    source = _frame(path)
    for step in (2, 4, 8):
        small = decode_jpeg2000(source, step, 12)
        assert small.shape == (-(-823 // step), -(-719 // step))
        rows, columns = 823 // step * step, 719 // step * step
        means = image[:rows, :columns].reshape(rows // step, step, columns // step, step).mean((1, 3))
        assert np.abs(small[: rows // step, : columns // step] - means).mean() < 20  # of 4095


@pytest.mark.parametrize("syntax", [JPEGLossless, JPEGLSLossless, JPEG2000Lossless, HTJ2KLossless, RLELossless])
def test_colour_images_of_every_compression_are_read(syntax: UID, tmp_path: Path) -> None:
    path = write_dicom(tmp_path / "image.dcm", IMAGE, transfer_syntax=syntax, photometric="RGB")
    np.testing.assert_array_equal(_read(path), IMAGE >> 4)


def test_no_patient_name_gets_into_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write_dicom(tmp_path / "image.dcm", IMAGE, changes={"PatientName": "Doe^Jane", "StudyDate": "Doe^Jane"})
    caplog.clear()  # drop what pydicom logs while it writes
    with caplog.at_level("DEBUG"):
        _read(path)
        with path.open("rb") as stream:
            identify(stream, ImageRef(path=path))
    assert "Doe" not in caplog.text


def test_a_jpeg2000_image_may_be_offset_from_its_grid_origin(tmp_path: Path) -> None:
    options = {"offset": (16, 32), "tile_size": (1024, 1024), "tile_offset": (0, 0), "num_resolutions": 4}
    path = _with_frame(tmp_path / "image.dcm", _wavelets(IMAGE, **options))
    np.testing.assert_array_equal(_read(path), IMAGE)
    whole = decode_image_bytes(path.read_bytes(), ImageRef(path=path), needed_size=NEEDED)
    assert (whole.reduction_factor, whole.has_approximate_pixels) == (2, False)


@pytest.mark.parametrize("shift", [1, 8, 12])
def test_a_region_of_interest_of_jpeg_2000_gives_the_same_values(tmp_path: Path, shift: int) -> None:
    """With the marker RGN (T.800 A.6.3), all coefficients are stored shifted up by this number of bits."""
    data = _wavelets(IMAGE)
    end = data.index(b"\xff\x52") + 2
    end += int.from_bytes(data[end : end + 2], "big")
    region = data[:end] + b"\xff\x5e\x00\x05\x00\x00" + bytes([shift]) + data[end:]
    np.testing.assert_array_equal(_read(_with_frame(tmp_path / "image.dcm", region)), IMAGE)


# ---- single-frame decoders: they equal other decoders, and leave unknown formats to them

LARGE = chest_phantom(823, 720, 7, abnormal=True)


# ---- RLE


def _runs(header: tuple[int, ...], packed: bytes) -> Frame:
    """A frame of 3 x 4 values of 8 bits."""
    source = struct.pack("<16I", *header, *([0] * (16 - len(header)))) + packed
    size = {
        "rows": 3,
        "columns": 4,
        "samples_per_pixel": 1,
        "bits_allocated": 8,
        "bits_stored": 8,
        "unused_low_bits": 0,
    }
    return Frame(
        transfer_syntax=RLELossless,
        is_signed=False,
        is_8_or_16_bit_grey=True,
        padding_range=None,
        frame_count=1,
        codestream=source,
        **size,
    )


def test_rle_runs_may_cross_row_ends() -> None:
    # PS3.5 G.3.1: a byte n of 0..127 is followed by n + 1 bytes as they are, 129..255 by one for 257 - n times
    packed = bytes([257 - 8 & 0xFF, 7, 3, 1, 2, 3, 4])
    for padding in (b"", bytes([1, 9, 9])):  # after the last row
        decoded = RLE.decode(_runs((1, 64), packed + padding))
        assert decoded.tolist() == [[7, 7, 7, 7], [7, 7, 7, 7], [1, 2, 3, 4]]


@pytest.mark.parametrize(
    "header",
    [(1, 64), (2, 64, 66), (0,), (1, 70), (1, 0), (1, 2**31), (15, *([64] * 15)), (1, 64, *([0] * 13), 64)],
)
def test_a_wrong_rle_header_or_a_short_frame_is_damaged(header: tuple[int, ...]) -> None:
    with pytest.raises((ValueError, RuntimeError)):
        RLE.decode(_runs(header, bytes([3, 1, 2])))


# ---- the declared properties of a codec


@pytest.mark.parametrize(
    ("syntax", "is_lossless"),
    [
        (JPEGBaseline8Bit, False),
        (JPEGExtended12Bit, False),
        (JPEG2000, False),
        (HTJ2K, False),
        (JPEGLSNearLossless, False),
        (JPEGLossless, True),
        (JPEG2000Lossless, True),
        (JPEGLSLossless, True),
        (RLELossless, True),
    ],
)
def test_each_codec_says_which_of_its_syntaxes_are_lossless(syntax: UID, is_lossless: bool) -> None:
    frame = replace(_runs((1, 64), b""), transfer_syntax=syntax)
    assert frame.is_lossless == is_lossless
    assert replace(frame, codestream=b"").is_lossless  # uncompressed values


# ---- uncompressed: equal to pydicom's reading


@pytest.mark.parametrize("syntax", [ExplicitVRLittleEndian, ExplicitVRBigEndian])
@pytest.mark.parametrize(
    ("photometric", "bits", "planar"),
    [*product(["RGB"], [8, 16], [0, 1]), *product(["YBR_FULL"], [8], [0, 1]), ("YBR_FULL_422", 8, 0)],
)
def test_uncompressed_colour_equals_pydicoms_reading(
    photometric: str, bits: int, planar: int, syntax: UID, tmp_path: Path
) -> None:
    chance, dataset = np.random.default_rng(5), dicom_dataset(IMAGE, study_number=1)
    dataset.SamplesPerPixel, dataset.PhotometricInterpretation, dataset.PlanarConfiguration = 3, photometric, planar
    dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit, dataset.NumberOfFrames = bits, bits, bits - 1, 2
    grey = (IMAGE >> 4).astype(np.uint8)  # and a difference of a few levels in each sample
    base = [grey, *[np.full_like(grey, 128) if photometric[0] == "Y" else grey] * 2]
    samples = [(plane + chance.integers(0, 4, (2, *grey.shape), np.uint8)) for plane in base]
    if photometric == "YBR_FULL_422":
        y, cb, cr = samples
        samples = [y[..., ::2], y[..., 1::2], cb[..., ::2], cr[..., ::2]]
    values = np.stack(samples, axis=1 if planar else -1).astype(f"u{bits // 8}")
    order = ">" if syntax == ExplicitVRBigEndian else "<"
    dataset.PixelData = values.astype(values.dtype.newbyteorder(order)).tobytes()
    dataset["PixelData"].VR = "OB" if bits == 8 else "OW"
    dataset.file_meta.TransferSyntaxUID, path = syntax, tmp_path / "image.dcm"
    dataset.save_as(path, enforce_file_format=True)
    for number, expected in enumerate(dcmread(path).pixel_array):
        image = decode_image_bytes(path.read_bytes(), ImageRef(path=path, frame=number))
        np.testing.assert_array_equal(image.pixels, expected[:, :, 1])


def test_bits_above_the_stored_ones_are_dropped_from_32_and_16_bits(tmp_path: Path) -> None:
    values = np.arange(64 * 64, dtype=np.uint16).reshape(64, 64)
    dataset, path, found = dicom_dataset(values, study_number=1), tmp_path / "image.dcm", []
    dataset.BitsStored, dataset.HighBit, dataset.PixelRepresentation = 12, 11, 1
    for bits in (16, 32):
        dataset.BitsAllocated, dataset.PixelData = bits, values.astype(f"<u{bits // 8}").tobytes()
        dataset.save_as(path)
        found.append(_read(path))
    assert np.ptp(found[0]) > 0
    np.testing.assert_array_equal(*found)


def test_a_jpeg_without_a_colour_space_has_the_one_of_the_dicom_header(tmp_path: Path) -> None:
    grey, path = np.full((32, 40, 3), 90, np.uint8), tmp_path / "image.dcm"
    grey[8:24, 8:24] = 200
    source = imagecodecs.jpeg8_encode(grey, level=95, colorspace="RGB", outcolorspace="RGB")
    at = source.index(b"\xff\xee")
    source = source[:at] + source[at + 2 + int.from_bytes(source[at + 2 : at + 4], "big") :]
    dataset = dicom_dataset(IMAGE, study_number=1)
    dataset.SamplesPerPixel, dataset.PhotometricInterpretation, dataset.PlanarConfiguration = 3, "RGB", 0
    dataset.Rows, dataset.Columns, dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit = 32, 40, 8, 8, 7
    dataset.file_meta.TransferSyntaxUID = JPEGBaseline8Bit
    dataset.PixelData = encapsulate([source])
    dataset.save_as(path)
    assert np.abs(_read(path).astype(int) - grey[:, :, 0]).max() <= 3


@pytest.mark.parametrize("shape", [(16, 24), (97, 83), (5, 3)])
def test_frames_of_one_bit_begin_anywhere_within_a_byte(shape: tuple[int, int], tmp_path: Path) -> None:
    frames = np.random.default_rng(5).integers(0, 2, (3, *shape), np.uint8)
    dataset, path = dicom_dataset(frames[0].astype(np.uint16), study_number=1), tmp_path / "image.dcm"
    dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit, dataset.NumberOfFrames = 1, 1, 0, 3
    packed = np.packbits(frames, bitorder="little").tobytes()
    dataset.PixelData = packed + bytes(len(packed) % 2)
    dataset.save_as(path)
    for number, expected in enumerate(frames):
        image = decode_image_bytes(path.read_bytes(), ImageRef(path=path, frame=number))
        np.testing.assert_array_equal(image.pixels, expected)


@pytest.mark.parametrize(("kind", "swaps"), [("OW", True), ("OB", False)])
def test_byte_values_in_big_endian_words_are_swapped(kind: str, swaps: bool, tmp_path: Path) -> None:
    grey, dataset, path = (IMAGE >> 4).astype(np.uint8), dicom_dataset(IMAGE, study_number=1), tmp_path / "image.dcm"
    dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit = 8, 8, 7
    dataset.PixelData = grey.view(np.uint16).byteswap().tobytes() if swaps else grey.tobytes()
    dataset["PixelData"].VR = kind
    dataset.file_meta.TransferSyntaxUID = ExplicitVRBigEndian
    dataset.save_as(path, enforce_file_format=True)
    np.testing.assert_array_equal(_read(path), grey)


# ---- JPEG 2000


def test_a_jpeg2000_main_header_is_read_by_the_standard() -> None:
    source = _wavelets(scaled(LARGE, 16), num_resolutions=4)
    assert bits_and_decomposition_levels(source) == (16, 3)
    assert decode_jpeg2000(source, 4, 16).shape == (206, 180)
    signed = bytearray(source)
    signed[42] |= 0x80
    for other in (bytes(signed), source[:16] + struct.pack(">2I", 8, 8) + source[24:]):
        assert bits_and_decomposition_levels(other)[0] == 0
    for other in (source[:40], b"\0\0\0\x0cjP  " + source):
        assert bits_and_decomposition_levels(other) == (0, 0)


# ---- High-Throughput JPEG 2000


def test_htj2k_frames_equal_another_decoder_and_cut_ones_are_damaged(tmp_path: Path) -> None:
    path = write_dicom(tmp_path / "image.dcm", LARGE, transfer_syntax=HTJ2KLossless)
    frame, dataset = _frame(path).rstrip(b"\0"), dcmread(path)
    for end in (b"", b"\xff\xd9"):  # some writers leave the end marker out
        set_compressed_frame(dataset, frame[:-2] + end)
        dataset.save_as(path)
        np.testing.assert_array_equal(_read(path), imagecodecs.htj2k_decode(frame))
    for share in (0.02, 0.5, 0.95, 0.999):
        for end in (b"", b"\xff\xd9"):
            set_compressed_frame(dataset, frame[: int(len(frame) * share)] + end)
            dataset.save_as(path)
            for needed in (None, NEEDED):
                with pytest.raises(Unreadable, match="damaged"):
                    _read(path, needed)
