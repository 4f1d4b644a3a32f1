"""Lossless JPEG (process 14, ITU-T T.81) by libjpeg-turbo."""

from __future__ import annotations

from typing import Final

from pydicom.uid import JPEGLossless, JPEGLosslessSV1

from fieldray.imaging.codec import Codec
from fieldray.imaging.codecs.jpeg import decode_jpeg
from fieldray.registry import missing_library

CODEC: Final = Codec(
    name="lossless JPEG",
    transfer_syntaxes=frozenset({JPEGLossless, JPEGLosslessSV1}),
    decode_any=decode_jpeg,
    runtime_modules=("imagecodecs._jpeg8",),
    unavailable_reason=lambda: missing_library("imagecodecs"),
)
