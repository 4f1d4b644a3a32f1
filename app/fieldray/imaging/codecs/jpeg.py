"""JPEG of 8 bits by Pillow, which can shrink while decoding, and of 12 bits by libjpeg-turbo."""

from __future__ import annotations

import io
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL.JpegImagePlugin import JpegImageFile
from pydicom.uid import JPEGBaseline8Bit, JPEGExtended12Bit

from fieldray.errors import Unreadable
from fieldray.imaging.codec import Codec, Frame
from fieldray.imaging.reduction import JPEG_REDUCTIONS, TargetSize, largest_reduction
from fieldray.reasons import reason
from fieldray.registry import missing_library

_END_OF_IMAGE: Final = b"\xff\xd9"


def decode_jpeg(source: bytes) -> NDArray[Any]:
    """Decode a JPEG of any process but arithmetic: uint8 or uint16, (rows, columns) or (rows, columns, 3) as stored.

    The size that the codestream states must have been checked before. Raises Unreadable `truncated` where its end is
    missing, because libjpeg-turbo would silently make up the rest, and ValueError for what it cannot read.
    """
    import imagecodecs

    # After the end there is at most the byte that makes a fragment's length even, whatever its value, and zeros.
    if _END_OF_IMAGE not in source.rstrip(b"\0")[-3:]:
        raise Unreadable(reason("truncated"))
    try:
        values: NDArray[Any] = imagecodecs.jpeg8_decode(source)
    except RuntimeError as error:
        raise ValueError(str(error)) from error
    return values


def _has_twelve_bits(frame: Frame) -> bool:
    """Process 4 (ITU-T T.81), which none of pydicom's plugins decodes."""
    return frame.transfer_syntax == JPEGExtended12Bit and frame.samples == 1 and frame.bits_stored > 8


def _decode(frame: Frame) -> NDArray[np.uint16]:
    values = decode_jpeg(frame.source)
    if values.shape != (frame.rows, frame.columns):
        raise ValueError(f"a frame of shape {values.shape} where {(frame.rows, frame.columns)} was expected")
    return values.astype(np.uint16, copy=False)


def _reduced(frame: Frame, needed: TargetSize) -> tuple[NDArray[Any], int] | None:
    if frame.bits_stored != 8:
        return None
    step = largest_reduction(frame.rows, frame.columns, needed, steps=JPEG_REDUCTIONS)
    if step == 1:
        return None
    with JpegImageFile(io.BytesIO(frame.source)) as image:
        if image.mode != "L" or image.size != (frame.columns, frame.rows):
            return None
        image.draft("L", (frame.columns // step, frame.rows // step))
        return np.asarray(image), step


CODEC: Final = Codec(
    name="JPEG",
    transfer_syntaxes=frozenset({JPEGBaseline8Bit, JPEGExtended12Bit}),
    takes=_has_twelve_bits,
    decode=_decode,
    reduced=_reduced,
    pydicom_plugin="pillow",
    runtime_modules=("imagecodecs._jpeg8",),
    unavailable_reason=lambda: missing_library("imagecodecs"),
)
