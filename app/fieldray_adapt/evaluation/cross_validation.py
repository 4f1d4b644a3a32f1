"""Cross-validation of a classifier: each image is scored by a network that was not trained on its patient.

The data are divided into folds, and a network is trained for each fold on all other folds. So every image of a small
data set is a test image once. The figures describe the recipe and not the network in the pack. Figures are measured at
three stages: the trained network, the pruned network (if the recipe prunes), and the int8 file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fieldray.domain import metrics
from fieldray.domain.metrics import sigmoid
from fieldray_adapt.data.dataset import Dataset, load_dataset
from fieldray_adapt.data.layouts import require_no_leak
from fieldray_adapt.evaluation.evaluate import (
    SHORTCUT_FEATURE_EXTRACTORS,
    EvaluatedImages,
    auc_by_group,
    compare_with_int8,
    paired_auc_difference,
    select_labelled_images,
    shortcut_scores,
)
from fieldray_adapt.evaluation.figures import CrossValidationFigures, Interval, PublishedCrossValidation, StageFigures
from fieldray_adapt.files import json_bytes, require_publication_writable, save_arrays, to_builtins, write_published
from fieldray_adapt.networks.quantise import run_network
from fieldray_adapt.networks.specification import Specification, Weights
from fieldray_adapt.prune.tasks import prune_by_recipe
from fieldray_adapt.recipes.classifier import ClassifierRecipe, conversion_description, training_description
from fieldray_adapt.recipes.shared import LabelRule
from fieldray_adapt.reports.report import write_cross_validation_report
from fieldray_adapt.run import Run, Step, StepFacts
from fieldray_adapt.training.classifier import predict_logits
from fieldray_adapt.training.engine_choice import open_engine
from fieldray_adapt.training.engine_interface import EngineSettings
from fieldray_adapt.training.steps import (
    MAX_HEAD_FIT_IMAGES,
    convert_network,
    recipe_specification,
    train_recipe,
    training_files_digest,
)

CROSS_VALIDATION_FILE_NAME: Final = "cross.json"
TRAINED_STAGE: Final = "trained"
PRUNED_STAGE: Final = "pruned"
INT8_STAGE: Final = "int8"
_WANTED: Final = (0.90, 0.95)

Scores = NDArray[np.float64]


def cross_validation_step(run: Run) -> StepFacts:
    """Train and evaluate a network for each fold of the data.

    Writes scores.npz and metrics.json, and the report to the recipe's folder for published results. Does nothing if the
    recipe has no folds.
    """
    folds = run.recipe.split.cross_folds
    if not folds:
        return {}
    require_publication_writable(
        run.recipe.publication_folder / CROSS_VALIDATION_FILE_NAME, run.recipe.publication_folder / "cross.html"
    )
    data, scores = load_dataset(run), dict[str, Scores]()
    for fold in folds:
        rows = data.image_set.rows
        require_no_leak(rows, [f"fold {fold}" if row.fold == str(fold) else "the other folds" for row in rows])
        evaluated = _evaluated_in(data, run, fold)
        for stage, found in _out_of_fold(run, data, fold, evaluated).items():
            scores.setdefault(stage, np.full((len(data.image_set.rows), found.shape[1]), np.nan))[evaluated] = found
    save_arrays(run.step_folder("cross") / "scores.npz", scores | {"targets": data.targets})
    results = _figures(run, data, scores)
    run.write_step_json("cross", "metrics.json", results)
    _publish(run, data, scores, results)
    return {code: to_builtins(found.stages[INT8_STAGE].auc) for code, found in results.items()}


def _publish(run: Run, data: Dataset, scores: Mapping[str, Scores], results: dict[str, CrossValidationFigures]) -> None:
    """Write the figures and their report to the recipe's folder for published results."""
    folder, texts = run.recipe.publication_folder, run.recipe.pack
    whole = PublishedCrossValidation(
        pack=f"{texts.id} {texts.version}",
        data_sha256=data.figures.data_sha256,
        labels=results,
        trained=training_description(run.recipe),
        made=conversion_description(run.recipe),
    )
    write_published(folder / CROSS_VALIDATION_FILE_NAME, json_bytes(whole) + b"\n")
    parts = {label.code: _evaluated(run, data, scores[INT8_STAGE], label) for label in run.recipe.pack_labels}
    scored = {code: (part.scores, part.truth) for code, part in parts.items()}
    write_cross_validation_report(folder / "cross.html", whole, scores_and_truth=scored)


def _evaluated_in(data: Dataset, run: Run, fold: int) -> NDArray[np.int64]:
    """Return the indices (n,) of a fold's images on which figures are measured."""
    sources = {source.name for source in run.recipe.data if source.evaluated}
    rows = enumerate(data.image_set.rows)
    return np.array([index for index, row in rows if row.fold == str(fold) and row.source in sources], np.int64)


def training_indices_for_fold(data: Dataset, run: Run, fold: int) -> NDArray[np.int64]:
    """Return the indices (n,) of the training images for the network of a fold: the images of all other folds.

    Images of sources with a share of 0 are never training images. `fold` is the number of the fold.
    """
    sources = {source.name for source in run.recipe.data if source.share}
    rows = enumerate(data.image_set.rows)
    return np.array([index for index, row in rows if row.fold != str(fold) and row.source in sources], np.int64)


