"""Cross-validation: each fold's images are scored by a network that was trained on none of their patients.

Every image of a small data set then counts once. What is measured is the recipe, not the one network that ships: the
network as it is trained, then pruned if the recipe prunes, and then as the int8 file that a pack holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fieldray.domain import metrics
from fieldray.domain.metrics import sigmoid
from fieldray_adapt.data.dataset import Dataset, dataset_of
from fieldray_adapt.data.layouts import refuse_leak
from fieldray_adapt.evaluation.evaluate import (
    SHORTCUTS,
    Evaluated,
    auc_difference,
    by_group,
    compare,
    known,
    shortcut_scores,
)
from fieldray_adapt.evaluation.figures import CrossFigures, Interval, PublishedCross, StageFigures
from fieldray_adapt.files import as_json, plain, publish, require_publishable, save_arrays
from fieldray_adapt.networks.quantise import answer
from fieldray_adapt.networks.specification import Specification, Weights
from fieldray_adapt.prune.tasks import prune_by_recipe
from fieldray_adapt.recipes.classifier import Recipe, what_is_made, what_is_trained
from fieldray_adapt.recipes.shared import LabelRule
from fieldray_adapt.reports.report import write_cross_validation
from fieldray_adapt.run import Facts, Run, Step
from fieldray_adapt.training.classifier import predict
from fieldray_adapt.training.engine_choice import open_engine
from fieldray_adapt.training.engine_interface import EngineSettings
from fieldray_adapt.training.steps import FITTED_IMAGES, specification_of, starting_digests, to_files, train_recipe

CROSS_RESULTS: Final = "cross.json"
TRAINED: Final = "trained"
PRUNED: Final = "pruned"
INT8: Final = "int8"
_WANTED: Final = (0.90, 0.95)

Scores = NDArray[np.float64]


def cross_step(run: Run) -> Facts:
    """Make a network for each fold. Writes scores.npz, metrics.json and published figures. Nothing without folds."""
    folds = run.recipe.split.cross_folds
    if not folds:
        return {}
    require_publishable(run.recipe.published / CROSS_RESULTS, run.recipe.published / "cross.html")
    data, scores = dataset_of(run), dict[str, Scores]()
    for fold in folds:
        rows = data.image_set.rows
        refuse_leak(rows, [f"fold {fold}" if row.fold == str(fold) else "the other folds" for row in rows])
        evaluated = _evaluated_in(data, run, fold)
        for stage, found in _out_of_fold(run, data, fold, evaluated).items():
            scores.setdefault(stage, np.full((len(data.image_set.rows), found.shape[1]), np.nan))[evaluated] = found
    save_arrays(run.folder("cross") / "scores.npz", scores | {"targets": data.targets})
    results = _figures(run, data, scores)
    run.write("cross", "metrics.json", results)
    _publish(run, data, scores, results)
    return {code: plain(found.stages[INT8].auc) for code, found in results.items()}


def _publish(run: Run, data: Dataset, scores: Mapping[str, Scores], results: dict[str, CrossFigures]) -> None:
    """Write the results and their page to the recipe's folder for publication."""
    folder, texts = run.recipe.published, run.recipe.pack
    whole = PublishedCross(
        pack=f"{texts.id} {texts.version}",
        data_sha256=data.facts.data_sha256,
        labels=results,
        trained=what_is_trained(run.recipe),
        made=what_is_made(run.recipe),
    )
    publish(folder / CROSS_RESULTS, as_json(whole) + b"\n")
    parts = {label.code: _evaluated(run, data, scores[INT8], label) for label in run.recipe.kept_labels}
    scored = {code: (part.scores, part.truth) for code, part in parts.items()}
    write_cross_validation(folder / "cross.html", whole, scored=scored)


def _evaluated_in(data: Dataset, run: Run, fold: int) -> NDArray[np.int64]:
    """Return the evaluated images of a fold."""
    sources = {source.name for source in run.recipe.data if source.evaluated}
    rows = enumerate(data.image_set.rows)
    return np.array([index for index, row in rows if row.fold == str(fold) and row.source in sources], np.int64)


def training_indices_for_fold(data: Dataset, run: Run, fold: int) -> NDArray[np.int64]:
    """Indices of the training images in all other folds. Sources with a share of 0 are measured, not trained on."""
    sources = {source.name for source in run.recipe.data if source.share}
    rows = enumerate(data.image_set.rows)
    return np.array([index for index, row in rows if row.fold != str(fold) and row.source in sources], np.int64)


