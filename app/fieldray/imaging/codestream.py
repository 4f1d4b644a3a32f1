"""What a JPEG 2000 codestream says of itself, before anything is decoded."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

_START: Final = b"\xff\x4f\xff\x51"
_CODING_STYLE: Final = b"\xff\x52"
_TILE_PART: Final = b"\xff\x90"
_END: Final = b"\xff\xd9"


@dataclass(frozen=True, slots=True)
class Wavelets:
    """What a JPEG 2000 codestream says of itself; `bits` 0 where it is signed or not one component, untiled, at 0."""

    rows: int
    columns: int
    bits: int
    levels: int


def wavelets_of(source: bytes) -> Wavelets | None:
    """By the main header (ITU-T T.800 A.5.1 and A.6.1); None for what is no bare codestream."""
    if not source.startswith(_START) or len(source) < 44:
        return None
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
    bits = source[42] + 1 if is_plain and source[42] < 16 else 0
    return Wavelets(bottom - top, right - left, bits, levels)


def is_whole_codestream(source: bytes) -> bool:
    """Whether a bare codestream's tile-parts lead to its end (ITU-T T.800 A.4.2)."""
    if not source.startswith(_START):
        return False
    position = 2
    while position + 12 <= len(source):
        marker, length = source[position : position + 2], struct.unpack_from(">H", source, position + 2)[0]
        if marker == _END:
            break
        if marker == _TILE_PART:
            length = struct.unpack_from(">I", source, position + 6)[0] - 2
        if length < 2:
            return False
        position += 2 + length
    return source[position : position + 2] == _END
