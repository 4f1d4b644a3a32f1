"""JPEG-LS (ITU-T T.87) by CharLS."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pydicom.uid import JPEGLSLossless, JPEGLSNearLossless

from fieldray.imaging.codec import Codec, Frame
from fieldray.registry import missing_library


def _decode(frame: Frame) -> NDArray[Any] | None:
    """None where the codestream's own precision is not Bits Stored, or it has colours."""
    import jpeg_ls

    values, facts = jpeg_ls.decode_pixel_data(frame.source)
    if (facts["components"], facts["bits_per_sample"]) != (1, frame.bits_stored):
        return None
    return np.frombuffer(values, np.uint8 if frame.bits_stored <= 8 else np.uint16).reshape(frame.rows, frame.columns)


CODEC: Final = Codec(
    name="JPEG-LS",
    transfer_syntaxes=frozenset({JPEGLSLossless, JPEGLSNearLossless}),
    decode=_decode,
    pydicom_plugin="pyjpegls",
    unavailable_reason=lambda: missing_library("jpeg_ls"),
)
