"""The report of a pruning study: a table for each run, and accuracy against iteration and speed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from fieldray.adaptation.files import publish
from fieldray.adaptation.page import page, table, text
from fieldray.adaptation.profile_step import profile_section
from fieldray.adaptation.pruning_plots import Curve, pruning_plots

_HEAD: Final = (
    *("i", "parameters", "removed", "times fewer", "before retraining", "after", "test", "test, int8"),
    *("int8", "float32", "batches of 100"),
)
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
    parts = [
        f"<h1>Pruning study {text(results['study'])}</h1>",
        f"<p>{_NOTE}</p>",
        "<h2>Original</h2>" + table(_HEAD, [_cells(0, original)]) + _milliseconds(original),
        "<h2>Accuracy and speed (test part, int8 file)</h2>"
        + (pruning_plots(curves, quality="test accuracy", points=others) if curves else ""),
        *[_run(name, found) for name, found in runs.items()],
        "<h2>One-shot pruning</h2>"
        + table(("", *_HEAD[1:]), [_cells(name, row) for name, row in results["baselines"].items()]),
        "<h2>Time per iteration of the original</h2>" + profile_section(results["profile"])
        if "profile" in results
        else "",
    ]
    publish(path, page(f"Pruning study {results['study']}", parts))


def _run(name: str, found: Mapping[str, Any]) -> str:
    rows = found["iterations"][1:]
    settings = [[row["iteration"], *(f"{value:.4g}" for value in row["settings"].values())] for row in rows]
    names = [key.replace("_", " ") for key in rows[0]["settings"]]
    return (
        f"<h2>{text(name)}</h2><p>Stopped by: {text(found['stopped_by'])}.</p>"
        + table(_HEAD, [_cells(row["iteration"], row) for row in rows])
        + table(["i", *names], settings)
    )


def _cells(name: object, row: Mapping[str, Any]) -> list[object]:
    before, after = row.get("validation_accuracy_before_retraining"), row.get("validation_accuracy")
    accuracies = (before, after, row["test_accuracy"], row["test_accuracy_int8"])
    return [
        name,
        f"{row['parameters']:,}",
        f"{row['removed_share']:.2%}",
        f"{row['times_fewer_parameters']:.1f}",
        *("" if value is None else f"{value:.4f}" for value in accuracies),
        *(f"{row['speed_up'][kind]:.1f}" for kind in ("int8", "float32", "engine_batch") if kind in row["speed_up"]),
    ]


def _milliseconds(row: Mapping[str, Any]) -> str:
    kinds = [[kind.replace("_", " "), f"{taken:.3f}"] for kind, taken in row["milliseconds_per_image"].items()]
    return table(("the original's milliseconds an image", ""), kinds)


def _curve(name: str, rows: list[Mapping[str, Any]], original: Mapping[str, Any]) -> Curve:
    networks = [rows[0] if "test_accuracy" in rows[0] else original, *rows[1:]]
    return Curve(
        name=name,
        quality=[row["test_accuracy"] for row in networks],
        before=[None, *(row["validation_accuracy_before_retraining"] for row in rows[1:])],
        speed_up=[row["speed_up"]["int8"] for row in networks],
    )
