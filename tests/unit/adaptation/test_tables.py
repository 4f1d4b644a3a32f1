"""Recipes as dataclasses: every wrong key is named."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from fieldray.adaptation.tables import parse, read_toml
from fieldray.errors import UsageProblem


@dataclass(frozen=True)
class Inner:
    size: int
    rate: float = 0.5

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError("size must be at least 1")


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


def test_a_table_becomes_a_dataclass() -> None:
    table = {
        "kind": "a",
        "inner": {"size": 2, "rate": 1},
        "several": [{"size": 3}],
        "either": {"file": "x"},
        "limit": 4,
    }
    assert parse(Outer, table, where="recipe") == Outer(
        "a", Inner(2, 1.0), several=(Inner(3),), either=Other(Path("x")), limit=4.0
    )


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"kind": "a", "inner": {"size": 2, "colour": 1}}, "recipe.inner.colour is not known; there are size, rate"),
        ({"kind": "a", "inner": {}}, "recipe.inner.size is missing"),
        ({"kind": "c", "inner": {"size": 2}}, "recipe.kind must be one of a, b, not c"),
        ({"kind": "a", "inner": {"size": "2"}}, "recipe.inner.size must be a whole number, not 2"),
        ({"kind": "a", "inner": {"size": True}}, "recipe.inner.size must be a whole number, not True"),
        ({"kind": "a", "inner": {"size": 0}}, "recipe.inner size must be at least 1"),
        ({"kind": "a", "inner": 5}, "recipe.inner must be a table of keys"),
        ({"kind": "a", "inner": {"size": 2}, "several": [{"size": 1}, {"size": 1.5}]}, r"recipe.several\[2\].size"),
        ({"kind": "a", "inner": {"size": 2}, "either": {"file": 3}}, "recipe.either.file must be a path"),
        ({"kind": "a", "inner": {"size": 2}, "limit": "x"}, "recipe.limit must be a number"),
    ],
)
def test_what_is_wrong_is_named(table: dict[str, object], message: str) -> None:
    with pytest.raises(UsageProblem, match=message):
        parse(Outer, table, where="recipe")


def test_a_file_that_is_no_toml_is_named(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text("kind = ")
    with pytest.raises(UsageProblem, match=r"recipe\.toml cannot be read"):
        read_toml(tmp_path / "recipe.toml")
    with pytest.raises(UsageProblem, match=r"none\.toml cannot be read"):
        read_toml(tmp_path / "none.toml")
