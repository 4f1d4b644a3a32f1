"""Arrays in a pack: one array a file, in NumPy's .npy format, read without pickle and without trusting its header.

Format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html. Only version 1.0, little-endian or
single-byte values, C order; the header's size must be what the bytes hold, so nothing is allocated on its word.
"""

from __future__ import annotations

import io
import math
from typing import Any, Final

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

npy: Final[Any] = npy_format  # typed in some releases of NumPy only


def pack_array(array: NDArray[Any]) -> bytes:
    """An array as the bytes of a .npy file, little-endian, C order."""
    stream = io.BytesIO()
    little_endian = array.astype(array.dtype.newbyteorder("<"), copy=False)
    npy.write_array(stream, np.ascontiguousarray(little_endian), version=(1, 0), allow_pickle=False)
    return stream.getvalue()


def unpack_array(data: bytes, *, dtype: str, dimensions: int) -> NDArray[Any]:
    """The read-only array in `data`, of this dtype and number of dimensions. Raises ValueError."""
    stream = io.BytesIO(data)
    if npy.read_magic(stream) != (1, 0):
        raise ValueError("not an array file of version 1.0")
    shape, is_fortran, found = npy.read_array_header_1_0(stream)
    if found != np.dtype(dtype).newbyteorder("<") or is_fortran or len(shape) != dimensions or 0 in shape:
        raise ValueError(f"expected {dtype} with {dimensions} dimensions, found {found} {shape}")
    start = stream.tell()
    if len(data) - start != math.prod(shape) * found.itemsize:
        raise ValueError(f"{shape} does not fit {len(data) - start} bytes")
    array = np.frombuffer(data, dtype=found, offset=start).reshape(shape)
    if found.kind == "f" and not np.isfinite(array).all():
        raise ValueError("not all values are finite")
    return array
