"""What a measurement tells, laid out once: the console, the page and the pictures all take it from here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Table:
    """`rows` are texts as they are shown, each as long as `columns`; the first column is the row's name."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError(f"{self.title}: a row does not fit the columns")


@dataclass(frozen=True, slots=True)
class Points:
    """A list of sentences under a title."""

    title: str
    sentences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Series:
    """One line, or one colour of bars: a value for each of the chart's places; None where there is none."""

    name: str
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """`places` along the x axis, a value of every series at each; what is drawn above `top` is cut off there."""

    title: str
    kind: Literal["lines", "bars"]
    x_title: str
    y_title: str
    places: tuple[str, ...]
    series: tuple[Series, ...]
    top: float | None = None

    def __post_init__(self) -> None:
        if any(len(one.values) != len(self.places) for one in self.series):
            raise ValueError(f"{self.title}: a series does not fit the places")


Block = Table | Points | Chart


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """`kind` names the files; `data` is what the JSON file holds beside when and where."""

    kind: str
    title: str
    blocks: tuple[Block, ...]
    data: Mapping[str, Any]
