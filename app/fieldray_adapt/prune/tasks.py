"""Measure, cut and retrain networks for the pruning loop: in a pruning study, and in a classifier's prune step.

A layer that lost most of its inputs has smaller outputs. Over sixteen layers, the signal fades to nothing. Retraining
would first have to restore the signal. `restore_output_scale` restores the signal by one factor for each layer. Layers
with batch normalisation need no factor, because retraining measures their statistics again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from msgspec import Struct, structs
from numpy.typing import NDArray

from fieldray.domain.metrics import auc
from fieldray_adapt.data.dataset import load_dataset
from fieldray_adapt.files import digest, to_builtins
from fieldray_adapt.networks.specification import Specification, Weights, channel_set_by_layer, keep_channels
from fieldray_adapt.prune.iterations import Iteration, PruningRunFolder
from fieldray_adapt.prune.loop import prune, smallest_adequate_iteration
from fieldray_adapt.prune.selection import ChannelScores, KeptChannels, measure_zero_shares
from fieldray_adapt.run import Progress, Run, Step, StepFacts
from fieldray_adapt.training.classifier import Samples, TrainingOptions, predict_logits, train_and_average_networks
from fieldray_adapt.training.engine_choice import open_engine
from fieldray_adapt.training.engine_interface import EngineSettings
from fieldray_adapt.training.keras_engine import layer_output_function
from fieldray_adapt.training.loop import Effort, LabelledImages, measure_accuracy, remove_checkpoints, train_on_arrays
from fieldray_adapt.training.loop import Progress as RowProgress
from fieldray_adapt.training.profile import fastest_batch_size, inference_s_per_image, time_networks
from fieldray_adapt.training.steps import (
    engine_settings,
    load_step_network,
    save_step_network,
    training_options,
    training_samples,
)

_LARGEST_FACTOR: Final = 10.0
_TIMED_ARRAYS: Final = 100


def restore_output_scale(
    before: tuple[Specification, Mapping[str, NDArray[np.float32]]],
    after: tuple[Specification, Weights],
    *,
    keep: KeptChannels,
    images: NDArray[np.float32],
) -> Weights:
    """Return the weights of a pruned network, with kernels scaled so that layer outputs are as large as before pruning.

    Pruning makes the sums in a layer smaller. Each kernel of a layer with a ReLU and without batch normalisation is
    multiplied by one factor, within limits. The factor restores the mean output of the kept channels.

    Parameters
    ----------
    before, after
        The networks before and after pruning.
    keep
        The channels that pruning kept, by channel set.
    images
        Calibration images (n, height, width, channels) float32 in 0..1.
    """
    sets = channel_set_by_layer(before[0])
    layers = [
        layer.name
        for layer in before[0].layers
        if layer.has_weights and layer.activation == "relu" and not layer.batch_norm and sets[layer.name] in keep
    ]
    if not layers:
        return dict(after[1])
    wanted = _means(*before, layers=layers, images=images, keep={name: keep[sets[name]] for name in layers})
    found = _means(*after, layers=layers, images=images, keep={})
    weights, passed_on = dict(after[1]), 1.0
    for name in layers:
        # `passed_on` is the product of the factors of earlier layers, by which this layer's input has grown.
        whole = float(np.clip(wanted[name] / max(found[name], 1e-9), 1 / _LARGEST_FACTOR**2, _LARGEST_FACTOR**8))
        factor = float(np.clip(whole / passed_on, 1 / _LARGEST_FACTOR, _LARGEST_FACTOR))
        weights[f"{name}/kernel"] = weights[f"{name}/kernel"] * np.float32(factor)
        passed_on *= factor
    return weights


def _means(
    specification: Specification,
    weights: Mapping[str, NDArray[np.float32]],
    *,
    layers: list[str],
    images: NDArray[np.float32],
    keep: Mapping[str, NDArray[Any]],
) -> dict[str, float]:
    values = layer_output_function(specification, weights, layers)(images)
    return {name: float(value[..., keep.get(name, slice(None))].mean()) for name, value in values.items()}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ArrayPruningTask:
    """The `PruningTask` for networks that classify images in memory. The quality of a network is the accuracy.

    Attributes
    ----------
    calibration_image_count
        Number of training images on which the average percentage of zeros is measured.
    candidate_batch_sizes
        Candidate batch sizes for `propose_batch_size`; empty to propose nothing.
    folder
        The folder that stores the checkpoint of a retraining.
    progress
        A function that is called after each part of a retraining.
    """

    training: LabelledImages
    validation: LabelledImages
    settings: EngineSettings
    folder: Path
    calibration_image_count: int = 500
    candidate_batch_sizes: Sequence[int] = ()
    progress: RowProgress = lambda _: None

    def measure_zero_shares(self, specification: Specification, weights: Weights) -> ChannelScores:
        """Return the average percentage of zeros (APoZ) of each channel, by channel set.

        The shares are measured on the first `calibration_image_count` training images. The images are in random order.
        """
        images = self.training.images[: self.calibration_image_count]
        return measure_zero_shares(
            specification, weights, batches=[images[at : at + 100] for at in range(0, len(images), 100)]
        )

    def cut_channels(
        self, specification: Specification, weights: Weights, *, keep: KeptChannels
    ) -> tuple[Specification, Weights]:
        """Return the smaller network that has only the channels of `keep`, and the smaller network's weights.

        The weights are scaled so that the mean output of each layer does not change (see `restore_output_scale`).
        """
        smaller, sliced = keep_channels(specification, weights, keep=keep)
        images = self.training.images[: self.calibration_image_count]
        return smaller, restore_output_scale((specification, weights), (smaller, sliced), keep=keep, images=images)

    def retrain(self, specification: Specification, weights: Weights, *, effort: Effort, seed: int) -> Weights:
        """Return the weights after training without dropout.

        Dropout would set channels to 0, although a pruned layer needs all of its channels.
        """
        trained = train_on_arrays(
            without_dropout(specification),
            weights,
            data=self.training,
            effort=effort,
            seed=seed,
            settings=self.settings,
            folder=self.folder,
            progress=self.progress,
        )
        remove_checkpoints(self.folder)
        return trained

    def measure_quality_and_loss(self, specification: Specification, weights: Weights) -> tuple[float, float]:
        """Return the accuracy (0..1) and the cross-entropy of a network on the validation images."""
        return measure_accuracy(specification, weights, data=self.validation, settings=self.settings)

    def seconds_per_image(self, specification: Specification, weights: Weights) -> float:
        """Return the median time of inference per image, in seconds. The first two batches are not counted."""
        images = self.validation.images[:_TIMED_ARRAYS]
        return inference_s_per_image(specification, weights, images=images, settings=self.settings)

    def propose_batch_size(self, specification: Specification, weights: Weights) -> int | None:
        """Return the smallest candidate batch size with a training time per image at most 10 % above the shortest time.

        The training times are measured. None if there are no candidate batch sizes.
        """
        return fastest_batch_size(
            specification, weights, batch_sizes=self.candidate_batch_sizes, settings=self.settings
        )


def without_dropout(specification: Specification) -> Specification:
    """Return a copy of the network in which all dropout rates are 0."""
    layers = (replace(layer, rate=0.0) if layer.kind == "dropout" else layer for layer in specification.layers)
    return replace(specification, layers=tuple(layers))


_BATCH: Final = 32
_TIMED: Final = 8
_ROUNDS: Final = 7


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ImagePruningTask:
    """The `PruningTask` for classifiers. The quality is the AUC of the first label on the validation images.

    Attributes
    ----------
    options
        The options of the original training. Only epochs, batch size and learning rate differ in a retraining.
    folder
        The folder that stores the checkpoints of a retraining.
    calibration_image_count
        Number of training images on which the average percentage of zeros is measured.
    candidate_batch_sizes
        Candidate batch sizes for `propose_batch_size`; empty to propose nothing.
    progress
        A function that is called after each epoch of a retraining.
    """

    training: Samples
    validation: Samples
    options: TrainingOptions
    folder: Path
    calibration_image_count: int
    candidate_batch_sizes: tuple[int, ...] = ()
    progress: Progress = lambda _what, _done, _total: None

    def measure_zero_shares(self, specification: Specification, weights: Weights) -> ChannelScores:
        """Return the average percentage of zeros (APoZ) of each channel, by channel set.

        The shares are measured on `calibration_image_count` random training images. Equal seeds of the training give
        equal images.
        """
        generator = np.random.default_rng(self.options.schedule.seed)
        chosen = np.sort(generator.permutation(len(self.training))[: self.calibration_image_count])
        parts = (chosen[at : at + _BATCH] for at in range(0, len(chosen), _BATCH))
        batches = (self.training.images[part].astype(np.float32) / np.float32(255) for part in parts)
        return measure_zero_shares(specification, weights, batches=batches)

    def cut_channels(
        self, specification: Specification, weights: Weights, *, keep: KeptChannels
    ) -> tuple[Specification, Weights]:
        """Return the smaller network that has only the channels of `keep`, and the smaller network's weights.

        The weights are not scaled, because retraining measures the statistics of batch normalisation again.
        """
        return keep_channels(specification, weights, keep=keep)

    def retrain(self, specification: Specification, weights: Weights, *, effort: Effort, seed: int) -> Weights:
        """Return the weights after retraining. An interrupted retraining resumes from the checkpoint.

        `effort` gives epochs, batch size and learning rate. All other options are those of the original training.
        """
        epochs = max(1, math.ceil(effort.epochs))
        before = self.options.schedule
        images = before.images_per_epoch or len(self.training) // max(len(before.groups), 1)
        images = round(images * effort.epochs / epochs)
        schedule = replace(
            before,
            epochs=epochs,
            batch_size=effort.batch_size,
            learning_rate=effort.learning_rate,
            warm_up_epochs=min(before.warm_up_epochs, epochs / 10),
            average_epochs=min(before.average_epochs, epochs / 2),
            images_per_epoch=max(images, effort.batch_size),
            seed=seed,
        )
        trained, _ = train_and_average_networks(
            specification,
            weights,
            training=self.training,
            validation=self.validation,
            options=replace(self.options, schedule=schedule),
            folder=self.folder / f"retraining-{seed}",
            progress=lambda _: lambda row: self.progress("epochs of retraining", row.epoch, row.epochs),
        )
        return trained

    def measure_quality_and_loss(self, specification: Specification, weights: Weights) -> tuple[float, float]:
        """Return the AUC and the cross-entropy of the first label, on the validation images whose label is known."""
        engine = open_engine(
            specification, weights, settings=self.options.engine_settings, name=self.options.engine_name
        )
        targets = self.validation.targets[:, 0]
        is_known = ~np.isnan(targets)
        logits = predict_logits(engine, self.validation.images[is_known])[:, 0].astype(np.float64)
        truth = targets[is_known].astype(np.float64)
        # Cross-entropy from a logit x without overflow: log(1 + e^-|x|) + max(x, 0) - x * truth
        loss = np.log1p(np.exp(-np.abs(logits))) + np.maximum(logits, 0) - logits * truth
        return auc(logits, truth >= 0.5), float(loss.mean())

    def seconds_per_image(self, specification: Specification, weights: Weights) -> float:
        """Return the median time of inference per image, in seconds. The first two batches are not counted."""
        images = self.validation.images[:_TIMED].astype(np.float32) / np.float32(255)
        return inference_s_per_image(specification, weights, images=images, settings=self.options.engine_settings)

    def propose_batch_size(self, specification: Specification, weights: Weights) -> int | None:
        """Return the smallest candidate batch size with a training time per image at most 10 % above the shortest time.

        The training times are measured. None if there are no candidate batch sizes.
        """
        return fastest_batch_size(
            specification, weights, batch_sizes=self.candidate_batch_sizes, settings=self.options.engine_settings
        )


class PrunedNetwork(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A row of prune/table.json: the network after an iteration, compared with the unpruned network (iteration 0).

    Attributes
    ----------
    removed_share
        Share (0..1) of the unpruned network's parameters that were removed until this iteration.
    milliseconds
        Time of inference for one image in the training engine, in milliseconds.
    times_fewer_multiply_adds, speed_up
        Multiply-adds of the unpruned network divided by those of this network, and the same ratio of the times.
    auc, auc_before_retraining
        AUC of the first label on the validation images.
    is_kept
        Whether later steps use this network.
    """

    iteration: int
    parameters: int
    removed_share: float
    multiply_adds: int
    milliseconds: float
    times_fewer_multiply_adds: float
    speed_up: float
    auc_before_retraining: float
    auc: float
    is_kept: bool | None = None


