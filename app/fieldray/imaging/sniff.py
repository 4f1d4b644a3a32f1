"""The kind of a file, by its first bytes and never by its name."""

from __future__ import annotations

import struct
from typing import Final, Literal

Content = Literal["dicom", "png", "jpeg", "zip", "executable", "unknown"]

# Enough for the preamble, the DICOM prefix and the first element after it.
HEAD_BYTES: Final = 512

_PNG: Final = b"\x89PNG\r\n\x1a\n"
_ZIPS: Final = (b"PK\x03\x04", b"PK\x05\x06", b"PK\x07\x08")
_PROGRAMS: Final = (
    b"MZ",
    b"\x7fELF",
    *(struct.pack(order + "I", magic) for order in "<>" for magic in (0xFEEDFACE, 0xFEEDFACF, 0xCAFEBABE)),
)
# ITU-T T.81 table B.1 (SOF0 to SOF15 without DHT, JPG and DAC) and T.87 C.1.1 (SOF55).
_FRAME_MARKERS: Final = frozenset({*range(0xC0, 0xD0), 0xF7} - {0xC4, 0xC8, 0xCC})
_VALUE_REPRESENTATIONS: Final = frozenset(
    b"AE AS AT CS DA DS DT FD FL IS LO LT OB OD OF OL OV OW PN SH SL SQ SS ST SV TM UC UI UL UN UR US UT UV".split()
)


def sniff(head: bytes) -> Content:
    """The kind of content that begins with `head` (at least 132 bytes, unless the file is shorter)."""
    if head.startswith(_PROGRAMS):
        return "executable"
    if head[128:132] == b"DICM":
        return "dicom"
    if head.startswith(_PNG):
        return "png"
    if head.startswith(b"\xff\xd8\xff"):
        return "jpeg"
    if head.startswith(_ZIPS):
        return "zip"
    return "dicom" if _begins_with_element(head) else "unknown"


def _begins_with_element(head: bytes) -> bool:
    """Whether the first bytes are a data element of group 0002 or 0008: a file without preamble (PS3.10 7.1)."""
    if len(head) < 12:
        return False
    group, element = struct.unpack("<HH", head[:4])
    if group in (0x0200, 0x0800):  # big-endian, which is always written with value representations
        return head[4:6] in _VALUE_REPRESENTATIONS
    if group not in (0x0002, 0x0008):
        return False
    (length,) = struct.unpack("<I", head[4:8])
    return head[4:6] in _VALUE_REPRESENTATIONS or (length % 2 == 0 and length <= 64 and element <= 0x0100)


def png_size(head: bytes) -> tuple[int, int] | None:
    """(rows, columns) that a PNG states in its first chunk; None where it is cut short."""
    if head[12:16] != b"IHDR" or len(head) < 24:
        return None
    columns, rows = struct.unpack(">II", head[16:24])
    return rows, columns


def jpeg_size(data: bytes) -> tuple[int, int] | None:
    """(rows, columns) of the first JPEG or JPEG-LS frame header in `data`; None if there is none."""
    position = 2
    while position + 9 <= len(data) and data[position] == 0xFF:
        marker = data[position + 1]
        if marker == 0xFF:
            position += 1
            continue
        if marker in _FRAME_MARKERS:
            rows, columns = struct.unpack(">HH", data[position + 5 : position + 9])
            return rows, columns
        (length,) = struct.unpack(">H", data[position + 2 : position + 4])
        position += 2 + length
    return None
