"""Images that their own compression can give at a lower resolution: JPEG 2000, HTJ2K, and JPEG of 8 bits.

Only the plain case is taken: one grey component, unsigned, with the precision that the header states, untiled. For
anything else, and for a stream that turns out to be damaged, the whole image is read and says what is wrong.
"""

from __future__ import annotations

import io
from typing import Any, Final

import numpy as np
import PIL.Image
from numpy.typing import NDArray
from pydicom.uid import JPEG2000TransferSyntaxes, JPEGBaseline8Bit, JPEGExtended12Bit

from fieldray.domain.image import Image
from fieldray.imaging import dicom_grey
from fieldray.imaging.codestream import wavelets_of
from fieldray.imaging.dicom_codecs import HIGH_THROUGHPUT
from fieldray.imaging.dicom_fields import whole_number
from fieldray.imaging.dicom_header import DicomHeader
from fieldray.imaging.dicom_stored import Shape, frame_source
from fieldray.imaging.high_throughput import decode_high_throughput
from fieldray.imaging.reduction import JPEG_REDUCTIONS, WAVELET_COVER, TargetSize, largest_reduction

# Beside a sharp white edge a low pass goes a little beyond the highest value.
_OVERSHOOT: Final = 1.1
_DAMAGE: Final = (OSError, ValueError, SyntaxError, KeyError, IndexError, TypeError, EOFError)


def reduced_image(header: DicomHeader, shape: Shape, value: memoryview, frame: int, needed: TargetSize) -> Image | None:
    """The image by `reduction`'s rule for its compression; None where that offers nothing, or not for this file.

    Raises Unreadable where the frame is not there or not of the size stated.
    """
    dataset = header.dataset
    is_signed = whole_number(dataset, "PixelRepresentation") != 0
    bits = whole_number(dataset, "BitsStored", shape.bits_allocated)
    if not shape.is_plain_grey or is_signed or not 1 <= bits <= shape.bits_allocated:
        return None
    try:
        if header.transfer_syntax in JPEG2000TransferSyntaxes and "PixelPaddingValue" not in dataset:
            is_fast = header.transfer_syntax in HIGH_THROUGHPUT
            found = _wavelets(frame_source(shape, value, frame), bits, needed, is_fast=is_fast)
        elif header.transfer_syntax in (JPEGBaseline8Bit, JPEGExtended12Bit) and bits == 8:
            found = _cosines(frame_source(shape, value, frame), shape, needed)
        else:
            return None
    except _DAMAGE:
        return None  # the whole image will say what is wrong
    if found is None:
        return None
    stored, step = found
    image = dicom_grey.grey_image_at(stored, dataset, step=step, rows=shape.rows, columns=shape.columns)
    if "window_ignored" in image.notes:
        return None  # whether the window shows anything is for all pixels to say
    return image


# ---- JPEG


def _cosines(source: bytes, shape: Shape, needed: TargetSize) -> tuple[NDArray[Any], int] | None:
    step = largest_reduction(shape.rows, shape.columns, needed, steps=JPEG_REDUCTIONS)
    if step == 1:
        return None
    with PIL.Image.open(io.BytesIO(source), formats=("JPEG",)) as picture:
        if picture.mode != "L" or picture.size != (shape.columns, shape.rows):
            return None
        picture.draft("L", (shape.columns // step, shape.rows // step))
        stored = np.asarray(picture)
    return (stored, step) if stored.shape == (-(-shape.rows // step), -(-shape.columns // step)) else None


# ---- JPEG 2000


def _wavelets(source: bytes, bits: int, needed: TargetSize, *, is_fast: bool) -> tuple[NDArray[Any], int] | None:
    stream = wavelets_of(source)
    if stream is None or stream.bits < bits:
        return None
    steps = [1 << level for level in range(min(stream.levels, 7) + 1)]
    step = largest_reduction(stream.rows, stream.columns, needed, cover=WAVELET_COVER, steps=steps)
    if step == 1:
        return None
    fast = decode_fast_wavelets(source, step) if is_fast and 8 < bits < 16 else None
    stored = decode_wavelets(source, step, stream.bits) if fast is None else fast
    if stream.bits > bits:  # encoders often state the container's precision; the values are as the header says
        if int(stored.max()) > _OVERSHOOT * (1 << bits):
            return None
        stored = stored.clip(max=(1 << bits) - 1)
    return stored, step


def decode_wavelets(source: bytes, step: int, bits: int) -> NDArray[np.uint16]:
    """Decode an unsigned grey image of `bits` bits at 1 / `step` (a power of two): its wavelets hold that picture.

    Gives (ceil(rows / step), ceil(columns / step)). Raises OSError, ValueError or SyntaxError for what Pillow cannot
    read.
    """
    picture: Any = PIL.Image.open(io.BytesIO(source), formats=("JPEG2000",))
    picture.reduce = step.bit_length() - 1
    # Pillow rounds the reduced size where the standard (B-15) takes the next whole number, and then refuses its own
    # picture: tell it a size for which both are alike.
    picture._size = tuple(-(-side // step) * step for side in picture.size)
    # and it moves the values up to fill 8 or 16 bits
    values = np.asarray(picture).astype(np.float32) / (1 << ((8 if bits <= 8 else 16) - bits))
    return _centred(values, step, bits)


def decode_fast_wavelets(source: bytes, step: int) -> NDArray[np.uint16] | None:
    """The same of an HTJ2K codestream whose values use 9 to 15 bits; None for what its decoder leaves."""
    stored = decode_high_throughput(source, level=step.bit_length() - 1)
    # With a bit to spare, what wrapped around at 0 is a negative number.
    return None if stored is None else _centred(stored.view(np.int16).astype(np.float32), step, 16)


def _centred(values: NDArray[np.float32], step: int, bits: int) -> NDArray[np.uint16]:
    # A halving keeps every other sample, not the middle of two: move by what that adds up to (T.800 F.3.1)
    shift = np.float32(0.5 - 0.5 / step)
    for _ in range(2):
        following = np.vstack([values[1:], values[-1:]])
        values = ((1 - shift) * values + shift * following).T
    moved: NDArray[np.uint16] = np.rint(values).clip(0, (1 << bits) - 1).astype(np.uint16)
    return moved
