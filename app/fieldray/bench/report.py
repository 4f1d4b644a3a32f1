"""The content of a report, laid out once: console, page and charts are made from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fieldray.plain_text import visible


@dataclass(frozen=True, slots=True)
class Table:
    """`rows` are texts as they are shown, each as long as `columns`; the first column names the row."""

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
    """One line, or the bars of one colour: a value for each of the chart's categories, None where there is none."""

    name: str
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """`categories` along the x axis, with a value of every series at each; what lies above `top` is cut off."""

    title: str
    kind: Literal["lines", "bars"]
    x_title: str
    y_title: str
    categories: tuple[str, ...]
    series: tuple[Series, ...]
    top: float | None = None

    def __post_init__(self) -> None:
        if any(len(one.values) != len(self.categories) for one in self.series):
            raise ValueError(f"{self.title}: a series does not fit the categories")


Block = Table | Points | Chart


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """`kind` names the files; `data` goes into the JSON file, after when and where."""

    kind: str
    title: str
    blocks: tuple[Block, ...]
    data: Mapping[str, Any]


def lines(report: Report) -> Iterator[str]:
    """The report for a console, without its charts."""
    for block in report.blocks:
        if isinstance(block, Table):
            yield from ("", block.title, *_columns(block))
        elif isinstance(block, Points):
            yield from ("", block.title, *(f"  - {sentence}" for sentence in block.sentences))


def _columns(table: Table) -> Iterator[str]:
    cells = [[visible(cell) for cell in row] for row in (table.columns, *table.rows)]
    wide = [max(len(row[index]) for row in cells) for index in range(len(table.columns))]
    for row in cells:
        others = (cell.rjust(width) for cell, width in zip(row[1:], wide[1:], strict=True))
        yield "  " + "  ".join((row[0].ljust(wide[0]), *others)).rstrip()