def _out_of_fold(run: Run, data: Dataset, fold: int, evaluated: NDArray[np.int64]) -> dict[str, Scores]:
    """By stage, the scores (images, labels of the pack) of a fold's images by a network made from all other folds."""
    recipe, folder, learnt = run.recipe, run.folder("cross") / str(fold), training_indices_for_fold(data, run, fold)
    training = data.samples_of(learnt)
    weights, _ = train_recipe(
        run,
        training=training,
        validation=data.samples_of(evaluated[:0]),
        folder=folder,
        what=f"epochs of fold {fold}",
    )
    network, images = (specification_of(recipe), weights), data.image_set.images[evaluated]
    found = {TRAINED: _float_scores(recipe, *network, images)}
    if recipe.prune is not None:
        # Its own quality is asked of images that it was trained on: nothing of the fold may choose how it is made.
        folds = [_evaluated_in(data, run, own) for own in recipe.split.cross_folds if own != fold]
        trained_on = np.intersect1d(np.concatenate(folds), learnt)
        _, kept, iterations = prune_by_recipe(
            run,
            network,
            training=training,
            validation=data.samples_of(trained_on),
            folder=folder / "prune",
        )
        network = iterations.network(kept.number)
        found[PRUNED] = _float_scores(recipe, *network, images)
    drawn = np.random.default_rng(recipe.training.seed).permutation(learnt)
    files = to_files(recipe, *network, images=data.image_set.images[drawn[:FITTED_IMAGES]])
    labels, roles = len(recipe.kept_labels), files.integer.roles(files.specification)
    found[INT8] = answer(files.integer.data, images, spec=recipe.input, outputs=roles, labels=labels).scores
    return found


def _float_scores(recipe: Recipe, specification: Specification, weights: Weights, images: NDArray[np.uint8]) -> Scores:
    settings = EngineSettings(threads=recipe.training.threads)
    engine = open_engine(specification, weights, settings=settings, name=recipe.training.engine)
    kept = [recipe.labels.index(label) for label in recipe.kept_labels]
    return sigmoid(predict(engine, images)[:, kept])


def _figures(run: Run, data: Dataset, scores: Mapping[str, Scores]) -> dict[str, CrossFigures]:
    """Return for each label of the pack the figures of each stage, of groups, and of shortcuts."""
    found = dict[str, CrossFigures]()
    for label in run.recipe.kept_labels:
        parts = {stage: _evaluated(run, data, own, label) for stage, own in scores.items()}
        last = parts[INT8]
        found[label.code] = CrossFigures(
            **last.counts,
            stages={stage: _stage(run, part) for stage, part in parts.items()},
            after_training=_after_training(parts),
            float_against_int8=compare(parts.get(PRUNED, parts[TRAINED]), last),
            specificity_at_sensitivity={f"{wanted:.2f}": last.specificity_at(wanted) for wanted in _WANTED},
            by_group=by_group(last),
            shortcuts=_shortcuts(run, data, run.recipe.labels.index(label)),
        )
    return found


def _stage(run: Run, part: Evaluated) -> StageFigures:
    by_fold = {str(fold): _fold_auc(part, fold) for fold in run.recipe.split.cross_folds}
    return StageFigures(auc=part.area, auc_by_fold=by_fold)


def _after_training(parts: Mapping[str, Evaluated]) -> Interval:
    """Return the AUC of the int8 file minus that of the trained network, on the evaluated images."""
    both = np.column_stack([parts[TRAINED].scores, parts[INT8].scores])
    return auc_difference(both, parts[INT8].truth, patients=parts[INT8].patients)


def _evaluated(run: Run, data: Dataset, scores: Scores, label: LabelRule) -> Evaluated:
    """Return the evaluated images with a known answer."""
    chosen, column = np.flatnonzero(~np.isnan(scores).any(1)), run.recipe.kept_labels.index(label)
    rows = [data.image_set.rows[index] for index in chosen]
    return known(scores[chosen, column], data.targets[chosen, run.recipe.labels.index(label)], rows)


def _fold_auc(part: Evaluated, fold: int) -> float:
    inside = part.where(np.array([row.fold == str(fold) for row in part.rows]))
    return metrics.auc(inside.scores, inside.truth)


def _shortcuts(run: Run, data: Dataset, column: int) -> dict[str, float]:
    """Return the out-of-fold AUC of the images' border alone, and of a thumbnail alone."""
    found = {}
    for name, pixels in SHORTCUTS.items():
        values, scores = pixels(data.image_set.images), np.full(len(data.image_set.rows), np.nan)
        for fold in run.recipe.split.cross_folds:
            evaluated, learnt = _evaluated_in(data, run, fold), training_indices_for_fold(data, run, fold)
            trained_on = learnt[~np.isnan(data.targets[learnt, column])]
            truth = data.targets[trained_on, column] >= 0.5
            scores[evaluated] = shortcut_scores(values[trained_on], truth, values[evaluated])
        asked = ~np.isnan(scores) & ~np.isnan(data.targets[:, column])
        found[name] = metrics.auc(scores[asked], data.targets[asked, column] >= 0.5)
    return found


CROSS: Final = Step(
    name="cross",
    perform=cross_step,
    recipe_keys=(
        *("input", "lungs", "network", "labels", "data", "split", "training", "augmentation", "prune"),
        "calibration_images",
    ),
    external_inputs=lambda run: starting_digests(run.recipe.network, run.recipe.training),
)
