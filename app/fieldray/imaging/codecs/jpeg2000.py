"""JPEG 2000 and High-Throughput JPEG 2000 (ITU-T T.800, T.814): whole frames by OpenJPEG, lower resolutions by Pillow.

A lower resolution is decoded only for an image with one unsigned grey component and without tiles. The precision of the
component must be at least the precision in the header.
"""

from __future__ import annotations

import io
import struct
from typing import Any, Final

import imagecodecs
import numpy as np
from numpy.typing import NDArray
from PIL.Jpeg2KImagePlugin import Jpeg2KImageFile
from pydicom.uid import HTJ2K, JPEG2000, HTJ2KLossless, HTJ2KLosslessRPCL, JPEG2000Lossless

from fieldray.imaging.codec import Codec, Frame
from fieldray.imaging.reduction import WAVELET_OVERSAMPLING, TargetSize, largest_reduction

_START: Final = b"\xff\x4f\xff\x51"
_CODING_STYLE: Final = b"\xff\x52"
_TILE_PART: Final = b"\xff\x90"
_END: Final = b"\xff\xd9"
# Next to a sharp white edge, a low-pass filter exceeds the highest value a little.
_OVERSHOOT: Final = 1.1
_MAX_LEVELS: Final = 7


def bits_and_decomposition_levels(source: bytes) -> tuple[int, int]:
    """Return bits per sample and decomposition levels of JPEG 2000 data, from the main header (T.800 A.5.1, A.6.1).

    The number of bits is 0 for tiled data, signed values, several components, an origin other than 0, and a JP2 file.
    """
    if not source.startswith(_START) or len(source) < 44:
        return 0, 0
    right, bottom, left, top, wide, high, tile_left, tile_top, components = struct.unpack(">8IH", source[8:42])
    position, levels = 4 + struct.unpack(">H", source[4:6])[0], 0
    while position + 10 <= len(source) and source[position] == 0xFF:
        marker = source[position : position + 2]
        if marker == _CODING_STYLE:
            levels = source[position + 9]
        if marker == _TILE_PART:
            break
        position += 2 + struct.unpack(">H", source[position + 2 : position + 4])[0]
    is_at_origin = not (left or top or tile_left or tile_top)
    is_plain = components == 1 and is_at_origin and wide >= right and high >= bottom and source[43:45] == b"\1\1"
    return source[42] + 1 if is_plain and source[42] < 16 else 0, levels


def _with_end(source: bytes) -> bytes:
    """Return a JPEG 2000 codestream with its end marker.

    A missing marker is added if at most one byte follows the last tile part.
    """
    start = source.rfind(_TILE_PART)
    end = start + int.from_bytes(source[start + 6 : start + 10], "big")
    is_missing = start < end <= len(source) < end + 2 and _END not in source[-3:]
    return source[:end] + _END if is_missing else source


# ---- lower resolutions


def decode_reduced_jpeg2000(frame: Frame, needed_size: TargetSize) -> tuple[NDArray[np.uint16], int] | None:
    """Decode a frame at the lowest resolution of its codestream that is still fine enough (see `reduction`).

    Returns the values (rows, columns) uint16, and the step: each value stands for step x step pixels of the file.
    Returns None for a step of 1, and for a frame that cannot be read at a lower resolution.

    frame        plain unsigned grey
    needed_size  resolution that the network's input needs

    Raises OSError, ValueError, SyntaxError for data that Pillow cannot read.
    """
    if frame.padding_range:
        return None
    (stated, levels), bits = bits_and_decomposition_levels(frame.codestream), frame.bits_stored
    if stated < bits or (stated > bits and frame.is_lossless):
        return None  # at a lower resolution, bits above the stored ones cannot be separated from them
    steps = [1 << level for level in range(min(levels, _MAX_LEVELS) + 1)]
    step = largest_reduction(frame.rows, frame.columns, needed_size, oversampling=WAVELET_OVERSAMPLING, steps=steps)
    if step == 1:
        return None
    stored = decode_jpeg2000(frame.codestream, step, stated)
    if stated > bits:  # encoders often state the container's precision; the values are as the header says
        if int(stored.max()) > _OVERSHOOT * (1 << bits):
            return None
        stored = stored.clip(max=(1 << bits) - 1)
    return stored, step


def decode_jpeg2000(source: bytes, step: int, bits: int) -> NDArray[np.uint16]:
    """Decode an unsigned grey JPEG 2000 image at 1 / `step` of its resolution.

    step  a power of two
    bits  bits of a sample

    Returns uint16 values (ceil(rows / step), ceil(columns / step)). Raises OSError, ValueError or SyntaxError for data
    that Pillow cannot read.
    """
    image: Any = Jpeg2KImageFile(io.BytesIO(source))
    image.reduce = step.bit_length() - 1
    # The standard (B-15) rounds the reduced size up. Pillow rounds to the nearest number, and then rejects the decoded
    # image. For a multiple of the step both sizes agree. Pillow has no public way to set the size.
    image._size = tuple(-(-side // step) * step for side in image.size)
    # Pillow also scales the values up to fill 8 or 16 bits.
    values = np.asarray(image).astype(np.float32) / np.float32(1 << ((8 if bits <= 8 else 16) - bits))
    return _centred(values, step, bits)


def _centred(values: NDArray[np.float32], step: int, bits: int) -> NDArray[np.uint16]:
    """Interpolate wavelet samples at the middle of the pixels that they stand for. Returns integers of `bits` bits.

    At every level of the wavelet, a sample lies at the first of two pixels and not between them (T.800 F.3.1). The
    shift is the sum of these offsets.
    """
    shift = np.float32(0.5 - 0.5 / step)
    for _ in range(2):
        following = shift * values
        values = (1 - shift) * values
        values[:-1] += following[1:]
        values[-1] += following[-1]
        values = values.T
    rounded = np.rint(values, out=values)
    return np.clip(rounded, 0, (1 << bits) - 1, out=rounded).astype(np.uint16)


CODEC: Final = Codec(
    name="JPEG 2000",
    transfer_syntaxes=frozenset({JPEG2000, JPEG2000Lossless, HTJ2K, HTJ2KLossless, HTJ2KLosslessRPCL}),
    lossy_syntaxes=frozenset({JPEG2000, HTJ2K}),
    decode=lambda frame: imagecodecs.jpeg2k_decode(_with_end(frame.codestream)),
    decode_reduced=decode_reduced_jpeg2000,
    runtime_modules=("imagecodecs._jpeg2k",),
)
