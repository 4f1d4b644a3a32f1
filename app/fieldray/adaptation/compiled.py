"""What edgetpu_compiler left inside a file: the "DWN1" package of an Edge TPU operator.

The package is a flatbuffer (libedgetpu, executable/executable.fbs) somewhere inside the operator's options. Slots are
read by number: Package 0 min_runtime_version, 1 serialized_multi_executable; MultiExecutable 0 the executables;
Executable 6 parameters, 13 type.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

CUSTOM_CODE: Final = b"edgetpu-custom-op"
_IDENTIFIER: Final = b"DWN1"
_CACHING, _EXECUTION_ONLY, _STAND_ALONE = 1, 2, 0


@dataclass(frozen=True, slots=True)
class Package:
    """Smallest runtime version, bytes of weights kept on the chip, and bytes sent over USB for each image."""

    least_runtime: int
    cached_bytes: int
    streamed_bytes: int


def read_package(options: bytes) -> Package:
    """Read an Edge TPU operator's options. Raises ValueError if there is no package in them, or a damaged one."""
    at = options.find(_IDENTIFIER)
    if at < 4:
        raise ValueError("the Edge TPU operator holds no DWN1 package")
    try:
        package = _Table.root(options[at - 4 :])
        executables = {row.number(13, "<h"): row.length(6) for row in _executables(package.vector(1))}
        run = executables.get(_EXECUTION_ONLY, executables.get(_STAND_ALONE, 0))
        return Package(package.number(0, "<i"), executables.get(_CACHING, 0), run)
    except (struct.error, IndexError) as problem:
        raise ValueError("the Edge TPU operator's package is damaged") from problem


def _executables(multi: bytes) -> list[_Table]:
    return [_Table.root(row) for row in _Table.root(multi).strings(0)]


@dataclass(frozen=True, slots=True)
class _Table:
    """A flatbuffers table at a position of some bytes; absent slots read as 0 or empty."""

    data: bytes
    position: int

    @classmethod
    def root(cls, data: bytes) -> _Table:
        return cls(data, _read(data, 0, "<I"))

    def number(self, slot: int, form: str) -> int:
        at = self._field(slot)
        return _read(self.data, at, form) if at else 0

    def length(self, slot: int) -> int:
        return len(self.vector(slot))

    def vector(self, slot: int) -> bytes:
        at = self._field(slot)
        return _bytes_at(self.data, at) if at else b""

    def strings(self, slot: int) -> list[bytes]:
        at = self._field(slot)
        if not at:
            return []
        start = at + _read(self.data, at, "<I")
        places = [start + 4 + 4 * index for index in range(_read(self.data, start, "<I"))]
        return [_bytes_at(self.data, place) for place in places]

    def _field(self, slot: int) -> int:
        table = self.position - _read(self.data, self.position, "<i")
        place = 4 + 2 * slot
        offset = _read(self.data, table + place, "<H") if place < _read(self.data, table, "<H") else 0
        return self.position + offset if offset else 0


def _bytes_at(data: bytes, at: int) -> bytes:
    """The vector of bytes that the offset at `at` points to."""
    start = at + _read(data, at, "<I")
    count = _read(data, start, "<I")
    if start + 4 + count > len(data):
        raise IndexError("a vector reaches past the end")
    return data[start + 4 : start + 4 + count]


def _read(data: bytes, at: int, form: str) -> int:
    if at < 0:
        raise IndexError("an offset before the beginning")
    value: int = struct.unpack_from(form, data, at)[0]
    return value
