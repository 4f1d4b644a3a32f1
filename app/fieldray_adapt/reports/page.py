"""Make reports: HTML pages with tables, text and plots that need no other file and no network.

The functions of this module make the content of a page. The layout on screen and paper is in templates/report.html.
Plots are SVG text without external links.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from numpy.typing import NDArray

from fieldray.domain.metrics import Scores, Truth
from fieldray.paths import VERSION
from fieldray.reports.outputs import HTML_GENERATOR_TAG
from fieldray_adapt.evaluation.figures import PointFigures
from fieldray_adapt.files import write_atomically
from fieldray_adapt.run import Run
from fieldray_adapt.training.loop import EpochFigures

_NUMBER: Final = re.compile(r"[-+]?[\d,]+(\.\d+)?( ?%| ms| s| MiB)?")
_NOTHING: Final = ("", "-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of a report page. The first cell of each row is the name of the row. Columns of numbers align right."""

    rows: Sequence[Sequence[str]]
    column_names: Sequence[str] = ()
    caption: str = ""
    kind: str = "table"

    @property
    def numeric_column_indices(self) -> frozenset[int]:
        """The indices of the columns whose cells are all numbers."""
        columns = list(zip(*self.rows, strict=True))[1:]
        return frozenset(index for index, cells in enumerate(columns, start=1) if _are_numbers(cells))


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A plot of a report page: SVG text and a caption."""

    svg: str
    caption: str
    kind: str = "figure"

    def __post_init__(self) -> None:
        object.__setattr__(self, "svg", Markup(self.svg))


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A paragraph of a report page."""

    text: str
    kind: str = "text"


@dataclass(frozen=True, slots=True)
class CodeBlock:
    """A preformatted text on a report page, for example a recipe."""

    text: str
    kind: str = "code"


