"""The decoders of single frames: what they read is what other decoders read, and what they do not know they leave."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Picture
from pydicom import dcmread
from pydicom.encaps import get_frame
from pydicom.pixels import get_decoder
from pydicom.uid import HTJ2KLossless, JPEG2000Lossless, RLELossless

from fieldray.errors import Unreadable
from fieldray.imaging.codecs.htj2k import decode_fast_wavelets, decode_high_throughput
from fieldray.imaging.codecs.jpeg import decode_jpeg
from fieldray.imaging.codecs.jpeg2000 import decode_wavelets, is_whole_codestream, wavelets_of
from fieldray.imaging.codecs.rle import decode_run_lengths
from fieldray.imaging.synthetic import chest_phantom
from phantoms import LOSSLESS, scaled, write_dicom

IMAGE = chest_phantom(823, 720, 7, abnormal=True)


# ---- RLE


def test_runs_may_reach_over_the_ends_of_rows() -> None:
    # PS3.5 G.3.1: a byte n of 0..127 is followed by n + 1 bytes as they are, 129..255 by one for 257 - n times
    packed = bytes([257 - 8 & 0xFF, 7, 3, 1, 2, 3, 4])
    frame = struct.pack("<16I", 1, 64, *([0] * 14)) + packed
    decoded = decode_run_lengths(frame, 3, 4, "u1")
    assert decoded is not None
    assert decoded.tolist() == [[7, 7, 7, 7], [7, 7, 7, 7], [1, 2, 3, 4]]


@pytest.mark.parametrize(
    "header", [(2, 64, 66), (0,), (1, 70), (1, 0), (1, 2**31), (15, *([64] * 15)), (1, 64, *([0] * 13), 64)]
)
def test_a_frame_that_is_laid_out_otherwise_is_left_to_pydicom(header: tuple[int, ...]) -> None:
    frame = struct.pack("<16I", *header, *([0] * (16 - len(header)))) + bytes([3, 1, 2])
    assert decode_run_lengths(frame, 2, 2, "u1") is None


def test_a_plane_that_is_too_short_is_left_to_pydicom(tmp_path: Path) -> None:
    path = write_dicom(tmp_path / "image.dcm", IMAGE, transfer_syntax=RLELossless)
    dataset = dcmread(path)
    source = get_frame(dataset.PixelData, 0, number_of_frames=1)
    for kind, frame in (("i2", source), ("u2", source[:5000]), ("u1", source)):
        decoded = decode_run_lengths(frame, *IMAGE.shape, kind)
        assert (decoded is None) == (kind != "i2")


# ---- JPEG 2000


def test_a_main_header_is_read_as_the_standard_says(tmp_path: Path) -> None:
    stream = io.BytesIO()
    Picture.fromarray(scaled(IMAGE, 16)).save(stream, "JPEG2000", no_jp2=True, num_resolutions=4)
    source = stream.getvalue()
    found = wavelets_of(source)
    assert found is not None
    assert (found.rows, found.columns, found.bits, found.levels) == (823, 720, 16, 3)
    assert decode_wavelets(source, 4, 16).shape == (206, 180)
    signed = bytearray(source)
    signed[42] |= 0x80
    for other in (bytes(signed), source[:16] + struct.pack(">2I", 8, 8) + source[24:]):
        plain = wavelets_of(other)
        assert plain is not None
        assert plain.bits == 0
    assert wavelets_of(source[:40]) is None
    assert wavelets_of(b"\0\0\0\x0cjP  " + source) is None


# ---- High-Throughput JPEG 2000


def test_high_throughput_wavelets_are_what_the_other_decoder_reads(tmp_path: Path) -> None:
    image = chest_phantom(803, 721, 7, abnormal=True)
    path = write_dicom(tmp_path / "image.dcm", image, transfer_syntax=HTJ2KLossless)
    frame = get_frame(dcmread(path).PixelData, 0, number_of_frames=1)
    np.testing.assert_array_equal(decode_high_throughput(frame), image)
    for step in (2, 4, 8):
        fast, slow = decode_fast_wavelets(frame, step), decode_wavelets(frame, step, 16)
        assert fast is not None and fast.shape == slow.shape
        # what undershoots 0 is cut after the picture is moved, not before
        assert np.mean(fast != slow) < 0.05


def test_high_throughput_wavelets_that_are_cut_or_of_another_kind_are_left_to_the_other_decoder(tmp_path: Path) -> None:
    path = write_dicom(tmp_path / "image.dcm", IMAGE, transfer_syntax=HTJ2KLossless)
    frame = get_frame(dcmread(path).PixelData, 0, number_of_frames=1).rstrip(b"\0")
    assert is_whole_codestream(frame) and is_whole_codestream(frame + bytes(20))
    for share in (0.02, 0.5, 0.99):
        assert decode_high_throughput(frame[: int(len(frame) * share)]) is None
    assert decode_high_throughput(b"") is None and decode_high_throughput(frame, level=30) is None
    plain = write_dicom(tmp_path / "plain.dcm", IMAGE, transfer_syntax=JPEG2000Lossless)
    assert decode_high_throughput(get_frame(dcmread(plain).PixelData, 0, number_of_frames=1)) is None


# ---- lossless JPEG


@pytest.mark.parametrize("bits", [8, 12, 16])
@pytest.mark.parametrize("name", ["jpeg-lossless", "jpeg-lossless-sv1"])
def test_lossless_jpeg_is_what_the_other_decoder_reads(name: str, bits: int, tmp_path: Path) -> None:
    dataset = dcmread(
        write_dicom(tmp_path / "image.dcm", scaled(IMAGE, bits), bits=bits, transfer_syntax=LOSSLESS[name])
    )
    frame = get_frame(dataset.PixelData, 0, number_of_frames=1)
    decoded = decode_jpeg(frame)
    other = get_decoder(dataset.file_meta.TransferSyntaxUID).as_array(dataset, decoding_plugin="gdcm")[0]
    np.testing.assert_array_equal(decoded, other)


def test_lossless_jpeg_without_its_end_is_not_made_up(tmp_path: Path) -> None:
    dataset = dcmread(write_dicom(tmp_path / "image.dcm", IMAGE, transfer_syntax=LOSSLESS["jpeg-lossless-sv1"]))
    frame = get_frame(dataset.PixelData, 0, number_of_frames=1)
    for source in (frame[: len(frame) // 2], frame[:-4], b""):
        with pytest.raises(Unreadable, match="incomplete"):
            decode_jpeg(source)
    for padding in (b"\0", b"\xff", b"\x20\0\0"):  # what old encoders left behind the end
        np.testing.assert_array_equal(decode_jpeg(frame + padding), IMAGE)
