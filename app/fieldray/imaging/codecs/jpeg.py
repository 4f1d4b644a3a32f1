"""The JPEG codec: libjpeg-turbo in full resolution, Pillow for a reduced resolution."""

from __future__ import annotations

import io
from itertools import pairwise
from typing import Any, Final

import imagecodecs
import numpy as np
from numpy.typing import NDArray
from PIL.JpegImagePlugin import JpegImageFile
from pydicom.uid import JPEGBaseline8Bit, JPEGExtended12Bit

from fieldray.errors import Unreadable
from fieldray.imaging.codec import Codec, Frame
from fieldray.imaging.identify import (
    JPEG_RESTART_MARKERS,
    JPEG_START_OF_SCAN,
    jpeg_markers,
    jpeg_with_extra_rows,
    lacks_restart_markers,
    lacks_scans,
)
from fieldray.imaging.reduction import JPEG_REDUCTIONS, TargetSize, largest_reduction
from fieldray.reasons import reason

_END_OF_IMAGE: Final = b"\xff\xd9"
_SAYS_COLOUR: Final = {0xE0, 0xEE}  # JFIF and Adobe
_WHAT_FOLLOWS: Final = bytes(range(37, 250, 5)), bytes(range(218, 5, -5))  # their bits differ at every position


def with_end_marker(source: bytes) -> bytes:
    """Return a JPEG with its end marker. The marker is added if the rest of the JPEG is complete.

    Raises Unreadable `truncated` if more than the end marker is missing or the JPEG cannot be decoded. Raises
    ValueError for data that are no JPEG.
    """
    if source and not source.startswith(b"\xff\xd8"):
        raise ValueError("no JPEG")
    # After the end there is at most the byte that makes a fragment's length even, whatever its value, and zeros.
    bare = source.rstrip(b"\0")
    if _END_OF_IMAGE in bare[-3:]:
        return source
    bare = bare + b"\0" if bare.endswith(b"\xff") and len(bare) < len(source) else bare.removesuffix(b"\xff")
    decode_twice_to_check_scans(bare + _END_OF_IMAGE)
    return bare + _END_OF_IMAGE


def decode_twice_to_check_scans(source: bytes) -> NDArray[Any]:
    """Check that no scan of a JPEG is cut off, and return the decoded values.

    The JPEG is decoded twice, with different bytes inserted after each scan. The values then differ if a scan is cut
    off. Raises Unreadable `truncated` if scans or restart markers are missing, if the values differ, or if the JPEG is
    damaged.
    """
    if lacks_scans(source) or lacks_restart_markers(source):
        raise Unreadable(reason("truncated"))
    markers = [(marker, at - 2) for marker, at in jpeg_markers(source) if marker not in JPEG_RESTART_MARKERS]
    ends = [at for (before, _), (_, at) in pairwise(markers) if before == JPEG_START_OF_SCAN]
    parts = [source[start:end].rstrip(b"\xff") for start, end in pairwise([0, *ends, len(source)])]
    try:
        values, others = (decode_jpeg_without_checks(more.join(parts)) for more in _WHAT_FOLLOWS)
    except ValueError as error:
        raise Unreadable(reason("truncated")) from error
    if not np.array_equal(values, others):
        raise Unreadable(reason("truncated"))
    return values


def decode_jpeg(source: bytes) -> NDArray[Any]:
    """Decode the values of a whole JPEG: uint8 or uint16, (rows, columns) or (rows, columns, 3) as stored.

    Raises Unreadable `truncated` if a part of the JPEG is missing, and the exceptions of `decode_jpeg_without_checks`.
    """
    source = with_end_marker(source)
    tall = jpeg_with_extra_rows(source)
    if tall.test_row == 0:
        return decode_twice_to_check_scans(source)
    values = decode_jpeg_without_checks(tall.data)
    if tall.may_lack_pixels(np.ravel(values[tall.test_row, 0])):
        decode_twice_to_check_scans(source)
    return values[: tall.rows]


def decode_jpeg_without_checks(source: bytes) -> NDArray[Any]:
    """Decode a JPEG: uint8 or uint16 values, (rows, columns) or (rows, columns, 3) as stored.

    All coding processes are supported except arithmetic coding.

    The caller must have checked the size that the codestream states, and that the end marker is present. Raises
    ValueError for data that libjpeg-turbo cannot read.
    """
    try:
        values: NDArray[Any] = imagecodecs.jpeg8_decode(source)
    except RuntimeError as error:
        raise ValueError(str(error)) from error
    return values


def _decode(frame: Frame) -> NDArray[Any]:
    values = decode_jpeg(frame.codestream)
    # If the file does not name the colours, libjpeg takes three samples for a luminance and two differences.
    is_rgb = frame.samples_per_pixel == 3 and frame.is_rgb
    if is_rgb and not _SAYS_COLOUR & {marker for marker, _ in jpeg_markers(frame.codestream)}:
        values = imagecodecs.jpeg8_decode(with_end_marker(frame.codestream), colorspace="RGB", outcolorspace="RGB")
    return values


def _reduced(frame: Frame, needed_size: TargetSize) -> tuple[NDArray[Any], int] | None:
    is_plain = frame.bits_stored == 8
    step = largest_reduction(frame.rows, frame.columns, needed_size, steps=JPEG_REDUCTIONS) if is_plain else 1
    if step == 1:
        return None
    tall = jpeg_with_extra_rows(frame.codestream)
    if tall.test_row == 0:  # several scans, of which a low resolution would hide a missing part
        return None
    with JpegImageFile(io.BytesIO(tall.data)) as image:
        if image.mode != "L":
            return None
        image.draft("L", (image.width // step, image.height // step))
        values = np.asarray(image)
    return None if tall.may_lack_pixels(values[tall.test_row // step, :1]) else (values[: -(-tall.rows // step)], step)


CODEC: Final = Codec(
    name="JPEG",
    transfer_syntaxes=frozenset({JPEGBaseline8Bit, JPEGExtended12Bit}),
    lossy_syntaxes=frozenset({JPEGBaseline8Bit, JPEGExtended12Bit}),
    decode=_decode,
    decode_reduced=_reduced,
    runtime_modules=("imagecodecs._jpeg8",),
)
