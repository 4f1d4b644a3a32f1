"""Strict reading of a JSON document: every value is asked for by name and type, and a complaint names its place.

Stricter than `json.loads`: UTF-8 only, no doubled keys, no NaN or infinity, no unknown keys, no deep nesting, no
control or formatting characters in texts (they can hide or reorder what a person reads).
"""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from fieldray.errors import PackProblem
from fieldray.reasons import reason

_Choice = TypeVar("_Choice", bound=str)
_Made = TypeVar("_Made")
_LONGEST_KEY: Final = 100
_LINE_BREAKS: Final = frozenset("\n\t")
_DEEPEST: Final = 32  # far more than any description needs, far less than any stack bears


def manifest_error(detail: str) -> PackProblem:
    """The error for a description that is not valid."""
    return PackProblem(reason("pack_manifest", detail=detail))


@dataclass(frozen=True, slots=True)
class Node:
    """One value of a document and where it stands, for example `labels[0].code`. Every method raises PackProblem."""

    value: Any
    place: str

    def fail(self, detail: str) -> PackProblem:
        """A complaint about this value."""
        return manifest_error(f"{self.place or 'the file'}: {detail}")

    def fields(self, required: Collection[str], optional: Collection[str] = ()) -> Mapping[str, Node]:
        """The members of an object that has all of `required`, perhaps some of `optional`, and nothing else."""
        members = self.members()
        for name in required:
            if name not in members:
                raise self.fail(f"{name} is missing")
        for name in members:
            if name not in required and name not in optional:
                raise self.fail(f"{name} is not known")
        return members

    def members(self) -> Mapping[str, Node]:
        """The members of an object with any keys."""
        if not isinstance(self.value, dict):
            raise self.fail("an object is needed")
        if not all(len(name) <= _LONGEST_KEY and is_line(name) for name in self.value):
            raise self.fail("a key is too long or holds control characters")
        prefix = f"{self.place}." if self.place else ""
        return {name: Node(value, prefix + name) for name, value in self.value.items()}

    def items(self, *, most: int) -> tuple[Node, ...]:
        """The items of a list of at most `most`."""
        if not isinstance(self.value, list) or len(self.value) > most:
            raise self.fail(f"a list of at most {most} is needed")
        return tuple(Node(value, f"{self.place}[{index}]") for index, value in enumerate(self.value))

    def text(self, *, longest: int = 200) -> str:
        """A line of 1 to `longest` characters, without control or formatting characters (`is_line`)."""
        text = self._text(longest)
        if not is_line(text):
            raise self.fail("the text holds line breaks or control characters")
        return text

    def paragraphs(self, *, longest: int) -> str:
        """As `text`, but it may have line breaks and tabs (`is_plain`)."""
        text = self._text(longest)
        if not is_plain(text):
            raise self.fail("the text holds control characters")
        return text

    def _text(self, longest: int) -> str:
        if not isinstance(self.value, str) or not 0 < len(self.value) <= longest:
            raise self.fail(f"a text of 1 to {longest} characters is needed")
        return self.value

    def choice(self, options: tuple[_Choice, ...]) -> _Choice:
        """One of `options`."""
        for option in options:
            if self.value == option:
                return option
        raise self.fail("one of " + ", ".join(options) + " is needed")

    def integer(self, *, low: int, high: int) -> int:
        """A whole number in low..high."""
        if type(self.value) is not int or not low <= self.value <= high:
            raise self.fail(f"a whole number from {low} to {high} is needed")
        return self.value

    def number(self) -> float:
        """A number of at most 1e30 either way."""
        if type(self.value) not in (int, float) or abs(self.value) > 1e30:
            raise self.fail("a number is needed")
        return float(self.value)

    def make(self, kind: Callable[..., _Made], **values: object) -> _Made:
        """Build a domain object; what it refuses becomes a complaint about this place."""
        try:
            return kind(**values)
        except ValueError as error:
            raise self.fail(str(error)) from error


def is_line(text: str) -> bool:
    """Whether a text is one line, and nothing in it can hide, reorder or forge what a person reads.

    No control (C0, C1, line breaks, tabs), formatting (bidirectional, zero-width, tags), private, surrogate or
    unassigned characters, no line or paragraph separator (Unicode categories C*, Zl and Zp).
    """
    return not any((kind := unicodedata.category(letter))[0] == "C" or kind in ("Zl", "Zp") for letter in text)


def is_plain(text: str) -> bool:
    """As `is_line`, but line feeds and tabs pass."""
    return is_line("".join(letter for letter in text if letter not in _LINE_BREAKS))


def read_document(data: bytes) -> Node:
    """The root of a JSON document in UTF-8. Raises PackProblem("pack_manifest")."""
    try:
        text = data.decode()
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse, parse_float=_finite)
        _check_depth(value)
    except (ValueError, RecursionError) as error:
        raise manifest_error(f"not valid JSON: {error}") from error
    return Node(value, "")


def write_document(content: Mapping[str, object]) -> bytes:
    """Canonical JSON: UTF-8, sorted keys, one space of indent, one line feed at the end.

    Raises ValueError for NaN and infinity, TypeError for what JSON cannot hold.
    """
    return (json.dumps(content, ensure_ascii=False, sort_keys=True, indent=1, allow_nan=False) + "\n").encode()


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
