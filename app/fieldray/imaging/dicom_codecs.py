"""What is needed around pydicom's decoders: checks before they allocate, one codec they lack, plain names."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator, Mapping
from typing import Any, Final

import gdcm
import numpy as np
import PIL.Image
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
from fieldray.imaging.sniff import jpeg_size
from fieldray.reasons import reason

# One decoder for each: a second one trying a damaged frame has ended the process more than once.
PLUGINS: Final[Mapping[UID, str]] = {
    JPEGBaseline8Bit: "pillow",
    JPEGExtended12Bit: "pillow",
    JPEGLossless: "gdcm",
    JPEGLosslessSV1: "gdcm",
    JPEGLSLossless: "pyjpegls",
    JPEGLSNearLossless: "pyjpegls",
    JPEG2000Lossless: "pylibjpeg",
    JPEG2000: "pylibjpeg",
    HTJ2KLossless: "pylibjpeg",
    HTJ2KLosslessRPCL: "pylibjpeg",
    HTJ2K: "pylibjpeg",
    RLELossless: "pydicom",
}
_ITEM: Final = 0xFFFEE000
_SEQUENCE_END: Final = 0xFFFEE0DD
_J2K_START: Final = b"\xff\x4f\xff\x51"
_J2K_CODING_STYLE: Final = b"\xff\x52\x00"
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
    lengths = list(_fragment_lengths(value))
    if len(lengths) < 2:
        raise Unreadable(reason("damaged", detail="it holds no image data"))


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


def spare_levels(frame: bytes, shortest_side: int) -> int:
    """How often a JPEG 2000 image can be halved and keep `shortest_side` pixels; 0 for any other codestream."""
    size = codestream_size(frame)
    at = frame.find(_J2K_CODING_STYLE, 0, 1024)
    if size is None or not frame.startswith(_J2K_START) or at < 0 or len(frame) < at + 10:
        return 0
    # ITU-T T.800 A.6.1: the number of decomposition levels follows seven bytes after the segment's length
    levels = frame[at + 9]
    return max((level for level in range(min(levels, 8) + 1) if min(size) >> level >= shortest_side), default=0)


def decode_reduced(frame: bytes, levels: int, bits: int) -> NDArray[np.uint16]:
    """Decode an unsigned grey JPEG 2000 image of `bits` bits, halved `levels` times: its wavelets hold that picture.

    Raises OSError, ValueError or SyntaxError for what Pillow cannot read.
    """
    picture: Any = PIL.Image.open(io.BytesIO(frame), formats=("JPEG2000",))
    picture.reduce = levels
    # Pillow moves the values up to fill 8 or 16 bits
    values = np.asarray(picture).astype(np.float32) / (1 << ((8 if bits <= 8 else 16) - bits))
    # A halving keeps every other sample, not the middle of two: move by what that adds up to (T.800 F.3.1)
    shift = np.float32(0.5 - 0.5 / (1 << levels))
    for _ in range(2):
        following = np.vstack([values[1:], values[-1:]])
        values = ((1 - shift) * values + shift * following).T
    moved: NDArray[np.uint16] = np.rint(values).clip(0, (1 << bits) - 1).astype(np.uint16)
    return moved


def decode_extended(frame: bytes, rows: int, columns: int) -> NDArray[np.uint16]:
    """Decode one grey frame of 12-bit JPEG (process 4, ITU-T T.81), which none of pydicom's plug-ins takes on.

    The codestream's own size must have been compared with `rows` and `columns` before. Raises ValueError.
    """
    fragment = gdcm.Fragment()
    fragment.SetByteStringValue(frame)
    fragments = gdcm.SequenceOfFragments.New()
    fragments.AddFragment(fragment)
    element = gdcm.DataElement(gdcm.Tag(0x7FE0, 0x0010))
    element.SetValue(fragments.__ref__())
    image: Any = gdcm.Image()
    image.SetNumberOfDimensions(2)
    image.SetDimensions((columns, rows, 1))
    image.SetDataElement(element)
    image.SetPhotometricInterpretation(gdcm.PhotometricInterpretation(gdcm.PhotometricInterpretation.MONOCHROME2))
    image.SetTransferSyntax(gdcm.TransferSyntax(gdcm.TransferSyntax.JPEGExtendedProcess2_4))
    image.SetPixelFormat(gdcm.PixelFormat(1, 16, 12, 11, 0))
    # gdcm hands out its buffer as text with every byte that is not UTF-8 escaped.
    values = image.GetBuffer().encode("utf-8", "surrogateescape")
    return np.frombuffer(values, "<u2").reshape(rows, columns)
