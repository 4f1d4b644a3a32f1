"""TOML tables as frozen dataclasses that describe each key: type, meaning, unit, range and default.

A table is a class with the decorator `@table`. Its fields are the keys: `epochs: int = key("Passes over the images.",
low=1)`. Checks, commented templates and the reference (`tools/recipe_reference.py`) are made from these fields. Reading
a document finds all of its problems at once, each with key and line.
"""

from __future__ import annotations

import difflib
import json
import math
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, MISSING, Field, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar, dataclass_transform

from fieldray.errors import UsageProblem
from fieldray.plain_text import escape_invisible_characters
from fieldray.reasons import reason

T = TypeVar("T")
ValueLocation = tuple[str | int, ...]
"""The location of a value in a TOML document: names of tables and keys, and indices of lists, which start at 0."""

_WRONG: Final = object()
_KEY: Final = "key"
_NAMES: Final = {
    int: "a whole number",
    float: "a number",
    str: "a text in quotes",
    bool: "true or false",
    Path: "a path",
}


@dataclass(frozen=True, slots=True)
class Key:
    """The description of a recipe's key. If several keys share a description, write `Annotated[int, Key(...)]`.

    Parameters
    ----------
    doc
        The meaning of the key, in one or two sentences.
    unit
        The unit of a number, for example "pixels".
    low, high, above
        Bounds of a number, or of each number in a list. `low` and `high` are allowed values, `above` is not.
    example
        The value in a template. Without an example, the template has the key as a comment with the default value.
    check
        A function that returns the problem with a value of the right type, in words; None for a valid value.
    keys
        The descriptions of the keys of an inner table whose class is in another package and has no descriptions.
    kind
        The name of an inner table that may be of several classes, for example "a law".
    class_for
        A function that returns the class of an inner table from its content, if several classes are possible. Raises
        ValueError if no class fits.
    """

    doc: str = ""
    _: KW_ONLY
    unit: str = ""
    low: float | None = None
    high: float | None = None
    above: float | None = None
    example: Any = None
    check: Callable[[Any], str | None] | None = None
    keys: Mapping[str, Key] = field(default_factory=dict)
    kind: str = ""
    class_for: Callable[[Mapping[str, Any]], type] | None = None

    @property
    def allowed_range(self) -> str:
        """The range of allowed numbers in words, such as "0..1"; "" if all numbers are allowed."""
        if self.low is not None and self.high is not None:
            return f"{self.low:g}..{self.high:g}"
        bounds = (("{:g} or more", self.low), ("above {:g}", self.above), ("at most {:g}", self.high))
        return " and ".join(form.format(bound) for form, bound in bounds if bound is not None)

    def problem(self, value: Any) -> str | None:
        """Return the problem with a value of this key, in words; None if valid. The value must have the right type."""
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, int | float) and not self._allows(number):
                return f"must be {self.allowed_range}, not {number}"
        return self.check(value) if self.check else None

    def _allows(self, number: float) -> bool:
        return (
            (self.low is None or number >= self.low)
            and (self.high is None or number <= self.high)
            and (self.above is None or number > self.above)
        )


def key(doc: str = "", *, default: Any = MISSING, default_factory: Any = MISSING, **meaning: Any) -> Any:
    """Return a dataclass field for a key of a recipe's table. `doc` and `meaning` are arguments of `Key`."""
    known = Key(doc, **meaning)
    return field(default=default, default_factory=default_factory, metadata={_KEY: known})


TableClass = TypeVar("TableClass", bound=type)
ValidityRules = Iterable[tuple[bool, str, str]]
"""The conditions that the values of a table must fulfil.

A condition is a triple: whether the condition is fulfilled, the name of the wrong key if not, and the error in words.
"""


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(key, field))
def recipe_table(kind: TableClass) -> TableClass:
    """Make a class a table of a recipe: a frozen dataclass that checks the values of each new instance.

    First, empty keys get the values that a method `defaults` returns, if the class has this method. Then the range of
    each key is checked. Last, the conditions that a method `validity_rules` returns are checked (see `ValidityRules`).

    Creating an instance raises KeyProblems if a value is out of its range, or if a condition is not fulfilled.
    """
    if "__post_init__" not in vars(kind):
        kind.__post_init__ = _settle  # type: ignore[attr-defined]
    return dataclass(frozen=True, slots=True, kw_only=True)(kind)  # type: ignore[return-value]


def _settle(parsed: Any) -> None:
    if defaults := getattr(parsed, "defaults", None):
        for name, value in defaults().items():
            if not getattr(parsed, name):
                object.__setattr__(parsed, name, value)
    require_allowed_values(parsed)
    if rules := getattr(parsed, "validity_rules", None):
        require_fulfilled_rules(*rules())


