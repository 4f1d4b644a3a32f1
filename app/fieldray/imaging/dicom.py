"""DICOM files: from bytes to one upright grey image."""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pydicom.dataelem import DataElement
from pydicom.dataset import Dataset
from pydicom.encaps import get_frame
from pydicom.pixels import apply_color_lut, get_decoder
from pydicom.pixels.decoders.base import Decoder
from pydicom.uid import UID, JPEG2000TransferSyntaxes, JPEGExtended12Bit

from fieldray.domain.image import Image
from fieldray.errors import FieldrayError, Unreadable, Unusable
from fieldray.imaging import dicom_grey
from fieldray.imaging.dicom_codecs import (
    PLUGINS,
    check_fragments,
    codestream_size,
    decode_extended,
    decode_reduced,
    plain_name,
    spare_levels,
)
from fieldray.imaging.dicom_fields import text, whole_number
from fieldray.imaging.dicom_header import DicomHeader, read_header
from fieldray.imaging.grey import grey_of_colour
from fieldray.imaging.limits import MAX_FILE_BYTES, check_pixel_count
from fieldray.reasons import reason

_PALETTE: Final = tuple(
    f"{prefix}{colour}PaletteColorLookupTable{part}"
    for prefix, part in (("", "Descriptor"), ("", "Data"), ("Segmented", "Data"))
    for colour in ("Red", "Green", "Blue")
)
_KEYWORDS: Final = (
    "Modality",
    "SamplesPerPixel",
    "PlanarConfiguration",
    "Rows",
    "Columns",
    "NumberOfFrames",
    "BitsAllocated",
    "HighBit",
    "ExtendedOffsetTable",
    "ExtendedOffsetTableLengths",
    *_PALETTE,
    *dicom_grey.KEYWORDS,
)
_FLOAT_TAGS: Final = {0x7FE00008: "f4", 0x7FE00009: "f8"}
_PIXEL_DATA: Final = 0x7FE00010


def decode_dicom(data: bytes, *, frame: int = 0, shortest_side: int | None = None) -> Image:
    """Decode one frame of a DICOM file, with or without preamble and file meta information; see `decode`.

    Raises Unreadable; Unusable `colour` or `no_pixel_data`.
    """
    with warnings.catch_warnings():
        # pydicom warns of what it repairs; what matters here is in the image's notes or in the reason.
        warnings.simplefilter("ignore")
        try:
            return _decode(data, frame, shortest_side)
        except (FieldrayError, MemoryError):
            raise
        except Exception as error:  # parsers and codecs raise whatever the damaged bytes lead them to
            raise Unreadable(reason("damaged", detail="the image cannot be decoded")) from error


def _decode(data: bytes, frame: int, shortest_side: int | None) -> Image:
    header = read_header(io.BytesIO(data), _KEYWORDS, inflated_limit=MAX_FILE_BYTES)
    shape = _shape(header)
    value = _pixel_value(header)
    if shortest_side is not None:
        reduced = _reduced(header, shape, value, frame, shortest_side)
        if reduced is not None:
            return reduced
    stored = _stored(header, shape, value, frame)
    if stored.ndim == 3 and stored.shape[2] == 1:
        stored = stored[:, :, 0]
    if text(header.dataset, "PhotometricInterpretation").upper() == "PALETTE COLOR":
        stored = apply_color_lut(stored, header.dataset)[:, :, :3]
    if stored.ndim == 3:
        return _grey_of_colour(stored, header.dataset)
    return dicom_grey.grey_image(stored, header.dataset)


def _grey_of_colour(stored: NDArray[Any], dataset: Dataset) -> Image:
    """Secondary captures of grey images: shown as stored, whatever else the file says."""
    if stored.dtype.itemsize > 2:
        raise Unusable(reason("colour"))
    grey = grey_of_colour(stored)
    bits = whole_number(dataset, "BitsStored", 8)
    if bits > 8 * grey.dtype.itemsize or grey.max() >= 2**bits:
        bits = 8 * grey.dtype.itemsize
    bare = Dataset()
    bare.BitsStored = bits
    bare.WindowCenter, bare.WindowWidth, bare.VOILUTFunction = (2**bits - 1) / 2, 2**bits - 1, "LINEAR_EXACT"
    bare.ViewPosition = text(dataset, "ViewPosition")
    return dicom_grey.grey_image(grey, bare, ("grey_from_colour",))


