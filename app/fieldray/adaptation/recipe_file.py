"""A recipe's file: its tables, its text, and what is wrong with it, each problem with its line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from fieldray.adaptation.tables import Problem, line_of, parse, read_toml
from fieldray.errors import UsageProblem
from fieldray.plain_text import visible
from fieldray.reasons import reason

T = TypeVar("T")


class RecipeProblems(UsageProblem):
    """Everything that is wrong with a recipe or its data: `lines` of text, and the first of them in the reason."""

    def __init__(self, path: Path, lines: Sequence[str]) -> None:
        super().__init__(reason("recipe_problems", path=path.name, count=len(lines), problem=lines[0]))
        self.lines = tuple(visible(line) for line in lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A recipe as it was read, before anybody knows whether it is right."""

    path: Path
    tables: Mapping[str, Any]
    text: str

    @classmethod
    def read(cls, path: Path) -> Document:
        """Read a file. Raises UsageProblem (recipe_unreadable)."""
        tables, text = read_toml(path)
        return cls(path=path, tables=tables, text=text)

    def parsed(self, kind: type[T]) -> T:
        """The tables as a dataclass. Raises RecipeProblems with everything that is wrong."""
        found = parse(kind, self.tables)
        if isinstance(found, list):
            raise RecipeProblems(self.path, self.lines(found))
        return found

    def lines(self, problems: Sequence[Problem]) -> list[str]:
        """The problems in the order of their lines, for example `line 12: training.epochs is missing`."""
        found = [(line_of(self.text, problem.location), f"{problem.key} {problem.detail}") for problem in problems]
        return [f"line {line}: {text}" for line, text in sorted(found, key=lambda item: item[0])]
