"""A chart as PNG, where matplotlib is installed."""

from __future__ import annotations

import importlib.util
import io

from fieldray.bench.chart import COLOURS
from fieldray.bench.report import Chart


def can_draw() -> bool:
    """Whether matplotlib is there."""
    return importlib.util.find_spec("matplotlib") is not None


def png(chart: Chart) -> bytes:
    """The bytes of the picture."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    axes.set(title=chart.title, xlabel=chart.x_title, ylabel=chart.y_title)
    wide = 0.8 / max(len(chart.series), 1)
    for number, series in enumerate(chart.series):
        colour = COLOURS[number % len(COLOURS)]
        points = [(index, value) for index, value in enumerate(series.values) if value is not None]
        across, values = [index for index, _ in points], [value for _, value in points]
        if chart.kind == "bars":
            axes.bar([index - 0.4 + (number + 0.5) * wide for index in across], values, wide, color=colour)
        else:
            axes.plot(across, values, color=colour)
    every = -(-len(chart.places) // 20)
    shown = range(0, len(chart.places), max(every, 1))
    axes.set_xticks(list(shown), [chart.places[index] for index in shown])
    if chart.top is not None:
        axes.set_ylim(top=chart.top)
    axes.legend([series.name for series in chart.series])
    axes.grid(axis="y", alpha=0.4)
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=120, metadata={"Software": "fieldray"})
    return stream.getvalue()
