"""The prune step of a recipe: the trained network, pruned on its own images."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from fieldray.adaptation.augmentation import Augmentation
from fieldray.adaptation.dataset import dataset_of
from fieldray.adaptation.digest import digest
from fieldray.adaptation.engine import EngineName, EngineSettings, open_engine
from fieldray.adaptation.fit import Effort
from fieldray.adaptation.profile import fastest_batch_size, inference_seconds
from fieldray.adaptation.prune.loop import best, prune
from fieldray.adaptation.prune.recipe import PruneRecipe
from fieldray.adaptation.prune.record import Iteration, RunFolder
from fieldray.adaptation.prune.selection import Keep
from fieldray.adaptation.prune.statistics import Scores, zero_shares
from fieldray.adaptation.run import Progress, Run, Step
from fieldray.adaptation.specification import Specification
from fieldray.adaptation.steps import load_trained, save_network, schedule_of, settings_of
from fieldray.adaptation.train import Samples, Schedule, predict, train
from fieldray.adaptation.weights import Weights, keep_channels
from fieldray.domain.metrics import auc

_BATCH: Final = 32
_TIMED: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ImageTask:
    """A pruning task over labelled images; quality is the AUC of the first label on the validation images.

    Attributes
    ----------
    schedule
        Of the training that made the original: each retraining differs from it by its effort alone.
    folder
        Where a retraining keeps its checkpoints.
    progress
        Is told of each epoch of a retraining.
    """

    training: Samples
    validation: Samples
    schedule: Schedule
    augmentation: Augmentation
    settings: EngineSettings
    engine: EngineName
    folder: Path
    calibration: int
    batch_sizes: tuple[int, ...] = ()
    progress: Progress = lambda _what, _done, _total: None

    def zero_shares(self, specification: Specification, weights: Weights) -> Scores:
        """APoZ on training images drawn by the schedule's seed."""
        generator = np.random.default_rng(self.schedule.seed)
        chosen = np.sort(generator.permutation(len(self.training))[: self.calibration])
        parts = (chosen[at : at + _BATCH] for at in range(0, len(chosen), _BATCH))
        batches = (self.training.images[part].astype(np.float32) / 255 for part in parts)
        return zero_shares(specification, weights, batches=batches)

    def cut(self, specification: Specification, weights: Weights, *, keep: Keep) -> tuple[Specification, Weights]:
        """The weights carried over; batch normalisation finds the new strength of the signal while retraining."""
        return keep_channels(specification, weights, keep=keep)

    def retrain(self, specification: Specification, weights: Weights, *, effort: Effort, seed: int) -> Weights:
        """Train as the original was; resumes from a checkpoint of the same iteration."""
        epochs = max(1, math.ceil(effort.epochs))
        images = round((self.schedule.images_per_epoch or len(self.training)) * effort.epochs / epochs)
        schedule = Schedule(
            epochs=epochs,
            batch_size=effort.batch_size,
            learning_rate=effort.learning_rate,
            warm_up_epochs=min(self.schedule.warm_up_epochs, epochs / 10),
            average_epochs=min(self.schedule.average_epochs, epochs / 2),
            label_smoothing=self.schedule.label_smoothing,
            images_per_epoch=max(images, effort.batch_size),
            seed=seed,
            shares=self.schedule.shares,
        )
        trained, _ = train(
            specification,
            weights,
            training=self.training,
            validation=self.validation,
            schedule=schedule,
            augmentation=self.augmentation,
            settings=self.settings,
            folder=self.folder / f"retraining-{seed}",
            engine=self.engine,
            progress=lambda row: self.progress("epochs of retraining", row["epoch"], row["epochs"]),
        )
        return trained

    def quality(self, specification: Specification, weights: Weights) -> tuple[float, float]:
        """AUC and cross-entropy of the first label on the validation images where it is known."""
        engine = open_engine(specification, weights, settings=self.settings, name=self.engine)
        targets = self.validation.targets[:, 0]
        is_known = ~np.isnan(targets)
        logits = predict(engine, self.validation.images[is_known])[:, 0].astype(np.float64)
        truth = targets[is_known].astype(np.float64)
        # The cross-entropy of a logit, without overflow: log(1 + e^-|x|) + max(x, 0) - x * truth
        loss = np.log1p(np.exp(-np.abs(logits))) + np.maximum(logits, 0) - logits * truth
        return auc(logits, truth >= 0.5), float(loss.mean())

    def seconds_per_image(self, specification: Specification, weights: Weights) -> float:
        """Median of batches from the third on."""
        images = self.validation.images[:_TIMED].astype(np.float32) / 255
        return inference_seconds(specification, weights, images=images, settings=self.settings)

    def propose_batch_size(self, specification: Specification, weights: Weights) -> int | None:
        """By a profile of training steps at the candidate sizes."""
        return fastest_batch_size(specification, weights, batch_sizes=self.batch_sizes, settings=self.settings)


