"""Divide a training among workers, and compute in each worker the gradients of batches or of parts of batches.

All random numbers depend on seed, epoch, step and position in the batch. So several workers with parts of a batch use
the images and augmentations that one worker with the whole batch would use. A worker that replaces a lost worker can
continue at any step. A training in one process uses one sequence of random numbers. So the images and augmentations of
one process differ from those of several workers.
"""

from __future__ import annotations

import contextlib
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from fieldray.domain.model import LUNG_NETWORK_CHECKS
from fieldray.errors import UsageProblem
from fieldray.persistence import replace_durably, storage_problem
from fieldray.reasons import reason
from fieldray_adapt.data.augmentation import Augmentation
from fieldray_adapt.files import file_sha256
from fieldray_adapt.lungs.dataset import LungData
from fieldray_adapt.lungs.engine import GRADIENT_NORM_LIMIT, MaskEngine, set_thread_count
from fieldray_adapt.lungs.recipe import LungRecipe
from fieldray_adapt.lungs.train import StageSamples, stage_learning_rate
from fieldray_adapt.networks.specification import Specification, Weights, initial_weights
from fieldray_adapt.training.classifier import Samples, Schedule, augmented_batch, draw_balanced_indices, smooth_labels
from fieldray_adapt.training.engine_choice import open_engine
from fieldray_adapt.training.engine_interface import Checkpointable, Engine, EngineName, EngineSettings
from fieldray_cluster.training.formulas import ParameterServerKind
from fieldray_cluster.training.shard import UpdateRule

