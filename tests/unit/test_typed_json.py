"""JSON from elsewhere, decoded by type: every fault is one kind of error."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest

from fieldray.typed_json import format_json, parse_json, to_type
from program import python


@dataclass(frozen=True, slots=True)
class Place:
    name: str
    sides: tuple[int, int]
    share: float | None = None


def test_valid_json_is_decoded() -> None:
    assert parse_json(b'{"name": "a", "sides": [1, 2], "share": 1}', Place) == Place("a", (1, 2), 1.0)
    assert parse_json('{"name": "a", "sides": [1, 2], "newer": [[]]}', Place) == Place("a", (1, 2))
    assert to_type({"a": ["x"]}, dict[str, list[str]]) == {"a": ["x"]}


def test_file_names_that_are_no_unicode_are_accepted() -> None:
    assert parse_json(b'{"name": "\\udcff", "sides": [1, 2]}', Place).name == "\udcff"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"1",
        b"null",
        b"[" * 100_000,
        b'{"name": "a", "sides": ' + b"[" * 3_000 + b"]" * 3_000 + b"}",
        b'{"name": "a", "sides": [1, 2], "newer": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"name": "a"}',
        b'{"name": 1, "sides": [1, 2]}',
        b'{"name": "a", "sides": [1]}',
        b'{"name": "a", "sides": [1, true]}',
        b'{"name": "a", "sides": [1, Infinity]}',
        b'{"name": "a", "sides": [1, ' + b"9" * 5_000 + b"]}",
    ],
)
def test_invalid_json_is_one_kind_of_error(data: bytes) -> None:
    with pytest.raises(ValueError):
        parse_json(data, Place)


@pytest.mark.parametrize(
    "value",
    [
        {"name": "a", "sides": [1, 2.5], "place": None},
        {"name": "Тарас", "file": "\udcff"},
        [math.inf, -0.0, 1e-9, 0.1 + 0.2],
        [np.float64(0.1), 2**80],
    ],
)
def test_encoded_json_is_ascii_and_reads_back(value: list[object] | dict[str, object]) -> None:
    data = format_json(value)
    assert parse_json(data, type(value)) == value
    assert data.isascii() and b" " not in data


def test_nan_is_kept() -> None:
    assert math.isnan(parse_json(format_json([math.nan]), list[float])[0])
    assert format_json(Place("a", (1, 2), math.nan)) == b'{"name":"a","sides":[1,2],"share":NaN}'


_FIRST_MET_BY_MANY = """
import sys, threading
from dataclasses import make_dataclass

from fieldray.typed_json import to_type, parse_json

def meet(kind, inner, barrier):
    barrier.wait()
    assert parse_json('{"size": 1, "inner": {"name": "a"}}', kind) == kind(1, inner("a"))
    assert to_type({"size": 2}, kind) == kind(2, None)

sys.setswitchinterval(1e-6)
for _ in range(40):
    inner = make_dataclass("Inner", [("name", str), ("parts", tuple[str, ...], ())])
    kind = make_dataclass("Outer", [("size", int), ("inner", inner | None, None)])
    barrier = threading.Barrier(6)
    threads = [threading.Thread(target=meet, args=(kind, inner, barrier)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_several_threads_can_decode_one_type_at_once() -> None:
    """It ended the process with a segmentation fault of the library."""
    done = python(_FIRST_MET_BY_MANY)
    assert (done.returncode, done.stderr) == (0, "")