RESOLVED_PATH_KEYS: Final = ("run", "results", "signing_key", "packs_folder")
"""Keys whose paths are printed, stored and copied. These paths are resolved, so that they contain no `..`."""


def resolve_paths(parsed: T, base: Path) -> T:
    """Return a copy of a recipe's table in which all paths are absolute, in inner tables, too.

    `base` is the folder to which relative paths are relative. If the class of a table has a method `resolve_paths`,
    that method makes the paths of the table absolute.
    """
    if own := getattr(parsed, "resolve_paths", None):
        return typing.cast("T", own(base))
    changes = dict[str, Any]()
    for name in (known.name for known in fields(typing.cast("Any", parsed))):
        before = getattr(parsed, name)
        after = _resolved(before, base)
        changes |= (
            {name: after.resolve() if name in RESOLVED_PATH_KEYS and after else after} if after is not before else {}
        )
    return replace(typing.cast("Any", parsed), **changes) if changes else parsed


def _resolved(value: Any, base: Path) -> Any:
    if isinstance(value, Path):
        return base / value
    if isinstance(value, tuple):
        found = tuple(_resolved(item, base) for item in value)
        return value if all(new is old for new, old in zip(found, value, strict=True)) else found
    return resolve_paths(value, base) if is_dataclass(value) else value


class KeyProblems(ValueError):
    """Problems with the values of one table. A problem is the name of a key and the error in words."""

    def __init__(self, *problems: tuple[str, str]) -> None:
        super().__init__("; ".join(" ".join(problem) for problem in problems))
        self.problems = problems


def require_fulfilled_rules(*rules: tuple[bool, str, str]) -> None:
    """Raise KeyProblems for each rule that is broken. A rule is (is fulfilled, name of the key, error in words)."""
    broken = [(key, text) for holds, key, text in rules if not holds]
    if broken:
        raise KeyProblems(*broken)


def require_allowed_values(table: Any) -> None:
    """Raise KeyProblems with all keys of a table whose value is invalid or out of range."""
    found = [(name, known.key.problem(getattr(table, name))) for name, known in table_keys(type(table)).items()]
    if any(problem for _, problem in found):
        raise KeyProblems(*[(name, problem) for name, problem in found if problem])


@dataclass(frozen=True, slots=True, kw_only=True)
class TableKey:
    """A key of a recipe's table: type, description, and default value (MISSING for a key that a document needs)."""

    value_type: Any
    key: Key
    default: Any

    @property
    def is_needed(self) -> bool:
        """Whether a document must have the key, because the key has no default value."""
        return self.default is MISSING


