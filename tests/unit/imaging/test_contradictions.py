"""Files whose content contradicts their header, or is longer or shorter than stated: read or refused by name."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import imagecodecs
import numpy as np
import pytest
from PIL import Image as Picture
from pydicom import dcmread
from pydicom.dataset import Dataset
from pydicom.encaps import encapsulate, get_frame
from pydicom.filebase import DicomBytesIO
from pydicom.filewriter import write_dataset
from pydicom.uid import (
    UID,
    DeflatedExplicitVRLittleEndian,
    ExplicitVRBigEndian,
    ExplicitVRLittleEndian,
    HTJ2KLossless,
    ImplicitVRLittleEndian,
    JPEG2000Lossless,
    JPEGBaseline8Bit,
    JPEGExtended12Bit,
    JPEGLosslessSV1,
    JPEGLSLossless,
    RLELossless,
)

from benchmarks.image_files import set_compressed_frame
from fieldray.domain.image import Image, ImageRef
from fieldray.errors import InputProblem
from fieldray.imaging.codecs.jpeg import decode_jpeg
from fieldray.imaging.identify import identify
from fieldray.imaging.reading import decode_image_bytes
from fieldray.imaging.reduction import TargetSize
from fieldray.imaging.synthetic import chest_phantom
from phantoms import saved, write_dicom
from raised import raises

IMAGE = chest_phantom(160, 128, 7, abnormal=True)
PRIVATE = UID("1.2.840.113619.5.2")
PIXELS = b"\xe0\x7f\x10\x00OW\0\0"


def _read(data: bytes) -> Image:
    return decode_image_bytes(data, ImageRef(path=Path("x")))


def _problem(data: bytes) -> str:
    with pytest.raises(InputProblem) as caught:
        _read(data)
    return caught.value.reason.code


def _file(syntax: UID, body: bytes) -> bytes:
    """A DICOM file whose meta information states `syntax`, with this body."""
    value = syntax.encode() + b"\0" * (len(syntax) % 2)
    return bytes(128) + b"DICM" + struct.pack("<HH2sH", 2, 0x10, b"UI", len(value)) + value + body


def _body(dataset: Dataset, *, implicit: bool = False, little: bool = True) -> bytes:
    stream = DicomBytesIO()
    stream.is_implicit_VR, stream.is_little_endian = implicit, little
    write_dataset(stream, dataset)
    return stream.getvalue()


def _dataset(tmp_path: Path, syntax: UID = ExplicitVRLittleEndian) -> Dataset:
    return dcmread(write_dicom(tmp_path / "image.dcm", IMAGE, transfer_syntax=syntax))


@pytest.mark.parametrize("stated", [ExplicitVRLittleEndian, ImplicitVRLittleEndian, ExplicitVRBigEndian])
@pytest.mark.parametrize("way", ["explicit", "implicit", "big"])
def test_a_data_set_is_read_by_its_real_encoding(stated: UID, way: str, tmp_path: Path) -> None:
    dataset = _dataset(tmp_path)
    if way == "big":
        dataset.PixelData = IMAGE.astype(">u2").tobytes()
    body = _body(dataset, implicit=way == "implicit", little=way != "big")
    image = _read(_file(stated, body))
    np.testing.assert_array_equal(image.pixels, IMAGE)
    is_true = {"explicit": ExplicitVRLittleEndian, "implicit": ImplicitVRLittleEndian, "big": ExplicitVRBigEndian}
    assert image.notes == (() if is_true[way] == stated else ("syntax_contradicted",))


@pytest.mark.parametrize("representation", [b"ZZ", b"OX", b"ob", b"??", b"\0\0"])
@pytest.mark.parametrize("length", ["short", "long", "implicit"])
def test_an_element_of_an_unknown_value_representation_is_skipped(
    representation: bytes, length: str, tmp_path: Path
) -> None:
    data = write_dicom(tmp_path / "image.dcm", IMAGE).read_bytes()
    at, tag, value = data.index(b"\x28\0\x02\0US"), b"\x21\0\x01\x10", b"of a maker"
    heads = {"short": "<2sH", "long": "<2sxxI", "implicit": "<I"}
    stated = [representation, len(value)][length == "implicit" :]
    unknown = tag + struct.pack(heads[length], *stated) + value
    np.testing.assert_array_equal(_read(data[:at] + unknown + data[at:]).pixels, IMAGE)
    second = unknown.replace(tag, b"\x21\0\x02\x10")
    np.testing.assert_array_equal(_read(data[:at] + unknown + second + data[at:]).pixels, IMAGE)
    lost = tag + representation + b"\x09\x09" + value
    assert _problem(data[:at] + lost + data[at:]) == "damaged"


def test_a_wrongly_deflated_data_set_is_read(tmp_path: Path) -> None:
    body = _body(_dataset(tmp_path))
    for data in (body, zlib.compress(body)):
        np.testing.assert_array_equal(_read(_file(DeflatedExplicitVRLittleEndian, data)).pixels, IMAGE)


@pytest.mark.parametrize("stated", [ExplicitVRLittleEndian, JPEGBaseline8Bit, JPEG2000Lossless, RLELossless, PRIVATE])
@pytest.mark.parametrize("held", [JPEG2000Lossless, HTJ2KLossless, JPEGLosslessSV1, JPEGLSLossless, RLELossless])
def test_a_frame_is_decoded_by_its_real_compression(stated: UID, held: UID, tmp_path: Path) -> None:
    body = _body(_dataset(tmp_path, held))
    np.testing.assert_array_equal(_read(_file(stated, body)).pixels, IMAGE)


def test_a_wrongly_stated_encapsulation_of_pixels_is_corrected(tmp_path: Path) -> None:
    dataset = _dataset(tmp_path, JPEG2000Lossless)
    frame = get_frame(dataset.PixelData, 0, number_of_frames=1)
    plain = _dataset(tmp_path)
    for value, stated in ((frame, JPEG2000Lossless), (plain.PixelData, JPEGLosslessSV1)):
        plain.PixelData = value
        plain["PixelData"].VR = "OW"
        image = _read(_file(stated, _body(plain)))
        np.testing.assert_array_equal(image.pixels, IMAGE)
        assert image.notes == ("syntax_contradicted",)
    set_compressed_frame(plain, IMAGE.tobytes())
    for stated in (JPEGLosslessSV1, ExplicitVRLittleEndian, UID("1.2.840.10008.1.2.1.98")):
        np.testing.assert_array_equal(_read(_file(stated, _body(plain))).pixels, IMAGE)
    plain = _dataset(tmp_path)
    plain.PixelData = plain.PixelData[:5000]
    assert _problem(_file(JPEGLosslessSV1, _body(plain))) == "damaged"
    set_compressed_frame(plain, bytes(5000))
    assert _problem(_file(JPEGLosslessSV1, _body(plain))) == "damaged"


def test_a_body_that_is_no_data_set_is_not_reported_as_truncated(tmp_path: Path) -> None:
    deflated = zlib.compress(_body(_dataset(tmp_path)), wbits=-zlib.MAX_WBITS)
    with raises(InputProblem, "damaged"):
        identify(io.BytesIO(_file(ExplicitVRLittleEndian, deflated)), ImageRef(path=Path("x")))


@pytest.mark.parametrize("table", [(9999,), (0, 77), (0, 1)])
@pytest.mark.parametrize("syntax", [JPEGBaseline8Bit, JPEG2000Lossless, JPEGLSLossless])
def test_all_fragments_of_a_single_frame_are_joined(syntax: UID, table: tuple[int, ...], tmp_path: Path) -> None:
    """Whatever the offset tables state about the start of frames."""
    bits = 8 if syntax == JPEGBaseline8Bit else 12
    dataset = dcmread(write_dicom(tmp_path / "image.dcm", IMAGE >> 12 - bits, transfer_syntax=syntax, bits=bits))
    right = _read(_file(syntax, _body(dataset)))
    frame = get_frame(dataset.PixelData, 0, number_of_frames=1)
    parts = (struct.pack(f"<{len(table)}I", *table), frame[:500], frame[500:])
    dataset.PixelData = b"".join(struct.pack("<HHI", 0xFFFE, 0xE000, len(part)) + part for part in parts)
    dataset["PixelData"].is_undefined_length = True
    dataset.ExtendedOffsetTable, dataset.ExtendedOffsetTableLengths = struct.pack("<Q", 40), struct.pack("<Q", 8)
    np.testing.assert_array_equal(_read(_file(syntax, _body(dataset))).pixels, right.pixels)


def test_an_unknown_compression_is_refused_by_name(tmp_path: Path) -> None:
    data = _file(PRIVATE, _body(_dataset(tmp_path), implicit=True))
    with pytest.raises(InputProblem, match=r"1\.2\.840\.113619\.5\.2"):
        _read(data)
    dataset = _dataset(tmp_path)
    set_compressed_frame(dataset, b"nothing that is known")
    assert _problem(_file(ExplicitVRLittleEndian, _body(dataset))) == "unsupported_compression"


@pytest.mark.parametrize("kind", [b"UL", b"OB", b"SS", b"IS", b"UN"])
def test_a_wrong_value_representation_is_ignored(kind: bytes, tmp_path: Path) -> None:
    data = write_dicom(tmp_path / "image.dcm", IMAGE).read_bytes()
    for tag in (b"\x28\0\x10\0", b"\x28\0\x11\0", b"\x28\0\0\1", b"\x28\0\1\1"):
        size = struct.pack("<HI", 0, 2) if kind in (b"OB", b"UN") else struct.pack("<H", 2)
        data = data.replace(tag + b"US\2\0", tag + kind + size, 1)
    if kind != b"IS":
        np.testing.assert_array_equal(_read(data).pixels, IMAGE)
    else:
        assert _problem(data) == "damaged"
    data = write_dicom(tmp_path / "image.dcm", IMAGE).read_bytes()
    for wrong in (b"UN\0\0", b"OB\0\0", b"US\0\0"):
        np.testing.assert_array_equal(_read(data.replace(PIXELS, PIXELS[:4] + wrong)).pixels, IMAGE)


# ---- more than stated


@pytest.mark.parametrize("syntax", [JPEG2000Lossless, HTJ2KLossless, JPEGLosslessSV1, JPEGLSLossless, RLELossless])
def test_an_unstated_second_frame_is_refused(syntax: UID, tmp_path: Path) -> None:
    dataset = _dataset(tmp_path, syntax)
    frame = get_frame(dataset.PixelData, 0, number_of_frames=1)
    for frames in ([frame, frame], [frame + frame]):
        if len(frames) == 1 and syntax == RLELossless:
            continue  # nothing is read after the end of the runs
        dataset.PixelData = encapsulate(frames)
        dataset["PixelData"].is_undefined_length = True
        assert _problem(_file(syntax, _body(dataset))) == "more_images"
    dataset.PixelData = encapsulate([frame], fragments_per_frame=3) if syntax != RLELossless else encapsulate([frame])
    dataset["PixelData"].is_undefined_length = True
    np.testing.assert_array_equal(_read(_file(syntax, _body(dataset))).pixels, IMAGE)


def test_rle_pixels_that_look_like_a_jpeg_are_pixels(tmp_path: Path) -> None:
    pixels = chest_phantom(160, 128, 7, abnormal=True).astype(np.uint8)
    pixels[80, 40:45] = 0xFF, 0xD9, 0xFF, 0xD8, 0xFF
    path = write_dicom(tmp_path / "image.dcm", pixels, transfer_syntax=RLELossless)
    np.testing.assert_array_equal(_read(path.read_bytes()).pixels, pixels)


def test_uncompressed_pixels_may_be_padded_but_not_doubled(tmp_path: Path) -> None:
    dataset = _dataset(tmp_path)
    plain = dataset.PixelData
    dataset.PixelData = plain + bytes(100)
    np.testing.assert_array_equal(_read(_file(ExplicitVRLittleEndian, _body(dataset))).pixels, IMAGE)
    dataset.PixelData = plain + plain
    assert _problem(_file(ExplicitVRLittleEndian, _body(dataset))) == "more_images"
    dataset.NumberOfFrames = 2
    np.testing.assert_array_equal(_read(_file(ExplicitVRLittleEndian, _body(dataset))).pixels, IMAGE)


@pytest.mark.parametrize(
    "syntax",
    [ExplicitVRLittleEndian, ImplicitVRLittleEndian, DeflatedExplicitVRLittleEndian, JPEG2000Lossless, RLELossless],
)
def test_two_files_joined_into_one_are_refused(syntax: UID, tmp_path: Path) -> None:
    data = write_dicom(tmp_path / "image.dcm", IMAGE, transfer_syntax=syntax).read_bytes()
    pictures = [saved(Picture.fromarray((IMAGE >> 4).astype(np.uint8)), kind) for kind in ("PNG", "JPEG")]
    joined = [data, b"\0" * 50 + data, data + data]
    if syntax != DeflatedExplicitVRLittleEndian:  # a syntax in which a picture may begin anywhere, by chance
        joined += [data[132:], *pictures]
        again = data[data.rindex(b"\xe0\x7f\x10\0") :]
        assert _problem(data + again) == "several_images"
    for other in joined:
        assert _problem(data + other) == "several_images"
    for picture in pictures:
        assert _problem(picture + data) == "several_images"


def test_trailing_data_that_is_no_image_is_ignored(tmp_path: Path) -> None:
    icon = saved(Picture.fromarray((IMAGE >> 4).astype(np.uint8)))
    private = struct.pack("<HH2sHI", 0x7FE1, 0x1001, b"OB", 0, len(icon) + len(icon) % 2) + icon.ljust(
        len(icon) + 1, b"\0"
    )
    for syntax in (ExplicitVRLittleEndian, JPEG2000Lossless):
        data = write_dicom(tmp_path / "image.dcm", IMAGE, transfer_syntax=syntax).read_bytes()
        for other in (
            bytes(992),
            b"\xff\x0f" * 496,
            b"\x08\0\x04\0\x06\0\0\0" * 100,
            private[: 12 + len(icon) // 2 * 2],
        ):
            np.testing.assert_array_equal(_read(data + other).pixels, IMAGE)


# ---- less than stated


@pytest.mark.parametrize("share", [0.3, 0.5, 0.8, 0.97])
def test_zeros_at_the_end_mean_an_incomplete_file(share: float, tmp_path: Path) -> None:
    image = IMAGE.clip(1)  # the image itself has no zeros
    data = write_dicom(tmp_path / "image.dcm", image).read_bytes()
    start = data.index(PIXELS) + 12
    kept = start + int(share * 160) * 256 + 100  # in the middle of a row
    assert _problem(data[:kept] + bytes(len(data) - kept)) == "lower_part_empty"
    halved = start + 80 * 256  # at a row's end, like a collimator: judged later by the lungs
    assert not _read(data[:halved] + bytes(len(data) - halved)).pixels[80:].any()


@pytest.mark.parametrize("edge", [lambda rows, _: rows < 120, lambda rows, columns: rows + columns / 20 < 125])
def test_a_collimator_edge_is_no_incomplete_file(edge: Callable[..., np.ndarray], tmp_path: Path) -> None:
    rows, columns = np.indices(IMAGE.shape)
    shuttered = np.where(edge(rows, columns), IMAGE.clip(1), 0).astype(np.uint16)
    for syntax in (ExplicitVRLittleEndian, JPEG2000Lossless, JPEGLSLossless, RLELossless):
        data = write_dicom(tmp_path / "image.dcm", shuttered, transfer_syntax=syntax).read_bytes()
        np.testing.assert_array_equal(_read(data).pixels, shuttered)
        reduced = decode_image_bytes(data, ImageRef(path=tmp_path), needed_size=TargetSize(20, 20))
        assert _read(data).notes == reduced.notes == ()


def test_a_deflated_data_set_that_breaks_off_is_incomplete(tmp_path: Path) -> None:
    data = write_dicom(tmp_path / "image.dcm", IMAGE, transfer_syntax=DeflatedExplicitVRLittleEndian).read_bytes()
    for kept in (len(data) // 2, len(data) * 9 // 10):
        assert _problem(data[:kept]) == _problem(data[:kept] + bytes(len(data) - kept)) == "truncated"


@pytest.mark.parametrize(
    ("bits", "syntax", "photometric"),
    [
        *((8, JPEGBaseline8Bit, photometric) for photometric in ("MONOCHROME2", "RGB")),
        *((12, syntax, "MONOCHROME2") for syntax in (JPEGExtended12Bit, JPEGLosslessSV1)),
        (16, JPEGLosslessSV1, "MONOCHROME2"),
    ],
)
def test_a_jpeg_in_dicom_without_only_its_end_marker_is_read(
    bits: int, syntax: UID, photometric: str, tmp_path: Path
) -> None:
    dataset = dcmread(write_dicom(tmp_path / "image.dcm", IMAGE, bits=bits, photometric=photometric))
    stored = dataset.pixel_array
    frame = imagecodecs.jpeg8_encode(stored, lossless=syntax == JPEGLosslessSV1, bitspersample=bits, level=98)

    def file(source: bytes) -> bytes:
        set_compressed_frame(dataset, source)
        return _file(syntax, _body(dataset))

    for lacking in (6, 10, 42, len(frame) // 2):
        assert _problem(file(frame[:-lacking] + b"\xff\xd9")) == "truncated"
    for source in (frame[:-2], *(frame + padding for padding in (b"\0", b"\xff", b"\x20\0\0"))):  # of old encoders
        np.testing.assert_array_equal(_read(file(source)).pixels, _read(file(frame)).pixels)
    for source in (frame[:-60], frame[: len(frame) // 2]):
        assert _problem(file(source)) == "truncated"
    with raises(InputProblem, "truncated"):
        decode_jpeg(b"")
