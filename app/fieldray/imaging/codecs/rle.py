"""RLE (PS3.5 annex G), by imagecodecs."""

from __future__ import annotations

import struct
from typing import Any, Final

import imagecodecs
import numpy as np
from numpy.typing import NDArray
from pydicom.uid import RLELossless

from fieldray.imaging.codec import Codec, Frame


def _decode(frame: Frame) -> NDArray[Any]:
    """Raises ValueError or RuntimeError for a frame that is not laid out as the standard says, or is too short."""
    kind = np.dtype(frame.kind).newbyteorder("<")
    count, first = struct.unpack("<2I", frame.source[:8].ljust(8, b"\0"))
    if count != frame.samples * kind.itemsize or first != 64:
        raise ValueError(f"{count} segments from {first} on")
    values = np.frombuffer(imagecodecs.dicomrle_decode(frame.source, kind), kind)
    if frame.samples == 1:
        return values.reshape(frame.rows, frame.columns)
    return np.ascontiguousarray(np.moveaxis(values.reshape(frame.samples, frame.rows, frame.columns), 0, 2))


CODEC: Final = Codec(
    name="RLE",
    transfer_syntaxes=frozenset({RLELossless}),
    decode=_decode,
    runtime_modules=("imagecodecs._imcd",),
)
