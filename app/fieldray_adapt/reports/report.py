"""The report of a classifier's run, and the report of a cross-validation, as HTML pages."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fieldray_adapt.data.dataset import load_dataset
from fieldray_adapt.data.layouts import DATA_PARTS
from fieldray_adapt.evaluation.figures import (
    ClassifierFigures,
    CrossValidationFigures,
    DataFigures,
    GroupedFigures,
    OodCheckFigures,
    PublishedCrossValidation,
    figure_text,
)
from fieldray_adapt.files import file_sha256, write_published
from fieldray_adapt.prune.tasks import PrunedNetwork
from fieldray_adapt.recipes.shared import LabelRule
from fieldray_adapt.reports.page import (
    CodeBlock,
    Figure,
    Paragraph,
    PruningCurve,
    Report,
    ReportPart,
    Section,
    Table,
    class_map_plots_svg,
    duration_text,
    facts_table,
    pruning_plots_svg,
    render_page,
    score_plots_svg,
    settings_report_parts,
    training_curves_svg,
    write_run_page,
)
from fieldray_adapt.run import EPOCH_HISTORY_FILE_NAME, RECIPE_COPY_FILE_NAME, Run, Step, StepFacts, StepStatus
from fieldray_adapt.training.loop import EpochFigures
from fieldray_adapt.training.profile import PROFILE_FILE_NAME, Profile, profile_report_parts
from fieldray_adapt.training.steps import run_converted_file

_DOES: Final = {
    "data": "read the images and fix their split into parts",
    "train": "train the network",
    "prune": "make the network smaller",
    "quantise": "convert the network to int8",
    "placement": "predict which operators run on the Edge TPU",
    "evaluate": "choose operating points and evaluate the network",
    "pack": "write the signed pack",
}
_POINT_HEAD: Final = (
    *("operating point", "detected, of all with the finding", "falsely referred, of all without"),
    *("sensitivity", "specificity", "detected, if uncertain is referred too"),
)
_COUNTED: Final = """Each cell: count, share and 95 % interval. Images are counted as the program classifies them.
Images of the class Read first are always referred, so an operating point may lie off the ROC curve of the scores."""
SCORES_CAPTION: Final = """Left: the ROC curve, with operating points as dots. Middle: the share of images with the
finding, by score. A well calibrated score follows the dotted line. Right: the number of images by score, with and
without the finding, on a logarithmic axis. Lines show the thresholds."""


def report_step(run: Run) -> StepFacts:
    """Write the report of a classifier's run to report.html. Returns {"report": path of the page}.

    Raises UsageProblem (`step_missing`), StorageProblem.
    """
    results = run.read_step_json("evaluate", "metrics.json", ClassifierFigures)
    names = [label.meaning["en"] for label in run.recipe.labels]
    curves = training_curves_svg(run.read_step_json("train", EPOCH_HISTORY_FILE_NAME, list[EpochFigures]), labels=names)
    caption = "Loss on the training images, and area under the ROC curve (AUC) on the validation images, per epoch."
    sections = [
        Section(title="Steps", parts=[_steps(run)]),
        Section(title="Images", parts=_images(results.data)),
        *[_label(run, label, results) for label in run.recipe.pack_labels],
        Section(title="Out-of-distribution gate", parts=_gate(results.gate)),
        Section(title="Class maps", parts=_examples(run)),
        Section(title="Training", parts=[Figure(svg=curves, caption=caption)]),
        Section(title="Pruning", parts=_pruning(run)),
        Section(title="Time per iteration", parts=_profile(run)),
        Section(title="Recipe", parts=_recipe(run)),
    ]
    texts = run.recipe.pack
    lead = f"{texts.descriptions['en']} {texts.limits['en']}"
    return write_run_page(run, f"{texts.names['en']} {texts.version}", sections, intro=lead)


def _steps(run: Run) -> Table:
    """Return a table of all steps with state and duration. The report step, which is still running, is left out."""
    done = {name: entry for name, entry in run.step_statuses.items() if name in _DOES}
    rows = [[name, _DOES[name], _state(run, name, entry), _time(entry)] for name, entry in done.items()]
    return Table(column_names=("step", "what it does", "state", "time"), rows=rows)


def _time(entry: StepStatus) -> str:
    return "-" if entry.record.seconds is None else duration_text(entry.record.seconds)


def _state(run: Run, name: str, entry: StepStatus) -> str:
    """Return the state of a step in words. For the prune step, the text says if the recipe does not prune."""
    if name == "prune" and run.recipe.prune is None:
        return "not asked for by the recipe"
    return entry.record.state


def _images(data: DataFigures) -> list[ReportPart]:
    sizes = [[part, f"{data.images[part]:,}", f"{data.patients[part]:,}"] for part in DATA_PARTS]
    labels = [
        [code, part, f"{counted[part].positive:,}", f"{counted[part].negative:,}", f"{counted[part].unknown:,}"]
        for code, counted in data.labels.items()
        for part in DATA_PARTS
    ]
    pairs = data.duplicates
    rest = {
        "images in no part": data.images["none"],
        "images that could not be read": data.left_out,
        "pairs of equal files": pairs.exact,
        "pairs of nearly equal images": pairs.near,
        "pairs across parts": pairs.across_parts,
        "training images left out because of that": pairs.training_copies_left_out,
        "SHA-256 of the data": data.data_sha256,
        "SHA-256 of the split": data.split_sha256,
    }
    left_out = [[origin, why] for origin, why in data.left_out_examples]
    return [
        Table(column_names=("part", "images", "patients"), rows=sizes),
        Table(column_names=("label", "part", "with", "without", "not known"), rows=labels),
        facts_table(rest),
        *([Table(column_names=("image that could not be read", "why"), rows=left_out)] if left_out else []),
    ]


def _gate(gate: OodCheckFigures) -> list[ReportPart]:
    rows = {"test images refused": figure_text(gate.images_refused)}
    if gate.ood_refused and gate.images_refused_at_equal_resolution:
        side = f"{gate.side} x {gate.side} pixels" if gate.side else "their own size"
        rows["out-of-distribution images refused"] = figure_text(gate.ood_refused)
        rows[f"test images refused when first shrunk to {side}"] = figure_text(gate.images_refused_at_equal_resolution)
    text = "The out-of-distribution check finds images unlike the training images. Shares have 95 % intervals."
    return [Paragraph(text), facts_table({**rows, "largest accepted distance": gate.limit})]


def _profile(run: Run) -> list[ReportPart]:
    """Return the results of `adapt profile` as parts of the report; empty if `adapt profile` was not run."""
    known = (run.step_folder("profile") / PROFILE_FILE_NAME).is_file()
    return profile_report_parts(run.read_step_json("profile", PROFILE_FILE_NAME, Profile)) if known else []


def _pruning(run: Run) -> list[ReportPart]:
    """Return a plot and a table of the pruning iterations; empty if the recipe does not prune."""
    if run.recipe.prune is None:
        return []
    rows = run.read_step_json("prune", "table.json", list[PrunedNetwork])
    curve = PruningCurve(
        name="validation AUC",
        qualities=[row.auc for row in rows],
        qualities_before_retraining=[None, *(row.auc_before_retraining for row in rows[1:])],
        speed_ups=[row.speed_up for row in rows],
    )
    cells = [
        [
            str(row.iteration),
            f"{row.parameters:,}",
            f"{row.removed_share:.1%}",
            f"{row.multiply_adds / 1e6:,.1f}",
            f"{row.times_fewer_multiply_adds:.2f}",
            f"{row.speed_up:.2f}",
            f"{row.auc_before_retraining:.3f}" if row.iteration else "-",
            f"{row.auc:.3f}",
        ]
        for row in rows
    ]
    head = (
        *("iteration", "parameters", "removed", "multiply-adds per image, millions", "times fewer", "times faster"),
        *("AUC before retraining", "AUC after"),
    )
    caption = "The AUC counts validation images. Speed: the float network, compared with the network before pruning."
    return [
        Figure(svg=pruning_plots_svg([curve], quality_name="validation AUC", baselines={}), caption=caption),
        Table(column_names=head, rows=cells),
    ]


def _label(run: Run, label: LabelRule, results: ClassifierFigures) -> Section:
    found, column = results.labels[label.code], run.recipe.pack_labels.index(label)
    with np.load(run.step_folder("evaluate") / "scores.npz", allow_pickle=False) as arrays:
        targets, scores = arrays["test_targets"][:, column], arrays["test_screened"][:, column]
    known = ~np.isnan(targets) & ~np.isnan(scores)
    test, both = found.test, found.float_against_int8
    points = [
        [
            name,
            *map(figure_text, (point.detected, point.falsely_referred, point.sensitivity, point.specificity)),
            figure_text(point.detected_with_unsure),
        ]
        for name, point in test.points.items()
    ]
    rows = {
        "AUC": figure_text(test.auc),
        "AUC on the validation images": figure_text(found.validation_auc),
        **{f"AUC of the image's {name} alone": f"{area:.3f}" for name, area in found.shortcuts.items()},
        **{
            f"specificity at a sensitivity of {float(at):.0%}": figure_text(e)
            for at, e in test.specificity_at_sensitivity.items()
        },
        "expected calibration error": f"{test.calibration_error:.3f}",
        "AUC, float": f"{both.auc_float:.4f}",
        "AUC, int8": f"{both.auc_int8:.4f}",
        "score, float against int8: mean difference": f"{both.mean_absolute_difference:.4f}",
        "score, float against int8: largest difference": f"{both.largest_difference:.4f}",
    }
    return Section(
        title=f"{label.meaning['en']}: test images",
        parts=[
            Figure(
                svg=score_plots_svg(scores[known], targets[known] >= 0.5, operating_points=test.points),
                caption=SCORES_CAPTION,
            ),
            Table(column_names=_POINT_HEAD, rows=points, caption=_COUNTED),
            Table(column_names=("figure", "value (95 % interval)"), rows=[[*row] for row in rows.items()]),
            *group_tables(found.by_group),
        ],
    )


def group_tables(groups: GroupedFigures) -> list[Table]:
    """Return report tables of the AUC within groups of images, such as sexes; empty without groups."""
    rows = [
        [group, name, f"{own.images:,}", f"{own.positive:,}", figure_text(own.auc)]
        for group, members in groups.items()
        for name, own in members.items()
    ]
    return [Table(column_names=("group by", "value", "images", "with the finding", "AUC"), rows=rows)] if rows else []


def _examples(run: Run) -> list[ReportPart]:
    """Return pictures of test images with class maps. The images are evenly spread over the first label's scores."""
    count = run.recipe.evaluation.example_images
    if not count:
        return []
    data, label = load_dataset(run), run.recipe.pack_labels[0]
    samples = data.samples("test")
    with np.load(run.step_folder("evaluate") / "scores.npz", allow_pickle=False) as arrays:
        order = np.argsort(arrays["test"][:, 0])
    chosen = order[np.linspace(0, len(order) - 1, min(count, len(order))).round().astype(int)]
    found = run_converted_file(run, "int8", samples.images[chosen], "examples")
    truths = samples.targets[chosen, run.recipe.labels.index(label)]
    known = {0.0: "without finding", 1.0: "with finding"}
    titles = [
        f"raw score {score:.2f}, {known.get(float(truth), 'finding not known')}"
        for score, truth in zip(found.scores[:, 0], truths, strict=True)
    ]
    svg = class_map_plots_svg(samples.images[chosen, :, :, 0], found.class_maps[:, 0], titles=titles)
    caption = (
        f"Test images as the network sees them, from the lowest to the highest score of {label.meaning['en']}. Red: "
        "evidence for the finding. Blue: evidence against the finding. The titles say whether the finding is present."
    )
    return [Figure(svg=svg, caption=caption)]


