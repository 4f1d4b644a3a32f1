"""The codec of JPEG-LS (ITU-T T.87), by CharLS.

An end marker is added to each codestream. If the end is missing, CharLS reads zeros until a counter of 31 bits is full,
which takes seconds.
"""

from __future__ import annotations

from typing import Any, Final

import imagecodecs
from numpy.typing import NDArray
from pydicom.uid import JPEGLSLossless, JPEGLSNearLossless

from fieldray.imaging.codec import Codec, Frame

_END: Final = b"\xff\xd9"


def _decode(frame: Frame) -> NDArray[Any]:
    values: NDArray[Any] = imagecodecs.jpegls_decode(frame.codestream + _END)
    return values


CODEC: Final = Codec(
    name="JPEG-LS",
    transfer_syntaxes=frozenset({JPEGLSLossless, JPEGLSNearLossless}),
    lossy_syntaxes=frozenset({JPEGLSNearLossless}),
    decode=_decode,
    runtime_modules=("imagecodecs._jpegls",),
)