def prune_step(run: Run) -> StepFacts:
    """Prune the trained network of a classifier. Later steps use the smallest network with the required quality.

    At the end, the times of all networks are measured again, one after the other in several rounds, because the load of
    the computer changes during pruning. Does nothing if the recipe has no table `prune`.
    """
    if run.recipe.prune is None:
        return {}
    data, home = load_dataset(run), run.step_folder("prune")
    validation = data.samples("validation")
    why, kept, folder = prune_by_recipe(
        run,
        load_step_network(run, "train"),
        training=data.samples("training"),
        validation=validation,
        folder=home,
    )
    save_step_network(home, *folder.network_after_iteration(kept.number))
    rows = folder.iterations()
    times = time_networks(
        {str(row.number): folder.network_after_iteration(row.number) for row in rows},
        files={},
        images=validation.images[:_TIMED],
        settings=engine_settings(run.recipe),
        rounds=_ROUNDS,
    )
    rows = tuple(replace(row, seconds_per_image=times[str(row.number)]["engine_batch"] / 1e3) for row in rows)
    table = [_row(row, rows[0]) for row in rows]
    marked = [structs.replace(row, is_kept=row.iteration == kept.number) for row in table]
    run.write_step_json("prune", "table.json", marked)
    return {"stopped_by": why, **to_builtins(table[kept.number])}


