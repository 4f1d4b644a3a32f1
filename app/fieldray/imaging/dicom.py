"""DICOM files: from bytes to one upright grey image."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import PIL.Image
from numpy.typing import NDArray
from pydicom.dataset import Dataset
from pydicom.pixels import apply_color_lut

from fieldray.domain.image import Image, Window
from fieldray.errors import FieldrayError, Unreadable, Unusable
from fieldray.imaging import dicom_grey
from fieldray.imaging.codec import codec_of
from fieldray.imaging.dicom_header import (
    LENIENT_PYDICOM,
    DicomHeader,
    SharedContext,
    inflated,
    read_header,
    text,
    whole_number,
)
from fieldray.imaging.dicom_stored import (
    LOWER_EDGES,
    Shape,
    check_lower_part,
    compressed_frame,
    pixel_value,
    pixels_as_they_are,
    shape_of,
    stored_values,
)
from fieldray.imaging.identify import MAX_FILE_BYTES
from fieldray.imaging.preprocess import squared
from fieldray.imaging.raster import grey_of_colour
from fieldray.imaging.reduction import TargetSize, Whole, largest_reduction
from fieldray.reasons import reason

_PALETTE: Final = tuple(
    f"{prefix}{colour}PaletteColorLookupTable{part}"
    for prefix, part in (("", "Descriptor"), ("", "Data"), ("Segmented", "Data"))
    for colour in ("Red", "Green", "Blue")
)
_DAMAGE: Final = (OSError, ValueError, SyntaxError, KeyError, IndexError, TypeError, EOFError)
_KEYWORDS: Final = (
    "Modality",
    "SOPClassUID",
    "SamplesPerPixel",
    "PlanarConfiguration",
    "Rows",
    "Columns",
    "NumberOfFrames",
    "BitsAllocated",
    "HighBit",
    "ExtendedOffsetTable",
    "ExtendedOffsetTableLengths",
    *LOWER_EDGES,
    *_PALETTE,
    *dicom_grey.KEYWORDS,
)


@contextlib.contextmanager
def _without_pillows_limit() -> Iterator[None]:
    limit = PIL.Image.MAX_IMAGE_PIXELS
    PIL.Image.MAX_IMAGE_PIXELS = None
    try:
        yield
    finally:
        PIL.Image.MAX_IMAGE_PIXELS = limit


# Sizes are checked before a decoder sees a frame, with one limit for all kinds of files.
_OWN_LIMIT_FOR_PILLOW: Final = SharedContext(_without_pillows_limit)


def decode_dicom(data: bytes, *, frame: int = 0, needed: TargetSize | None = None, whole: Whole | None = None) -> Image:
    """Decode one frame of a DICOM file, with or without preamble and file meta information; see `reading.decode`.

    Raises Unreadable; Unusable `colour` or `no_pixel_data`.
    """
    with LENIENT_PYDICOM, _OWN_LIMIT_FOR_PILLOW:
        try:
            return _decode(data, frame, needed, whole or Whole())
        except (FieldrayError, MemoryError):
            raise
        except Exception as error:  # parsers and codecs raise whatever the damaged bytes lead them to
            raise Unreadable(reason("damaged", detail="the image cannot be decoded")) from error


def _decode(data: bytes, frame: int, needed: TargetSize | None, whole: Whole) -> Image:
    stream = io.BytesIO(data)
    header = read_header(stream, _KEYWORDS, inflated_limit=MAX_FILE_BYTES)
    shape = shape_of(header)
    value = pixel_value(header, data if header.stream is stream else inflated(header))
    header, value = pixels_as_they_are(header, shape, value)
    check_lower_part(header, shape, value)
    aspect = dicom_grey.pixel_aspect(header.dataset)
    # The shape of pixels that are not square is put right once, from all of them.
    image = squared(
        _decode_pixels(header, shape, value, frame, needed=needed if aspect == 1 else None, whole=whole), aspect
    )
    return replace(image, notes=("syntax_contradicted",) * header.is_contradicted + image.notes)


def _decode_pixels(
    header: DicomHeader, shape: Shape, value: memoryview, frame: int, *, needed: TargetSize | None, whole: Whole
) -> Image:
    if needed is not None and not whole.is_kept:
        reduced = _reduced(header, shape, value, frame, needed)
        if reduced is not None:
            return reduced
    step = largest_reduction(shape.rows, shape.columns, needed) if needed is not None else 1
    stored = whole.of(lambda: stored_values(header, shape, value, frame))
    if stored.ndim == 3 and stored.shape[2] == 1:
        stored = stored[:, :, 0]
    if text(header.dataset, "PhotometricInterpretation").upper() == "PALETTE COLOR":
        stored = apply_color_lut(stored, header.dataset)[:, :, :3]
    if stored.ndim == 3:
        return _grey_of_colour(stored, header.dataset, step)
    return dicom_grey.grey_image(stored, header.dataset, step=step)


def _reduced(header: DicomHeader, shape: Shape, value: memoryview, index: int, needed: TargetSize) -> Image | None:
    """The image as its compression gives it at a lower resolution; None if that offers nothing for this one.

    Raises Unreadable if the frame is missing or not of the size stated. If it turns out to be damaged, the whole image
    is read and shows what is wrong.
    """
    codec = codec_of(header.transfer_syntax)
    if codec is None or codec.reduced is None:
        return None
    bits = whole_number(header.dataset, "BitsStored", shape.bits_allocated)
    is_signed = whole_number(header.dataset, "PixelRepresentation") != 0
    if not shape.is_plain_grey or is_signed or not 1 <= bits <= shape.bits_allocated:
        return None
    try:
        frame = compressed_frame(header, shape, value, index)
        found = None if frame.unused_low_bits else codec.reduced(frame, needed)
    except _DAMAGE:
        return None
    if found is None or found[0].shape != (-(-shape.rows // found[1]), -(-shape.columns // found[1])):
        return None
    stored, step = found
    image = dicom_grey.grey_image_at(stored, header.dataset, step=step, rows=shape.rows, columns=shape.columns)
    # Whether a presentation shows anything is for all pixels to decide.
    return None if "presentation_ignored" in image.notes else image


def _grey_of_colour(stored: NDArray[Any], dataset: Dataset, step: int) -> Image:
    """A secondary capture of a grey image: shown as stored, whatever else the file says."""
    if stored.dtype.itemsize > 2:
        raise Unusable(reason("colour"))
    grey = grey_of_colour(stored)
    bits = whole_number(dataset, "BitsStored", 8)
    if bits > 8 * grey.dtype.itemsize or grey.max() >= 2**bits:
        bits = 8 * grey.dtype.itemsize
    bare = Dataset()
    bare.BitsStored = bits
    bare.ViewPosition = text(dataset, "ViewPosition")
    image = dicom_grey.grey_image(grey, bare, ("grey_from_colour",), step=step)
    return replace(image, window=Window((2**bits - 1) / 2, 2**bits - 1, "LINEAR_EXACT"))