ReportPart = Table | Figure | Paragraph | CodeBlock
"""The kinds of content that a section of a report page can have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A section of a report page: a heading, and the tables, plots and texts below the heading."""

    title: str
    parts: Sequence[ReportPart]

    @property
    def anchor(self) -> str:
        """The anchor of the section in the HTML page, for links to the section."""
        return re.sub(r"\W+", "-", self.title.lower()).strip("-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A report page with title and sections. `intro` is an introduction of a few sentences."""

    title: str
    sections: Sequence[Section]
    intro: str = ""


def render_page(report: Report) -> bytes:
    """Return a report page as HTML in UTF-8. Sections without content are left out."""
    environment = Environment(
        loader=PackageLoader("fieldray_adapt"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    kept = Report(title=report.title, intro=report.intro, sections=[own for own in report.sections if own.parts])
    context = {
        "report": kept,
        "generator": Markup(HTML_GENERATOR_TAG),
        "version": VERSION,
        "number": lambda is_number: Markup(' class="number"') if is_number else "",
    }
    return environment.get_template("report.html").render(context).encode()


def write_run_page(run: Run, title: str, sections: Sequence[Section], *, intro: str = "") -> dict[str, str]:
    """Write the page report.html to the folder of a run. Returns {"report": path of the page}. Raises StorageProblem.

    `intro` is an introduction of a few sentences.
    """
    path = run.recipe.run / "report.html"
    write_atomically(path, render_page(Report(title=title, intro=intro, sections=sections)))
    return {"report": str(path)}


def facts_table(rows: Mapping[str, object], *, caption: str = "") -> Table:
    """Return a report table with a row for each name and value of `rows`."""
    return Table(rows=[[name, value_text(value)] for name, value in rows.items()], caption=caption)


def settings_report_parts(document: Mapping[str, Any]) -> list[ReportPart]:
    """Return the values of a nested document, for example the settings of a training, as report tables.

    The values of each inner mapping become a table.
    """
    own = {name: value for name, value in document.items() if not _is_group(value)}
    parts: list[ReportPart] = [facts_table({_spoken(name): value for name, value in own.items()})] if own else []
    for name, value in document.items():
        if isinstance(value, Mapping) and value:
            parts.append(facts_table({_spoken(key): item for key, item in value.items()}, caption=_spoken(name)))
        elif _is_group(value):
            head = list(dict.fromkeys(key for item in value for key in item))
            rows = [[value_text(item.get(key)) for key in head] for item in value]
            parts.append(Table(rows=rows, column_names=[_spoken(key) for key in head], caption=_spoken(name)))
    return parts


def value_text(value: object) -> str:
    """Format a value for a report: "-" for None or empty values, "yes" or "no" for truth values.

    Fractions have four significant digits.
    """
    if value is None or value in ((), [], {}, ""):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{_spoken(str(key))} {value_text(item)}" for key, item in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(value_text(item) for item in value)
    return str(value)


def duration_text(seconds: float) -> str:
    """Format a duration in seconds for a person, for example `1 h 02 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, left = divmod(round(seconds), 60)
    return f"{minutes} min {left:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def _spoken(name: str) -> str:
    return name.replace("_", " ")


def _is_group(value: object) -> bool:
    is_rows = isinstance(value, list | tuple) and bool(value) and all(isinstance(item, Mapping) for item in value)
    return is_rows or (isinstance(value, Mapping) and bool(value))


def _are_numbers(cells: Sequence[str]) -> bool:
    known = [cell for cell in cells if cell not in _NOTHING]
    return bool(known) and all(_NUMBER.fullmatch(cell) for cell in known)


with contextlib.chdir(Path(__file__).parent):  # matplotlib would read settings from the user's current folder
    from matplotlib import rc_context
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure as PlotFigure
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, ScalarFormatter

_BLUE: Final = "#0a6ebd"
_RED: Final = "#c2410c"
_GREY: Final = "#8a8f98"
# The name of a label may contain dollar signs, which matplotlib would read as a formula.
_STYLE: Final = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "none",
    "text.parse_math": False,
}
_BINS: Final = 10
_METADATA: Final = re.compile(r"<metadata>.*?</metadata>", re.DOTALL)


def training_curves_svg(history: Sequence[EpochFigures], *, labels: Sequence[str]) -> str:
    """Plot the loss, and the AUC of each label on the validation images, by epoch. Returns SVG text."""
    with rc_context(_STYLE):
        figure, (left, right) = _figure_of(2)
        epochs = [row.epoch for row in history]
        left.plot(epochs, [row.loss for row in history], color=_BLUE)
        left.set(xlabel="epoch", ylabel="training loss")
        for axes in (left, right):
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        for column, label in enumerate(labels):
            areas = [row.auc[column] if row.auc else None for row in history]
            right.plot(epochs, [np.nan if area is None else area for area in areas], label=label)
        right.set(xlabel="epoch", ylabel="validation AUC", ylim=(min(0.5, *right.get_ylim()), 1.01))
        right.legend(frameon=False, fontsize=7)
        return _svg(figure)


def trial_curves_svg(trials: Mapping[str, Sequence[tuple[int, float]]], *, metric: str, best_trial: str) -> str:
    """Plot a measured figure, such as the AUC, of each trial by epoch, with the best trial highlighted.

    Returns SVG text.

    Parameters
    ----------
    trials
        Pairs of epoch and value, by name of the trial.
    metric
        The name of the measured figure.
    best_trial
        The name of the best trial.
    """
    with rc_context(_STYLE):
        whole, (axes,) = _figure_of(1)
        for name, rows in trials.items():
            is_best = name == best_trial
            axes.plot(
                [epoch for epoch, _ in rows], [value for _, value in rows], "o-", markersize=2,
                color=_BLUE if is_best else _GREY, linewidth=2 if is_best else 0.7, zorder=2 if is_best else 1,
                label=name if is_best else None,
            )  # fmt: skip
        axes.set(xlabel="epoch", ylabel=f"validation {metric}")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if best_trial in trials:
            axes.legend(frameon=False)
        return _svg(whole)


def score_plots_svg(scores: Scores, truth: Truth, *, operating_points: Mapping[str, PointFigures]) -> str:
    """Plot the ROC curve, the calibration, and the distribution of the scores of both classes. Returns SVG text.

    `scores` (n,) are calibrated scores in 0..1, `truth` (n,) is True for positive images. `operating_points` are the
    figures of the operating points by name, which are marked in the plots.
    """
    with rc_context(_STYLE):
        figure, (roc, calibration, spread) = _figure_of(3)
        _draw_roc(roc, scores, truth, operating_points)
        _draw_calibration(calibration, scores, truth)
        bins = list(np.linspace(0, 1, 41))
        spread.hist(scores[~truth], bins=bins, color=_BLUE, alpha=0.6, label="without")
        spread.hist(scores[truth], bins=bins, color=_RED, alpha=0.6, label="with")
        for point in operating_points.values():
            spread.axvline(point.threshold, color=_GREY, linewidth=1)
        spread.set(xlabel="score", ylabel="images (logarithmic)", yscale="log", xlim=(0, 1), ylim=(0.8, None))
        _label_plainly(spread.yaxis)
        spread.legend(frameon=False)
        return _svg(figure)


def class_map_plots_svg(images: NDArray[np.uint8], maps: NDArray[np.float32], *, titles: Sequence[str]) -> str:
    """Plot images (n, rows, columns) with their class maps (n, map rows, map columns) on top. Returns SVG text.

    `titles` are the titles of the n images.
    """
    with rc_context(_STYLE):
        figure = PlotFigure(figsize=(9, 2.4 * -(-len(images) // 4)), layout="constrained")
        cells = []
        rows, columns = images.shape[1:]
        limit = float(np.abs(maps).max()) or 1.0
        for number, (image, evidence, title) in enumerate(zip(images, maps, titles, strict=True), start=1):
            axes = figure.add_subplot(-(-len(images) // 4), 4, number)
            axes.imshow(image, cmap="gray", extent=(0, columns, rows, 0))
            shown = axes.imshow(
                evidence, cmap="coolwarm", alpha=0.35, vmin=-limit, vmax=limit, extent=(0, columns, rows, 0),
                interpolation="bilinear",
            )  # fmt: skip
            axes.set_title(title, fontsize=8)
            axes.set_axis_off()
            cells.append(axes)
        figure.colorbar(shown, ax=cells, shrink=0.6, label="evidence against / for (logit)")
        return _svg(figure)


@dataclass(frozen=True, slots=True, kw_only=True)
class PruningCurve:
    """The course of a pruning run, with one value for each iteration. The first value is for the original network.

    Attributes
    ----------
    qualities
        Quality after retraining, 0..1.
    qualities_before_retraining
        Quality before retraining, 0..1; None for the original network.
    speed_ups
        Time of the original network divided by the time of the iteration's network.
    """

    name: str
    qualities: Sequence[float]
    qualities_before_retraining: Sequence[float | None]
    speed_ups: Sequence[float]


def pruning_plots_svg(
    curves: Sequence[PruningCurve], *, quality_name: str, baselines: Mapping[str, tuple[float, float]]
) -> str:
    """Plot quality and speed-up of pruning runs by iteration, and quality by speed-up. Returns SVG text.

    Parameters
    ----------
    quality_name
        The name of the measure of quality, such as "accuracy".
    baselines
        Speed-up and quality of further networks (baselines), by name.
    """
    with rc_context(_STYLE):
        figure, (left, middle, right) = _figure_of(3)
        for curve in curves:
            steps = range(len(curve.qualities))
            line = left.plot(steps, curve.qualities, "o-", markersize=3, label=curve.name)[0]
            known = [(step, value) for step, value in enumerate(curve.qualities_before_retraining) if value is not None]
            left.plot(*zip(*known, strict=True), ":", color=line.get_color(), linewidth=0.8) if known else None
            middle.plot(steps, curve.speed_ups, "o-", markersize=3, color=line.get_color())
            right.plot(curve.speed_ups, curve.qualities, "o-", markersize=3, color=line.get_color())
        for name, (speed_up, value) in baselines.items():
            right.plot(speed_up, value, "x", label=name)
        worst = min(value for curve in curves for value in curve.qualities)
        left.set(xlabel="iteration (dotted: before retraining)", ylabel=quality_name)
        middle.set(xlabel="iteration", ylabel="times faster", yscale="log")
        right.set(xlabel="times faster", ylabel=quality_name, xscale="log", ylim=(max(worst - 0.005, 0), 1.0))
        left.xaxis.set_major_locator(MaxNLocator(integer=True))
        middle.xaxis.set_major_locator(MaxNLocator(integer=True))
        _label_plainly(middle.yaxis)
        _label_plainly(right.xaxis)
        left.legend(frameon=False, fontsize=7)
        if baselines:
            right.legend(frameon=False, fontsize=7)
        return _svg(figure)


def _draw_roc(axes: Axes, scores: Scores, truth: Truth, points: Mapping[str, PointFigures]) -> None:
    order = np.argsort(-scores, kind="stable")
    caught = np.concatenate([[0], np.cumsum(truth[order]) / truth.sum()])
    alarms = np.concatenate([[0], np.cumsum(~truth[order]) / (~truth).sum()])
    axes.plot(alarms, caught, color=_BLUE)
    axes.plot([0, 1], [0, 1], color=_GREY, linewidth=0.8, linestyle=":")
    for name, point in points.items():
        axes.plot(1 - point.specificity.value, point.sensitivity.value, "o", label=name)
    axes.set(xlabel="1 - specificity", ylabel="sensitivity", aspect="equal")
    if points:
        axes.legend(frameon=False, loc="lower right")


def _draw_calibration(axes: Axes, scores: Scores, truth: Truth) -> None:
    parts = [part for part in np.array_split(np.argsort(scores, kind="stable"), _BINS) if len(part)]
    axes.plot([0, 1], [0, 1], color=_GREY, linewidth=0.8, linestyle=":")
    axes.plot([scores[part].mean() for part in parts], [truth[part].mean() for part in parts], "o-", color=_BLUE)
    axes.set(
        xlabel="mean score", ylabel="share with the finding", aspect="equal", xlim=(-0.03, 1.03), ylim=(-0.03, 1.03)
    )


def _label_plainly(axis: Axis) -> None:
    """Label a logarithmic axis with the numbers 1, 2, 5, 10 and so on, and not with powers of 10."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(ScalarFormatter())
    axis.set_minor_formatter(NullFormatter())


def _figure_of(count: int) -> tuple[PlotFigure, list[Axes]]:
    """Return a Matplotlib figure with `count` empty plots side by side, and the plots."""
    figure = PlotFigure(figsize=(3.2 * count, 3), layout="constrained")
    return figure, [figure.add_subplot(1, count, number + 1) for number in range(count)]


def _svg(figure: PlotFigure) -> str:
    """Return a Matplotlib figure as SVG text without date and metadata, so that equal figures give equal text."""
    stream = io.StringIO()
    figure.savefig(stream, format="svg", metadata={"Date": None})
    text = stream.getvalue()
    return _METADATA.sub("", text[text.index("<svg") :])
