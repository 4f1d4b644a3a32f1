"""The codec of RLE (PS3.5 annex G), by imagecodecs."""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import Any, Final

import imagecodecs
import numpy as np
from numpy.typing import NDArray
from pydicom.uid import RLELossless

from fieldray.imaging.codec import Codec, Frame


def _decode(frame: Frame) -> NDArray[Any]:
    """Decode an RLE frame: (rows, columns) or (rows, columns, samples).

    Raises ValueError or RuntimeError for a frame that is too short, or whose layout violates the standard.
    """
    kind = np.dtype(frame.value_type).newbyteorder("<")
    count, *starts = struct.unpack("<16I", frame.codestream[:64].ljust(64, b"\0"))
    if count != frame.samples_per_pixel * kind.itemsize or starts[0] != 64:
        raise ValueError(f"{count} segments from {starts[0]} on")
    size = frame.rows * frame.columns
    woven = np.empty((size, frame.samples_per_pixel, kind.itemsize), np.uint8)
    for number, (start, end) in enumerate(pairwise([*starts[:count], len(frame.codestream)])):
        # Behind its last row a segment may be padded.
        plane = np.frombuffer(imagecodecs.packbits_decode(frame.codestream[start:end]), np.uint8)[:size]
        if len(plane) < size:  # NumPy would repeat a single value
            raise ValueError(f"{len(plane)} of {size} values")
        sample, place = divmod(number, kind.itemsize)
        woven[:, sample, kind.itemsize - 1 - place] = plane  # a value's highest byte comes first (G.2)
    values = woven.view(kind)
    return values.reshape(
        (frame.rows, frame.columns, frame.samples_per_pixel)[: 3 if frame.samples_per_pixel > 1 else 2]
    )


CODEC: Final = Codec(
    name="RLE",
    transfer_syntaxes=frozenset({RLELossless}),
    decode=_decode,
    runtime_modules=("imagecodecs._imcd",),
)
