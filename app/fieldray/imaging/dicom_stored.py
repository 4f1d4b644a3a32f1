"""The stored values of one frame of a DICOM file, and the sizes that are checked before anything is allocated.

Nearly all images have one grey sample of 8 or 16 bits. These are taken as they lie in the file, or straight from their
codec, which saves pydicom's copies. Everything else goes through pydicom, which knows every corner of the standard.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
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
from pydicom.uid import UID, ExplicitVRBigEndian

from fieldray.errors import Unreadable, Unusable
from fieldray.imaging.codec import Codec, Frame, codec_of, decoded, not_supported
from fieldray.imaging.dicom_header import DicomHeader, text, whole_number
from fieldray.imaging.limits import check_pixel_count
from fieldray.reasons import reason

_FLOAT_TAGS: Final = {0x7FE00008: "f4", 0x7FE00009: "f8"}
_PIXEL_DATA: Final = 0x7FE00010
_ITEM: Final = 0xFFFEE000
_GREYS: Final = frozenset({"MONOCHROME1", "MONOCHROME2"})


@dataclass(frozen=True, slots=True)
class Shape:
    """What the header says about the pixels; `is_plain_grey`: one sample of 8 or 16 bits that is a grey value."""

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
    """What the header says about the pixels. Raises Unreadable if it cannot be true, Unusable if there are none."""
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
    """The value of the pixel data element in `data`, from which `header` was read (inflated if it was deflated).

    Raises Unreadable `truncated` if part of it is missing, Unusable if it is empty.
    """
    pixels = header.pixels
    assert pixels is not None
    rest = memoryview(data)[pixels.offset :]
    if pixels.length == 0:
        raise Unusable(reason("no_pixel_data", modality=text(header.dataset, "Modality") or "-"))
    if pixels.is_encapsulated:
        _check_fragments(rest)
        return rest
    if pixels.length > len(rest):
        raise Unreadable(reason("truncated"))
    return rest[: pixels.length]


def compressed_frame(header: DicomHeader, shape: Shape, value: memoryview, frame: int, codec: Codec) -> Frame:
    """One frame as its codec receives it. Raises Unreadable if the codestream's own size is not the header's."""
    source = _only_fragment(value) if shape.frames == 1 and frame == 0 else None
    if source is None:
        source = bytes(get_frame(bytes(value), frame, number_of_frames=shape.frames))
    size = codec.stated_size(source)
    if size is not None and size != (shape.rows, shape.columns):
        found, stated = f"{size[0]} x {size[1]}", f"{shape.rows} x {shape.columns}"
        raise Unreadable(reason("size_mismatch", found=found, stated=stated))
    return _frame(header, shape, source)


def _frame(header: DicomHeader, shape: Shape, source: bytes) -> Frame:
    dataset = header.dataset
    return Frame(
        source=source,
        transfer_syntax=header.transfer_syntax,
        rows=shape.rows,
        columns=shape.columns,
        samples=shape.samples,
        bits_allocated=shape.bits_allocated,
        bits_stored=whole_number(dataset, "BitsStored", shape.bits_allocated),
        unused_low_bits=_unused_low_bits(dataset, shape),
        is_signed=whole_number(dataset, "PixelRepresentation") != 0,
        is_plain_grey=shape.is_plain_grey,
        has_padding="PixelPaddingValue" in dataset,
    )


def stored_values(header: DicomHeader, shape: Shape, value: memoryview, frame: int) -> NDArray[Any]:
    """The stored values of one frame: (rows, columns), or (rows, columns, 3) as RGB."""
    pixels = header.pixels
    assert pixels is not None
    if pixels.tag in _FLOAT_TAGS:
        return _floats(shape, value, frame, _FLOAT_TAGS[pixels.tag])
    codec = codec_of(header.transfer_syntax)
    if codec is not None:
        return _encapsulated(header, codec, shape, value, frame)
    return _native(header, _pydicom_decoder(header.transfer_syntax), shape, value, frame)


def _pydicom_decoder(syntax: UID) -> Decoder:
    try:
        return get_decoder(syntax)
    except NotImplementedError as error:
        raise Unreadable(not_supported(syntax, syntax.name)) from error


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
    """Grey values as they lie in the file; None if they need correction, or a byte is missing."""
    is_big = header.transfer_syntax == ExplicitVRBigEndian
    size = shape.frame_bits // 8
    if not shape.is_plain_grey or (is_big and shape.bits_allocated == 8) or (frame + 1) * size > len(value):
        return None
    values = _frame(header, shape, b"")
    flat = np.frombuffer(value, (">" if is_big else "<") + values.kind, shape.rows * shape.columns, frame * size)
    stored = flat.reshape(shape.rows, shape.columns).astype(values.kind, copy=False)
    return stored if values.holds(stored) else None


def _right_aligned(stored: NDArray[Any], high_bit: int, shift: int) -> NDArray[Any]:
    """The stored bits alone, without those above `high_bit` and the `shift` bits below; the sign is kept."""
    above = 8 * stored.dtype.itemsize - 1 - high_bit
    aligned: NDArray[Any] = (stored << above) >> (above + shift)
    return aligned


def _unused_low_bits(dataset: Dataset, shape: Shape) -> int:
    """How far the stored bits lie above bit 0 (retired from the standard, but found in old archives)."""
    stored = whole_number(dataset, "BitsStored", shape.bits_allocated)
    high = whole_number(dataset, "HighBit", stored - 1)
    return high + 1 - stored if stored - 1 < high < shape.bits_allocated else 0


# ---- compressed


def _encapsulated(header: DicomHeader, codec: Codec, shape: Shape, value: memoryview, index: int) -> NDArray[Any]:
    if why := codec.unavailable_reason():
        raise Unreadable(why)
    stored = decoded(codec, compressed_frame(header, shape, value, index, codec))
    if stored is None:
        stored = _by_pydicom(header, codec, value, index)
    return stored


def _by_pydicom(header: DicomHeader, codec: Codec, value: memoryview, index: int) -> NDArray[Any]:
    """What a codec leaves, by its one plugin of pydicom."""
    if not codec.pydicom_plugin:
        raise Unreadable(not_supported(header.transfer_syntax, codec.name))
    decoder = _pydicom_decoder(header.transfer_syntax)
    if codec.plugin_function and codec.pydicom_plugin not in decoder.available_plugins:
        decoder.add_plugin(codec.pydicom_plugin, codec.plugin_function)
    values = _with_pixels(header, bytes(value))
    stored: NDArray[Any] = decoder.as_array(values, index=index, decoding_plugin=codec.pydicom_plugin)[0]
    return stored


# ---- fragments of encapsulated pixel data


def _check_fragments(value: memoryview) -> None:
    """Walk the fragments of encapsulated pixel data (PS3.5 A.4) without reading them.

    Raises Unreadable `truncated` where a fragment is longer than what is left, `damaged` where there are none.
    """
    if len(list(_fragment_lengths(value))) < 2:
        raise Unreadable(reason("damaged", detail="it holds no image data"))


def _only_fragment(value: memoryview) -> bytes | None:
    """What follows the offset table, if it is a single fragment: an image's one frame, without pydicom's copies."""
    table, *lengths = _fragment_lengths(value)
    if len(lengths) != 1:
        return None
    start = 16 + table
    return bytes(value[start : start + lengths[0]])


def _fragment_lengths(value: memoryview) -> Iterator[int]:
    position = 0
    while position + 8 <= len(value):
        group, element, length = struct.unpack("<HHI", value[position : position + 8])
        tag = group << 16 | element
        if tag != _ITEM:
            break
        position += 8 + length
        if position > len(value):
            raise Unreadable(reason("truncated"))
        yield length


# ---- what pydicom is given


def _with_pixels(header: DicomHeader, value: bytes | memoryview) -> Dataset:
    """The data set with its pixel data, without another copy of them, and with the elements that old files omit."""
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
