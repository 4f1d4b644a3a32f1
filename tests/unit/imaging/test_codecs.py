"""The door for compressions: one file adds one, in full and reduced. And what codecs take from libraries' insides."""

from __future__ import annotations

import re
import struct
import sys
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image as Picture
from pydicom import dcmread
from pydicom.dataset import Dataset
from pydicom.encaps import get_frame
from pydicom.pixels import get_decoder
from pydicom.uid import UID, HTJ2KLossless, JPEG2000Lossless, JPEGLossless, JPEGLSLossless, RLELossless

from benchmarks.image_files import put_frame
from fieldray.domain.image import ImageRef
from fieldray.domain.model import InputSpec
from fieldray.errors import Unreadable
from fieldray.imaging.codec import CODECS, Codec, Frame
from fieldray.imaging.codecs.htj2k import decode_fast_wavelets, decode_high_throughput
from fieldray.imaging.codecs.jpeg import decode_jpeg
from fieldray.imaging.codecs.jpeg2000 import decode_wavelets, is_whole_codestream, wavelets_of
from fieldray.imaging.codecs.rle import decode_run_lengths
from fieldray.imaging.identify import identify
from fieldray.imaging.reading import decode
from fieldray.imaging.reduction import TargetSize, largest_reduction, target_size
from fieldray.imaging.synthetic import chest_phantom, image_dataset
from phantoms import LOSSLESS, LOSSY, saved, scaled, write_dicom

SYNTAX = UID("1.2.826.0.1.3680043.8.498.1.2.3.4")  # an invented private transfer syntax
IMAGE = chest_phantom(416, 360, 7, abnormal=True)
# 69.6 pixels are needed of each side, twice as many are left: 360 // 139.1 = 2
NEEDED = target_size(InputSpec(height=64, width=64, margin=0.04, intensity="as_displayed"))


def _decode(frame: Frame) -> NDArray[np.uint16]:
    return np.frombuffer(zlib.decompress(frame.source), "<" + frame.kind).reshape(frame.rows, frame.columns)


def _reduced(frame: Frame, needed: TargetSize) -> tuple[NDArray[np.uint16], int] | None:
    step = largest_reduction(frame.rows, frame.columns, needed)
    return (_decode(frame)[::step, ::step], step) if step > 1 else None


CODEC = Codec(name="zlib", transfer_syntaxes=frozenset({SYNTAX}), decode=_decode, reduced=_reduced)


@pytest.fixture
def registered(request: pytest.FixtureRequest) -> Iterator[Codec]:
    codec = replace(CODEC, **getattr(request, "param", {}))
    CODECS.register(codec)
    yield codec
    CODECS.unregister(codec.name)


def _write(path: Path, *, size: tuple[int, int] = IMAGE.shape) -> Path:
    dataset: Dataset = image_dataset(IMAGE, number=1)
    put_frame(dataset, zlib.compress(IMAGE.tobytes()))
    dataset.Rows, dataset.Columns = size
    dataset.file_meta.TransferSyntaxUID = SYNTAX
    dataset.save_as(path, implicit_vr=False, little_endian=True, force_encoding=True)
    return path


def _read(path: Path, needed: TargetSize | None = None) -> NDArray[np.uint16]:
    return decode(path.read_bytes(), ImageRef(path=path), needed=needed).pixels


def _frame(path: Path) -> bytes:
    return get_frame(dcmread(path).PixelData, 0, number_of_frames=1)


def _with_frame(path: Path, stream: bytes) -> Path:
    """The image as JPEG 2000, with this stream."""
    dataset = dcmread(write_dicom(path, IMAGE))
    put_frame(dataset, stream)
    dataset.file_meta.TransferSyntaxUID = JPEG2000Lossless
    dataset.save_as(path)
    return path


def _wavelets(picture: NDArray[np.uint16], **options: Any) -> bytes:
    return saved(Picture.fromarray(picture), "JPEG2000", no_jp2=True, **options)


def test_a_registered_codec_reads_in_full_and_reduced(registered: Codec, tmp_path: Path) -> None:
    path = _write(tmp_path / "image.dcm")
    np.testing.assert_array_equal(_read(path), IMAGE)
    image = decode(path.read_bytes(), ImageRef(path=path), needed=NEEDED)
    assert (image.step, image.is_approximate, image.full_rows, image.full_columns) == (2, True, 416, 360)
    np.testing.assert_array_equal(image.pixels, IMAGE[::2, ::2])


def test_without_a_codec_the_compression_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match=rf"\(transfer syntax {re.escape(SYNTAX)}\)"):
        _read(_write(tmp_path / "image.dcm"))


@pytest.mark.parametrize("registered", [{"reduced": None}], indirect=True)
def test_without_a_lower_resolution_the_whole_is_averaged(registered: Codec, tmp_path: Path) -> None:
    image = decode(_write(tmp_path / "i.dcm").read_bytes(), ImageRef(path=tmp_path / "i.dcm"), needed=NEEDED)
    assert (image.step, image.is_approximate) == (2, False)


