"""What edgetpu_compiler left in a TensorFlow Lite file, read from its bytes without a runtime.

Needed because a runtime does not tell: given the Edge TPU and a file that was never compiled for it, it runs on the
CPU and reports nothing.

References
----------
TensorFlow Lite, schema.fbs: Model (1 operator_codes, 2 subgraphs), OperatorCode (1 custom_code), SubGraph (3
operators), Operator (0 opcode_index, 5 custom_options).
libedgetpu, executable/executable.fbs: Package (0 min_runtime_version, 1 serialized_multi_executable), MultiExecutable
(0 serialized_executables), Executable (6 parameters, 13 type).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

OPERATOR: Final = b"edgetpu-custom-op"
_PACKAGE_IDENTIFIER: Final = b"DWN1"
_STAND_ALONE, _CACHING, _EXECUTION_ONLY = 0, 1, 2
_LONGEST_VECTOR: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class CompiledFile:
    """`on_edgetpu` counts operators; `oldest_runtime` can run it, None if the file does not say."""

    on_edgetpu: int
    oldest_runtime: int | None


@dataclass(frozen=True, slots=True)
class Package:
    """What one Edge TPU operator holds.

    oldest_runtime  the first version of the Edge TPU runtime that can run it
    cached_bytes    weights that stay on the chip
    streamed_bytes  weights that are sent over USB for each image
    """

    oldest_runtime: int
    cached_bytes: int
    streamed_bytes: int


def read_compiled(file: bytes) -> CompiledFile:
    """Count a file's operators. Raises ValueError for bytes that are no TensorFlow Lite file."""
    try:
        return _read(file)
    except (struct.error, IndexError, OverflowError) as error:
        raise ValueError("not a TensorFlow Lite file, or a damaged one") from error


def read_package(options: bytes) -> Package:
    """Read an Edge TPU operator's options. Raises ValueError if there is no package in them, or a damaged one."""
    package = _package(options)
    if package is None:
        raise ValueError("the Edge TPU operator holds no DWN1 package")
    try:
        multiple = _Table.root(package.vector(1), 0)
        executables = [_Table.root(data, 0) for data in multiple.byte_vectors(0)]
        sizes = {executable.number(13, "<h"): len(executable.vector(6)) for executable in executables}
        streamed = sizes.get(_EXECUTION_ONLY, sizes.get(_STAND_ALONE, 0))
        return Package(package.number(0, "<i"), sizes.get(_CACHING, 0), streamed)
    except (struct.error, IndexError, OverflowError) as error:
        raise ValueError("the Edge TPU operator's package is damaged") from error


def _read(file: bytes) -> CompiledFile:
    if file[4:8] != b"TFL3":
        raise ValueError("not a TensorFlow Lite file")
    model = _Table.root(file, 0)
    codes = [code.vector(1) for code in model.tables(1)]
    on_edgetpu, oldest = 0, None
    for graph in model.tables(2):
        for operator in graph.tables(3):
            if codes[operator.number(0, "<I")] != OPERATOR:
                continue
            on_edgetpu += 1
            package = _package(operator.vector(5))
            needed = package.number(0, "<i") if package else None
            oldest = needed if oldest is None else max(oldest, needed or 0)
    return CompiledFile(on_edgetpu, oldest)


def _package(options: bytes) -> _Table | None:
    """The package somewhere inside an operator's options, None if there is none."""
    start = options.find(_PACKAGE_IDENTIFIER) - 4
    return _Table.root(options, start) if start >= 0 else None


@dataclass(frozen=True, slots=True)
class _Table:
    """A FlatBuffers table at `position` of `data`; fields by number, absent ones are 0 or empty.

    What a hostile or damaged file claims raises struct.error, IndexError, OverflowError or ValueError.
    """

    data: bytes
    position: int

    @classmethod
    def root(cls, data: bytes, start: int) -> _Table:
        return cls(data, start + _unpack(data, start, "<I"))

    def number(self, field: int, form: str) -> int:
        offset = self._offset(field)
        return _unpack(self.data, self.position + offset, form) if offset else 0

    def vector(self, field: int) -> bytes:
        start, length = self._vector(field)
        return self._slice(start, length)

    def tables(self, field: int) -> Iterator[_Table]:
        for at in self._offsets(field):
            yield _Table(self.data, at)

    def byte_vectors(self, field: int) -> Iterator[bytes]:
        for at in self._offsets(field):
            yield self._slice(at + 4, _unpack(self.data, at, "<I"))

    def _offsets(self, field: int) -> Iterator[int]:
        """Where each entry of a vector of offsets points to."""
        start, length = self._vector(field)
        if length > _LONGEST_VECTOR:
            raise ValueError(f"a list of {length} entries")
        for at in range(start, start + 4 * length, 4):
            yield at + _unpack(self.data, at, "<I")

    def _slice(self, start: int, length: int) -> bytes:
        if start + length > len(self.data):
            raise IndexError("a vector reaches past the end")
        return self.data[start : start + length]

    def _vector(self, field: int) -> tuple[int, int]:
        offset = self._offset(field)
        if not offset:
            return 0, 0
        start = self.position + offset
        start += _unpack(self.data, start, "<I")
        return start + 4, _unpack(self.data, start, "<I")

    def _offset(self, field: int) -> int:
        fields = self.position - _unpack(self.data, self.position, "<i")
        entry = 4 + 2 * field
        return _unpack(self.data, fields + entry, "<H") if entry < _unpack(self.data, fields, "<H") else 0


def _unpack(data: bytes, at: int, form: str) -> int:
    if at < 0:
        raise ValueError("an offset that points before the file")
    (value,) = struct.unpack_from(form, data, at)
    return int(value)
