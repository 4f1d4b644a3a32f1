"""JSON that somebody else wrote, taken for what its type says: one error for all that can be wrong."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from fieldray.typed_json import converted, decoded


@dataclass(frozen=True, slots=True)
class Place:
    name: str
    sides: tuple[int, int]
    share: float | None = None


def test_what_fits_its_type_is_taken() -> None:
    assert decoded(b'{"name": "a", "sides": [1, 2], "share": 1}', Place) == Place("a", (1, 2), 1.0)
    assert decoded('{"name": "a", "sides": [1, 2], "newer": [[]]}', Place) == Place("a", (1, 2))
    assert converted({"a": ["x"]}, dict[str, list[str]]) == {"a": ["x"]}


def test_names_of_files_that_are_no_text_pass() -> None:
    assert decoded(b'{"name": "\\udcff", "sides": [1, 2]}', Place).name == "\udcff"


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
        b'{"name": "a", "sides": [1, 2], "newer": ' + b"[" * 3_000 + b"]" * 3_000 + b"}",
        b'{"name": "a"}',
        b'{"name": 1, "sides": [1, 2]}',
        b'{"name": "a", "sides": [1]}',
        b'{"name": "a", "sides": [1, true]}',
        b'{"name": "a", "sides": [1, Infinity]}',
        b'{"name": "a", "sides": [1, ' + b"9" * 5_000 + b"]}",
    ],
)
def test_all_else_is_one_error(data: bytes) -> None:
    with pytest.raises(ValueError):
        decoded(data, Place)