def _out_of_fold(run: Run, data: Dataset, fold: int, evaluated: NDArray[np.int64]) -> dict[str, Scores]:
    """Train a network on all folds but `fold`, and score the images with the indices `evaluated`.

    Returns the scores (images, labels of the pack) by stage: "trained", "pruned" and "int8".
    """
    recipe, folder, learnt = (
        run.recipe,
        run.step_folder("cross") / str(fold),
        training_indices_for_fold(data, run, fold),
    )
    training = data.samples_at(learnt)
    weights, _ = train_recipe(
        run,
        training=training,
        validation=data.samples_at(evaluated[:0]),
        folder=folder,
        work_name=f"epochs of fold {fold}",
    )
    network, images = (recipe_specification(recipe), weights), data.image_set.images[evaluated]
    found = {TRAINED_STAGE: _float_scores(recipe, *network, images)}
    if recipe.prune is not None:
        # Pruning measures quality on training images, because images of the fold must not influence the network.
        folds = [_evaluated_in(data, run, own) for own in recipe.split.cross_folds if own != fold]
        trained_on = np.intersect1d(np.concatenate(folds), learnt)
        _, kept, iterations = prune_by_recipe(
            run,
            network,
            training=training,
            validation=data.samples_at(trained_on),
            folder=folder / "prune",
        )
        network = iterations.network_after_iteration(kept.number)
        found[PRUNED_STAGE] = _float_scores(recipe, *network, images)
    drawn = np.random.default_rng(recipe.training.seed).permutation(learnt)
    files = convert_network(recipe, *network, images=data.image_set.images[drawn[:MAX_HEAD_FIT_IMAGES]])
    labels, roles = len(recipe.pack_labels), files.int8_file.output_roles(files.specification)
    found[INT8_STAGE] = run_network(
        files.int8_file.data, images, spec=recipe.input, outputs=roles, labels=labels
    ).scores
    return found


def _float_scores(
    recipe: ClassifierRecipe, specification: Specification, weights: Weights, images: NDArray[np.uint8]
) -> Scores:
    settings = EngineSettings(threads=recipe.training.threads)
    engine = open_engine(specification, weights, settings=settings, name=recipe.training.engine)
    kept = [recipe.labels.index(label) for label in recipe.pack_labels]
    return sigmoid(predict_logits(engine, images)[:, kept])


def _figures(run: Run, data: Dataset, scores: Mapping[str, Scores]) -> dict[str, CrossValidationFigures]:
    """Return the cross-validation figures of each label of the pack, by label code. `scores` are given by stage."""
    found = dict[str, CrossValidationFigures]()
    for label in run.recipe.pack_labels:
        parts = {stage: _evaluated(run, data, own, label) for stage, own in scores.items()}
        last = parts[INT8_STAGE]
        found[label.code] = CrossValidationFigures(
            **last.image_and_patient_counts,
            stages={stage: _stage(run, part) for stage, part in parts.items()},
            after_training=_after_training(parts),
            float_against_int8=compare_with_int8(parts.get(PRUNED_STAGE, parts[TRAINED_STAGE]), last),
            specificity_at_sensitivity={f"{wanted:.2f}": last.specificity_at(wanted) for wanted in _WANTED},
            by_group=auc_by_group(last),
            shortcuts=_shortcuts(run, data, run.recipe.labels.index(label)),
        )
    return found


def _stage(run: Run, part: EvaluatedImages) -> StageFigures:
    by_fold = {str(fold): _fold_auc(part, fold) for fold in run.recipe.split.cross_folds}
    return StageFigures(auc=part.auc, auc_by_fold=by_fold)


def _after_training(parts: Mapping[str, EvaluatedImages]) -> Interval:
    """Return the AUC of the int8 file minus the AUC of the trained network, with its 95 % interval.

    `parts` are the evaluated images by stage.
    """
    both = np.column_stack([parts[TRAINED_STAGE].scores, parts[INT8_STAGE].scores])
    return paired_auc_difference(both, parts[INT8_STAGE].truth, patients=parts[INT8_STAGE].patients)


def _evaluated(run: Run, data: Dataset, scores: Scores, label: LabelRule) -> EvaluatedImages:
    """Return the images that have a score and a known label, with their scores for the label."""
    chosen, column = np.flatnonzero(~np.isnan(scores).any(1)), run.recipe.pack_labels.index(label)
    rows = [data.image_set.rows[index] for index in chosen]
    return select_labelled_images(scores[chosen, column], data.targets[chosen, run.recipe.labels.index(label)], rows)


def _fold_auc(part: EvaluatedImages, fold: int) -> float:
    inside = part.where(np.array([row.fold == str(fold) for row in part.rows]))
    return metrics.auc(inside.scores, inside.truth)


def _shortcuts(run: Run, data: Dataset, column: int) -> dict[str, float]:
    """Return the AUC of classifiers that see only a shortcut: the border of the image, or a thumbnail.

    The classifiers are trained and tested on the folds of the cross-validation. `column` is the label's column in the
    targets.
    """
    found = {}
    for name, pixels in SHORTCUT_FEATURE_EXTRACTORS.items():
        values, scores = pixels(data.image_set.images), np.full(len(data.image_set.rows), np.nan)
        for fold in run.recipe.split.cross_folds:
            evaluated, learnt = _evaluated_in(data, run, fold), training_indices_for_fold(data, run, fold)
            trained_on = learnt[~np.isnan(data.targets[learnt, column])]
            truth = data.targets[trained_on, column] >= 0.5
            scores[evaluated] = shortcut_scores(values[trained_on], truth, values[evaluated])
        asked = ~np.isnan(scores) & ~np.isnan(data.targets[:, column])
        found[name] = metrics.auc(scores[asked], data.targets[asked, column] >= 0.5)
    return found


CROSS_VALIDATION_STEP: Final = Step(
    name="cross",
    perform=cross_validation_step,
    recipe_keys=(
        *("input", "lungs", "network", "labels", "data", "split", "training", "augmentation", "prune"),
        "calibration_images",
    ),
    outside_inputs_digest=lambda run: training_files_digest(run.recipe.network, run.recipe.training),
)