def prune_step(run: Run) -> Mapping[str, Any]:
    """Prune what the train step left; the smallest network that kept the quality asked for is used from here on."""
    if run.recipe.prune is None:
        return {}
    data, home = dataset_of(run), run.folder("prune")
    why, kept, folder = prune_as_told(
        run,
        load_trained(run),
        training=data.samples("training"),
        validation=data.samples("validation"),
        folder=home,
    )
    save_network(home, *folder.network(kept.number))
    run.write("prune", "table.json", [_row(row, folder.iterations()[0]) for row in folder.iterations()])
    return {"stopped_by": why, **_row(kept, folder.iterations()[0])}


def prune_as_told(
    run: Run,
    original: tuple[Specification, Weights],
    *,
    training: Samples,
    validation: Samples,
    folder: Path,
) -> tuple[str, Iteration, RunFolder]:
    """Prune a network as the recipe says: the rule that stopped it, the iteration used from here on, and all of them.

    Parameters
    ----------
    original
        The trained network.
    folder
        Iterations of this very pruning are resumed there, those of another begun again: only its stop rules may
        change.
    """
    chosen = run.recipe.prune
    if chosen is None:
        raise ValueError("the recipe does not prune")
    task = _task(run, chosen, training=training, validation=validation, folder=folder)
    decisive = (task.training, task.validation, task.schedule, task.augmentation, task.settings, task.engine)
    kept = RunFolder(folder, fingerprint=digest(chosen.fingerprint, *original, *decisive), begins_again=True)
    why = prune(
        task,
        chosen.plan(run.recipe.training.seed),
        folder=kept,
        original=lambda: original,
        progress=lambda row: run.progress("iterations", row.number, chosen.stop.iterations),
    )
    return why, best(kept.iterations(), stop=chosen.stop), kept


def _task(run: Run, chosen: PruneRecipe, *, training: Samples, validation: Samples, folder: Path) -> ImageTask:
    return ImageTask(
        training=training,
        validation=validation,
        schedule=schedule_of(run.recipe),
        augmentation=run.recipe.augmentation,
        settings=settings_of(run.recipe),
        engine=run.recipe.training.engine,
        folder=folder,
        calibration=chosen.calibration,
        batch_sizes=chosen.batch_sizes,
        progress=run.progress,
    )


def _row(row: Iteration, original: Iteration) -> dict[str, Any]:
    return {
        "iteration": row.number,
        "parameters": row.parameters,
        "removed_share": 1 - row.parameters / original.parameters,
        "multiply_adds": row.multiply_adds,
        "times_fewer_multiply_adds": original.multiply_adds / row.multiply_adds,
        "speed_up": original.seconds_per_image / row.seconds_per_image,
        "auc_before_retraining": row.quality_before,
        "auc": row.quality,
    }


PRUNE: Final = Step(name="prune", perform=prune_step, reads=("prune",))
