"""The report of a pruning study: a table for each run, and accuracy against iteration and speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from fieldray.adaptation.files import publish
from fieldray.adaptation.page import Figure, Part, Report, Section, Table, Text, page
from fieldray.adaptation.plots import Curve, pruning_plots
from fieldray.adaptation.profile_step import profile_parts

_HEAD: Final = (
    *("network", "parameters", "removed", "times fewer", "accuracy before retraining", "after", "test", "test, int8"),
    *("times faster: int8", "float32", "float32, batches of 100"),
)
_CURVES: Final = """Accuracy on the test part against the iteration (dotted: on the validation part before retraining),
how many times faster the int8 file is than the original's, and one against the other. Crosses are one-shot pruning."""
_NOTE: Final = """Accuracy before and after retraining is of the validation part; "test" is the float network on the
test part, which chose nothing, and "test, int8" the int8 file. The last three columns are times faster than the
original of the same kind on one thread: the int8 file and the float file image by image, and float32 in the engine that
trains in batches of 100. All networks were timed alternating in one run."""


def write_report(path: Path, results: Mapping[str, Any]) -> None:
    """Write the page of a study's results (as `Study.report` returns them). Raises StorageProblem."""
    runs = {name: found for name, found in results["runs"].items() if len(found["iterations"]) > 1}
    original = results["original"]
    curves = [_curve(name, found["iterations"], original) for name, found in runs.items()]
    others = {name: (row["speed_up"]["int8"], row["test_accuracy"]) for name, row in results["baselines"].items()}
    sections = [
        Section(title="Original", parts=[_table([_cells("original", original)]), _milliseconds(original)]),
        Section(title="Accuracy and speed", parts=_plots(curves, others)),
        *[Section(title=f"Run {name}", parts=_run(found)) for name, found in runs.items()],
        Section(title="One-shot pruning", parts=_baselines(results["baselines"])),
        Section(
            title="Time per iteration of the original",
            parts=profile_parts(results["profile"]) if "profile" in results else [],
        ),
    ]
    publish(path, page(Report(title=f"Pruning study {results['study']}", lead=_NOTE, sections=sections)))


def _plots(curves: Sequence[Curve], others: Mapping[str, tuple[float, float]]) -> list[Part]:
    if not curves:
        return []
    return [Figure(svg=pruning_plots(curves, quality="test accuracy", points=others), caption=_CURVES)]


def _run(found: Mapping[str, Any]) -> list[Part]:
    rows = found["iterations"][1:]
    settings = [[str(row["iteration"]), *(f"{value:.4g}" for value in row["settings"].values())] for row in rows]
    names = [key.replace("_", " ") for key in rows[0]["settings"]]
    return [
        Text(f"Stopped by: {found['stopped_by'].replace('_', ' ')}."),
        _table([_cells(f"{row['iteration']}", row) for row in rows]),
        Table(head=("iteration", *names), rows=settings, caption="The settings of each iteration."),
    ]


def _baselines(rows: Mapping[str, Any]) -> list[Part]:
    return [_table([_cells(name, row) for name, row in rows.items()])] if rows else []


def _table(rows: Sequence[Sequence[str]]) -> Table:
    return Table(head=_HEAD[: len(rows[0])], rows=rows)


def _cells(name: str, row: Mapping[str, Any]) -> list[str]:
    before, after = row.get("validation_accuracy_before_retraining"), row.get("validation_accuracy")
    accuracies = (before, after, row["test_accuracy"], row["test_accuracy_int8"])
    return [
        name,
        f"{row['parameters']:,}",
        f"{row['removed_share']:.2%}",
        f"{row['times_fewer_parameters']:.1f}",
        *("-" if value is None else f"{value:.4f}" for value in accuracies),
        *(f"{row['speed_up'][kind]:.1f}" for kind in ("int8", "float32", "engine_batch") if kind in row["speed_up"]),
    ]


def _milliseconds(row: Mapping[str, Any]) -> Table:
    kinds = [[kind.replace("_", " "), f"{taken:.3f}"] for kind, taken in row["milliseconds_per_image"].items()]
    return Table(head=("the original as", "ms per image"), rows=kinds)


def _curve(name: str, rows: list[Mapping[str, Any]], original: Mapping[str, Any]) -> Curve:
    networks = [rows[0] if "test_accuracy" in rows[0] else original, *rows[1:]]
    return Curve(
        name=name,
        quality=[row["test_accuracy"] for row in networks],
        before=[None, *(row["validation_accuracy_before_retraining"] for row in rows[1:])],
        speed_up=[row["speed_up"]["int8"] for row in networks],
    )