def table_keys(table: Any, descriptions: Mapping[str, Key] | None = None) -> dict[str, TableKey]:
    """Return the keys of a table class in the order of its fields, each with its type, description and default.

    `descriptions` has descriptions by name of the key, for keys that the class does not describe because the class is
    in another package.
    """
    hints = typing.get_type_hints(table, include_extras=True)
    found = {}
    for known in fields(table):
        kind, keys = _described(hints[known.name])
        own = known.metadata.get(_KEY)
        keys = [*keys, own] if own else keys or [(descriptions or {}).get(known.name, Key())]
        found[known.name] = TableKey(value_type=kind, key=_merged(keys), default=_default(known))
    return found


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem with one value of a document: the location of the value, and the problem in words."""

    location: ValueLocation
    detail: str

    @property
    def key_path(self) -> str:
        """The location in the notation of a person, for example `data[2].path`. The first item of a list is 1."""
        text = ""
        for part in self.location:
            text += f"[{part + 1}]" if isinstance(part, int) else f".{part}" if text else str(part)
        return text or "recipe"


def parse_table(kind: type[T], table: Mapping[str, Any]) -> T | list[Problem]:
    """Parse a TOML table as an instance of the dataclass `kind`. Returns the instance, or all problems of the table.

    Inner tables are parsed as instances of inner dataclasses. If several dataclasses are possible, `Key.class_for`
    chooses the class; by default the class that has all keys of the table. A class with a class method `from_document`
    is parsed by this method, which raises ValueError for an invalid value.
    """
    problems: list[Problem] = []
    value = _Reading(problems).value(kind, table, (), Key())
    return problems or typing.cast("T", value)


def find_line(text: str, location: ValueLocation) -> int:
    """Return the number of the line on which a value of a TOML document begins; the first line is 1.

    If the text has no such value, the line of the innermost surrounding table is returned, or 1.
    """
    lines = _lines_of(text)
    while location and location not in lines:
        location = location[:-1]
    return lines.get(location, 1)


class _Reading:
    """Parses the values of a TOML document, and adds each problem to the list `problems`."""

    def __init__(self, problems: list[Problem]) -> None:
        self._problems = problems

    def value(self, kind: Any, value: object, at: ValueLocation, key: Key) -> Any:
        """Return a value parsed as the type `kind`. If the value is wrong, add a problem and return `_WRONG`.

        `at` is the value's location, `key` the description of the value's key.
        """
        kind, own = _described(kind)
        key = _merged([key, *own]) if own else key
        read = self._of_type(kind, value, at, key)
        if read is not _WRONG and read is not None and (detail := key.problem(read)):
            return self._wrong(at, detail)
        return read

    def _of_type(self, kind: Any, value: object, at: ValueLocation, key: Key) -> Any:
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if origin in (typing.Union, types.UnionType):
            return self._of_union(arguments, value, at, key)
        if origin is typing.Literal:
            allowed = ", ".join(map(str, arguments))
            return value if value in arguments else self._wrong(at, f"must be one of {allowed}, not {value}")
        if origin is tuple:
            return self._tuple(arguments, value, at)
        if origin in (dict, Mapping):
            if not isinstance(value, Mapping):
                return self._wrong(at, f"must be a table of keys, not {value}")
            items = {name: self.value(arguments[1], item, (*at, name), Key()) for name, item in value.items()}
            return _WRONG if any(item is _WRONG for item in items.values()) else items
        return self._table_or_scalar(kind, value, at, key.keys)

    def _of_union(self, kinds: tuple[Any, ...], value: object, at: ValueLocation, key: Key) -> Any:
        try:
            chosen = key.class_for(value) if key.class_for and isinstance(value, Mapping) else _nearest(kinds, value)
        except ValueError as problem:
            return self._wrong(at, str(problem))
        return self.value(chosen, value, at, Key(keys=key.keys))

    def _table_or_scalar(self, kind: Any, value: object, at: ValueLocation, descriptions: Mapping[str, Key]) -> Any:
        """Parse an inner table, or one number, text or path. Returns `_WRONG` for a wrong value."""
        if reads_itself := getattr(kind, "from_document", None):
            try:
                return reads_itself(value)
            except ValueError as problem:
                return self._wrong(at, str(problem))
        return self._table(kind, value, at, descriptions) if is_dataclass(kind) else self._plain(kind, value, at)

    def _tuple(self, kinds: tuple[Any, ...], value: object, at: ValueLocation) -> Any:
        if not isinstance(value, list):
            return self._wrong(at, f"must be a list in [brackets], not {value}")
        if Ellipsis not in kinds and len(value) != len(kinds):
            return self._wrong(at, f"must be a list of {len(kinds)}, not of {len(value)}")
        items = tuple(
            self.value(kinds[0] if Ellipsis in kinds else kinds[index], item, (*at, index), Key())
            for index, item in enumerate(value)
        )
        return _WRONG if any(item is _WRONG for item in items) else items

    def _plain(self, kind: type, value: object, at: ValueLocation) -> Any:
        if kind is float and isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value):
            return float(value)
        if kind is Path and isinstance(value, str):
            try:
                return Path(value).expanduser()
            except RuntimeError:
                return self._wrong(at, f"begins with the home folder of an unknown user: {value}")
        if type(value) is not kind:
            shown = f'"{value}"' if isinstance(value, str) else value  # quotes show that "12" is a text
            return self._wrong(at, f"must be {_NAMES.get(kind, kind.__name__)}, not {shown}")
        return value

    def _table(self, kind: Any, value: object, at: ValueLocation, descriptions: Mapping[str, Key]) -> Any:
        if not isinstance(value, Mapping):
            return self._wrong(at, f"must be a table of keys, not {value}")
        known, before = table_keys(kind, descriptions), len(self._problems)
        for name in value:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f" (is {near[0]} meant?)" if near else ""
                self._wrong((*at, name), f"is not known{hint}; known keys: {', '.join(known)}")
        for name in known:
            if known[name].is_needed and name not in value:
                self._wrong((*at, name), "is missing")
        read = {
            name: self.value(known[name].value_type, item, (*at, name), known[name].key)
            for name, item in value.items()
            if name in known
        }
        return _WRONG if len(self._problems) > before else self._instance(kind, read, at)

    def _instance(self, kind: Any, values: Mapping[str, Any], at: ValueLocation) -> Any:
        try:
            return kind(**values)
        except KeyProblems as found:
            for name, detail in found.problems:
                self._wrong((*at, name) if name else at, detail)
        except ValueError as problem:
            self._wrong(at, str(problem))
        return _WRONG

    def _wrong(self, at: ValueLocation, detail: str) -> Any:
        self._problems.append(Problem(at, detail))
        return _WRONG


def _nearest(kinds: tuple[Any, ...], value: object) -> Any:
    """Return the type of a union by which a value is parsed, so that problems refer to the most similar type.

    For a table, this is the first class that has all keys of the table.
    """
    chosen = [kind for kind in kinds if kind is not types.NoneType]
    if isinstance(value, Mapping):
        tables = [kind for kind in chosen if is_dataclass(kind)]
        fitting = [kind for kind in tables if set(value) <= {known.name for known in fields(kind)}]
        chosen = sorted(fitting or tables, key=lambda kind: len(fields(kind))) or chosen
    return chosen[0]


def _described(kind: Any) -> tuple[Any, list[Key]]:
    if typing.get_origin(kind) is not Annotated:
        return kind, []
    return typing.get_args(kind)[0], [item for item in kind.__metadata__ if isinstance(item, Key)]


def _merged(keys: list[Key]) -> Key:
    """Combine several descriptions of a key. A later description replaces the values of earlier descriptions."""
    merged = {}
    for known in fields(Key):
        given = [getattr(key, known.name) for key in keys if getattr(key, known.name) not in (None, "", {})]
        merged[known.name] = given[-1] if given else getattr(Key(), known.name)
    return Key(**merged)


def _default(known: Field[Any]) -> Any:
    return known.default_factory() if known.default_factory is not MISSING else known.default


def _lines_of(text: str) -> dict[ValueLocation, int]:
    """Return the number of the line on which each value of a TOML document begins, by location."""
    lines, known, start = text.splitlines(keepends=True), dict[ValueLocation, int](), 1
    for number in range(1, len(lines) + 1):
        try:
            document = tomllib.loads("".join(lines[:number]))
        except tomllib.TOMLDecodeError:
            continue  # the text ends within a value of several lines
        for location in _locations(document, ()):
            known.setdefault(location, start)
        start = number + 1
    return known


def _locations(value: object, at: ValueLocation) -> Iterator[ValueLocation]:
    items: Any = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for name, item in items:
        yield (*at, name)
        yield from _locations(item, (*at, name))


class RecipeProblems(UsageProblem):
    """The error that lists all problems of a recipe or the recipe's data. `lines` has a text for each problem."""

    def __init__(self, path: Path, lines: Sequence[str]) -> None:
        super().__init__(reason("recipe_problems", path=path.name, count=len(lines), problem=lines[0]))
        self.lines = tuple(escape_invisible_characters(line) for line in lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeDocument:
    """The content of a recipe file: path, text, and parsed TOML tables, which are not checked yet."""

    path: Path
    tables: Mapping[str, Any]
    text: str

    @classmethod
    def read(cls, path: Path) -> RecipeDocument:
        """Read a recipe file. Raises UsageProblem (recipe_unreadable)."""
        try:
            text = path.read_text(encoding="utf-8")
            return cls(path=path, tables=tomllib.loads(text), text=text)
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
            raise UsageProblem(reason("recipe_unreadable", path=path, detail=problem)) from problem

    def parse_as(self, kind: type[T]) -> T:
        """Return the recipe as an instance of the dataclass `kind`. Raises RecipeProblems, which lists all problems."""
        found = parse_table(kind, self.tables)
        if isinstance(found, list):
            raise RecipeProblems(self.path, self.problem_lines(found))
        return found

    def problem_lines(self, problems: Sequence[Problem]) -> list[str]:
        """Return a text for each problem, for example `line 12: training.epochs is missing`, in order of the lines."""
        found = [
            (find_line(self.text, problem.location), f"{problem.key_path} {problem.detail}") for problem in problems
        ]
        return [f"line {line}: {text}" for line, text in sorted(found, key=lambda item: item[0])]


_TYPE_NAMES: Final = {int: "whole number", float: "number", str: "text", bool: "true or false", Path: "path"}
_WIDTH: Final = 110


def recipe_template(schema: type[Any]) -> str:
    """Return a commented recipe as TOML text: needed keys with an example, other keys as comments with the default."""
    head = f"# {docstring_summary(schema)}\n# To set a key, remove the # before it and before the [table] above it.\n"
    return head + "\n".join(_table_lines(schema, "", {})) + "\n"


def _table_lines(table: type[Any], path: str, descriptions: Mapping[str, Key]) -> Iterator[str]:
    """Yield the lines of a template for a table: first the keys of the table, then its inner tables.

    `path` is the full name of the table, such as `training.stages`. `descriptions` as for `table_keys`.
    """
    for name, key in table_keys(table, descriptions).items():
        if _inner(key) is None:
            yield from _key_lines(name, key)
    for key, inner, whole in inner_tables(table, path, descriptions):
        lines = [table_header(key, whole), *_table_lines(inner, whole, key.key.keys)]
        yield ""
        yield from _comment(key.key.doc)
        yield from lines if key.is_needed else map(_commented, lines)


def _key_lines(name: str, table_key: TableKey) -> Iterator[str]:
    key = table_key.key
    value = key.example if key.example is not None else None if table_key.is_needed else table_key.default
    if value is None and table_key.is_needed:
        value = (
            typing.get_args(table_key.value_type)[0]
            if typing.get_origin(table_key.value_type) is typing.Literal
            else ""
        )
    notes = [value_description(table_key), key.unit, key.allowed_range]
    yield from _comment(f"{key.doc} ({'; '.join(dict.fromkeys(note for note in notes if note))})")
    is_set = table_key.is_needed or key.example is not None
    if value is None or value in ((), {}, ""):
        yield f"#{name} = ..."
    else:
        yield f"{'' if is_set else '#'}{name} = {toml_text(value)}"


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


def inner_tables(
    table: type[Any], path: str, descriptions: Mapping[str, Key]
) -> Iterator[tuple[TableKey, type[Any], str]]:
    """Yield each key of a table class whose value is an inner table: the key, the inner class, and the key's full name.

    The full name is `path`, a dot and the key's name. For a key with any number of tables by name, `.NAME` is added.
    `path` is the full name of `table`; "" for the whole recipe. `descriptions` as for `table_keys`.
    """
    for name, table_key in table_keys(table, descriptions).items():
        if inner := _inner(table_key):
            own = f"{name}.NAME" if typing.get_origin(_described(table_key.value_type)[0]) is Mapping else name
            yield table_key, inner, f"{path}.{own}" if path else own


def table_header(table_key: TableKey, full_name: str) -> str:
    """Return the TOML header for a key with an inner table, such as `[training]`, or a list of tables, `[[data]]`.

    `full_name` is the full name of the key.
    """
    return f"[[{full_name}]]" if typing.get_origin(_described(table_key.value_type)[0]) is tuple else f"[{full_name}]"


def _inner(table_key: TableKey) -> type[Any] | None:
    """Return the dataclass of a key whose value is one or several inner tables.

    None for keys with other values, and for keys whose tables may be of several classes.
    """
    tables = table_classes(table_key)
    return tables[0] if len(tables) == 1 else None


def table_classes(table_key: TableKey) -> list[type[Any]]:
    """Return the dataclasses of the inner tables that a key may have as value; empty for keys without inner tables.

    Classes with a method `from_document`, which parse their own values, are left out.
    """
    found = [typing.cast("type[Any]", kind) for kind in _members(table_key.value_type) if is_dataclass(kind)]
    return [kind for kind in found if not hasattr(kind, "from_document")]


def _members(kind: Any) -> list[Any]:
    kind = _described(kind)[0]
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return [member for argument in typing.get_args(kind) for member in _members(argument)]
    number = {tuple: 0, Mapping: 1}.get(typing.get_origin(kind))
    return [kind] if number is None else _members(typing.get_args(kind)[number])


def value_description(table_key: TableKey) -> str:
    """Return the type of a key's value in words, such as "list of text"."""
    return table_key.key.kind or type_description(table_key.value_type)


def type_description(kind: Any) -> str:
    """Return a Python type in words for the user, such as "whole number" for `int`."""
    kind = _described(kind)[0]
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return " or ".join(map(str, arguments))
    if origin in (typing.Union, types.UnionType):
        names = [type_description(argument) for argument in arguments if argument is not types.NoneType]
        return " or ".join(dict.fromkeys(names))
    if origin is tuple:
        return f"list of {type_description(arguments[0])}"
    if origin is Mapping:
        return f"table of {type_description(arguments[1])}"
    if hasattr(kind, "from_document"):
        return "value, list or range"
    return "table" if is_dataclass(kind) else _TYPE_NAMES.get(kind, str(kind))


def docstring_summary(table: type[Any]) -> str:
    """Return the first paragraph of a class's docstring on one line."""
    return " ".join((table.__doc__ or "").strip().split("\n\n")[0].split())


def toml_text(value: Any) -> str:
    """Return a value as TOML text on one line."""
    if isinstance(value, Path):
        return json.dumps(value.as_posix())
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{name} = {toml_text(item)}" for name, item in value.items()) + " }"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(toml_text, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