def _reduced(header: DicomHeader, shape: _Shape, value: memoryview, frame: int, shortest_side: int) -> Image | None:
    """A grey JPEG 2000 film at the lowest resolution that is enough; None where that is not to be had.

    Not with pixel padding, whose value would be blended with its neighbours'.
    """
    dataset, bits = header.dataset, whole_number(header.dataset, "BitsStored", shape.bits_allocated)
    is_plain = shape.samples == 1 and bits <= 16 and whole_number(dataset, "PixelRepresentation") == 0
    is_grey = text(dataset, "PhotometricInterpretation").upper() in ("MONOCHROME1", "MONOCHROME2")
    is_wavelet = header.transfer_syntax in JPEG2000TransferSyntaxes
    if not (is_plain and is_grey and is_wavelet) or "PixelPaddingValue" in dataset:
        return None
    source = _frame_source(shape, value, frame)
    levels = spare_levels(source, shortest_side)
    if not levels:
        return None
    try:
        stored = decode_reduced(source, levels, bits)
    except (OSError, ValueError, SyntaxError):
        return None  # the other decoder may read it, or say what is wrong
    image = dicom_grey.grey_image(stored, dataset)
    return replace(image, is_reduced=True, full_rows=shape.rows, full_columns=shape.columns, spacing_mm=None)


# ---- sizes, checked before anything is allocated


@dataclass(frozen=True, slots=True)
class _Shape:
    rows: int
    columns: int
    samples: int
    bits_allocated: int
    frames: int

    @property
    def frame_bits(self) -> int:
        return self.rows * self.columns * self.samples * self.bits_allocated


def _shape(header: DicomHeader) -> _Shape:
    """What the header says of the pixels. Raises Unreadable for what cannot be."""
    if header.pixels is None:
        if header.is_cut:
            raise Unreadable(reason("truncated"))
        raise Unusable(reason("no_pixel_data", modality=text(header.dataset, "Modality") or "-"))
    dataset = header.dataset
    rows, columns = whole_number(dataset, "Rows"), whole_number(dataset, "Columns")
    if rows < 1 or columns < 1:
        raise Unreadable(reason("damaged", detail="the header does not state the size of the image"))
    check_pixel_count(rows, columns)
    samples = whole_number(dataset, "SamplesPerPixel", 1)
    bits = whole_number(dataset, "BitsAllocated", 16)
    if samples not in (1, 3) or bits not in (1, 8, 16, 32, 64):
        raise Unreadable(reason("unsupported_pixels", detail=f"{samples} x {bits} bits"))
    return _Shape(rows, columns, samples, bits, max(1, whole_number(dataset, "NumberOfFrames", 1)))


def _pixel_value(header: DicomHeader) -> memoryview:
    """The value of the pixel data element. Raises Unreadable `truncated` if it is not all there."""
    pixels = header.pixels
    assert pixels is not None
    header.stream.seek(pixels.offset)
    rest = memoryview(header.stream.read())
    if pixels.length == 0:
        raise Unusable(reason("no_pixel_data", modality=text(header.dataset, "Modality") or "-"))
    if pixels.is_encapsulated:
        check_fragments(rest)
        return rest
    if pixels.length > len(rest):
        raise Unreadable(reason("truncated"))
    return rest[: pixels.length]


# ---- pixels


