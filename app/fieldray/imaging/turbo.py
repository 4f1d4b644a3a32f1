"""Lossless JPEG and JPEG of 12 bits by libjpeg-turbo, which pydicom has no decoder for: also as a plug-in of pydicom.

pydicom asks a plug-in's module for `is_available` and `DECODER_DEPENDENCIES`.
"""

from __future__ import annotations

from typing import Any, Final

import imagecodecs
from numpy.typing import NDArray
from pydicom.pixels.decoders.base import DecodeRunner
from pydicom.uid import UID, JPEGLossless, JPEGLosslessSV1

from fieldray.errors import Unreadable
from fieldray.reasons import reason

PLUGIN: Final = "libjpeg-turbo"
DECODER_DEPENDENCIES: Final = dict.fromkeys((JPEGLossless, JPEGLosslessSV1), ("imagecodecs>=2025.11",))
_END_OF_IMAGE: Final = b"\xff\xd9"


def decode_jpeg(frame: bytes) -> NDArray[Any]:
    """Decode a JPEG of any process but arithmetic: uint8 or uint16, (rows, columns) or (rows, columns, 3) as stored.

    The codestream's own size must have been compared with what is allowed before. Raises Unreadable `truncated` where
    its end is missing, which the decoder would make up without a word, and ValueError for what it cannot read.
    """
    # Behind it stands at most the byte that makes a fragment's length even, of whatever value, and zeros.
    if _END_OF_IMAGE not in frame.rstrip(b"\0")[-3:]:
        raise Unreadable(reason("truncated"))
    try:
        values: NDArray[Any] = imagecodecs.jpeg8_decode(frame)
    except RuntimeError as error:
        raise ValueError(str(error)) from error
    return values


def is_available(_syntax: UID) -> bool:
    """Always: the program cannot be without it."""
    return True


def decode_frame(frame: bytes, runner: DecodeRunner) -> bytes:
    """The plug-in: the values as they lie in memory, little endian; the runner is told what they are."""
    values = decode_jpeg(frame)
    runner.set_option("bits_allocated", 8 * values.dtype.itemsize)
    if values.ndim == 3:
        runner.set_option("planar_configuration", 0)
    return values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes()
