"""The stored values of one frame of a DICOM file, and the sizes that are checked before anything is allocated.

Grey values of one sample in 8 or 16 bits, which is what images are, are taken from the file as they lie there, or from
the decoder itself; everything out of the ordinary goes through pydicom, which knows every corner of the standard.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pydicom.dataelem import DataElement
from pydicom.dataset import Dataset
from pydicom.encaps import get_frame
from pydicom.pixels import get_decoder
from pydicom.pixels.decoders.base import Decoder
from pydicom.uid import (
    UID,
    ExplicitVRBigEndian,
    JPEGExtended12Bit,
    JPEGLossless,
    JPEGLosslessSV1,
    JPEGLSLossless,
    JPEGLSNearLossless,
    RLELossless,
)

from fieldray.errors import Unreadable, Unusable
from fieldray.imaging import turbo
from fieldray.imaging.dicom_codecs import (
    HIGH_THROUGHPUT,
    PLUGINS,
    check_fragments,
    codestream_size,
    decode_extended,
    decode_jpeg_ls,
    decode_lossless_jpeg,
    decode_run_lengths,
    only_fragment,
    plain_name,
)
from fieldray.imaging.dicom_fields import text, whole_number
from fieldray.imaging.dicom_header import DicomHeader
from fieldray.imaging.high_throughput import decode_high_throughput
from fieldray.imaging.limits import check_pixel_count
from fieldray.reasons import reason

for _syntax in (JPEGLossless, JPEGLosslessSV1):
    get_decoder(_syntax).add_plugin(turbo.PLUGIN, (turbo.__name__, turbo.decode_frame.__name__))

_FLOAT_TAGS: Final = {0x7FE00008: "f4", 0x7FE00009: "f8"}
_PIXEL_DATA: Final = 0x7FE00010
_GREYS: Final = frozenset({"MONOCHROME1", "MONOCHROME2"})


@dataclass(frozen=True, slots=True)
class Shape:
    """What the header says of the pixels; `is_plain_grey`: one sample of 8 or 16 bits that is no colour's number."""

    rows: int
    columns: int
    samples: int
    bits_allocated: int
    frames: int
    is_plain_grey: bool

    @property
    def frame_bits(self) -> int:
        """Bits of one frame, uncompressed."""
        return self.rows * self.columns * self.samples * self.bits_allocated


def shape_of(header: DicomHeader) -> Shape:
    """What the header says of the pixels. Raises Unreadable for what cannot be, Unusable where there are none."""
    dataset = header.dataset
    if header.pixels is None:
        if header.is_cut:
            raise Unreadable(reason("truncated"))
        raise Unusable(reason("no_pixel_data", modality=text(dataset, "Modality") or "-"))
    rows, columns = whole_number(dataset, "Rows"), whole_number(dataset, "Columns")
    if rows < 1 or columns < 1:
        raise Unreadable(reason("damaged", detail="the header does not state the size of the image"))
    check_pixel_count(rows, columns)
    samples = whole_number(dataset, "SamplesPerPixel", 1)
    bits = whole_number(dataset, "BitsAllocated", 16)
    if samples not in (1, 3) or bits not in (1, 8, 16, 32, 64):
        raise Unreadable(reason("unsupported_pixels", detail=f"{samples} x {bits} bits"))
    is_grey = text(dataset, "PhotometricInterpretation").upper() in _GREYS and header.pixels.tag == _PIXEL_DATA
    return Shape(
        rows=rows,
        columns=columns,
        samples=samples,
        bits_allocated=bits,
        frames=max(1, whole_number(dataset, "NumberOfFrames", 1)),
        is_plain_grey=is_grey and samples == 1 and bits in (8, 16),
    )


def pixel_value(header: DicomHeader, data: bytes) -> memoryview:
    """The value of the pixel data element in `data`, which is what `header` was read from, inflated if it was deflated.

    Raises Unreadable `truncated` if it is not all there.
    """
    pixels = header.pixels
    assert pixels is not None
    rest = memoryview(data)[pixels.offset :]
    if pixels.length == 0:
        raise Unusable(reason("no_pixel_data", modality=text(header.dataset, "Modality") or "-"))
    if pixels.is_encapsulated:
        check_fragments(rest)
        return rest
    if pixels.length > len(rest):
        raise Unreadable(reason("truncated"))
    return rest[: pixels.length]


