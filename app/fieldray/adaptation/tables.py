"""TOML tables as frozen dataclasses: every key known, every value of its type, or a message that names the key."""

from __future__ import annotations

import math
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from fieldray.errors import UsageProblem
from fieldray.reasons import reason

T = TypeVar("T")
_NAMES: Final = {
    int: "a whole number",
    float: "a number",
    str: "a text in quotes",
    bool: "true or false",
    Path: "a path",
}


def read_toml(path: Path) -> dict[str, Any]:
    """The file's tables. Raises UsageProblem (recipe_unreadable)."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
        raise UsageProblem(reason("recipe_unreadable", path=path, detail=problem)) from problem


def parse(kind: type[T], table: object, *, where: str) -> T:
    """A dataclass from a table; nested ones from nested tables, a union of dataclasses by the table's keys.

    where    the key of the table, for messages
    Raises UsageProblem (recipe_key) naming the key: unknown, missing, of the wrong type, or out of its range.
    """
    value: T = _value(kind, table, where)
    return value


def _value(kind: Any, value: object, where: str) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _one_of(arguments, value, where)
    if origin is typing.Literal:
        if value not in arguments:
            raise _problem(where, f"must be one of {', '.join(map(str, arguments))}, not {value}")
        return value
    if origin is tuple:
        if not isinstance(value, list):
            raise _problem(where, "must be a list in [brackets]")
        return tuple(_value(arguments[0], item, f"{where}[{index}]") for index, item in enumerate(value, start=1))
    if origin in (dict, Mapping):
        entries = _table(value, where).items()
        return {key: _value(arguments[1], item, f"{where}.{key}") for key, item in entries}
    return _dataclass(kind, _table(value, where), where) if is_dataclass(kind) else _plain(kind, value, where)


def _plain(kind: type, value: object, where: str) -> object:
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value):
        return float(value)
    if kind is Path and isinstance(value, str):
        return Path(value)
    if type(value) is not kind:
        raise _problem(where, f"must be {_NAMES.get(kind, kind.__name__)}, not {value}")
    return value


def _one_of(kinds: tuple[Any, ...], value: object, where: str) -> Any:
    """The first of the kinds that has all the table's keys, so the message speaks of the nearest one."""
    chosen = [kind for kind in kinds if kind is not types.NoneType]
    if isinstance(value, Mapping):
        tables = [kind for kind in chosen if is_dataclass(kind)]
        fitting = [kind for kind in tables if set(value) <= {field.name for field in fields(kind)}]
        chosen = sorted(fitting or tables, key=lambda kind: len(fields(kind)))
    return _value(chosen[0], value, where)


def _dataclass(kind: Any, table: Mapping[str, object], where: str) -> Any:
    hints = typing.get_type_hints(kind)
    known = {field.name: field for field in fields(kind)}
    for key in table:
        if key not in known:
            raise _problem(f"{where}.{key}", f"is not known; there are {', '.join(known)}")
    for name, field in known.items():
        if name not in table and field.default is MISSING and field.default_factory is MISSING:
            raise _problem(f"{where}.{name}", "is missing")
    values = {key: _value(hints[key], value, f"{where}.{key}") for key, value in table.items()}
    try:
        return kind(**values)
    except ValueError as problem:
        raise _problem(where, str(problem)) from problem


def _table(value: object, where: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise _problem(where, f"must be a table of keys, not {value}")
    return value


def _problem(where: str, detail: str) -> UsageProblem:
    return UsageProblem(reason("recipe_key", key=where, detail=detail))
