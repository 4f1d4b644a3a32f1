"""Take a picture of an X display with the program `xwd`, and write the picture as a PNG file."""

from __future__ import annotations

import struct
import subprocess
import time
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_HEADER: Final = struct.Struct(">25I")
_COLOUR_BYTES: Final = 12
_TRIES: Final = 5


@dataclass(frozen=True, eq=False, slots=True)
class Picture:
    """A colour picture. `rows` are from top to bottom. A row has `width` pixels of three bytes: red, green, blue."""

    width: int
    rows: tuple[bytes, ...]

    def count(self, colour: str) -> int:
        """Return the number of pixels with exactly the colour `colour`, such as "#ff8800"."""
        wanted = bytes.fromhex(colour.removeprefix("#"))
        pixels = b"".join(self.rows)
        return sum(pixels[offset : offset + 3] == wanted for offset in range(0, len(pixels), 3))

    def save(self, path: Path) -> None:
        """Write the picture as a PNG file (RFC 2083) to `path`. Raises OSError."""
        header = struct.pack(">IIBBBBB", self.width, len(self.rows), 8, 2, 0, 0, 0)
        data = zlib.compress(b"".join(b"\0" + row for row in self.rows), 9)
        parts = ((b"IHDR", header), (b"IDAT", data), (b"IEND", b""))
        path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*part) for part in parts))


def take_picture(display: str) -> Picture:
    """Return a picture of the current content of an X display, such as ":1". Raises CalledProcessError, ValueError."""
    command = ["xwd", "-root", "-silent", "-display", display]
    for _ in range(_TRIES):  # xwd fails if a window is closed during the call
        done = subprocess.run(command, capture_output=True, check=False)
        if done.returncode == 0:
            break
        time.sleep(0.02)
    done.check_returncode()
    return read_xwd(done.stdout)


def read_xwd(data: bytes) -> Picture:
    """Parse the output of `xwd` (XWDFile.h), with 32 bits per pixel in little-endian order.

    Xvfb displays of 24 bits have this format. Raises ValueError for other formats.
    """
    header = _HEADER.unpack_from(data)
    header_size, file_version, pixmap_format, _, width, height, _, byte_order = header[:8]
    bits_per_pixel, bytes_per_line, colours = header[11], header[12], header[19]
    if (file_version, pixmap_format, byte_order, bits_per_pixel) != (7, 2, 0, 32):
        raise ValueError("not a dump of 32 bits a pixel, least byte first")
    start = header_size + _COLOUR_BYTES * colours
    lines = (data[start + bytes_per_line * row :][: 4 * width] for row in range(height))
    return Picture(width, tuple(_rgb(line) for line in lines))


def _rgb(line: bytes) -> bytes:
    """Convert a line of pixels from (blue, green, red, unused) bytes to (red, green, blue) bytes."""
    row = bytearray(len(line) // 4 * 3)
    row[0::3], row[1::3], row[2::3] = line[2::4], line[1::4], line[0::4]
    return bytes(row)


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
