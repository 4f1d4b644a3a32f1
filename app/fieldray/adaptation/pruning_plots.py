"""Pictures of pruning: accuracy and speed against the iteration, and against each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib import rc_context

from fieldray.adaptation.plots import STYLE, figure_of, svg


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One run: for each iteration, from the original on, the quality after retraining and how many times faster.

    before    the quality before retraining, None for the original
    """

    name: str
    quality: Sequence[float]
    before: Sequence[float | None]
    speed_up: Sequence[float]


def pruning_plots(curves: Sequence[Curve], *, quality: str, points: Mapping[str, tuple[float, float]]) -> str:
    """Quality and speed-up against the iteration, and quality against speed-up; `quality` names it.

    points    other networks (speed-up, quality) by name
    """
    with rc_context(STYLE):
        figure, (left, middle, right) = figure_of(3)
        for curve in curves:
            steps = range(len(curve.quality))
            line = left.plot(steps, curve.quality, "o-", markersize=3, label=curve.name)[0]
            known = [(step, value) for step, value in enumerate(curve.before) if value is not None]
            left.plot(*zip(*known, strict=True), ":", color=line.get_color(), linewidth=0.8) if known else None
            middle.plot(steps, curve.speed_up, "o-", markersize=3, color=line.get_color())
            right.plot(curve.speed_up, curve.quality, "o-", markersize=3, color=line.get_color())
        for name, (speed_up, value) in points.items():
            right.plot(speed_up, value, "x", label=name)
        worst = min(value for curve in curves for value in curve.quality)
        left.set(xlabel="iteration (dotted: before retraining)", ylabel=quality)
        middle.set(xlabel="iteration", ylabel="times faster", yscale="log")
        right.set(xlabel="times faster", ylabel=quality, xscale="log", ylim=(max(worst - 0.005, 0), 1.0))
        left.legend(frameon=False, fontsize=7)
        if points:
            right.legend(frameon=False, fontsize=7)
        return svg(figure)
