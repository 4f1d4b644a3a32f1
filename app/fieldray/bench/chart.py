"""A chart as SVG text, without any library: lines or grouped bars, for a page that must need nothing from outside."""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape
from typing import Final

from fieldray.bench.report import Chart

# Okabe and Ito, Color Universal Design (2008): told apart by colour-blind eyes
COLOURS: Final = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000")
_WIDTH: Final = 760
_HEIGHT: Final = 360  # without the legend below
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 16, 56
_LEGEND_COLUMNS: Final = 2
_LEGEND_LINE: Final = 20
_MOST_PLACES: Final = 20  # so many names fit under the axis


def svg(chart: Chart) -> str:
    """The chart as one `<svg>` element; its title is what a screen reader says."""
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
    """(lowest, highest, step) of the y axis: 0 is always on it, and steps are 1, 2 or 5 of a power of ten."""
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
    """Where things are on the drawing."""

    def __init__(self, chart: Chart, low: float, high: float) -> None:
        self._chart = chart
        self._low, self._high = low, high
        self._pitch = (_WIDTH - _LEFT - _RIGHT) / max(len(chart.places), 1)

    def grid(self, step: float) -> Iterator[str]:
        """Lines across, their numbers, and the names of both axes."""
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
        """The places' names, as many as fit."""
        every = math.ceil(len(self._chart.places) / _MOST_PLACES)
        for index, name in enumerate(self._chart.places):
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
