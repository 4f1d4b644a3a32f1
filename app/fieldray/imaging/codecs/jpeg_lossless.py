"""The codec of lossless JPEG (process 14, ITU-T T.81), by libjpeg-turbo."""

from __future__ import annotations

from typing import Final

from pydicom.uid import JPEGLossless, JPEGLosslessSV1

from fieldray.imaging.codec import Codec
from fieldray.imaging.codecs.jpeg import decode_jpeg

CODEC: Final = Codec(
    name="lossless JPEG",
    transfer_syntaxes=frozenset({JPEGLossless, JPEGLosslessSV1}),
    decode=lambda frame: decode_jpeg(frame.codestream),
    runtime_modules=("imagecodecs._jpeg8",),
)
