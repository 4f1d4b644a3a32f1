"""The content of a report, laid out once: console, page, charts and JSON are made from it.

The page is one HTML file that needs nothing from outside; its charts are SVG without any library.
"""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any, Final, Literal, cast

from fieldray.paths import VERSION
from fieldray.reports import document
from fieldray.reports.content import NOTICE
from fieldray.reports.document import Points, Table
from fieldray.reports.outputs import GENERATOR, Kind, own_text

__all__ = ["Points", "Table"]


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


Block = Points | Table | Chart


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """`kind` names the files; `data` goes into the JSON file, after when and where."""

    kind: str
    title: str
    blocks: tuple[Block, ...]
    data: Mapping[str, Any]


def lines(report: Report) -> Iterator[str]:
    """The report for a console, without its charts."""
    return document.lines(block for block in report.blocks if not isinstance(block, Chart))


def write(report: Report, folder: Path) -> tuple[Path, ...]:
    """Write `<kind>.json`, `<kind>.html` and each chart as `<kind>-N.svg` into a folder.

    Raises UsageProblem, StorageProblem.
    """
    facts = when_and_where()
    charts = [block for block in report.blocks if isinstance(block, Chart)]
    texts = {
        f"{report.kind}.json": json.dumps({"report": report.kind, **facts, **report.data}, indent=1),
        f"{report.kind}.html": page(report, made=", ".join(map(str, facts.values()))),
        **{f"{report.kind}-{number}.svg": svg(chart) for number, chart in enumerate(charts, 1)},
    }
    for name, text in texts.items():
        with own_text(folder / name, cast("Kind", name.rpartition(".")[2])) as stream:
            stream.write(text)
    return tuple(folder / name for name in texts)


def when_and_where() -> dict[str, Any]:
    """The time, the program and the system, as every report's JSON file begins."""
    return {
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "program": f"fieldray {VERSION}",
        "system": platform.platform(),
    }


_STYLE: Final = """
body { font: 15px/1.5 sans-serif; color: #222; background: #fff; max-width: 1100px; margin: 2em auto; padding: 0 1em }
table { border-collapse: collapse; margin: .5em 0 1.5em; font-variant-numeric: tabular-nums }
th, td { border: 1px solid #ccc; padding: .25em .6em; text-align: right }
th:first-child, td:first-child { text-align: left }
th { background: #f2f2f2 }
svg { max-width: 760px; width: 100%; height: auto }
.notice { color: #8a1c00; font-weight: bold }
"""


def page(report: Report, *, made: str) -> str:
    """The report as HTML; `made` says when and where it was measured."""
    title = escape(report.title)
    return "\n".join(
        (
            "<!DOCTYPE html>",
            '<html lang="en">',
            f'<head><meta charset="utf-8">{GENERATOR}<title>{title}</title><style>{_STYLE}</style></head>',
            f"<body><h1>{title}</h1>",
            f'<p class="notice">{NOTICE}</p>',
            f"<p>{escape(made)}</p>",
            *(_block(block) for block in report.blocks),
            "</body></html>",
            "",
        )
    )


def _block(block: Block) -> str:
    head = f"<h2>{escape(block.title)}</h2>"
    if isinstance(block, Chart):
        return f"{head}\n<figure>{svg(block)}</figure>"
    if isinstance(block, Points):
        return head + "\n<ul>" + "".join(f"<li>{escape(sentence)}</li>" for sentence in block.sentences) + "</ul>"
    return f"{head}\n{_table(block)}"


def _table(table: Table) -> str:
    heads = "".join(f"<th>{escape(column)}</th>" for column in table.columns)
    rows = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in table.rows)
    return f"<table><tr>{heads}</tr>" + "".join(f"<tr>{row}</tr>" for row in rows) + "</table>"


# Okabe and Ito, Color Universal Design (2008): told apart by colour-blind eyes
COLOURS: Final = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000")
_WIDTH: Final = 760
_HEIGHT: Final = 360  # without the legend below
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 16, 56
_LEGEND_COLUMNS: Final = 2
_LEGEND_LINE: Final = 20
_MOST_CATEGORIES: Final = 20  # so many names fit under the axis


def svg(chart: Chart) -> str:
    """The chart as one `<svg>` element; a screen reader reads its title."""
    low, high, step = _scale(chart)
    frame = _Frame(chart, low, high)
    height = _HEIGHT + _LEGEND_LINE * math.ceil(len(chart.series) / _LEGEND_COLUMNS)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'font-family="sans-serif" font-size="12" fill="#222">',
        f"<title>{escape(chart.title)}</title>",
        *frame.grid(step),
        *frame.names(),
        *(frame.bars() if chart.kind == "bars" else frame.lines()),
        *frame.legend(),
        "</svg>",
    ]
    return "\n".join(parts)