def frame_source(shape: Shape, value: memoryview, frame: int) -> bytes:
    """One frame's codestream. Raises Unreadable if its own size is not what the header says."""
    source = only_fragment(value) if shape.frames == 1 and frame == 0 else None
    if source is None:
        source = bytes(get_frame(bytes(value), frame, number_of_frames=shape.frames))
    size = codestream_size(source)
    if size is not None and size != (shape.rows, shape.columns):
        found, stated = f"{size[0]} x {size[1]}", f"{shape.rows} x {shape.columns}"
        raise Unreadable(reason("size_mismatch", found=found, stated=stated))
    return source


def stored_values(header: DicomHeader, shape: Shape, value: memoryview, frame: int) -> NDArray[Any]:
    """The stored values of one frame: (rows, columns), or (rows, columns, 3) as RGB."""
    pixels = header.pixels
    assert pixels is not None
    if pixels.tag in _FLOAT_TAGS:
        return _floats(shape, value, frame, _FLOAT_TAGS[pixels.tag])
    decoder = _decoder(header.transfer_syntax)
    if decoder.is_encapsulated:
        return _encapsulated(header, decoder, shape, value, frame)
    return _native(header, decoder, shape, value, frame)


def _decoder(syntax: UID) -> Decoder:
    try:
        return get_decoder(syntax)
    except NotImplementedError as error:
        raise Unreadable(reason("unsupported_compression", name=plain_name(syntax))) from error


def _floats(shape: Shape, value: memoryview, frame: int, kind: str) -> NDArray[Any]:
    count = shape.rows * shape.columns
    size = count * np.dtype(kind).itemsize
    if (frame + 1) * size > len(value):
        raise Unreadable(reason("truncated"))
    return np.frombuffer(value, "<" + kind, count, frame * size).reshape(shape.rows, shape.columns)


# ---- uncompressed


