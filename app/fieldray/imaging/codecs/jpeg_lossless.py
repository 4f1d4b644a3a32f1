"""Lossless JPEG (process 14, ITU-T T.81) by libjpeg-turbo, which pydicom has no plugin for: so this is one as well.

pydicom asks the module of a plugin for `is_available` and `DECODER_DEPENDENCIES`.
"""

from __future__ import annotations

from typing import Any, Final

from numpy.typing import NDArray
from pydicom.pixels.decoders.base import DecodeRunner
from pydicom.uid import UID, JPEGLossless, JPEGLosslessSV1

from fieldray.imaging.codec import Codec, Frame
from fieldray.imaging.codecs.jpeg import decode_jpeg
from fieldray.registry import missing_library

PLUGIN: Final = "libjpeg-turbo"
DECODER_DEPENDENCIES: Final = dict.fromkeys((JPEGLossless, JPEGLosslessSV1), ("imagecodecs>=2025.11",))


def decode_lossless_jpeg(source: bytes, rows: int, columns: int, bytes_each: int) -> NDArray[Any] | None:
    """Decode a grey frame of unsigned values; None for another kind of values. Raises as `decode_jpeg`."""
    values = decode_jpeg(source)
    return values if values.shape == (rows, columns) and values.dtype.itemsize == bytes_each else None


def _decode(frame: Frame) -> NDArray[Any] | None:
    return decode_lossless_jpeg(frame.source, frame.rows, frame.columns, frame.bits_allocated // 8)


def is_available(_syntax: UID) -> bool:
    """Asked by pydicom: always, because the codec is not used where its library is missing."""
    return True


def decode_frame(source: bytes, runner: DecodeRunner) -> bytes:
    """The plugin: the values as they lie in memory, little-endian. The runner is told what they are."""
    values = decode_jpeg(source)
    runner.set_option("bits_allocated", 8 * values.dtype.itemsize)
    if values.ndim == 3:
        runner.set_option("planar_configuration", 0)
    return values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes()


CODEC: Final = Codec(
    name="lossless JPEG",
    transfer_syntaxes=frozenset({JPEGLossless, JPEGLosslessSV1}),
    decode=_decode,
    pydicom_plugin=PLUGIN,
    plugin_function=(__name__, decode_frame.__name__),
    runtime_modules=("imagecodecs._jpeg8",),
    unavailable_reason=lambda: missing_library("imagecodecs"),
)