def _recipe(run: Run) -> list[ReportPart]:
    path = run.recipe.run / RECIPE_COPY_FILE_NAME
    return [CodeBlock(path.read_text(encoding="utf-8"))] if path.is_file() else []


REPORT_STEP: Final = Step(
    name="report",
    perform=report_step,
    recipe_keys=(),
    outside_inputs_digest=lambda run: file_sha256(run.step_folder("profile") / PROFILE_FILE_NAME),
)


_CROSS: Final = """The images of each fold were scored by a network trained on the other folds. No network was evaluated
on a patient of its training images. The 95 % intervals count patients. Two simple classifiers, of the border pixels and
of a thumbnail, were fitted in the same folds. A network that is hardly better has learned little about the lungs. If
the recipe prunes, each network was pruned. Each network was converted to int8. Figures that name no stage belong to the
int8 file."""
_STAGES: Final = {"trained": "as trained", "pruned": "pruned", "int8": "int8 file"}
ScoresAndTruth = tuple[NDArray[np.float64], NDArray[np.bool_]]
"""Scores (n,) in 0..1 and truth (n,) of the evaluated images."""


def write_cross_validation_report(
    path: Path, results: PublishedCrossValidation, *, scores_and_truth: Mapping[str, ScoresAndTruth]
) -> None:
    """Write the report of a cross-validation as an HTML page.

    Parameters
    ----------
    results
        The figures that `cross_validation.cross_validation_step` has measured.
    scores_and_truth
        Scores and truth of the evaluated images, by label code.

    Raises
    ------
    StorageProblem
        If the page cannot be written.
    """
    sections = [
        *[_fold_section(code, found, scores_and_truth[code]) for code, found in results.labels.items()],
        Section(title="What was trained", parts=settings_report_parts(results.trained)),
    ]
    write_published(
        path, render_page(Report(title=f"{results.pack}: cross-validation", intro=_CROSS, sections=sections))
    )