def _native(header: DicomHeader, decoder: Decoder, shape: Shape, value: memoryview, frame: int) -> NDArray[Any]:
    assert header.pixels is not None
    is_subsampled = text(header.dataset, "PhotometricInterpretation").upper() == "YBR_FULL_422"
    frame_bytes = ceil(shape.frame_bits / 8 * (2 / 3 if is_subsampled else 1))
    if header.pixels.is_encapsulated or (frame + 1) * frame_bytes > len(value) + 1:
        raise Unreadable(reason("truncated"))
    plain = _as_it_lies(header, shape, value, frame)
    if plain is not None:
        return plain
    frames = min(shape.frames, max(frame + 1, len(value) // frame_bytes))
    shift = _unused_low_bits(header.dataset, shape)
    options = {"number_of_frames": frames, "allow_excess_frames": False, "correct_unused_bits": shift == 0}
    values = _with_pixels(header, value)
    raw: NDArray[Any] = decoder.as_array(values, index=frame, **options)[0]
    stored = raw.astype(raw.dtype.newbyteorder("="), copy=False)
    return _right_aligned(stored, whole_number(header.dataset, "HighBit"), shift) if shift else stored


def _as_it_lies(header: DicomHeader, shape: Shape, value: memoryview, frame: int) -> NDArray[Any] | None:
    """Grey values of the file's own memory; None where they need putting right, or are cut by a byte."""
    is_big = header.transfer_syntax == ExplicitVRBigEndian
    size = shape.frame_bits // 8
    if not shape.is_plain_grey or (is_big and shape.bits_allocated == 8) or (frame + 1) * size > len(value):
        return None
    kind = _kind(header.dataset, shape)
    flat = np.frombuffer(value, (">" if is_big else "<") + kind, shape.rows * shape.columns, frame * size)
    stored = flat.reshape(shape.rows, shape.columns).astype(kind, copy=False)
    return stored if _fits(stored, header.dataset, shape) else None


def _kind(dataset: Dataset, shape: Shape) -> str:
    """NumPy's name for the type of the values."""
    return f"{'i' if whole_number(dataset, 'PixelRepresentation') else 'u'}{shape.bits_allocated // 8}"


def _fits(stored: NDArray[Any], dataset: Dataset, shape: Shape) -> bool:
    """Whether only the lower Bits Stored are in use, so that there is nothing to mask (overlays once lay above)."""
    bits = whole_number(dataset, "BitsStored", shape.bits_allocated)
    if _unused_low_bits(dataset, shape) or not 1 <= bits <= shape.bits_allocated:
        return False
    if bits == shape.bits_allocated:
        return True
    if stored.dtype.kind == "u":
        return int(stored.max()) < 1 << bits
    limit = 1 << (bits - 1)
    return int(stored.max()) < limit and int(stored.min()) >= -limit


def _right_aligned(stored: NDArray[Any], high_bit: int, shift: int) -> NDArray[Any]:
    """Without the bits above `high_bit` and the `shift` bits below the stored ones; the sign is kept."""
    above = 8 * stored.dtype.itemsize - 1 - high_bit
    aligned: NDArray[Any] = (stored << above) >> (above + shift)
    return aligned


def _unused_low_bits(dataset: Dataset, shape: Shape) -> int:
    """How far the stored bits lie above bit 0 (retired, but old archives hold such images)."""
    stored = whole_number(dataset, "BitsStored", shape.bits_allocated)
    high = whole_number(dataset, "HighBit", stored - 1)
    return high + 1 - stored if stored - 1 < high < shape.bits_allocated else 0


# ---- compressed


def _encapsulated(header: DicomHeader, decoder: Decoder, shape: Shape, value: memoryview, frame: int) -> NDArray[Any]:
    source = frame_source(shape, value, frame)
    bits = whole_number(header.dataset, "BitsStored", shape.bits_allocated)
    is_extended = header.transfer_syntax == JPEGExtended12Bit
    if is_extended and shape.samples == 1 and bits > 8:
        return decode_extended(source, shape.rows, shape.columns)
    plain = _decoded(header, shape, source)
    if plain is not None:
        return plain
    values, plugin = _with_pixels(header, bytes(value)), PLUGINS.get(header.transfer_syntax, "")
    stored: NDArray[Any] = decoder.as_array(values, index=frame, decoding_plugin=plugin)[0]
    return stored


def _decoded(header: DicomHeader, shape: Shape, source: bytes) -> NDArray[Any] | None:
    """By the decoder itself, which saves pydicom's copies; None where there is more to it than an image has."""
    if not shape.is_plain_grey:
        return None
    bits = whole_number(header.dataset, "BitsStored", shape.bits_allocated)
    is_signed = whole_number(header.dataset, "PixelRepresentation") != 0
    stored = None
    if header.transfer_syntax == RLELossless:
        stored = decode_run_lengths(source, shape.rows, shape.columns, _kind(header.dataset, shape))
    elif header.transfer_syntax in (JPEGLossless, JPEGLosslessSV1) and not is_signed:
        stored = decode_lossless_jpeg(source, shape.rows, shape.columns, shape.bits_allocated // 8)
    elif header.transfer_syntax in (JPEGLSLossless, JPEGLSNearLossless) and not is_signed:
        return decode_jpeg_ls(source, shape.rows, shape.columns, bits)
    elif header.transfer_syntax in HIGH_THROUGHPUT and not is_signed:
        stored = decode_high_throughput(source)
    return stored if stored is not None and _fits(stored, header.dataset, shape) else None


def _with_pixels(header: DicomHeader, value: bytes | memoryview) -> Dataset:
    """The data set with its pixel data put back, without another copy of it, and what old files leave out."""
    assert header.pixels is not None
    dataset = header.dataset
    for keyword, usual in (("PixelRepresentation", 0), ("SamplesPerPixel", 1), ("BitsAllocated", 16)):
        if keyword not in dataset:
            setattr(dataset, keyword, usual)
    if "BitsStored" not in dataset:
        dataset.BitsStored = dataset.BitsAllocated
    if "PhotometricInterpretation" not in dataset:
        dataset.PhotometricInterpretation = "RGB" if dataset.SamplesPerPixel == 3 else "MONOCHROME2"
    element = DataElement(_PIXEL_DATA, header.pixels.representation, value, already_converted=True)
    dataset[_PIXEL_DATA] = element
    return dataset
