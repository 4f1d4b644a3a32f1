"""Messages between processes: a JSON object and named arrays, sent as bytes. Pickle is never used.

A hostile file may have corrupted the process that sends a message. So nothing received is executed, sizes are checked
before memory is allocated, and array types come from a short list.

Layout of a message: the length of the JSON header (4 bytes, little-endian), the header, then the bytes of the arrays
one after another. The header is {"body": {...}, "arrays": [[name, dtype, shape], ...]}.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Final, Literal, get_args

from msgspec import Meta

from fieldray.typed_json import format_json, parse_json

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

# NumPy is imported where it is used, so that child processes can be started before the slow import.
_Kind = Literal["bool", "uint8", "int8", "uint16", "int32", "int64", "float32", "float64"]
_HEADER_LIMIT: Final = 16 * 2**20
_ARRAY_LIMIT: Final = 2**31
_Shape = Annotated[list[Annotated[int, Meta(ge=0, le=_ARRAY_LIMIT)]], Meta(max_length=8)]
_IN_ONE_BYTES: Final = 2**20
_PIECE_BYTES: Final = 64 * 2**20
# The exceptions that decoding an invalid message can raise.
INVALID_MESSAGE_ERRORS: Final = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError)


@dataclass(frozen=True, eq=False, slots=True)
class Message:
    """A message between two processes.

    body    a JSON object
    arrays  NumPy arrays by name
    """

    body: Mapping[str, Any]
    arrays: Mapping[str, Array] = field(default_factory=dict)


def write_message(stream: BinaryIO, message: Message) -> None:
    """Write one message to a stream and flush the stream.

    Raises OSError if the receiving process has ended, and TypeError for an array type that cannot be sent.
    """
    arrays = {name: _plain(array) for name, array in message.arrays.items()}
    for name, array in arrays.items():
        if array.dtype.name not in get_args(_Kind):
            raise TypeError(f"array {name}: {array.dtype} does not travel")
    listing = [[name, array.dtype.name, list(array.shape)] for name, array in arrays.items()]
    header = format_json({"body": message.body, "arrays": listing})
    filled = (array.reshape(-1).view("u1").data for array in arrays.values() if array.size)
    parts: list[bytes | memoryview] = [struct.pack("<I", len(header)), header, *filled]
    if sum(map(len, parts)) <= _IN_ONE_BYTES:  # one write wakes the other process only once
        parts = [b"".join(parts)]
    for part in parts:
        stream.write(part)
    stream.flush()


def _plain(array: Array) -> Array:
    """Return an array with the same values in contiguous memory and in this machine's byte order."""
    import numpy as np

    return np.asarray(array, dtype=array.dtype.newbyteorder("="), order="C")


def read_message(stream: BinaryIO) -> Message | None:
    """Read one message from a stream; None at the end of the stream. Raises ValueError for an invalid message."""
    prefix = _read_exactly(stream, 4)
    if prefix is None:
        return None
    (length,) = struct.unpack("<I", prefix)
    if length > _HEADER_LIMIT:
        raise ValueError(f"message header of {length} bytes")
    header = parse_json(bytes(_read_exactly(stream, length) or b""), _Header)
    if sum(_size_bytes(kind, shape) for _, kind, shape in header.arrays) > _ARRAY_LIMIT:
        raise ValueError("arrays out of bounds")
    return Message(header.body, {name: _read_array(stream, kind, shape) for name, kind, shape in header.arrays})


@dataclass(frozen=True, slots=True)
class _Header:
    body: dict[str, Any]
    arrays: list[tuple[str, _Kind, _Shape]]


def _size_bytes(kind: str, shape: list[int]) -> int:
    import numpy as np

    return math.prod(shape) * np.dtype(kind).itemsize


def _read_array(stream: BinaryIO, kind: str, shape: list[int]) -> Array:
    import numpy as np

    size = _size_bytes(kind, shape)
    data = _read_exactly(stream, size) if size else b""
    return np.frombuffer(data or b"", dtype=kind).reshape(shape)


def _read_exactly(stream: BinaryIO, size: int) -> bytes | bytearray | None:
    """Read `size` bytes from a stream; None if the stream ends before that.

    Small reads use one call. A large array is read in pieces, because a read allocates all requested memory at once,
    and a corrupted process may never send the announced bytes.
    """
    if size <= _PIECE_BYTES:
        data = stream.read(size)
        return data if data is not None and len(data) == size else None
    whole = bytearray()
    while len(whole) < size:
        part = stream.read(min(_PIECE_BYTES, size - len(whole)))
        if not part:
            return None
        whole += part
    return whole