def _fold_section(code: str, figures: CrossValidationFigures, scored: ScoresAndTruth) -> Section:
    stages, both, change = figures.stages, figures.float_against_int8, figures.after_training
    rows = [
        ["images, patients", f"{figures.images:,}, {figures.patients:,}"],
        ["with, without the finding", f"{figures.positive:,}, {figures.negative:,}"],
        *[[f"AUC, {_STAGES[stage]}", figure_text(made.auc)] for stage, made in stages.items()],
        *([["AUC, int8 file minus as trained", figure_text(change, "+.3f")]] if change else []),
        *([["score, int8 against float: mean difference", f"{both.mean_absolute_difference:.4f}"]] if both else []),
        *[[f"AUC of fold {fold}, int8 file", f"{area:.3f}"] for fold, area in stages["int8"].auc_by_fold.items()],
        *[[f"AUC of the image's {name} alone", f"{area:.3f}"] for name, area in figures.shortcuts.items()],
        *[
            [f"specificity at a sensitivity of {float(at):.0%}", figure_text(value)]
            for at, value in figures.specificity_at_sensitivity.items()
        ],
    ]
    return Section(
        title=code,
        parts=[
            Figure(svg=score_plots_svg(*scored, operating_points={}), caption=SCORES_CAPTION),
            Table(column_names=("figure", "value (95 % interval)"), rows=rows),
            *group_tables(figures.by_group),
        ],
    )
