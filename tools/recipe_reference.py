"""Writes docs/recipe-reference.md from the types of the recipes: python tools/recipe_reference.py"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from fieldray_adapt.command import KINDS
from fieldray_adapt.tables import reference
from fieldray_cluster.workflow.recipe import Workflow

REFERENCE: Final = Path(__file__).resolve().parent.parent / "docs" / "recipe-reference.md"


def text() -> str:
    """The reference of all kinds of recipes."""
    return reference({**{name: kind.schema for name, kind in KINDS.items()}, "workflow": Workflow})


if __name__ == "__main__":
    REFERENCE.write_text(text(), encoding="utf-8")