def _scale(chart: Chart) -> tuple[float, float, float]:
    """(lowest, highest, step) of the y axis: it contains 0, and a step is 1, 2 or 5 times a power of ten."""
    values = [value for series in chart.series for value in series.values if value is not None]
    high = min(max(values, default=1.0), chart.top if chart.top is not None else math.inf)
    low, high = min(0.0, *values, 0.0), max(high, 0.0)
    step = nice_step((high - low or 1.0) / 5)
    return math.floor(low / step) * step, max(math.ceil(high / step), 1) * step, step


def nice_step(rough: float) -> float:
    """The smallest of 1, 2, 5 times a power of ten that is at least `rough` (above 0)."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(times * power for times in (1, 2, 5, 10) if times * power >= rough * (1 - 1e-9))


class _Frame:
    """Positions in the drawing."""

    def __init__(self, chart: Chart, low: float, high: float) -> None:
        self._chart = chart
        self._low, self._high = low, high
        self._pitch = (_WIDTH - _LEFT - _RIGHT) / max(len(chart.categories), 1)

    def grid(self, step: float) -> Iterator[str]:
        """Horizontal lines, their numbers, and the titles of both axes."""
        for index in range(round((self._high - self._low) / step) + 1):
            value = self._low + index * step
            y = self._y(value)
            yield f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
            yield f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>'
        middle = (_HEIGHT - _BOTTOM + _TOP) / 2
        y_title = escape(self._chart.y_title)
        yield f'<text transform="rotate(-90)" x="{-middle:.1f}" y="14" text-anchor="middle">{y_title}</text>'
        x_title = escape(self._chart.x_title)
        yield f'<text x="{(_WIDTH + _LEFT) / 2:.1f}" y="{_HEIGHT - _BOTTOM + 36}" text-anchor="middle">{x_title}</text>'

    def names(self) -> Iterator[str]:
        """The names along the x axis, as many as fit."""
        every = math.ceil(len(self._chart.categories) / _MOST_CATEGORIES)
        for index, name in enumerate(self._chart.categories):
            if index % every == 0:
                x, y = self._x(index), _HEIGHT - _BOTTOM + 18
                yield f'<text x="{x:.1f}" y="{y}" text-anchor="middle">{escape(name)}</text>'

    def lines(self) -> Iterator[str]:
        for number, series in enumerate(self._chart.series):
            points = " ".join(
                f"{self._x(index):.1f},{self._y(value):.1f}"
                for index, value in enumerate(series.values)
                if value is not None
            )
            yield f'<polyline points="{points}" fill="none" stroke="{_colour(number)}" stroke-width="1.8"/>'

    def bars(self) -> Iterator[str]:
        wide = self._pitch * 0.8 / max(len(self._chart.series), 1)
        for number, series in enumerate(self._chart.series):
            for index, value in enumerate(series.values):
                if value is None:
                    continue
                x = self._x(index) - self._pitch * 0.4 + number * wide
                y, zero = self._y(value), self._y(0)
                yield (
                    f'<rect x="{x:.1f}" y="{min(y, zero):.1f}" width="{wide * 0.94:.1f}" '
                    f'height="{abs(zero - y):.1f}" fill="{_colour(number)}"/>'
                )
                over = min(y, zero) - 3
                yield f'<text x="{x + wide * 0.47:.1f}" y="{over:.1f}" text-anchor="middle">{value:.3g}</text>'

    def legend(self) -> Iterator[str]:
        room = (_WIDTH - _LEFT) / _LEGEND_COLUMNS
        for number, series in enumerate(self._chart.series):
            line, column = divmod(number, _LEGEND_COLUMNS)
            x, y = _LEFT + column * room, _HEIGHT + _LEGEND_LINE * line + 10
            yield f'<rect x="{x:.1f}" y="{y - 10}" width="12" height="12" fill="{_colour(number)}"/>'
            yield f'<text x="{x + 18:.1f}" y="{y}">{escape(series.name)}</text>'

    def _x(self, index: int) -> float:
        return _LEFT + (index + 0.5) * self._pitch

    def _y(self, value: float) -> float:
        inside = min(max(value, self._low), self._high)
        return _HEIGHT - _BOTTOM - (inside - self._low) / (self._high - self._low) * (_HEIGHT - _BOTTOM - _TOP)


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]