def prune_by_recipe(
    run: Run, original: tuple[Specification, Weights], *, training: Samples, validation: Samples, folder: Path
) -> tuple[str, Iteration, PruningRunFolder]:
    """Prune a network by the recipe's table `prune`.

    Returns the stop rule that applied, the iteration whose network is used, and the folder of all iterations.

    Parameters
    ----------
    original
        The trained network.
    folder
        The folder of the iterations. A stored run with equal inputs is resumed, any other stored run is deleted.
    """
    chosen = run.recipe.prune
    if chosen is None:
        raise ValueError("the recipe does not prune")
    options = training_options(run.recipe)
    task = ImagePruningTask(
        training=training_samples(run, training),
        validation=validation,
        options=options,
        folder=folder,
        calibration_image_count=chosen.calibration,
        candidate_batch_sizes=chosen.batch_sizes,
        progress=run.progress,
    )
    decisive = (
        task.training,
        task.validation,
        options.schedule,
        options.augmentation,
        options.engine_settings,
        options.engine_name,
    )
    kept = PruningRunFolder(
        folder, fingerprint=digest(chosen.fingerprint, *original, *decisive), replaces_other_run=True
    )
    why = prune(
        task,
        chosen,
        folder=kept,
        seed=run.recipe.training.seed,
        original=lambda: original,
        progress=lambda row: run.progress("iterations", row.number, chosen.stop.iterations),
    )
    return why, smallest_adequate_iteration(kept.iterations(), stop=chosen.stop), kept


def _row(row: Iteration, original: Iteration) -> PrunedNetwork:
    return PrunedNetwork(
        iteration=row.number,
        parameters=row.parameters,
        removed_share=1 - row.parameters / original.parameters,
        multiply_adds=row.multiply_adds,
        milliseconds=1000 * row.seconds_per_image,
        times_fewer_multiply_adds=original.multiply_adds / row.multiply_adds,
        speed_up=original.seconds_per_image / row.seconds_per_image,
        auc_before_retraining=row.quality_before,
        auc=row.quality,
    )


PRUNE_STEP: Final = Step(name="prune", perform=prune_step, recipe_keys=("prune",))
