"""Recipes described by their own types: a commented template to begin with, and the reference of every key."""

from __future__ import annotations

import json
import math
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, Final

from fieldray_adapt.tables import Key, KnownKey, keys_of, plain_type

_NAMES: Final = {int: "whole number", float: "number", str: "text", bool: "true or false", Path: "path"}
_WIDTH: Final = 110


def template(schema: type[Any]) -> str:
    """A recipe of this type, in TOML: what has to be there with an example, all else as comments with its default."""
    head = f"# {_summary(schema)}\n# To set a key, remove the # before it and before the [table] above it.\n"
    return head + "\n".join(_table_lines(schema, "", {})) + "\n"


def reference(kinds: Mapping[str, type[Any]]) -> str:
    """Every key of every kind of recipe, in Markdown."""
    lines = [
        "# Recipe reference",
        "",
        "<!-- Written by tools/recipe_reference.py from the recipe's types; edits here are lost. -->",
        "",
        "A recipe is a TOML file. `fieldray adapt new KIND` writes one to begin with, `fieldray adapt check RECIPE` "
        "lists everything that is wrong with one; for workflows it is `fieldray workflow new`. Relative paths count "
        "from the recipe's folder. A text by language is "
        'a table of BCP 47 language tags, for example `{ en = "Pneumonia", uk = "Пневмонія" }`; English is needed. '
        "Credits and licences are in a file beside the recipe, `NAME.credits.md` for `NAME.toml`.",
    ]
    for name, schema in kinds.items():
        lines += ["", f"## {name}", "", _summary(schema)]
        lines += _reference_tables(schema, "", {})
    laws = {law.__name__: law for schema in kinds.values() for law in _laws(schema)}
    if laws:
        lines += ["", "## Laws", "", "How a setting of pruning moves from one iteration to the next."]
    for law in laws.values():
        lines += ["", f"### {_summary(law)}", *_reference_tables(law, "", {})]
    return "\n".join(lines) + "\n"


def _table_lines(table: type[Any], path: str, described: Mapping[str, Key]) -> Iterator[str]:
    """A table's own keys, then the tables within it."""
    known = keys_of(table, described)
    for name, key in known.items():
        if _inner(key) is None:
            yield from _key_lines(name, key)
    for name, key in known.items():
        inner = _inner(key)
        if inner is None:
            continue
        whole, is_list = _whole(path, name, key), _is_list(key.kind)
        mark = "" if key.is_needed else "#"
        yield ""
        yield from _comment(key.key.doc)
        yield mark + (f"[[{whole}]]" if is_list else f"[{whole}]")
        lines = _table_lines(inner, whole, key.key.keys)
        yield from lines if key.is_needed else (_commented(line) for line in lines)


def _key_lines(name: str, known: KnownKey) -> Iterator[str]:
    key = known.key
    value = key.example if key.example is not None else None if known.is_needed else known.default
    if value is None and known.is_needed:
        value = typing.get_args(known.kind)[0] if typing.get_origin(known.kind) is typing.Literal else ""
    notes = [_type_name(known.kind), key.unit, key.allowed]
    yield from _comment(f"{key.doc} ({'; '.join(dict.fromkeys(note for note in notes if note))})")
    is_set = known.is_needed or key.example is not None
    if value is None or value in ((), {}, ""):
        yield f"#{name} = ..."
    else:
        yield f"{'' if is_set else '#'}{name} = {_toml(value)}"


def _comment(text: str) -> Iterator[str]:
    line = "#"
    for word in text.split():
        if len(line) + 1 + len(word) > _WIDTH:
            yield line
            line = "#"
        line += f" {word}"
    yield line


def _commented(line: str) -> str:
    return line if not line or line.startswith("#") else f"#{line}"


def _reference_tables(table: type[Any], path: str, described: Mapping[str, Key]) -> Iterator[str]:
    known = keys_of(table, described)
    yield from ("", "| key | type | default | meaning |", "|---|---|---|---|")
    for name, key in known.items():
        yield f"| `{name}` | {_type_name(key.kind)} | {_default_text(key)} | {_meaning(key.key)} |"
    for name, key in known.items():
        inner = _inner(key)
        if inner is not None:
            whole = _whole(path, name, key)
            yield from ("", f"### `{f'[[{whole}]]' if _is_list(key.kind) else f'[{whole}]'}`", "", _summary(inner))
            yield from _reference_tables(inner, whole, key.key.keys)


def _whole(path: str, name: str, known: KnownKey) -> str:
    """The full name of a key that is a table; one of many tables with names of their own is called NAME."""
    own = f"{name}.NAME" if typing.get_origin(plain_type(known.kind)) is Mapping else name
    return f"{path}.{own}" if path else own


def _inner(known: KnownKey) -> type[Any] | None:
    """The dataclass of a key that is a table, or many tables; None for any other, and for a choice of tables."""
    tables = _tables(known)
    return tables[0] if len(tables) == 1 else None


def _tables(known: KnownKey) -> list[type[Any]]:
    """The dataclasses that a key's table, or a table of its list, may be; one that is read its own way is none."""
    found = [typing.cast("type[Any]", kind) for kind in _members(known.kind) if is_dataclass(kind)]
    return [kind for kind in found if not hasattr(kind, "from_document")]


def _members(kind: Any) -> list[Any]:
    kind = plain_type(kind)
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return [member for argument in typing.get_args(kind) for member in _members(argument)]
    number = {tuple: 0, Mapping: 1}.get(typing.get_origin(kind))
    return [kind] if number is None else _members(typing.get_args(kind)[number])


def _laws(table: type[Any]) -> Iterator[type[Any]]:
    """The dataclasses between which a key's table may choose, in a table and those within it."""
    for known in keys_of(table).values():
        tables = _tables(known)
        if len(tables) > 1:
            yield from tables
        for inner in tables[:1]:
            yield from _laws(inner)


def _is_list(kind: Any) -> bool:
    return typing.get_origin(plain_type(kind)) is tuple


def _type_name(kind: Any) -> str:
    kind = plain_type(kind)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return " or ".join(map(str, arguments))
    if origin in (typing.Union, types.UnionType):
        names = [_type_name(argument) for argument in arguments if argument is not types.NoneType]
        return names[0] if len(set(names)) == 1 else "a law"
    if origin is tuple:
        return f"list of {_type_name(arguments[0])}"
    if origin is Mapping:
        return f"table of {_type_name(arguments[1])}"
    if hasattr(kind, "from_document"):
        return "value, list or range"
    return "table" if is_dataclass(kind) else _NAMES.get(kind, str(kind))


def _default_text(known: KnownKey) -> str:
    if known.is_needed:
        return "**needed**"
    if known.default is None or known.default in ((), {}, "") or _inner(known) is not None:
        return ""
    return f"`{_toml(known.default)}`"


def _meaning(key: Key) -> str:
    notes = "; ".join(note for note in (key.unit, key.allowed) if note)
    return f"{key.doc} ({notes})" if notes else key.doc


def _summary(table: type[Any]) -> str:
    """The first lines of a class's docstring, in one line."""
    return " ".join((table.__doc__ or "").strip().split("\n\n")[0].split())


def _toml(value: Any) -> str:
    """A value as TOML text on one line."""
    if isinstance(value, Path):
        return json.dumps(value.as_posix())
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{name} = {_toml(item)}" for name, item in value.items()) + " }"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
