"""JPEG-LS (ITU-T T.87) by CharLS.

Where the end of a codestream is missing, CharLS reads zeros until a counter of 31 bits is full, which takes seconds. So
each codestream is given an end, also where pydicom decodes it: by its own plugin, with that end.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pydicom.pixels.decoders import pyjpegls
from pydicom.pixels.decoders.base import DecodeRunner
from pydicom.uid import UID, JPEGLSLossless, JPEGLSNearLossless

from fieldray.imaging.codec import Codec, Frame
from fieldray.registry import missing_library

PLUGIN: Final = "CharLS"
DECODER_DEPENDENCIES: Final = pyjpegls.DECODER_DEPENDENCIES
_END: Final = b"\xff\xd9"


def _decode(frame: Frame) -> NDArray[Any] | None:
    """None where it has colours."""
    import jpeg_ls

    values, facts = jpeg_ls.decode_pixel_data(frame.source + _END)
    if facts["components"] != 1:
        return None
    kind = np.uint8 if facts["bits_per_sample"] <= 8 else np.uint16
    return np.frombuffer(values, kind).reshape(frame.rows, frame.columns)


def is_available(_syntax: UID) -> bool:
    """Asked by pydicom: always, because the codec is not used where its library is missing."""
    return True


def decode_frame(source: bytes, runner: DecodeRunner) -> bytearray:
    """The plugin."""
    values: bytearray = pyjpegls._decode_frame(source + _END, runner)
    return values


CODEC: Final = Codec(
    name="JPEG-LS",
    transfer_syntaxes=frozenset({JPEGLSLossless, JPEGLSNearLossless}),
    decode=_decode,
    pydicom_plugin=PLUGIN,
    plugin_function=(__name__, decode_frame.__name__),
    unavailable_reason=lambda: missing_library("jpeg_ls"),
)
