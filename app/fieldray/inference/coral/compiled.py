"""What a TensorFlow Lite file says about the Edge TPU, read from its bytes without a runtime.

Needed because a runtime does not tell: given the Edge TPU and a file that was never compiled for it, it runs on the
CPU and reports nothing. Layout: TensorFlow Lite schema.fbs (Model.operator_codes, OperatorCode.custom_code,
SubGraph.operators, Operator.custom_options) and libedgetpu executable.fbs (Package.min_runtime_version).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

OPERATOR: Final = b"edgetpu-custom-op"
_PACKAGE_IDENTIFIER: Final = b"DWN1"
_LONGEST_VECTOR: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class CompiledFile:
    """`on_edgetpu` and `on_cpu` count operators; `oldest_runtime` can run it, None if the file does not say."""

    on_edgetpu: int
    on_cpu: int
    oldest_runtime: int | None


def read_compiled(file: bytes) -> CompiledFile:
    """Raises ValueError for bytes that are no TensorFlow Lite file."""
    try:
        return _read(file)
    except (struct.error, IndexError, OverflowError) as error:
        raise ValueError("not a TensorFlow Lite file, or a damaged one") from error


def _read(file: bytes) -> CompiledFile:
    if file[4:8] != b"TFL3":
        raise ValueError("not a TensorFlow Lite file")
    model = _Table.root(file, 0)
    codes = [code.bytes(1) for code in model.tables(1)]
    on_edgetpu, on_cpu, oldest = 0, 0, None
    for graph in model.tables(2):
        for operator in graph.tables(3):
            if codes[operator.number(0, "<I")] != OPERATOR:
                on_cpu += 1
                continue
            on_edgetpu += 1
            needed = _oldest_runtime(operator.bytes(5))
            oldest = needed if oldest is None else max(oldest, needed or 0)
    return CompiledFile(on_edgetpu, on_cpu, oldest)


def _oldest_runtime(options: bytes) -> int | None:
    start = options.find(_PACKAGE_IDENTIFIER) - 4
    return _Table.root(options, start).number(0, "<i") if start >= 0 else None


@dataclass(frozen=True, slots=True)
class _Table:
    """A flatbuffer table at `position` of `data`; fields by number, absent ones are 0 or empty."""

    data: bytes
    position: int

    @classmethod
    def root(cls, data: bytes, start: int) -> _Table:
        return cls(data, start + _unpack(data, start, "<I"))

    def number(self, field: int, form: str) -> int:
        offset = self._offset(field)
        return _unpack(self.data, self.position + offset, form) if offset else 0

    def bytes(self, field: int) -> bytes:
        start, length = self._vector(field)
        return self.data[start : start + length]

    def tables(self, field: int) -> Iterator[_Table]:
        start, length = self._vector(field)
        if length > _LONGEST_VECTOR:
            raise ValueError(f"a list of {length} entries")
        for at in range(start, start + 4 * length, 4):
            yield _Table(self.data, at + _unpack(self.data, at, "<I"))

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