@pytest.mark.parametrize("registered", [{"decode": lambda frame: None}], indirect=True)
def test_what_a_codec_leaves_and_nothing_else_decodes_is_named(registered: Codec, tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match=r"\(zlib\)"):
        _read(_write(tmp_path / "image.dcm"))


def test_values_of_another_shape_are_not_shown(registered: Codec, tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match="damaged"):
        _read(_write(tmp_path / "image.dcm", size=(400, 360)))


def test_every_compression_has_one_codec() -> None:
    uids = [uid for codec in CODECS.entries() for uid in codec.transfer_syntaxes]
    assert len(uids) == len(set(uids))
    compressed = {uid for uid in (*LOSSLESS.values(), *LOSSY.values()) if uid.is_encapsulated}
    assert compressed <= set(uids)


# ---- what is taken from the insides of libraries: each of these fails when a new version changes it


def test_pillow_still_reads_a_lower_resolution_once_it_is_told_its_size(tmp_path: Path) -> None:
    """`decode_wavelets` sets Pillow's `_size`: Pillow and the standard round 823 x 719 at 1/4 differently."""
    image = chest_phantom(823, 719, 7, abnormal=False)
    path = write_dicom(tmp_path / "image.dcm", image, transfer_syntax=JPEG2000Lossless)
    source = _frame(path)
    for step in (2, 4, 8):
        small = decode_wavelets(source, step, 12)
        assert small.shape == (-(-823 // step), -(-719 // step))
        rows, columns = 823 // step * step, 719 // step * step
        means = image[:rows, :columns].reshape(rows // step, step, columns // step, step).mean((1, 3))
        assert np.abs(small[: rows // step, : columns // step] - means).mean() < 20  # of 4095


def test_openjph_still_reports_an_error_where_it_is_looked_for(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A damaged frame gives values of the right shape: only the hooks of `htj2k` see that something was wrong."""
    path = write_dicom(tmp_path / "image.dcm", IMAGE, transfer_syntax=HTJ2KLossless)
    source = _frame(path)
    np.testing.assert_array_equal(decode_high_throughput(source), IMAGE)
    hooks = sys.excepthook, sys.unraisablehook
    random, unnoticed = np.random.default_rng(5), 0
    for _ in range(30):
        changed = bytearray(source)
        at = int(random.integers(200, len(source) - 300))
        changed[at : at + 200] = random.bytes(200)
        decoded = decode_high_throughput(bytes(changed))
        unnoticed += decoded is not None and np.mean(decoded != IMAGE) > 0.5
    assert unnoticed == 0
    assert (sys.excepthook, sys.unraisablehook) == hooks
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("syntax", [JPEGLossless, JPEGLSLossless, JPEG2000Lossless, HTJ2KLossless, RLELossless])
def test_colours_are_read_of_every_compression(syntax: UID, tmp_path: Path) -> None:
    path = write_dicom(tmp_path / "image.dcm", IMAGE, transfer_syntax=syntax, photometric="RGB")
    np.testing.assert_array_equal(_read(path), IMAGE >> 4)


def test_no_name_of_a_patient_gets_into_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write_dicom(tmp_path / "image.dcm", IMAGE, changes={"PatientName": "Doe^Jane", "StudyDate": "Doe^Jane"})
    caplog.clear()  # of what pydicom says while it writes
    with caplog.at_level("DEBUG"):
        _read(path)
        with path.open("rb") as stream:
            identify(stream, ImageRef(path=path))
    assert "Doe" not in caplog.text


def test_wavelets_may_begin_beside_the_origin_of_their_grid(tmp_path: Path) -> None:
    options = {"offset": (16, 32), "tile_size": (1024, 1024), "tile_offset": (0, 0), "num_resolutions": 4}
    path = _with_frame(tmp_path / "image.dcm", _wavelets(IMAGE, **options))
    np.testing.assert_array_equal(_read(path), IMAGE)
    whole = decode(path.read_bytes(), ImageRef(path=path), needed=NEEDED)
    assert (whole.step, whole.is_approximate) == (2, False)


@pytest.mark.parametrize("shift", [1, 8, 12])
def test_a_region_of_interest_of_jpeg_2000_gives_the_same_values(tmp_path: Path, shift: int) -> None:
    """With the marker RGN (T.800 A.6.3) all coefficients are stored so many bits higher, and belong to the region."""
    data = _wavelets(IMAGE)
    end = data.index(b"\xff\x52") + 2
    end += int.from_bytes(data[end : end + 2], "big")
    region = data[:end] + b"\xff\x5e\x00\x05\x00\x00" + bytes([shift]) + data[end:]
    np.testing.assert_array_equal(_read(_with_frame(tmp_path / "image.dcm", region)), IMAGE)


# ---- the decoders of single frames: they read what other decoders read, and leave what they do not know

LARGE = chest_phantom(823, 720, 7, abnormal=True)


# ---- RLE


def test_runs_may_reach_over_the_ends_of_rows() -> None:
    # PS3.5 G.3.1: a byte n of 0..127 is followed by n + 1 bytes as they are, 129..255 by one for 257 - n times
    packed = bytes([257 - 8 & 0xFF, 7, 3, 1, 2, 3, 4])
    frame = struct.pack("<16I", 1, 64, *([0] * 14)) + packed
    decoded = decode_run_lengths(frame, 3, 4, "u1")
    assert decoded.tolist() == [[7, 7, 7, 7], [7, 7, 7, 7], [1, 2, 3, 4]]


@pytest.mark.parametrize(
    "header", [(2, 64, 66), (0,), (1, 70), (1, 0), (1, 2**31), (15, *([64] * 15)), (1, 64, *([0] * 13), 64)]
)
def test_a_frame_that_is_laid_out_otherwise_is_left_to_pydicom(header: tuple[int, ...]) -> None:
    frame = struct.pack("<16I", *header, *([0] * (16 - len(header)))) + bytes([3, 1, 2])
    assert decode_run_lengths(frame, 2, 2, "u1") is None


def test_a_plane_that_is_too_short_is_left_to_pydicom(tmp_path: Path) -> None:
    source = _frame(write_dicom(tmp_path / "image.dcm", LARGE, transfer_syntax=RLELossless))
    for kind, frame in (("i2", source), ("u2", source[:5000]), ("u1", source)):
        decoded = decode_run_lengths(frame, *LARGE.shape, kind)
        assert (decoded is None) == (kind != "i2")


# ---- JPEG 2000


def test_a_main_header_is_read_as_the_standard_says() -> None:
    source = _wavelets(scaled(LARGE, 16), num_resolutions=4)
    found = wavelets_of(source)
    assert (found.rows, found.columns, found.bits, found.levels) == (823, 720, 16, 3)
    assert decode_wavelets(source, 4, 16).shape == (206, 180)
    signed = bytearray(source)
    signed[42] |= 0x80
    for other in (bytes(signed), source[:16] + struct.pack(">2I", 8, 8) + source[24:]):
        assert wavelets_of(other).bits == 0
    assert wavelets_of(source[:40]) is None
    assert wavelets_of(b"\0\0\0\x0cjP  " + source) is None


# ---- High-Throughput JPEG 2000


def test_high_throughput_wavelets_are_what_the_other_decoder_reads(tmp_path: Path) -> None:
    image = chest_phantom(803, 721, 7, abnormal=True)
    frame = _frame(write_dicom(tmp_path / "image.dcm", image, transfer_syntax=HTJ2KLossless))
    np.testing.assert_array_equal(decode_high_throughput(frame), image)
    for step in (2, 4, 8):
        fast, slow = decode_fast_wavelets(frame, step), decode_wavelets(frame, step, 16)
        assert fast is not None and fast.shape == slow.shape
        # what undershoots 0 is cut after the picture is moved, not before
        assert np.mean(fast != slow) < 0.05


def test_high_throughput_wavelets_that_are_cut_or_of_another_kind_are_left_to_the_other_decoder(tmp_path: Path) -> None:
    frame = _frame(write_dicom(tmp_path / "image.dcm", LARGE, transfer_syntax=HTJ2KLossless)).rstrip(b"\0")
    assert is_whole_codestream(frame) and is_whole_codestream(frame + bytes(20))
    for share in (0.02, 0.5, 0.99):
        assert decode_high_throughput(frame[: int(len(frame) * share)]) is None
    assert decode_high_throughput(b"") is None and decode_high_throughput(frame, level=30) is None
    plain = write_dicom(tmp_path / "plain.dcm", LARGE, transfer_syntax=JPEG2000Lossless)
    assert decode_high_throughput(_frame(plain)) is None


# ---- lossless JPEG


@pytest.mark.parametrize("bits", [8, 12, 16])
@pytest.mark.parametrize("name", ["jpeg-lossless", "jpeg-lossless-sv1"])
def test_lossless_jpeg_is_what_the_other_decoder_reads(name: str, bits: int, tmp_path: Path) -> None:
    path = write_dicom(tmp_path / "image.dcm", scaled(LARGE, bits), bits=bits, transfer_syntax=LOSSLESS[name])
    dataset = dcmread(path)
    decoded = decode_jpeg(_frame(path))
    other = get_decoder(dataset.file_meta.TransferSyntaxUID).as_array(dataset, decoding_plugin="gdcm")[0]
    np.testing.assert_array_equal(decoded, other)


def test_lossless_jpeg_without_its_end_is_not_made_up(tmp_path: Path) -> None:
    frame = _frame(write_dicom(tmp_path / "image.dcm", LARGE, transfer_syntax=LOSSLESS["jpeg-lossless-sv1"]))
    for source in (frame[: len(frame) // 2], frame[:-4], b""):
        with pytest.raises(Unreadable, match="incomplete"):
            decode_jpeg(source)
    for padding in (b"\0", b"\xff", b"\x20\0\0"):  # what old encoders left behind the end
        np.testing.assert_array_equal(decode_jpeg(frame + padding), LARGE)
