"""Convert an uncompressed DICOM image to RLE, lossless JPEG and PNG, to test the decoders of the installed program.

Only Python's standard library is used, so that no decoder is tested with the output of its own encoder.
"""

from __future__ import annotations

import array
import struct
import sys
import zlib
from dataclasses import dataclass
from typing import Final

_BITS: Final = 12
_PLAIN: Final = b"1.2.840.10008.1.2.1\0"
_RLE: Final = b"1.2.840.10008.1.2.5\0"
_LOSSLESS_JPEG: Final = b"1.2.840.10008.1.2.4.70"
_META_LENGTH_AT: Final = 140  # preamble, "DICM", tag, kind and length of the first element (PS3.10, 7.1)
_PIXELS: Final = b"\xe0\x7f\x10\0OW\0\0"
_RUN: Final = 128  # maximum length of a PackBits run (PS3.5, G.3)
_CATEGORIES: Final = 17  # kinds of pixel differences (ITU-T T.81, H.1.2.2), each with a Huffman code of five bits


@dataclass(frozen=True, slots=True)
class PlainImage:
    """An uncompressed 12-bit DICOM image: `head` holds the bytes before the pixels, `values` the pixels row by row."""

    head: bytes
    rows: int
    columns: int
    values: array.array[int]


def encode_other_formats(image: bytes) -> dict[str, bytes]:
    """Return an image as DICOM with RLE, as DICOM with lossless JPEG, and as PNG: the bytes by file name.

    `image` are the bytes of an uncompressed little-endian DICOM file of 12 bits, whose last element is the pixel data.
    Raises ValueError for other files.
    """
    plain = plain_image(image)
    return {
        "rle.dcm": _encapsulated(plain, _RLE, _run_lengths(plain)),
        "lossless.dcm": _encapsulated(plain, _LOSSLESS_JPEG, _lossless_jpeg(plain)),
        "picture.png": _png(plain),
    }


def plain_image(image: bytes) -> PlainImage:
    """Split an uncompressed 12-bit DICOM file into head and grey levels. Raises ValueError for other files."""
    head, _, pixels = image.partition(_PIXELS)
    rows, columns, bits = (_short(head, element) for element in (0x10, 0x11, 0x101))
    values = array.array("H", pixels[4:])
    if sys.byteorder == "big":
        values.byteswap()
    if _PLAIN not in head or bits != _BITS or len(values) != rows * columns:
        raise ValueError("not a plain image of 12 bits")
    return PlainImage(head, rows, columns, values)


def _short(head: bytes, element: int) -> int:
    """Return the value of the 16-bit number with the element `element` of group 0028, such as 0x0010 (Rows)."""
    offset = head.index(struct.pack("<HH", 0x28, element) + b"US\2\0")
    return int.from_bytes(head[offset + 8 : offset + 10], "little")


def _encapsulated(plain: PlainImage, syntax: bytes, frame: bytes) -> bytes:
    """Return a DICOM file with one compressed frame as pixel data (PS3.5, A.4), in the transfer syntax `syntax`."""
    meta_length = int.from_bytes(plain.head[_META_LENGTH_AT : _META_LENGTH_AT + 4], "little")
    head = bytearray(plain.head)
    head[_META_LENGTH_AT : _META_LENGTH_AT + 4] = (meta_length + len(syntax) - len(_PLAIN)).to_bytes(4, "little")
    named = struct.pack("<H", len(_PLAIN)) + _PLAIN
    head = head.replace(named, struct.pack("<H", len(syntax)) + syntax, 1)
    item = b"\xfe\xff\x00\xe0"
    frame += b"\0" * (len(frame) % 2)
    body = item + bytes(4) + item + struct.pack("<I", len(frame)) + frame + b"\xfe\xff\xdd\xe0" + bytes(4)
    return bytes(head) + _PIXELS.replace(b"OW", b"OB") + b"\xff\xff\xff\xff" + body


def _run_lengths(plain: PlainImage) -> bytes:
    """Return the pixels of an image as an RLE frame of two byte planes, first the high bytes (PS3.5, annex G)."""
    high, low = (_packed(bytes(value >> shift & 255 for value in plain.values)) for shift in (8, 0))
    return struct.pack("<16I", 2, 64, 64 + len(high), *[0] * 13) + high + low


def _packed(plane: bytes) -> bytes:
    pieces = (plane[start : start + _RUN] for start in range(0, len(plane), _RUN))
    packed = b"".join(_run(piece) for piece in pieces)
    return packed + b"\0" * (len(packed) % 2)


def _run(piece: bytes) -> bytes:
    """Return bytes in RLE encoding: as one repeated byte if all bytes are equal, else as literal bytes."""
    is_one = len(piece) > 1 and len(set(piece)) == 1
    return bytes([257 - len(piece), piece[0]]) if is_one else bytes([len(piece) - 1]) + piece


def _lossless_jpeg(plain: PlainImage) -> bytes:
    """Return the pixels of an image as a lossless JPEG of process 14 (T.81, annex H).

    Each value is predicted from the value to the left; in the first column from the value above.
    """
    values, columns = plain.values, plain.columns
    starts = [1 << _BITS - 1, *values[: len(values) - columns : columns]]
    codes = {difference: _code(difference) for difference in range(1 - (1 << _BITS), 1 << _BITS)}
    bits = "".join(
        codes[value - (values[offset - 1] if offset % columns else starts[offset // columns])]
        for offset, value in enumerate(values)
    )
    bits += "1" * (-len(bits) % 8)
    data = int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\0")
    frame = b"\xff\xc3" + struct.pack(">HBHHB3B", 11, _BITS, plain.rows, columns, 1, 1, 0x11, 0)
    counts = bytes([0, 0, 0, 0, _CATEGORIES, *[0] * 11])
    table = b"\xff\xc4" + struct.pack(">HB", 19 + _CATEGORIES, 0) + counts + bytes(range(_CATEGORIES))
    scan = b"\xff\xda" + struct.pack(">HB5B", 8, 1, 1, 0, 1, 0, 0)
    return b"\xff\xd8" + frame + table + scan + data + b"\xff\xd9"


def _code(difference: int) -> str:
    size = abs(difference).bit_length()
    rest = difference if difference >= 0 else difference + (1 << size) - 1
    return f"{size:05b}" + (f"{rest:0{size}b}" if size else "")


def _png(plain: PlainImage) -> bytes:
    """Return the pixels of an image as a grey 16-bit PNG file without filter (PNG specification, 5 and 7)."""
    wide = array.array("H", (value << 16 - _BITS for value in plain.values))
    if sys.byteorder == "little":
        wide.byteswap()
    line, data = 2 * plain.columns, wide.tobytes()
    lines = b"".join(b"\0" + data[start : start + line] for start in range(0, len(data), line))
    header = struct.pack(">2I5B", plain.columns, plain.rows, 16, 0, 0, 0, 0)
    chunks = {b"IHDR": header, b"IDAT": zlib.compress(lines), b"IEND": b""}
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, content) for kind, content in chunks.items())


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
