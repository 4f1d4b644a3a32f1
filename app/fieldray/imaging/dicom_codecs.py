"""What is needed around pydicom's decoders: checks before they allocate, quicker ones for plain images, plain names."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any, Final

import imagecodecs
import jpeg_ls
import numpy as np
from numpy.typing import NDArray
from pydicom.uid import (
    HTJ2K,
    JPEG2000,
    UID,
    HTJ2KLossless,
    HTJ2KLosslessRPCL,
    JPEG2000Lossless,
    JPEGBaseline8Bit,
    JPEGExtended12Bit,
    JPEGLossless,
    JPEGLosslessSV1,
    JPEGLSLossless,
    JPEGLSNearLossless,
    RLELossless,
)

from fieldray.errors import Unreadable
from fieldray.imaging import turbo
from fieldray.imaging.sniff import jpeg_size
from fieldray.reasons import reason

# One of pydicom's decoders for each: a second one trying a damaged frame has ended the process more than once.
PLUGINS: Final[Mapping[UID, str]] = {
    JPEGBaseline8Bit: "pillow",
    JPEGExtended12Bit: "pillow",
    JPEGLossless: turbo.PLUGIN,
    JPEGLosslessSV1: turbo.PLUGIN,
    JPEGLSLossless: "pyjpegls",
    JPEGLSNearLossless: "pyjpegls",
    JPEG2000Lossless: "pylibjpeg",
    JPEG2000: "pylibjpeg",
    HTJ2KLossless: "pylibjpeg",
    HTJ2KLosslessRPCL: "pylibjpeg",
    HTJ2K: "pylibjpeg",
    RLELossless: "pydicom",
}
HIGH_THROUGHPUT: Final = frozenset({HTJ2KLossless, HTJ2KLosslessRPCL, HTJ2K})
_ITEM: Final = 0xFFFEE000
_SEQUENCE_END: Final = 0xFFFEE0DD
_J2K_START: Final = b"\xff\x4f\xff\x51"
# Names that pydicom's table does not hold.
_NAMES: Final[Mapping[str, str]] = {
    "1.2.840.10008.1.2.4.110": "JPEG XL lossless",
    "1.2.840.10008.1.2.4.111": "JPEG XL recompressed JPEG",
    "1.2.840.10008.1.2.4.112": "JPEG XL",
    "1.2.840.10008.1.2.8.1": "deflated frames",
}


def plain_name(syntax: UID) -> str:
    """What a person calls a transfer syntax."""
    return _NAMES.get(str(syntax)) or str(syntax.name or "unknown")


def check_fragments(value: memoryview) -> None:
    """Walk the fragments of encapsulated pixel data (PS3.5 A.4) without reading them.

    Raises Unreadable `truncated` where a fragment is longer than what is left, `damaged` where there are none.
    """
    if len(list(_fragment_lengths(value))) < 2:
        raise Unreadable(reason("damaged", detail="it holds no image data"))


def only_fragment(value: memoryview) -> bytes | None:
    """What follows the offset table, if it is a single fragment: an image's one frame, without pydicom's copies."""
    table, *lengths = _fragment_lengths(value)
    if len(lengths) != 1:
        return None
    start = 16 + table
    return bytes(value[start : start + lengths[0]])


def _fragment_lengths(value: memoryview) -> Iterator[int]:
    position = 0
    while position + 8 <= len(value):
        group, element, length = struct.unpack("<HHI", value[position : position + 8])
        tag = group << 16 | element
        if tag != _ITEM:
            break
        position += 8 + length
        if position > len(value):
            raise Unreadable(reason("truncated"))
        yield length


def codestream_size(frame: bytes) -> tuple[int, int] | None:
    """(rows, columns) that a JPEG, JPEG-LS or JPEG 2000 codestream states itself; None for other data."""
    start = frame.find(_J2K_START, 0, 256)
    if start >= 0 and len(frame) >= start + 24:
        right, bottom, left, top = struct.unpack(">4I", frame[start + 8 : start + 24])
        return bottom - top, right - left
    return jpeg_size(frame) if frame[:2] == b"\xff\xd8" else None


def decode_run_lengths(frame: bytes, rows: int, columns: int, kind: str) -> NDArray[Any] | None:
    """Decode a grey RLE frame (PS3.5 annex G) of "u1", "i1", "u2" or "i2".

    None where the frame is not laid out as the standard says, or too short: pydicom then has the word.
    """
    count, first = struct.unpack("<2I", frame[:8].ljust(8, b"\0"))
    if count != int(kind[1]) or first != 64:
        return None
    try:
        values = imagecodecs.dicomrle_decode(frame, np.dtype("<" + kind))
    except (ValueError, RuntimeError):
        return None
    if len(values) != rows * columns * count:
        return None
    return np.frombuffer(values, "<" + kind).reshape(rows, columns)


def decode_lossless_jpeg(frame: bytes, rows: int, columns: int, bytes_each: int) -> NDArray[Any] | None:
    """Decode a grey frame of lossless JPEG (process 14, ITU-T T.81), unsigned values; None for another kind of values.

    Raises as `turbo.decode_jpeg`.
    """
    values = turbo.decode_jpeg(frame)
    return values if values.shape == (rows, columns) and values.dtype.itemsize == bytes_each else None


def decode_jpeg_ls(frame: bytes, rows: int, columns: int, bits: int) -> NDArray[Any] | None:
    """Decode a grey JPEG-LS frame by CharLS; None where its own precision is not `bits`, or it has colours."""
    # The precision stands before the size in the frame header (ITU-T T.87 C.2.2).
    values, facts = jpeg_ls.decode_pixel_data(frame)
    if (facts["components"], facts["bits_per_sample"]) != (1, bits):
        return None
    return np.frombuffer(values, np.uint8 if bits <= 8 else np.uint16).reshape(rows, columns)


def decode_extended(frame: bytes, rows: int, columns: int) -> NDArray[np.uint16]:
    """Decode one grey frame of 12-bit JPEG (process 4, ITU-T T.81), which none of pydicom's plug-ins takes on.

    The codestream's own size must have been compared with `rows` and `columns` before. Raises as `turbo.decode_jpeg`.
    """
    values = turbo.decode_jpeg(frame)
    if values.shape != (rows, columns):
        raise ValueError(f"a frame of shape {values.shape} where {(rows, columns)} was expected")
    return values.astype(np.uint16, copy=False)
