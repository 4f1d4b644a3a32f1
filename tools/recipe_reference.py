"""Write docs/recipe-reference.md, which explains all keys of recipes, from the Python classes of the recipes.

Usage: python tools/recipe_reference.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from fieldray_adapt.recipe_actions import RECIPE_KINDS
from fieldray_adapt.recipes.tables import (
    Key,
    TableKey,
    docstring_summary,
    inner_tables,
    table_classes,
    table_header,
    table_keys,
    toml_text,
    value_description,
)
from fieldray_cluster.workflow.recipe import Workflow

ROOT: Final = Path(__file__).resolve().parent
REFERENCE: Final = ROOT.parent / "docs" / "recipe-reference.md"


def reference_text() -> str:
    """Return the text of docs/recipe-reference.md: all tables and keys of each kind of recipe."""
    kinds: dict[str, type[Any]] = {
        **{name: kind.recipe_class for name, kind in RECIPE_KINDS.items()},
        "workflow": Workflow,
    }
    environment = Environment(
        loader=FileSystemLoader(ROOT / "templates"), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        autoescape=False, keep_trailing_newline=True,
    )  # fmt: skip
    names = {"keys_of": table_keys, "inner_tables": inner_tables, "headed": table_header, "summary": docstring_summary}
    names |= {"kind_name": value_description, "default": _default, "meaning": _meaning}
    laws = {law.__name__: law for schema in kinds.values() for law in _laws(schema)}
    return environment.get_template("recipe-reference.md").render(kinds=kinds, laws=laws, written={}, **names)


def _laws(table: type[Any]) -> Iterator[type[Any]]:
    """Yield the dataclasses of each key that accepts several dataclasses, in `table` and its inner tables."""
    for known in table_keys(table).values():
        tables = table_classes(known)
        if len(tables) > 1:
            yield from tables
        for inner in tables[:1]:
            yield from _laws(inner)


def _default(known: TableKey) -> str:
    if known.is_needed:
        return "**needed**"
    is_table = len(table_classes(known)) == 1
    return "" if is_table or known.default in (None, (), {}, "") else f"`{toml_text(known.default)}`"


def _meaning(key: Key) -> str:
    notes = "; ".join(note for note in (key.unit, key.allowed_range) if note)
    return f"{key.doc} ({notes})" if notes else key.doc


if __name__ == "__main__":
    REFERENCE.write_text(reference_text(), encoding="utf-8")
