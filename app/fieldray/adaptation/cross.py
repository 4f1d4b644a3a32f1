"""Cross-validation: each fold's films are judged by a network that saw none of their patients.

So every film of a small data set counts once. What is measured is the recipe, not the one network that ships.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fieldray.adaptation import measures
from fieldray.adaptation.cross_report import write_report
from fieldray.adaptation.engine import EngineSettings, open_engine
from fieldray.adaptation.evaluate import Judged, by_group, known
from fieldray.adaptation.files import write_atomically
from fieldray.adaptation.films import Dataset
from fieldray.adaptation.recipe import LabelRule, what_is_trained
from fieldray.adaptation.run import Run, Step
from fieldray.adaptation.shortcuts import border_pixels, shortcut_scores, thumbnail_pixels
from fieldray.adaptation.steps import dataset_of, specification_of, train_as_told
from fieldray.adaptation.train import predict

_WANTED: Final = (0.90, 0.95)


def cross_step(run: Run) -> Mapping[str, Any]:
    """Train once for each fold; scores.npz, metrics.json and what is published. Nothing without folds."""
    folds = run.recipe.split.cross_folds
    if not folds:
        return {}
    data = dataset_of(run)
    logits = np.full(data.targets.shape, np.nan, np.float64)
    for fold in folds:
        judged = _judged_in(data, run, fold)
        logits[judged] = _out_of_fold(run, data, fold, judged)
    scores = 1 / (1 + np.exp(-logits))
    buffer = io.BytesIO()
    np.savez(buffer, scores=scores, targets=data.targets)
    write_atomically(run.folder("cross") / "scores.npz", buffer.getvalue())
    results = _figures(run, data, scores)
    run.write("cross", "metrics.json", results)
    _publish(run, data, scores, results)
    return {code: found["auc"] for code, found in results.items()}


def _publish(run: Run, data: Dataset, scores: NDArray[np.float64], results: Mapping[str, Any]) -> None:
    """cross.json and cross.html in the recipe's folder for what is published."""
    folder, texts = run.recipe.published, run.recipe.pack
    whole = {"pack": f"{texts.id} {texts.version}", "labels": results, "trained": what_is_trained(run.recipe)}
    write_atomically(folder / "cross.json", (json.dumps(whole, indent=1) + "\n").encode())
    parts = {label.code: _judged(run, data, scores, label) for label in run.recipe.kept_labels}
    write_report(folder / "cross.html", whole, scored={code: (part.scores, part.truth) for code, part in parts.items()})


def _judged_in(data: Dataset, run: Run, fold: int) -> NDArray[np.int64]:
    """The films of a fold that are judged."""
    sources = {source.name for source in run.recipe.data if source.judged}
    rows = enumerate(data.films.rows)
    return np.array([index for index, row in rows if row.fold == str(fold) and row.source in sources], np.int64)


def _out_of_fold(run: Run, data: Dataset, fold: int, judged: NDArray[np.int64]) -> NDArray[np.float64]:
    """Logits (films, labels) of a fold's films by a network trained on all other folds."""
    others = np.array([index for index, row in enumerate(data.films.rows) if row.fold != str(fold)])
    weights, _ = train_as_told(
        run,
        training=data.samples_of(others),
        validation=data.samples_of(judged[:0]),
        folder=run.folder("cross") / str(fold),
        what=f"epochs of fold {fold}",
    )
    settings = EngineSettings(threads=run.recipe.training.threads)
    engine = open_engine(specification_of(run.recipe), weights, settings=settings, name=run.recipe.training.engine)
    return predict(engine, data.films.images[judged]).astype(np.float64)


def _figures(run: Run, data: Dataset, scores: NDArray[np.float64]) -> dict[str, Any]:
    """For each label of the pack: AUC of all films and of each fold, groups, and what the shortcuts score."""
    found: dict[str, Any] = {}
    for label in run.recipe.kept_labels:
        part = _judged(run, data, scores, label)
        found[label.code] = {
            "films": len(part.rows),
            "patients": len(set(part.patients)),
            "positive": int(part.truth.sum()),
            "negative": int((~part.truth).sum()),
            "auc": asdict(measures.bootstrap(measures.auc, part.scores, part.truth, patients=part.patients)),
            "auc_by_fold": {str(fold): _fold_auc(part, fold) for fold in run.recipe.split.cross_folds},
            "specificity_at_sensitivity": {
                f"{wanted:.2f}": measures.specificity_at_sensitivity(part.scores, part.truth, wanted=wanted)
                for wanted in _WANTED
            },
            "by_group": by_group(part),
            "shortcuts": _shortcuts(run, data, run.recipe.labels.index(label)),
        }
    return found


def _judged(run: Run, data: Dataset, scores: NDArray[np.float64], label: LabelRule) -> Judged:
    """The films that were judged and whose answer is known."""
    chosen, column = np.flatnonzero(~np.isnan(scores).any(1)), run.recipe.labels.index(label)
    rows = [data.films.rows[index] for index in chosen]
    return known(scores[chosen, column], data.targets[chosen, column], rows)


def _fold_auc(part: Judged, fold: int) -> float:
    inside = part.where(np.array([row.fold == str(fold) for row in part.rows]))
    return measures.auc(inside.scores, inside.truth)


def _shortcuts(run: Run, data: Dataset, column: int) -> dict[str, float]:
    """The same films judged out of fold by their border alone and by a thumbnail."""
    found = {}
    for name, pixels in (("border", border_pixels), ("thumbnail", thumbnail_pixels)):
        values, scores = pixels(data.films.images), np.full(len(data.films.rows), np.nan)
        for fold in run.recipe.split.cross_folds:
            judged = _judged_in(data, run, fold)
            inside = np.isin(
                np.arange(len(values)), [i for i, row in enumerate(data.films.rows) if row.fold == str(fold)]
            )
            learnt = np.flatnonzero(~inside & ~np.isnan(data.targets[:, column]))
            truth = data.targets[learnt, column] >= 0.5
            scores[judged] = shortcut_scores(values[learnt], truth, values[judged])
        asked = ~np.isnan(scores) & ~np.isnan(data.targets[:, column])
        found[name] = measures.auc(scores[asked], data.targets[asked, column] >= 0.5)
    return found


CROSS: Final = Step(
    name="cross",
    perform=cross_step,
    reads=("input", "network", "labels", "data", "split", "training", "augmentation"),
)
