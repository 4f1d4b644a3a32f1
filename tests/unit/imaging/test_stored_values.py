"""Stored values of every codec and bit layout equal the plain array (PS3.5 8.1.1)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import imagecodecs
import numpy as np
import pytest
from numpy.typing import NDArray
from pydicom import dcmwrite
from pydicom.pixels import get_encoder
from pydicom.uid import (
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

from benchmarks.image_files import set_compressed_frame, set_pixels
from fieldray.domain.image import ImageRef
from fieldray.errors import Unreadable
from fieldray.imaging.reading import decode_image_bytes
from fieldray.imaging.reduction import TargetSize, block_means
from fieldray.imaging.synthetic import chest_phantom, dicom_dataset

# a multiple of 4, so that blocks of the reduced reading are whole
PHANTOM = chest_phantom(64, 56, 7, abnormal=True)
NEEDED = TargetSize(12, 12)


class Case(NamedTuple):
    """Where values lie in words; `rest` is the content of the other bits, `bits` the depth that a codestream states."""

    allocated: int
    stored: int
    high: int
    is_signed: bool
    rest: str
    bits: int


Words = NDArray[Any]
Encode = Callable[[Words, int], bytes]


def _jpeg_ls(words: Words, bits: int) -> bytes:
    jpeg_ls = pytest.importorskip("jpeg_ls", reason="pyjpegls has no files for this Python")
    rows, columns = words.shape
    facts = {"rows": rows, "columns": columns, "samples_per_pixel": 1, "bits_stored": bits}
    return bytes(jpeg_ls.encode_pixel_data(words.tobytes(), **facts))


def _run_lengths(words: Words, _: int) -> bytes:
    facts = {"rows": words.shape[0], "columns": words.shape[1], "samples_per_pixel": 1, "number_of_frames": 1}
    bits = 8 * words.dtype.itemsize
    facts |= {"bits_allocated": bits, "bits_stored": bits, "pixel_representation": 0}
    return get_encoder(RLELossless).encode(words, photometric_interpretation="MONOCHROME2", **facts)


def _wavelets(words: Words, bits: int) -> bytes:
    few = words.astype(np.uint8) if bits <= 8 else words
    return imagecodecs.jpeg2k_encode(few, level=0, codecformat="j2k", bitspersample=bits, reversible=True)


def _lossless_jpeg(words: Words, bits: int) -> bytes:
    few = words.astype(np.uint8) if bits <= 8 else words
    return imagecodecs.jpeg8_encode(few, lossless=True, bitspersample=bits)


def _cases() -> Iterator[Case]:
    for allocated, depths in ((8, (5, 8)), (16, (8, 10, 12, 15, 16))):
        for stored, is_signed in itertools.product(depths, (False, True)):
            for high in sorted({stored - 1, (stored + allocated) // 2 - 1, allocated - 1}):
                for rest in ("zeros", "ones", "overlay", *(["extended"] if is_signed else [])):
                    yield Case(allocated, stored, high, is_signed, rest, allocated)
            yield Case(allocated, stored, stored - 1, is_signed, "zeros", stored)


CODECS: dict[UID, Encode] = {
    JPEG2000Lossless: _wavelets,
    JPEG2000: _wavelets,
    HTJ2KLossless: lambda words, _: imagecodecs.htj2k_encode(words, reversible=True),
    JPEGLSLossless: _jpeg_ls,
    JPEGLSNearLossless: _jpeg_ls,
    JPEGLossless: _lossless_jpeg,
    JPEGBaseline8Bit: lambda words, _: imagecodecs.jpeg8_encode(words, level=98),
    JPEGExtended12Bit: lambda words, _: imagecodecs.jpeg8_encode(words, level=98, bitspersample=12),
    RLELossless: _run_lengths,
}


LOSSLESS = [syntax for syntax in CODECS if syntax not in (JPEGBaseline8Bit, JPEGExtended12Bit)]


def _file(path: Path, words: Words, case: Case, photometric: str, syntax: UID) -> bytes:
    dataset = dicom_dataset(PHANTOM, study_number=1)
    del dataset.WindowCenter, dataset.WindowWidth
    dataset.PhotometricInterpretation = photometric
    dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit = case.allocated, case.stored, case.high
    dataset.PixelRepresentation = int(case.is_signed)
    if syntax in CODECS:
        set_compressed_frame(dataset, CODECS[syntax](words, case.bits))
    else:
        set_pixels(dataset, words.astype(words.dtype.newbyteorder(">" if syntax == ExplicitVRBigEndian else "<")))
    dataset.file_meta.TransferSyntaxUID = syntax
    dcmwrite(path, dataset, enforce_file_format=True)
    return path.read_bytes()


def _values(case: Case) -> NDArray[np.int64]:
    """The full range of the stored bits, with both of its ends."""
    top = (1 << case.stored) - 1
    values = PHANTOM.astype(np.int64) * top // int(PHANTOM.max())
    values[0, 0], values[0, 1] = top, 0
    return values - (1 << (case.stored - 1)) if case.is_signed else values


def _words(values: NDArray[np.int64], case: Case) -> Words:
    shift = case.high + 1 - case.stored
    mask = ((1 << case.stored) - 1) << shift
    others = np.zeros_like(values)
    if case.rest == "extended":
        others = np.where(values < 0, -1 << (case.high + 1), 0)
    if case.rest == "ones":
        others[:] = -1
    if case.rest == "overlay":  # thin lines over dark pixels
        others[1:7:2, 8:50] = -1
    words = ((values << shift) & mask | (others & ~mask)) & ((1 << case.allocated) - 1)
    return words.astype(f"u{case.allocated // 8}")


@pytest.mark.parametrize(
    "syntax", [ExplicitVRLittleEndian, ExplicitVRBigEndian, *LOSSLESS], ids=lambda uid: uid.keyword
)
def test_every_bit_layout_gives_the_plain_array(syntax: UID, tmp_path: Path) -> None:
    for case, photometric in itertools.product(_cases(), ("MONOCHROME2", "MONOCHROME1")):
        if photometric == "MONOCHROME1" and case.rest != "ones":
            continue  # inverted after the bits were separated
        values = _values(case)
        data = _file(tmp_path / "image.dcm", _words(values, case), case, photometric, syntax)
        wanted = values - values.min()
        wanted = wanted.max() - wanted if photometric == "MONOCHROME1" else wanted
        title = f"{case} {photometric}"
        whole = decode_image_bytes(data, ImageRef(path=tmp_path))
        np.testing.assert_array_equal(whole.pixels, wanted, err_msg=title)
        if photometric == "MONOCHROME1":
            continue
        reduced = decode_image_bytes(data, ImageRef(path=tmp_path), needed_size=NEEDED)
        assert reduced.reduction_factor > 1, title
        means = block_means(whole.pixels, reduced.reduction_factor)
        if reduced.has_approximate_pixels:  # a wavelet's low-pass filter is no average
            assert np.abs(reduced.pixels - means).mean() < 0.04 * wanted.max(), title
        else:
            np.testing.assert_array_equal(reduced.pixels, means, err_msg=title)


def test_a_codestream_depth_counts_unless_it_is_that_of_the_container(tmp_path: Path) -> None:
    values = PHANTOM.astype(np.int64)  # 12-bit values, stated as 10
    said = Case(16, 10, 9, False, "zeros", 12)
    for syntax in (JPEG2000Lossless, JPEGLSLossless, JPEGLossless):
        data = _file(tmp_path / "image.dcm", PHANTOM, said, "MONOCHROME2", syntax)
        np.testing.assert_array_equal(decode_image_bytes(data, ImageRef(path=tmp_path)).pixels, values)
        data = _file(tmp_path / "image.dcm", PHANTOM, said._replace(bits=16), "MONOCHROME2", syntax)
        np.testing.assert_array_equal(decode_image_bytes(data, ImageRef(path=tmp_path)).pixels, values % 1024)
    data = _file(tmp_path / "image.dcm", PHANTOM, said, "MONOCHROME2", JPEGExtended12Bit)
    assert np.abs(decode_image_bytes(data, ImageRef(path=tmp_path)).pixels - values).max() < 30


def test_overshoot_of_a_lossy_codestream_does_not_wrap_around(tmp_path: Path) -> None:
    values = PHANTOM + 8  # up to 4103, above the 12-bit maximum
    said = Case(16, 12, 11, False, "zeros", 16)
    data = _file(tmp_path / "image.dcm", values, said, "MONOCHROME2", JPEG2000)
    np.testing.assert_array_equal(decode_image_bytes(data, ImageRef(path=tmp_path)).pixels, values.clip(max=4095))


def test_an_8_bit_lossy_jpeg_is_read_whatever_bits_the_header_states(tmp_path: Path) -> None:
    values = (PHANTOM >> 4).astype(np.uint8)
    for said in (Case(8, 8, 7, False, "", 8), Case(16, 12, 11, False, "", 8), Case(8, 6, 5, False, "", 8)):
        data = _file(tmp_path / "image.dcm", values, said, "MONOCHROME2", JPEGBaseline8Bit)
        assert np.abs(decode_image_bytes(data, ImageRef(path=tmp_path)).pixels.astype(int) - values).max() < 12


def test_byte_swapped_values_are_refused(tmp_path: Path) -> None:
    values = PHANTOM.astype(np.int64) * 16 + np.arange(PHANTOM.size).reshape(PHANTOM.shape) * 79 % 13
    swapped = values.astype(np.uint16).byteswap()
    for syntax in (ExplicitVRLittleEndian, RLELossless, JPEGLSLossless):
        data = _file(tmp_path / "image.dcm", swapped, Case(16, 16, 15, False, "zeros", 16), "MONOCHROME2", syntax)
        with pytest.raises(Unreadable) as caught:
            decode_image_bytes(data, ImageRef(path=tmp_path))
        assert "swapped" in caught.value.reason.text


@pytest.mark.parametrize("top", [1, 256, 65535])
def test_noise_is_not_taken_for_byte_swapped_values(top: int, tmp_path: Path) -> None:
    noise = np.random.default_rng(1).integers(0, top, PHANTOM.shape, np.uint16, endpoint=True)
    case = Case(16, 16, 15, False, "zeros", 16)
    data = _file(tmp_path / "image.dcm", noise, case, "MONOCHROME2", ExplicitVRLittleEndian)
    assert decode_image_bytes(data, ImageRef(path=tmp_path)).pixels.shape == PHANTOM.shape
