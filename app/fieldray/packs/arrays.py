"""Arrays in a pack: one array a file, in NumPy's .npy format, read without pickle and without trusting its header.

Format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html. Only version 1.0, little-endian or
single-byte values, C order; the header's size must be what the bytes hold, so nothing is allocated on its word.
NumPy would evaluate the header as Python; here it must be, character by character, one that NumPy writes.
"""

from __future__ import annotations

import io
import math
import re
from typing import Any, Final

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

npy: Final[Any] = npy_format  # typed in some releases of NumPy only
_MAGIC: Final = b"\x93NUMPY\x01\x00"
_LONGEST_HEADER: Final = 256
_HEADER: Final = re.compile(
    rb"\{'descr': '(?P<dtype>[<|][a-z][0-9]{1,2})', 'fortran_order': (?P<order>False|True), "
    rb"'shape': \((?P<shape>(?:[0-9]{1,10},|[0-9]{1,10}(?:, [0-9]{1,10}){1,7})?)\), \} *\n"
)


def pack_array(array: NDArray[Any]) -> bytes:
    """An array as the bytes of a .npy file, little-endian, C order."""
    stream = io.BytesIO()
    little_endian = array.astype(array.dtype.newbyteorder("<"), copy=False)
    npy.write_array(stream, np.ascontiguousarray(little_endian), version=(1, 0), allow_pickle=False)
    return stream.getvalue()


def unpack_array(data: bytes, *, dtype: str, dimensions: int) -> NDArray[Any]:
    """The read-only array in `data`, of this dtype and number of dimensions. Raises ValueError."""
    wanted = np.dtype(dtype).newbyteorder("<")
    header, start = _read_header(data)
    shape = tuple(int(side) for side in header["shape"].split(b",") if side)
    is_right = header["dtype"] == wanted.str.encode() and header["order"] == b"False"
    if not is_right or len(shape) != dimensions or 0 in shape:
        raise ValueError(f"expected {dtype} with {dimensions} dimensions, found {header[0].decode().strip()}")
    if len(data) - start != math.prod(shape) * wanted.itemsize:
        raise ValueError(f"{shape} does not fit {len(data) - start} bytes")
    array = np.frombuffer(data, dtype=wanted, offset=start).reshape(shape)
    if wanted.kind == "f" and not np.isfinite(array).all():
        raise ValueError("not all values are finite")
    return array


def _read_header(data: bytes) -> tuple[re.Match[bytes], int]:
    """The header's parts, and where the values begin. Raises ValueError."""
    start = len(_MAGIC) + 2
    if not data.startswith(_MAGIC) or len(data) < start:
        raise ValueError("not an array file of version 1.0")
    end = start + int.from_bytes(data[len(_MAGIC) : start], "little")
    header = _HEADER.fullmatch(data, start, end) if end - start <= _LONGEST_HEADER else None
    if header is None or len(data) < end:
        raise ValueError("the array's header is not one that NumPy writes")
    return header, end
