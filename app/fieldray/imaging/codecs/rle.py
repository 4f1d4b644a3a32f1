"""RLE (PS3.5 annex G), by imagecodecs where a frame is laid out plainly."""

from __future__ import annotations

import struct
from typing import Any, Final

import imagecodecs
import numpy as np
from numpy.typing import NDArray
from pydicom.uid import RLELossless

from fieldray.imaging.codec import Codec, Frame


def decode_run_lengths(source: bytes, rows: int, columns: int, kind: str) -> NDArray[Any] | None:
    """Decode a grey RLE frame of "u1", "i1", "u2" or "i2".

    None where the frame is not laid out as the standard says, or is too short: pydicom then says what is wrong.
    """
    count, first = struct.unpack("<2I", source[:8].ljust(8, b"\0"))
    if count != int(kind[1]) or first != 64:
        return None
    try:
        values = imagecodecs.dicomrle_decode(source, np.dtype("<" + kind))
    except (ValueError, RuntimeError):
        return None
    if len(values) != rows * columns * count:
        return None
    return np.frombuffer(values, "<" + kind).reshape(rows, columns)


def _decode(frame: Frame) -> NDArray[Any] | None:
    return decode_run_lengths(frame.source, frame.rows, frame.columns, frame.kind) if frame.is_plain_grey else None


CODEC: Final = Codec(
    name="RLE",
    transfer_syntaxes=frozenset({RLELossless}),
    decode=_decode,
    pydicom_plugin="pydicom",
    runtime_modules=("imagecodecs._imcd",),
)
