"""The report step: one HTML file with everything of a run, pictures included, that needs nothing else to be read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from fieldray.adaptation import metrics
from fieldray.adaptation.answers import answer
from fieldray.adaptation.dataset import dataset_of
from fieldray.adaptation.file_digests import content_digest
from fieldray.adaptation.files import write_atomically
from fieldray.adaptation.intervals import told
from fieldray.adaptation.page import page, table, text
from fieldray.adaptation.plots import class_map_plots, score_plots, training_curves
from fieldray.adaptation.profile_step import PROFILE_NAME, profile_section
from fieldray.adaptation.pruning_plots import Curve, pruning_plots
from fieldray.adaptation.quantise_step import converted
from fieldray.adaptation.recipe_data import LabelRule
from fieldray.adaptation.run import Run, Step
from fieldray.adaptation.steps import load_network
from fieldray.domain.model import Calibration


def report_step(run: Run) -> Mapping[str, Any]:
    """Write report.html. Raises UsageProblem `step_missing`, StorageProblem."""
    results = run.read("evaluate", "metrics.json")
    chosen = run.read("evaluate", "points.json")
    names = [label.code for label in run.recipe.labels]
    parts = [
        f"<h1>{text(run.recipe.pack.names['en'])} {text(run.recipe.pack.version)}</h1>",
        '<p class="note">Research use only. Not for diagnostic use.</p>',
        "<h2>Steps</h2>" + _steps(run),
        "<h2>Training</h2>" + training_curves(run.read("train", "history.json"), labels=names),
        _profile(run),
        _pruning(run),
        *[_label(run, label, results, chosen) for label in run.recipe.kept_labels],
        "<h2>Images</h2>" + _facts(results["data"]),
        "<h2>Refusal gate</h2>" + _facts(results["gate"]),
        _examples(run) if run.recipe.evaluation.example_images else "",
        "<h2>Recipe as it was read</h2><pre>" + text((run.recipe.run / "recipe.json").read_text()) + "</pre>",
    ]
    path: Path = run.recipe.run / "report.html"
    write_atomically(path, page(run.recipe.pack.id, parts))
    return {"report": str(path)}


def _steps(run: Run) -> str:
    rows = [[name, entry["state"], entry.get("seconds", "")] for name, entry in run.status.items()]
    return table(["step", "state", "seconds"], rows)


def _profile(run: Run) -> str:
    """What `adapt profile` measured, if it was asked."""
    known = (run.folder("profile") / PROFILE_NAME).is_file()
    return "<h2>Time per iteration</h2>" + profile_section(run.read("profile", PROFILE_NAME)) if known else ""


def _pruning(run: Run) -> str:
    """The iterations of the prune step, if the recipe has one."""
    if run.recipe.prune is None:
        return ""
    rows = run.read("prune", "table.json")
    curve = Curve(
        name="validation AUC",
        quality=[row["auc"] for row in rows],
        before=[None, *(row["auc_before_retraining"] for row in rows[1:])],
        speed_up=[row["speed_up"] for row in rows],
    )
    names = list(rows[0])
    cells = [[row[name] for name in names] for row in rows]
    return (
        "<h2>Pruning</h2>"
        + pruning_plots([curve], quality="validation AUC", points={})
        + table([name.replace("_", " ") for name in names], cells)
    )


def _label(run: Run, label: LabelRule, results: Mapping[str, Any], chosen: Mapping[str, Any]) -> str:
    found, column = results["labels"][label.code], run.recipe.kept_labels.index(label)
    with np.load(run.folder("evaluate") / "scores.npz", allow_pickle=False) as arrays:
        targets, raw = arrays["test_targets"][:, column], arrays["test"][:, column]
    known = ~np.isnan(targets)
    scores = metrics.calibrated(raw[known], Calibration(**chosen["calibration"][label.code]))
    test = found["test"]
    points = [
        [name, *(told(point[key]) for key in ("sensitivity", "specificity", "accuracy", "sensitivity_with_band"))]
        for name, point in test["points"].items()
    ]
    rows = [["AUC", told(test["auc"])], ["AUC on validation", told(found["validation"]["auc"])]]
    rows += [[f"AUC of the {name} alone", f"{area:.3f}"] for name, area in found["shortcuts"].items()]
    rows += [[f"specificity at sensitivity {at}", told(e)] for at, e in test["specificity_at_sensitivity"].items()]
    rows += [[name.replace("_", " "), f"{value:.4f}"] for name, value in found["float_against_int8"].items()]
    groups = [
        [group, name, facts["images"], facts["positive"], told(facts["auc"])]
        for group, members in found["by_group"].items()
        for name, facts in members.items()
    ]
    return (
        f"<h2>{text(label.meaning['en'])}: test images</h2>"
        + score_plots(scores, targets[known] >= 0.5, points=test["points"])
        + table(["operating point", "sensitivity", "specificity", "accuracy", "sensitivity with band"], points)
        + table(["figure", "value (95 %)"], rows)
        + (table(["group", "", "images", "with the finding", "AUC"], groups) if groups else "")
    )


def _examples(run: Run) -> str:
    """Test images spread over the scores of the first label, with their class maps."""
    data, label = dataset_of(run), run.recipe.kept_labels[0]
    samples, count = data.samples("test"), run.recipe.evaluation.example_images
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
    images = samples.images[chosen, :, :, 0]
    return f"<h2>Class maps of {text(label.code)}</h2>" + class_map_plots(images, found.class_maps[:, 0], titles=titles)


def _facts(facts: Mapping[str, Any]) -> str:
    return table(["", ""], [[key.replace("_", " "), _fact(value)] for key, value in facts.items()])


def _fact(value: object) -> object:
    return told(value) if isinstance(value, Mapping) and "low" in value else value


REPORT: Final = Step(
    name="report",
    perform=report_step,
    reads=(),
    outside=lambda run: content_digest(run.folder("profile") / PROFILE_NAME),
)