TrainingMode = Literal["local", "sync-join", "sync-split", "async"]
_LUNG_AVERAGE_MIN_WEIGHT: Final = 0.02
_AVERAGED_EVERY_OF_LUNGS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """The division of a training among workers.

    Parameters
    ----------
    workers
        Number of workers that compute gradients.
    mode
        sync-join: an update needs a batch of each worker. sync-split: an update needs one batch, of which each worker
        computes a part. async: each gradient is an update. local: one process trains alone.
    server
        central: one parameter server. distributed: one parameter server for each worker, each with a part (shard) of
        the weights.
    splits_evenly
        Whether the shards of distributed servers are equal. If False, whole tensors are placed (algorithm 3.7 of Šlampa
        2017).
    staleness
        Largest number of updates by which a gradient may be late, for the mode async; None for no limit.
    takes_turns
        Whether a server exchanges numbers with only one worker at a time, in each direction.
    address, certificates
        The address of the cluster, and the folder of the certificates; None for processes on this computer.
    """

    workers: int = 1
    mode: TrainingMode = "local"
    server: ParameterServerKind = "central"
    splits_evenly: bool = True
    staleness: int | None = None
    takes_turns: bool = False
    address: str | None = None
    certificates: Path | None = None

    def __post_init__(self) -> None:
        if self.mode == "local" and self.workers > 1:
            raise UsageProblem(reason("training_needs_mode", workers=self.workers))
        if self.staleness is not None:
            if self.mode != "async":
                raise UsageProblem(reason("training_staleness_sync"))
            if self.staleness < self.workers - 1:
                raise UsageProblem(
                    reason("training_staleness", staleness=self.staleness, least=self.workers - 1, workers=self.workers)
                )

    @property
    def is_synchronous(self) -> bool:
        """Whether training is synchronous: each update waits for the gradients of all workers."""
        return self.mode != "async"

    @property
    def server_count(self) -> int:
        """The number of parameter servers."""
        return self.workers if self.server == "distributed" else 1

    def updates_per_epoch(self, batches: int) -> int:
        """Return the number of updates of the weights in an epoch with `batches` batches.

        In the mode sync-join, an update uses a batch of each worker. The last update of an epoch may use fewer batches.
        """
        return -(-batches // self.workers) if self.mode == "sync-join" else batches

    def gradients_per_epoch(self, batches: int, worker: int) -> int:
        """Return the number of gradients that a worker sends in an epoch with `batches` batches.

        In synchronous modes, each worker sends a gradient for every update. If no batch is left for a worker, the
        gradient is 0. `worker` is the number of the worker; the first worker is 0.
        """
        return len(range(worker, batches, self.workers)) if self.mode == "async" else self.updates_per_epoch(batches)

    def batch_index(self, batches: int, worker: int, number: int) -> int | None:
        """Return the index (from 0) of the batch that a worker uses for its gradient `number` in an epoch.

        None if no batch is left for the worker. `batches` is the number of batches in the epoch. `worker` and `number`
        count from 0. In the mode sync-split, all workers use one batch.
        """
        found = number if self.mode == "sync-split" else number * self.workers + worker
        return found if found < batches else None

    def sample_slice(self, size: int, worker: int) -> slice:
        """Return the slice of a batch of `size` images that a worker uses: a part in the mode sync-split, else all."""
        if self.mode != "sync-split":
            return slice(0, size)
        return slice(size * worker // self.workers, size * (worker + 1) // self.workers)

    def require_enough_batches(self, *, batches: int, images_per_batch: Sequence[int]) -> None:
        """Raise UsageProblem if there are more workers than batches in an epoch, or than images in a divided batch.

        Parameters
        ----------
        batches
            Number of batches in an epoch.
        images_per_batch
            Number of images in a batch. For lung fields two numbers: images with masks, images for the image checks.
        """
        least = min((size for size in images_per_batch if size), default=0)
        if self.mode == "sync-split" and self.workers > least:
            raise UsageProblem(reason("training_small_batch", workers=self.workers, images=least))
        if self.mode in ("sync-join", "async") and self.workers > batches:
            raise UsageProblem(reason("training_few_batches", workers=self.workers, batches=batches))


@dataclass(frozen=True, slots=True, eq=False)
class GradientResult:
    """The gradient that a worker computed for its part of a batch.

    Attributes
    ----------
    gradient
        The gradient by weight name.
    loss
        The mean loss of the images.
    averaging_weight
        The weight of the gradient in the mean of all workers' gradients, which grows with the number of images.
    """

    gradient: Weights
    loss: float
    averaging_weight: float


class Replica(ABC):
    """A copy of the network in a worker process, with the training images."""

    def __init__(self, network: Checkpointable) -> None:
        self._network = network

    def weights(self) -> Weights:
        """Return a copy of the network's weights."""
        return self._network.weights()

    def set_weights(self, weights: Mapping[str, NDArray[np.float32]]) -> None:
        """Replace the network's weights."""
        self._network.set_weights(weights)

    @abstractmethod
    def gradient(self, epoch: int, step: int, plan: TrainingPlan, worker: int) -> GradientResult:
        """Return the gradient that a worker computes for one batch of an epoch.

        Parameters
        ----------
        epoch, step
            The number of the epoch, and the index of the batch in the epoch, both from 0.
        plan
            The division of the training, which decides which images of the batch the worker uses.
        worker
            The number of the worker, from 0.
        """


class TrainingImagesChanged(OSError):
    """The error for a file of training images whose SHA-256 is not that of the training task."""


def write_arrays(path: Path, arrays_object: Any) -> str:
    """Write the arrays and texts of a dataclass to a file for `read_arrays`. Returns the file's SHA-256.

    The file is written under another name and then renamed, so that a worker can still read an earlier file. Only the
    process that has locked the run folder may call this function. Raises StorageProblem (disk_full, not_writable).
    """
    found: dict[str, Any] = {one.name: getattr(arrays_object, one.name) for one in fields(arrays_object)}
    unfinished = path.with_name(f"{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with unfinished.open("wb") as file:
                np.savez(file, **{name: value for name, value in found.items() if value is not None})
            digest = file_sha256(unfinished)
            replace_durably(unfinished, path)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise storage_problem(error, path) from error
    return digest


@contextlib.contextmanager
def temporary_arrays(path: Path, arrays_object: Any) -> Iterator[str]:
    """Store the arrays of the dataclass `arrays_object` in a file during the block. Yields the file's SHA-256.

    At the end of the block the file is deleted, because the arrays are patient data.
    """
    try:
        yield write_arrays(path, arrays_object)
    finally:
        path.unlink(missing_ok=True)


def read_arrays(path: Path, sha256: str) -> dict[str, NDArray[Any]]:
    """Read the arrays that `write_arrays` wrote, by field name.

    Raises TrainingImagesChanged if the file does not have the SHA-256 `sha256`, and OSError.
    """
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
            raise TrainingImagesChanged(str(path))
        file.seek(0)
        with np.load(file, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}


@dataclass(frozen=True, slots=True, kw_only=True)
class DividedClassifierTraining:
    """The task of training a classifier with several workers.

    Attributes
    ----------
    sample_count
        Number of training images.
    arrays_path, arrays_sha256
        The file of the training images, which every worker must be able to read, and the SHA-256 of the file.
    """

    specification: Specification
    schedule: Schedule
    augmentation: Augmentation
    settings: EngineSettings
    engine: EngineName
    sample_count: int
    arrays_path: Path
    arrays_sha256: str

    @property
    def _drawn(self) -> int:
        return self.schedule.images_per_epoch or self.sample_count

    @property
    def batch_count(self) -> int:
        """The number of batches in an epoch."""
        return max(1, self._drawn // self.schedule.batch_size)

    @property
    def epochs(self) -> int:
        """The number of epochs of the training."""
        return self.schedule.epochs

    @property
    def images_per_batch(self) -> tuple[int, ...]:
        """The number of images in a batch."""
        return (min(self.schedule.batch_size, self._drawn),)

    @property
    def update_rule(self) -> UpdateRule:
        """The rule for updates: AdamW, and a running mean of the weights over `schedule.average_epochs` epochs."""
        horizon = max(self.schedule.average_epochs * self.batch_count, 1.0)
        return UpdateRule(
            weight_decay=self.settings.weight_decay,
            frozen_layers=self.settings.frozen,
            minimum_averaging_factor=min(1.0, 1 / horizon),
        )

    def learning_rate(self, epoch: int, share: float) -> float:
        """Return the learning rate of the training at a point in an epoch.

        Parameters
        ----------
        epoch
            The number of the epoch, from 0.
        share
            The completed share of the epoch, 0..1.
        """
        return self.schedule.learning_rate_at(epoch + share)

    def open_replica(self) -> Replica:
        """Read the training images, and return the network with them. The weights are not set yet.

        Raises OSError, TrainingImagesChanged.
        """
        arrays = read_arrays(self.arrays_path, self.arrays_sha256)
        samples = Samples(
            images=arrays["images"],
            targets=arrays["targets"],
            sources=tuple(map(str, arrays["sources"])),
            patients=tuple(map(str, arrays["patients"])),
            lungs=arrays.get("lungs"),
        )
        return _ClassifierReplica(self, samples)


class _ClassifierReplica(Replica):
    """A copy of a classifier in a worker process, with the training images."""

    def __init__(self, task: DividedClassifierTraining, samples: Samples) -> None:
        self._task, self._samples = task, samples
        set_thread_count(task.settings.threads)
        self._engine: Engine = open_engine(
            task.specification,
            initial_weights(task.specification, seed=0),
            settings=task.settings,
            name=task.engine,
        )
        super().__init__(self._engine)
        self._order: tuple[int, NDArray[np.int64]] = (-1, np.zeros(0, np.int64))

    def gradient(self, epoch: int, step: int, plan: TrainingPlan, worker: int) -> GradientResult:
        schedule, samples = self._task.schedule, self._samples
        if self._order[0] != epoch:
            shares, generator = dict(schedule.shares), np.random.default_rng((schedule.seed, epoch))
            count = schedule.images_per_epoch or len(samples)
            drawn = draw_balanced_indices(
                samples.sources, samples.class_of_each_image(), count=count, shares=shares, generator=generator
            )
            self._order = (epoch, drawn)
        size = schedule.batch_size
        whole = self._order[1][step * size : (step + 1) * size]
        own = plan.sample_slice(len(whole), worker)
        parts = [
            augmented_batch(
                samples,
                whole[index : index + 1],
                self._task.augmentation,
                np.random.default_rng((schedule.seed, epoch, step, index)),
            )
            for index in range(own.start, own.stop)
        ]
        images = np.concatenate([image for image, _ in parts])
        lungs = [lung for _, lung in parts if lung is not None]
        targets = smooth_labels(samples.targets[whole[own]], schedule.label_smoothing)
        gradient, loss = self._engine.gradient(images, targets, lungs=np.concatenate(lungs) if lungs else None)
        return GradientResult(gradient, loss, self._weight(targets))

    def _weight(self, targets: NDArray[np.float32]) -> float:
        """Return the number by which the sum of losses is divided for the mean loss.

        This is the number of images, or for binary losses the number of known targets, weighted by label.
        """
        settings = self._task.settings
        if settings.loss == "categorical":
            return float(len(targets))
        weights = np.array(settings.label_weights or (1.0,), np.float32)
        return float(((~np.isnan(targets)) * weights).sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class DividedLungTraining:
    """The task of training one stage of a lung-field network with several workers.

    Attributes
    ----------
    stage_index
        The index of the stage in the recipe, from 0.
    arrays_path, arrays_sha256
        The file of the training images, which every worker must be able to read, and the SHA-256 of the file.
    first_epoch
        Number of epochs in earlier stages.
    """

    recipe: LungRecipe
    stage_index: int
    arrays_path: Path
    arrays_sha256: str
    first_epoch: int = 0

    @property
    def batch_count(self) -> int:
        """The number of batches in an epoch."""
        return self.recipe.training.steps_per_epoch

    @property
    def epochs(self) -> int:
        """The number of epochs of this stage."""
        return self.recipe.training.stages[self.stage_index].epochs

    @property
    def images_per_batch(self) -> tuple[int, ...]:
        """The number of images with masks in a batch, and the number of images for the image checks in a batch."""
        training = self.recipe.training
        return (training.masks_per_step, training.checks_per_step if self.recipe.chests else 0)

    @property
    def update_rule(self) -> UpdateRule:
        """The rule for updates: AdamW or SGD with clipped gradients, and a running mean of the weights."""
        return UpdateRule(
            weight_decay=self.recipe.training.weight_decay,
            momentum=self.recipe.training.momentum,
            clip_norm=GRADIENT_NORM_LIMIT,
            updates_per_averaging=_AVERAGED_EVERY_OF_LUNGS,
            minimum_averaging_factor=_LUNG_AVERAGE_MIN_WEIGHT,
        )

    def learning_rate(self, epoch: int, share: float) -> float:
        """Return the learning rate of the stage at a point in an epoch.

        Parameters
        ----------
        epoch
            The number of the epoch in the stage, from 0.
        share
            The completed share of the epoch, 0..1.
        """
        return stage_learning_rate(self.recipe.training.stages[self.stage_index], epoch)(share)

    def open_replica(self) -> Replica:
        """Read the training images, and return the network with them. Raises OSError, TrainingImagesChanged."""
        arrays: dict[str, Any] = dict(
            read_arrays(self.arrays_path, self.arrays_sha256)
        )  # converts masks_are_chests, which is an array of one value
        return _LungReplica(self, LungData(**arrays))


class _LungReplica(Replica):
    """A copy of a lung-field network in a worker process, with the training images."""

    def __init__(self, task: DividedLungTraining, data: LungData) -> None:
        recipe = task.recipe
        set_thread_count(recipe.training.threads)
        self._task = task
        self._engine = MaskEngine(recipe.network, recipe.training.stages[task.stage_index].side, recipe.training)
        self._samples = StageSamples(recipe, data, self._engine)
        super().__init__(self._engine)

    def gradient(self, epoch: int, step: int, plan: TrainingPlan, worker: int) -> GradientResult:
        seed, task = self._task.recipe.training.seed, self._task
        with_masks, with_targets = task.images_per_batch

        def generator(index: int) -> np.random.Generator:
            return np.random.default_rng((seed, task.first_epoch + epoch, step, index))

        own, checked = plan.sample_slice(with_masks, worker), plan.sample_slice(with_targets, worker)
        pairs = [self._samples.draw_pair(generator(index)) for index in range(own.start, own.stop)]
        drawn = [
            self._samples.draw_image_for_image_checks(generator(with_masks + index))
            for index in range(checked.start, checked.stop)
        ]
        images = np.stack([*(image for image, _ in pairs), *(image for image, _ in drawn)])
        targets = [target for _, target in drawn]
        checks = np.stack(targets) if targets else np.zeros((0, len(LUNG_NETWORK_CHECKS)), np.float32)
        # The first images have masks, the others have targets of the checks.
        gradient, loss = self._engine.gradient(images, np.stack([mask for _, mask in pairs]), checks)
        return GradientResult(gradient, loss, float(len(images)))


DividedTask = DividedClassifierTraining | DividedLungTraining
"""A training task for workers.

The task has the path and the SHA-256 of the file from which each worker reads the training images.
"""
