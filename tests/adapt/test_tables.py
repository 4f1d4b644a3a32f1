"""Recipes as dataclasses that describe themselves: every wrong key is named, all at once, with its line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import pytest

from fieldray.errors import UsageProblem
from fieldray_adapt.tables import Document, Key, RecipeProblems, parse, require, require_ranges


@dataclass(frozen=True)
class Inner:
    size: Annotated[int, Key(doc="Of it.", low=1)]
    rate: Annotated[float, Key(above=0, high=2)] = 0.5

    def __post_init__(self) -> None:
        require_ranges(self)
        require((self.size < 90 or self.rate < 1, "rate", "must be below 1 for a large size"))


@dataclass(frozen=True)
class Other:
    file: Path


@dataclass(frozen=True)
class Outer:
    kind: Literal["a", "b"]
    inner: Inner
    several: tuple[Inner, ...] = ()
    either: Inner | Other | None = None
    limit: float | None = None
    pair: tuple[int, int] | None = None


def _problems(table: dict[str, object]) -> list[str]:
    found = parse(Outer, table)
    assert isinstance(found, list)
    return [f"{problem.key} {problem.detail}" for problem in found]


def test_a_table_becomes_a_dataclass() -> None:
    table = {
        "kind": "a",
        "inner": {"size": 2, "rate": 1},
        "several": [{"size": 3}],
        "either": {"file": "x"},
        "limit": 4,
        "pair": [1, 2],
    }
    assert parse(Outer, table) == Outer(
        "a", Inner(2, 1.0), several=(Inner(3),), either=Other(Path("x")), limit=4.0, pair=(1, 2)
    )


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            {"kind": "a", "inner": {"size": 2, "rat": 1}},
            "inner.rat is not known (is rate meant?); there are size, rate",
        ),
        ({"kind": "a", "inner": {}}, "inner.size is missing"),
        ({"kind": "c", "inner": {"size": 2}}, "kind must be one of a, b, not c"),
        ({"kind": "a", "inner": {"size": "2"}}, 'inner.size must be a whole number, not "2"'),
        ({"kind": "a", "inner": {"size": True}}, "inner.size must be a whole number, not True"),
        ({"kind": "a", "inner": {"size": 0}}, "inner.size must be 1 or more, not 0"),
        ({"kind": "a", "inner": {"size": 1, "rate": 0}}, "inner.rate must be above 0 and at most 2, not 0.0"),
        ({"kind": "a", "inner": {"size": 90, "rate": 1.5}}, "inner.rate must be below 1 for a large size"),
        ({"kind": "a", "inner": 5}, "inner must be a table of keys, not 5"),
        (
            {"kind": "a", "inner": {"size": 2}, "several": [{"size": 1}, {"size": 1.5}]},
            "several[2].size must be a whole number, not 1.5",
        ),
        ({"kind": "a", "inner": {"size": 2}, "either": {"file": 3}}, "either.file must be a path, not 3"),
        (
            {"kind": "a", "inner": {"size": 2}, "either": {"file": "~nobody-of-that-name/x"}},
            "either.file begins with the home of a user who is not known here: ~nobody-of-that-name/x",
        ),
        ({"kind": "a", "inner": {"size": 2}, "limit": "x"}, 'limit must be a number, not "x"'),
        ({"kind": "a", "inner": {"size": 2}, "pair": [1]}, "pair must be a list of 2, not of 1"),
    ],
)
def test_what_is_wrong_is_named(table: dict[str, object], message: str) -> None:
    assert _problems(table) == [message]


def test_every_problem_is_named_at_once_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(
        """# a comment
kind = "c"
limit = '''
several = 5
'''

[inner]  # which lacks its size
rate = 7.0

[[several]]
size = 1

[[several]]
size = [
  1,
]
""",
        encoding="utf-8",
    )
    with pytest.raises(RecipeProblems) as found:
        Document.read(path).parsed(Outer)
    assert found.value.lines == (
        "line 2: kind must be one of a, b, not c",
        'line 3: limit must be a number, not "several = 5\\n"',
        "line 7: inner.size is missing",
        "line 8: inner.rate must be above 0 and at most 2, not 7.0",
        "line 14: several[2].size must be a whole number, not [1]",
    )
    assert "5 problems" in found.value.reason.text


def test_a_file_that_is_no_toml_is_named(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text("kind = ")
    with pytest.raises(UsageProblem, match=r"recipe\.toml cannot be read"):
        Document.read(tmp_path / "recipe.toml")
    with pytest.raises(UsageProblem, match=r"none\.toml cannot be read"):
        Document.read(tmp_path / "none.toml")
