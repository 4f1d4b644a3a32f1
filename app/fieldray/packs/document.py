"""Strict JSON: the bytes of a pack's description as plain values, and back.

Stricter than `json.loads`: UTF-8 only, no doubled keys, no NaN or infinity, no deep nesting, no control or formatting
characters in texts (they can hide or reorder what a person reads). What the values must be is `packs.manifest`'s.
"""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any, Final

from fieldray.errors import PackProblem
from fieldray.reasons import reason

_LONGEST_KEY: Final = 100
_LINE_BREAKS: Final = frozenset("\n\t")
_DEEPEST: Final = 32  # far more than any description needs, far less than any stack bears


def manifest_error(detail: str) -> PackProblem:
    """The error for a description that is not valid."""
    return PackProblem(reason("pack_manifest", detail=detail))


def read_document(data: bytes) -> dict[str, Any]:
    """The object that a JSON document in UTF-8 holds. Raises PackProblem("pack_manifest")."""
    try:
        value = json.loads(data.decode(), object_pairs_hook=_unique, parse_constant=_refuse, parse_float=_finite)
        _check_depth(value)
    except (ValueError, RecursionError) as error:
        raise manifest_error(f"not valid JSON: {error}") from error
    _check_texts(value, "")
    if not isinstance(value, dict):
        raise manifest_error("the file: an object is needed")
    return value


def write_document(content: Mapping[str, object]) -> bytes:
    """Canonical JSON: UTF-8, sorted keys, one space of indent, one line feed at the end.

    Raises ValueError for NaN and infinity, TypeError for what JSON cannot hold.
    """
    return (json.dumps(content, ensure_ascii=False, sort_keys=True, indent=1, allow_nan=False) + "\n").encode()


def is_line(text: str) -> bool:
    """Whether a text is one line, and nothing in it can hide, reorder or forge what a person reads.

    No control (C0, C1, line breaks, tabs), formatting (bidirectional, zero-width, tags), private, surrogate or
    unassigned characters, no line or paragraph separator (Unicode categories C*, Zl and Zp).
    """
    return not any((kind := unicodedata.category(letter))[0] == "C" or kind in ("Zl", "Zp") for letter in text)


def is_plain(text: str) -> bool:
    """As `is_line`, but line feeds and tabs pass."""
    return is_line("".join(letter for letter in text if letter not in _LINE_BREAKS))


def _check_texts(value: object, location: str) -> None:
    """No text anywhere, nor any key, may mislead on a screen; the depth is known to be small."""
    if isinstance(value, str) and not is_plain(value):
        raise manifest_error(f"{location}: the text holds control characters")
    if isinstance(value, list):
        for index, item in enumerate(value):
            _check_texts(item, f"{location}[{index}]")
    if isinstance(value, dict):
        if not all(len(name) <= _LONGEST_KEY and is_line(name) for name in value):
            raise manifest_error(f"{location or 'the file'}: a key is too long or holds control characters")
        for name, member in value.items():
            _check_texts(member, f"{location}.{name}" if location else name)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return members


def _check_depth(value: object) -> None:
    """So that whoever walks through the document may do so by recursion. Raises ValueError."""
    level = [value]
    for _ in range(_DEEPEST):
        level = [inner for outer in level if isinstance(outer, list | dict) for inner in _inside(outer)]
        if not level:
            return
    raise ValueError(f"lists and objects are nested more than {_DEEPEST - 1} deep")


def _inside(outer: list[Any] | dict[str, Any]) -> Iterable[Any]:
    return outer.values() if isinstance(outer, dict) else outer


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not allowed")


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refuse(text)
