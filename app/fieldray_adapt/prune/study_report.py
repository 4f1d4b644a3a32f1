"""The report page of a pruning study: a table for each run, and plots of accuracy against iteration and speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Final

import numpy as np

from fieldray_adapt.files import write_published
from fieldray_adapt.prune.iterations import IterationSettings
from fieldray_adapt.prune.study_results import (
    ORIGINAL_NETWORK_NAME,
    MeasuredIteration,
    NetworkFigures,
    PruningRun,
    StudyResults,
)
from fieldray_adapt.reports.page import (
    Figure,
    Paragraph,
    PruningCurve,
    Report,
    ReportPart,
    Section,
    Table,
    pruning_plots_svg,
    render_page,
)
from fieldray_adapt.training.profile import profile_report_parts

_HEAD: Final = (
    *("network", "parameters", "removed", "times fewer", "accuracy before retraining", "after", "test", "test, int8"),
    "test, from random weights",
    *("times faster: int8", "float32, batches of 100"),
)
_CURVES: Final = """Left: test accuracy by iteration (dotted: validation accuracy before retraining). Middle: how many
times faster the int8 file is than that of the original. Right: accuracy by speed. Crosses show one-shot pruning."""
_NOTE: Final = """Accuracy before and after retraining is measured on the validation part. The column "test" shows the
float network on the test part, and "test, int8" the int8 file. The column "from random weights" shows a network of the
same shape, trained from random weights: median, minimum and maximum of its seeds. The last two columns show how many
times faster than the original a network runs on one thread: the int8 file image by image, and the float32 network in
batches of 100 in the training engine. All networks were timed alternately in one run."""


def write_report(path: Path, results: StudyResults) -> None:
    """Write the report page of a pruning study as an HTML file. Raises StorageProblem."""
    runs = {name: found for name, found in results.runs.items() if found.measured_iterations}
    curves = [_curve(name, found.measured_iterations, results.original) for name, found in runs.items()]
    others = {name: (row.speed_up["int8"], row.test_accuracy) for name, row in results.baselines.items()}
    profiled = profile_report_parts(results.profile) if results.profile else []
    sections = [
        Section(
            title="Original", parts=[_table({ORIGINAL_NETWORK_NAME: results.original}), _milliseconds(results.original)]
        ),
        Section(title="Accuracy and speed", parts=_plots(curves, others)),
        *[Section(title=f"Run {name}", parts=_run(found)) for name, found in runs.items()],
        Section(title="One-shot pruning", parts=[_table(results.baselines)] if results.baselines else []),
        Section(title="Time per iteration of the original", parts=profiled),
    ]
    write_published(path, render_page(Report(title=f"Pruning study {results.study}", intro=_NOTE, sections=sections)))


def _plots(curves: Sequence[PruningCurve], others: Mapping[str, tuple[float, float]]) -> list[ReportPart]:
    if not curves:
        return []
    return [Figure(svg=pruning_plots_svg(curves, quality_name="test accuracy", baselines=others), caption=_CURVES)]


def _run(results: PruningRun) -> list[ReportPart]:
    names = [field.name for field in fields(IterationSettings)]
    settings = [
        [str(row.iteration), *(f"{getattr(row.settings, name):.4g}" for name in names)]
        for row in results.measured_iterations
    ]
    head = ("iteration", *(name.replace("_", " ") for name in names))
    return [
        Paragraph(f"Stopped by: {results.stopped_by.replace('_', ' ')}."),
        _table({str(row.iteration): row for row in results.measured_iterations}),
        Table(column_names=head, rows=settings, caption="The settings of each iteration."),
        *_by_epochs(results),
    ]


def _by_epochs(results: PruningRun) -> list[ReportPart]:
    """Return a table of the accuracies of trainings from random weights, by number of epochs.

    Empty if all trainings had the same number of epochs.
    """
    found = {row.iteration: row.test_accuracy_from_random_weights_by_epochs for row in results.measured_iterations}
    epochs = list(dict.fromkeys(name for own in found.values() for name in own))
    rows = [[str(iteration), *(_spread(own.get(name, ())) for name in epochs)] for iteration, own in found.items()]
    head = ("iteration", *(f"{name} epochs" for name in epochs))
    return [Table(column_names=head, rows=rows, caption="Test accuracy from random weights.")] if epochs else []


def _table(rows: Mapping[str, NetworkFigures] | Mapping[str, MeasuredIteration]) -> Table:
    return Table(column_names=_HEAD, rows=[_cells(name, row) for name, row in rows.items()])


def _cells(name: str, row: NetworkFigures | MeasuredIteration) -> list[str]:
    validation, seeds = ["-", "-"], None
    if isinstance(row, MeasuredIteration):
        validation = [f"{row.validation_accuracy_before_retraining:.4f}", f"{row.validation_accuracy:.4f}"]
        seeds = row.test_accuracy_from_random_weights
    return [
        name,
        f"{row.parameters:,}",
        f"{row.removed_share:.2%}",
        f"{row.times_fewer_parameters:.1f}",
        *validation,
        f"{row.test_accuracy:.4f}",
        f"{row.test_accuracy_int8:.4f}",
        _spread(seeds or ()),
        *(f"{row.speed_up[kind]:.1f}" for kind in ("int8", "engine_batch") if kind in row.speed_up),
    ]


def _spread(values: Sequence[float]) -> str:
    """Format the median, minimum and maximum of values that were measured with several seeds."""
    return f"{np.median(values):.4f} ({min(values):.4f} to {max(values):.4f})" if values else "-"


def _milliseconds(row: NetworkFigures) -> Table:
    kinds = [[kind.replace("_", " "), f"{taken:.3f}"] for kind, taken in row.milliseconds_per_image.items()]
    return Table(column_names=("the original as", "ms per image"), rows=kinds)


def _curve(name: str, rows: Sequence[MeasuredIteration], original: NetworkFigures) -> PruningCurve:
    return PruningCurve(
        name=name,
        qualities=[original.test_accuracy, *(row.test_accuracy for row in rows)],
        qualities_before_retraining=[None, *(row.validation_accuracy_before_retraining for row in rows)],
        speed_ups=[original.speed_up["int8"], *(row.speed_up["int8"] for row in rows)],
    )
