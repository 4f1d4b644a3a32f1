"""A small encoder for 12-bit sequential JPEG (ITU-T T.81, process 4): nothing installable writes it."""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

_ZIGZAG = sorted(((r, c) for r in range(8) for c in range(8)), key=lambda at: (sum(at), at[sum(at) % 2 == 0]))
_ANGLES = (2 * np.arange(8)[None, :] + 1) * np.arange(8)[:, None] * np.pi / 16
_DCT = np.cos(_ANGLES) * np.where(np.arange(8) == 0, np.sqrt(1 / 8), 0.5)[:, None]
# Flat codes: DC sizes 0..15 in five bits; AC (run << 4 | size) in eight, 0x00 ends a block, 0xF0 is 16 zeros.
_DC_CODES = {size: (size, 5) for size in range(16)}
_AC_SYMBOLS = [0x00, 0xF0, *(run << 4 | size for run in range(16) for size in range(1, 15))]
_AC_CODES = {symbol: (index, 8) for index, symbol in enumerate(_AC_SYMBOLS)}


def encode_jpeg12(pixels: NDArray[np.uint16], *, step: int = 4) -> bytes:
    """Encode (rows, columns) of 0..4095, both sides multiples of 8; all coefficients are quantised by `step`."""
    rows, columns = pixels.shape
    tables = [(0x00, 5, list(_DC_CODES)), (0x10, 8, _AC_SYMBOLS)]
    parts = [b"\xff\xd8", _segment(0xDB, bytes([0]) + bytes([step]) * 64)]
    parts.append(_segment(0xC1, struct.pack(">BHHB3B", 12, rows, columns, 1, 1, 0x11, 0)))
    for kind, length, symbols in tables:
        counts = bytes(len(symbols) if bits == length else 0 for bits in range(1, 17))
        parts.append(_segment(0xC4, bytes([kind]) + counts + bytes(symbols)))
    parts += [_segment(0xDA, bytes([1, 1, 0, 0, 63, 0])), _scan(pixels, step), b"\xff\xd9"]
    return b"".join(parts)


def _segment(marker: int, body: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body


def _scan(pixels: NDArray[np.uint16], step: int) -> bytes:
    bits: list[str] = []
    previous = 0
    for top in range(0, pixels.shape[0], 8):
        for left in range(0, pixels.shape[1], 8):
            block = _DCT @ (pixels[top : top + 8, left : left + 8].astype(float) - 2048) @ _DCT.T
            coefficients = [int(value) for value in np.rint(np.array([block[at] for at in _ZIGZAG]) / step)]
            bits += _symbol(_DC_CODES, 0, coefficients[0] - previous)
            previous = coefficients[0]
            bits += _rest(coefficients[1:])
    stream = "".join(bits)
    stream += "1" * (-len(stream) % 8)
    return int(stream, 2).to_bytes(len(stream) // 8, "big").replace(b"\xff", b"\xff\x00")


def _rest(coefficients: list[int]) -> list[str]:
    bits: list[str] = []
    run = 0
    for value in coefficients:
        if not value:
            run += 1
            continue
        bits += [f"{_AC_CODES[0xF0][0]:08b}"] * (run // 16) + _symbol(_AC_CODES, run % 16, value)
        run = 0
    return bits + ([f"{_AC_CODES[0x00][0]:08b}"] if run else [])


def _symbol(codes: dict[int, tuple[int, int]], run: int, value: int) -> list[str]:
    size = abs(value).bit_length()
    code, length = codes[run << 4 | size]
    magnitude = value if value > 0 else value + (1 << size) - 1
    return [f"{code:0{length}b}", f"{magnitude:0{size}b}" if size else ""]