def _stored(header: DicomHeader, shape: _Shape, value: memoryview, frame: int) -> NDArray[Any]:
    """The stored values of one frame: (rows, columns), or (rows, columns, 3) as RGB."""
    pixels = header.pixels
    assert pixels is not None
    if pixels.tag in _FLOAT_TAGS:
        return _floats(shape, value, frame, _FLOAT_TAGS[pixels.tag])
    decoder = _decoder(header.transfer_syntax)
    if decoder.is_encapsulated:
        return _encapsulated(header, decoder, shape, bytes(value), frame)
    return _native(header, decoder, shape, value, frame)


def _decoder(syntax: UID) -> Decoder:
    try:
        return get_decoder(syntax)
    except NotImplementedError as error:
        raise Unreadable(reason("unsupported_compression", name=plain_name(syntax))) from error


def _floats(shape: _Shape, value: memoryview, frame: int, kind: str) -> NDArray[Any]:
    count = shape.rows * shape.columns
    size = count * np.dtype(kind).itemsize
    if (frame + 1) * size > len(value):
        raise Unreadable(reason("truncated"))
    return np.frombuffer(value, "<" + kind, count, frame * size).reshape(shape.rows, shape.columns)


def _native(header: DicomHeader, decoder: Decoder, shape: _Shape, value: memoryview, frame: int) -> NDArray[Any]:
    assert header.pixels is not None
    is_subsampled = text(header.dataset, "PhotometricInterpretation").upper() == "YBR_FULL_422"
    frame_bytes = ceil(shape.frame_bits / 8 * (2 / 3 if is_subsampled else 1))
    if header.pixels.is_encapsulated or (frame + 1) * frame_bytes > len(value) + 1:
        raise Unreadable(reason("truncated"))
    frames = min(shape.frames, max(frame + 1, len(value) // frame_bytes))
    shift = _unused_low_bits(header.dataset, shape)
    options = {"number_of_frames": frames, "allow_excess_frames": False, "correct_unused_bits": shift == 0}
    values = _with_pixels(header, value)
    raw: NDArray[Any] = decoder.as_array(values, index=frame, **options)[0]
    stored = raw.astype(raw.dtype.newbyteorder("="), copy=False)
    return _right_aligned(stored, whole_number(header.dataset, "HighBit"), shift) if shift else stored


def _right_aligned(stored: NDArray[Any], high_bit: int, shift: int) -> NDArray[Any]:
    """Without the bits above `high_bit` and the `shift` bits below the stored ones; the sign is kept."""
    above = 8 * stored.dtype.itemsize - 1 - high_bit
    aligned: NDArray[Any] = (stored << above) >> (above + shift)
    return aligned


def _unused_low_bits(dataset: Dataset, shape: _Shape) -> int:
    """How far the stored bits lie above bit 0 (retired, but old archives hold such films)."""
    stored = whole_number(dataset, "BitsStored", shape.bits_allocated)
    high = whole_number(dataset, "HighBit", stored - 1)
    return high + 1 - stored if stored - 1 < high < shape.bits_allocated else 0


def _encapsulated(header: DicomHeader, decoder: Decoder, shape: _Shape, value: bytes, frame: int) -> NDArray[Any]:
    source = _frame_source(shape, value, frame)
    bits = whole_number(header.dataset, "BitsStored", shape.bits_allocated)
    is_extended = header.transfer_syntax == JPEGExtended12Bit
    if is_extended and shape.samples == 1 and bits > 8:
        return decode_extended(source, shape.rows, shape.columns)
    values, plugin = _with_pixels(header, value), PLUGINS.get(header.transfer_syntax, "")
    stored: NDArray[Any] = decoder.as_array(values, index=frame, decoding_plugin=plugin)[0]
    return stored


def _frame_source(shape: _Shape, value: bytes | memoryview, frame: int) -> bytes:
    """One frame's codestream. Raises Unreadable if its own size is not what the header says."""
    source = bytes(get_frame(bytes(value), frame, number_of_frames=shape.frames))
    size = codestream_size(source)
    if size is not None and size != (shape.rows, shape.columns):
        found, stated = f"{size[0]} x {size[1]}", f"{shape.rows} x {shape.columns}"
        raise Unreadable(reason("size_mismatch", found=found, stated=stated))
    return source


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
