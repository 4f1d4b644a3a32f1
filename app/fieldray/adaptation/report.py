"""The report step: one HTML file with everything of a run, pictures included, that needs nothing else to be read."""

from __future__ import annotations

import html
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from fieldray.adaptation import measures
from fieldray.adaptation.answers import answer
from fieldray.adaptation.files import write_atomically
from fieldray.adaptation.plots import class_map_plots, score_plots, training_curves
from fieldray.adaptation.recipe import LabelRule
from fieldray.adaptation.run import Run, Step
from fieldray.adaptation.steps import converted, dataset_of, load_network
from fieldray.domain.model import Calibration

_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #1b1f24 }
table { border-collapse: collapse; margin: 1rem 0 } td, th { padding: .25rem .8rem .25rem 0; text-align: left }
th { border-bottom: 1px solid #c9ced6; font-weight: 600 } svg { max-width: 100%; height: auto }
h2 { margin-top: 2.5rem }
.note { color: #8a3b00 } pre { background: #f4f5f7; padding: 1rem; overflow-x: auto; font-size: 12px }
"""


def report_step(run: Run) -> Mapping[str, Any]:
    """Write report.html. Raises UsageProblem `step_missing`, StorageProblem."""
    results = run.read("evaluate", "metrics.json")
    chosen = run.read("evaluate", "points.json")
    names = [label.code for label in run.recipe.labels]
    parts = [
        f"<h1>{_text(run.recipe.pack.names['en'])} {_text(run.recipe.pack.version)}</h1>",
        '<p class="note">Research use only. Not for diagnostic use.</p>',
        "<h2>Steps</h2>" + _steps(run),
        "<h2>Training</h2>" + training_curves(run.read("train", "history.json"), labels=names),
        *[_label(run, label, results, chosen) for label in run.recipe.kept_labels],
        "<h2>Films</h2>" + _facts(results["data"]),
        "<h2>Refusal gate</h2>" + _facts(results["gate"]),
        _examples(run) if run.recipe.evaluation.example_films else "",
        "<h2>Recipe as it was read</h2><pre>" + _text((run.recipe.run / "recipe.json").read_text()) + "</pre>",
    ]
    title = _text(run.recipe.pack.id)
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
    path: Path = run.recipe.run / "report.html"
    write_atomically(path, (head + "\n".join(parts) + "</html>\n").encode())
    return {"report": str(path)}


def _steps(run: Run) -> str:
    rows = [[name, entry["state"], entry.get("seconds", "")] for name, entry in run.status.items()]
    return _table(["step", "state", "seconds"], rows)


def _label(run: Run, label: LabelRule, results: Mapping[str, Any], chosen: Mapping[str, Any]) -> str:
    found, column = results["labels"][label.code], run.recipe.kept_labels.index(label)
    with np.load(run.folder("evaluate") / "scores.npz", allow_pickle=False) as arrays:
        targets, raw = arrays["test_targets"][:, column], arrays["test"][:, column]
    known = ~np.isnan(targets)
    scores = measures.calibrated(raw[known], Calibration(**chosen["calibration"][label.code]))
    test = found["test"]
    points = [
        [name, *(_estimate(point[key]) for key in ("sensitivity", "specificity", "accuracy", "sensitivity_with_band"))]
        for name, point in test["points"].items()
    ]
    rows = [["AUC", _estimate(test["auc"])], ["AUC on validation", _estimate(found["validation"]["auc"])]]
    rows += [[f"AUC of the {name} alone", f"{area:.3f}"] for name, area in found["shortcuts"].items()]
    rows += [[f"specificity at sensitivity {at}", _estimate(e)] for at, e in test["specificity_at_sensitivity"].items()]
    rows += [[name.replace("_", " "), f"{value:.4f}"] for name, value in found["float_against_int8"].items()]
    groups = [
        [group, name, facts["films"], _estimate(facts["auc"])]
        for group, members in found["by_group"].items()
        for name, facts in members.items()
    ]
    return (
        f"<h2>{_text(label.meaning['en'])}: test films</h2>"
        + score_plots(scores, targets[known] >= 0.5, points=test["points"])
        + _table(["operating point", "sensitivity", "specificity", "accuracy", "sensitivity with band"], points)
        + _table(["figure", "value (95 %)"], rows)
        + (_table(["group", "", "films", "AUC"], groups) if groups else "")
    )


def _examples(run: Run) -> str:
    """Test films spread over the scores of the first label, with their class maps."""
    data, label = dataset_of(run), run.recipe.kept_labels[0]
    samples, count = data.samples("test"), run.recipe.evaluation.example_films
    with np.load(run.folder("evaluate") / "scores.npz", allow_pickle=False) as arrays:
        order = np.argsort(arrays["test"][:, 0])
    chosen = order[np.linspace(0, len(order) - 1, min(count, len(order))).round().astype(int)]
    file, (specification, _) = converted(run, "int8"), load_network(run)
    found = answer(
        file.data,
        samples.images[chosen],
        spec=run.recipe.input,
        outputs=file.roles(specification),
        labels=len(run.recipe.kept_labels),
    )
    truths = samples.targets[chosen, run.recipe.labels.index(label)]
    titles = [f"{score:.2f} (truth {truth:g})" for score, truth in zip(found.scores[:, 0], truths, strict=True)]
    films = samples.images[chosen, :, :, 0]
    return f"<h2>Class maps of {_text(label.code)}</h2>" + class_map_plots(films, found.class_maps[:, 0], titles=titles)


def _facts(facts: Mapping[str, Any]) -> str:
    return _table(["", ""], [[key.replace("_", " "), value] for key, value in facts.items()])


def _table(head: list[str], rows: list[list[Any]]) -> str:
    cells = "".join(f"<th>{_text(name)}</th>" for name in head)
    lines = "".join("<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{cells}</tr>{lines}</table>"


def _estimate(found: Mapping[str, float]) -> str:
    return f"{found['value']:.3f} ({found['low']:.3f} to {found['high']:.3f})"


def _text(value: object) -> str:
    return html.escape(f"{value:.4g}" if isinstance(value, float) else str(value))


REPORT: Final = Step(name="report", perform=report_step, reads=())
