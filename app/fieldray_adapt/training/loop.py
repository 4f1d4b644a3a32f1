"""Train networks in epochs with checkpoints, and train on images in memory.

An epoch is a number of steps. Weights are averaged over the steps, and a checkpoint is written after each epoch. All
random numbers depend on seed and epoch, so that an interrupted training can resume exactly. A training resumes only if
all inputs are unchanged. A target of nan is unknown and has no loss. So data sets with different labels can be
combined.

`train_on_arrays` trains the networks of a pruning study. With a teacher, the targets are a mixture of the labels and
the teacher's softmax [1]_.

References
----------
.. [1] Hinton G. et al., Distilling the Knowledge in a Neural Network, 2015, arXiv:1503.02531.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from msgspec import Struct, structs
from numpy.typing import NDArray
from scipy.special import softmax

from fieldray.errors import UsageProblem
from fieldray.reasons import reason
from fieldray.typed_json import parse_json
from fieldray_adapt.files import digest, open_arrays, save_arrays, to_builtins
from fieldray_adapt.networks.specification import Specification, Weights
from fieldray_adapt.recipes.tables import key, recipe_table
from fieldray_adapt.training.engine_choice import open_engine, uses_torch
from fieldray_adapt.training.engine_interface import Batch, Checkpointable, Engine, EngineName, EngineSettings

CHECKPOINT_FILE_NAME: Final = "checkpoint.npz"
"""The file name of all checkpoints. When a step is done, its checkpoints are removed."""

_ENGINE_PARTS: Final = ("weights", "optimiser")


class EpochFigures(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The figures of an epoch of a training, a row of `history.json`. Figures that were not measured are absent.

    Attributes
    ----------
    auc
        Classifier: AUC of each label on the validation images; None if positive or negative images are missing.
    side
        Lung fields: side of the images in pixels.
    dice, least_dice, region_dice, region_least_dice
        Lung fields: mean and lowest Dice of the visible lung, mean and lowest Dice of the lung region.
    cells_wrong
        Lung fields: share of mask pixels that are wrong, 0..1.
    frontal
        Lung fields: share of validation images, 0..1, that the network accepts as frontal chests.
    staleness_mean, staleness_most
        Training by several workers: mean and maximum staleness of the gradients. Staleness is the number of updates
        that the network received while a worker computed a gradient.
    seconds
        Duration of the epoch, in seconds.
    time_s
        Training by several workers: seconds from the start of the training to the end of this epoch.
    """

    epoch: int
    epochs: int
    side: int | None = None
    loss: float
    auc: tuple[float | None, ...] | None = None
    dice: float | None = None
    least_dice: float | None = None
    region_dice: float | None = None
    region_least_dice: float | None = None
    cells_wrong: float | None = None
    frontal: float | None = None
    staleness_mean: float | None = None
    staleness_most: int | None = None
    seconds: float = 0.0
    time_s: float | None = None


class TrainingProgress(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The progress of a training: the figures of each epoch until now, and the number of steps until now."""

    history: tuple[EpochFigures, ...]
    steps: int = 0


class _Stored(TrainingProgress, frozen=True, kw_only=True):
    key: str = ""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class CheckpointContent:
    """The content of a checkpoint, without the state of the training engine.

    Attributes
    ----------
    progress
        The figures of each epoch until now, and the number of steps until now.
    averaged_weights
        The averaged weights, by name.
    """

    progress: TrainingProgress
    averaged_weights: Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The file that stores the state of a training.

    A stored state has a key: the digest of all inputs of the training (network, weights, data, schedule, settings). The
    state is restored only for an equal key, and for an engine of the class that wrote the state.
    """

    path: Path

    def has_training_state(self, engine_class: type, *, fingerprint: str) -> bool:
        """Return whether the file has the state of a training by an engine of the class `engine_class`.

        `fingerprint` is the digest of the training's inputs. A file with another fingerprint is of another training.
        """
        if not self.path.is_file():
            return False
        with open_arrays(self.path) as arrays:
            return _stored(arrays).key == _key_with_engine_name(engine_class, fingerprint)

    def restore(self, engine: Checkpointable, *, fingerprint: str) -> CheckpointContent | None:
        """Load the stored state of a training into the engine. Returns averaged weights, figures and number of steps.

        `fingerprint` is the digest of the training's inputs. Returns None and changes nothing if the file does not
        exist, or if the file has another fingerprint.
        """
        if not self.path.is_file():
            return None
        with open_arrays(self.path) as arrays:
            course = _stored(arrays)
            if course.key != _key_with_engine_name(type(engine), fingerprint):
                return None
            parts: dict[str, dict[str, NDArray[Any]]] = {"weights": {}, "optimiser": {}, "more": {}}
            for name in set(arrays) - {"facts"}:
                part, _, rest = name.partition("/")
                parts[part][rest] = arrays[name]
        engine.set_weights(parts["weights"])
        engine.set_optimiser_state(parts["optimiser"])
        return CheckpointContent(progress=course, averaged_weights=parts["more"])

    def save(self, engine: Checkpointable, content: CheckpointContent, *, fingerprint: str) -> None:
        """Write the state of the engine and `content` to the file. Raises StorageProblem.

        `fingerprint` is the digest of the training's inputs. `restore` needs an equal fingerprint.
        """
        found = dict(zip(_ENGINE_PARTS, (engine.weights(), engine.optimiser_state()), strict=True))
        found["more"] = dict(content.averaged_weights)
        arrays = {f"{part}/{name}": array for part, own in found.items() for name, array in own.items()}
        facts = json.dumps({**to_builtins(content.progress), "key": _key_with_engine_name(type(engine), fingerprint)})
        save_arrays(self.path, arrays | {"facts": np.frombuffer(facts.encode(), np.uint8)})


def _stored(arrays: Mapping[str, NDArray[Any]]) -> _Stored:
    return parse_json(arrays["facts"].tobytes(), _Stored)


def remove_checkpoints(folder: Path) -> None:
    """Remove all checkpoint files in a folder and in all subfolders."""
    for path in folder.rglob(CHECKPOINT_FILE_NAME):
        path.unlink()


def _key_with_engine_name(kind: type, key: str) -> str:
    return f"{kind.__name__} {key}"


Progress = Callable[[EpochFigures], None]
"""A function that is called with the figures of each finished epoch."""
_AVERAGED_EVERY: Final = 4
"""Number of steps between two additions to the running mean of the weights. Each addition costs a tenth of a step."""
_LONGEST_MEAN: Final = 0.98


class TrainingTask(Protocol):
    """The interface of a training for `train_epochs`: the steps of an epoch, and the validation after each epoch."""

    def run_steps(self, epoch: int) -> Iterator[float]:
        """Perform the training steps of an epoch, and yield the loss before each step. The first epoch is 0."""

    def averaging_weight(self, step_count: int) -> float:
        """Return the factor (0..1) with which the current weights of the network enter the running mean of the weights.

        `step_count` is the number of steps until now. If the factor is 0, the mean does not change.
        """

    def validate(self, averaged_weights: Weights, figures: EpochFigures) -> EpochFigures:
        """Measure the network with the averaged weights after an epoch. The engine's weights are restored afterwards.

        Returns `figures`, the figures of the epoch, with the measured values added.
        """


@dataclass(slots=True)
class TrainingState:
    """The state of a training between two epochs: averaged weights, figures of each epoch, and number of steps."""

    averaged_weights: Weights
    history: list[EpochFigures] = field(default_factory=list)
    step_count: int = 0

    def resume(self, checkpoint: Checkpoint, engine: Checkpointable, *, fingerprint: str) -> bool:
        """Load the state of a training from a checkpoint into this object and into the engine.

        Returns whether the checkpoint exists and has the fingerprint `fingerprint`, the digest of the training's
        inputs. Otherwise nothing is loaded.
        """
        if kept := checkpoint.restore(engine, fingerprint=fingerprint):
            self.averaged_weights, progress = dict(kept.averaged_weights), kept.progress
            self.history, self.step_count = [*progress.history], progress.steps
        return kept is not None


def train_epochs(
    task: TrainingTask,
    engine: Checkpointable,
    state: TrainingState,
    *,
    stop_epoch: int,
    epochs: int,
    checkpoint: Checkpoint,
    fingerprint: str,
    progress: Progress,
) -> None:
    """Train until `state` has `stop_epoch` epochs. A checkpoint is written after each epoch.

    Parameters
    ----------
    state
        The state of the training after the epochs trained before. The function adds the new epochs.
    stop_epoch
        Number of epochs after which the function returns, counted from the first epoch of the whole training.
    epochs
        Number of epochs of the whole training, for the figures.
    fingerprint
        The digest of the training's inputs, which is stored in the checkpoint.
    progress
        A function that is called with the figures of each finished epoch.

    Raises UsageProblem (`training_diverged`) if a loss is not a number; the checkpoint of the epoch before is kept.
    Raises StorageProblem if a checkpoint cannot be written.
    """
    for epoch in range(len(state.history), stop_epoch):
        started, losses = time.monotonic(), list[float]()
        for loss in task.run_steps(epoch):
            losses.append(loss)
            if not math.isfinite(loss):
                raise UsageProblem(reason("training_diverged", epoch=epoch + 1, step=len(losses)))
            state.step_count += 1
            if share := np.float32(task.averaging_weight(state.step_count)):
                _average(state.averaged_weights, engine.weights(), share=share)
        ended = EpochFigures(epoch=epoch + 1, epochs=epochs, loss=float(np.mean(losses)))
        ended = task.validate(state.averaged_weights, ended)
        state.history.append(structs.replace(ended, seconds=round(time.monotonic() - started, 3)))
        course = TrainingProgress(history=tuple(state.history), steps=state.step_count)
        checkpoint.save(
            engine, CheckpointContent(progress=course, averaged_weights=state.averaged_weights), fingerprint=fingerprint
        )
        progress(state.history[-1])


def train_or_resume(
    task: TrainingTask,
    engine: Checkpointable,
    *,
    initial_weights: Weights,
    epochs: int,
    folder: Path,
    fingerprint: str,
    progress: Progress,
) -> tuple[Weights, list[EpochFigures]]:
    """Train all epochs with one engine, or resume the training from the checkpoint in `folder`.

    Returns the averaged weights and the figures of each epoch. `initial_weights` are the initial weights, from which
    the running mean starts. The caller stores the result and then deletes the checkpoint. Raises as `train_epochs`.
    """
    state, checkpoint = TrainingState(initial_weights), Checkpoint(folder / CHECKPOINT_FILE_NAME)
    state.resume(checkpoint, engine, fingerprint=fingerprint)
    numbers = {"stop_epoch": epochs, "epochs": epochs}
    train_epochs(task, engine, state, **numbers, checkpoint=checkpoint, fingerprint=fingerprint, progress=progress)
    return state.averaged_weights, state.history


def _average(average: Weights, current: Weights, *, share: np.float32) -> None:
    for name, mean in average.items():
        np.add(mean, share * (current[name] - mean), out=mean)


def fourth_step_averaging_weight(step_count: int) -> float:
    """Return the factor (0..1) of the current weights in a running mean to which every fourth step is added.

    `step_count` is the number of steps until now. For every fourth step, the factor falls from 0.9 to 0.02 during the
    training. For all other steps, the factor is 0. `TrainingTask.averaging_weight` may return this factor.
    """
    if step_count % _AVERAGED_EVERY:
        return 0.0
    count = step_count // _AVERAGED_EVERY
    return 1 - min(_LONGEST_MEAN, count / (count + 9))


def cosine_learning_rate(
    highest: float, elapsed: float, *, warm_up_end: float, end: float = 1.0, start: float = 0.002
) -> float:
    """Return the learning rate at the time `elapsed` of a training.

    The rate rises linearly until `warm_up_end`, then falls to 0 along half a cosine wave until `end`.

    Parameters
    ----------
    highest
        The rate at the end of the warm-up.
    elapsed, warm_up_end, end
        The current time, the end of the warm-up and the end of training, all in the same unit.
    start
        Before the time `start`, the rate is the rate at `start`. So the first steps have a rate above 0.
    """
    if elapsed < warm_up_end:
        return highest * max(elapsed, start) / warm_up_end
    done = (elapsed - warm_up_end) / max(end - warm_up_end, 1e-9)
    return highest * (1 + math.cos(math.pi * min(done, 1.0))) / 2


_BATCH: Final = 500
_WARM_UP_SHARE: Final = 0.05
_MAX_PARTS: Final = 20


@dataclass(frozen=True, slots=True, eq=False)
class LabelledImages:
    """Labelled images in memory: images (n, height, width, channels) float32 in 0..1, and targets (n, labels) float32.

    The targets of an image sum to 1.
    """

    images: NDArray[np.float32]
    targets: NDArray[np.float32]

    def __post_init__(self) -> None:
        if self.images.ndim != 4 or self.targets.ndim != 2 or len(self.images) != len(self.targets):
            raise ValueError(f"images {self.images.shape} and targets {self.targets.shape} do not fit")

    def __len__(self) -> int:
        return len(self.images)

    def slice_images(self, start: int, stop: int | None = None) -> LabelledImages:
        """Return the images with indices from `start` up to, but without, `stop`; None for all from `start`."""
        return LabelledImages(self.images[start:stop], self.targets[start:stop])


@recipe_table
class Effort:
    """The duration and the learning rate of a training on images in memory."""

    batch_size: int = key("Number of images in each training step.", unit="images", low=1, example=32)
    epochs: float = key("Number of passes over the images. Fractions are allowed.", above=0, example=10.0)
    learning_rate: float = key("The highest learning rate.", above=0, example=1e-3)


def train_on_arrays(
    specification: Specification,
    weights: Mapping[str, NDArray[np.float32]],
    *,
    data: LabelledImages,
    effort: Effort,
    seed: int,
    settings: EngineSettings,
    folder: Path,
    progress: Progress = lambda _: None,
) -> Weights:
    """Train a network on images in memory, or resume the training from the checkpoint in `folder`. Returns the weights.

    The learning rate has a short warm-up and a cosine decay. The training is divided into at most twenty parts, which
    are reported as epochs. A resumed training gives the weights of an uninterrupted training, except for differences by
    random dropout. Raises as `train_or_resume`.
    """
    seed_dropout(seed)  # before the engine is opened, because Keras seeds a layer when the layer is made
    engine = open_engine(specification, weights, settings=settings)
    task = _FitTask(engine, data, effort, seed)
    key = digest(specification, weights, data, effort, seed, settings)
    train_or_resume(
        task, engine, initial_weights={}, epochs=task.parts, folder=folder, fingerprint=key, progress=progress
    )
    return engine.weights()


@dataclass(frozen=True, eq=False, slots=True)
class _FitTask:
    """Training on images in memory as a `TrainingTask`, without averaging and validation."""

    engine: Engine
    data: LabelledImages
    effort: Effort
    seed: int

    @property
    def count(self) -> int:
        """The number of steps of the whole training."""
        return max(1, round(len(self.data) * self.effort.epochs / self.effort.batch_size))

    @property
    def parts(self) -> int:
        """The number of parts into which the training is divided. All parts have about the same number of steps."""
        return min(self.count, _MAX_PARTS)

    def run_steps(self, epoch: int) -> Iterator[float]:
        """Perform the training steps of a part, and yield the loss of each step (see `TrainingTask.run_steps`)."""
        data, effort, count = self.data, self.effort, self.count
        first, last = (count * part // self.parts for part in (epoch, epoch + 1))
        drawn = enumerate(_drawn(len(data), effort.batch_size, self.seed, count))
        for step, chosen in islice(drawn, first, last):
            rate = effort.learning_rate * _share_of_rate(step, count)
            yield self.engine.step(data.images[chosen], data.targets[chosen], learning_rate=rate)

    def averaging_weight(self, _step_count: int) -> float:
        """Return 0, because this training does not average weights (see `TrainingTask.averaging_weight`)."""
        return 0.0

    def validate(self, _averaged_weights: Weights, figures: EpochFigures) -> EpochFigures:
        """Return `figures` unchanged, because this training has no validation (see `TrainingTask.validate`)."""
        return figures


def seed_dropout(seed: int, *, name: EngineName = "auto") -> None:
    """Set the seed of random dropout in PyTorch or Keras. `name` is the engine. Call before `open_engine`."""
    if uses_torch(name):
        import torch

        torch.manual_seed(seed)
    else:
        import keras

        keras.utils.set_random_seed(seed)


def _share_of_rate(step: int, steps: int) -> float:
    """Return the learning rate at a step divided by the highest learning rate, 0..1.

    The rate rises linearly in the first twentieth of all steps, then falls to 0 along a cosine (arXiv:1608.03983).
    """
    warm_up = max(1.0, _WARM_UP_SHARE * steps)
    return min((step + 1) / warm_up, 0.5 * (1 + math.cos(math.pi * step / steps)))


def _drawn(count: int, size: int, seed: int, steps: int) -> Iterator[NDArray[np.int64]]:
    """Yield the indices of the images for each training step, in a new random order in each pass over the images.

    `count` is the number of images, `size` the number of images in a step (at most `count`).
    """
    generator, size = np.random.default_rng(seed), min(size, count)
    starts = range(0, count - size + 1, size)
    for step in range(steps):
        if step % len(starts) == 0:
            order = generator.permutation(count)
        start = starts[step % len(starts)]
        yield order[start : start + size]


def measure_accuracy(
    specification: Specification,
    weights: Mapping[str, NDArray[np.float32]],
    *,
    data: LabelledImages,
    settings: EngineSettings,
) -> tuple[float, float]:
    """Return the accuracy (0..1) and the mean cross-entropy of a network on labelled images.

    An image is classified correctly if the label with the largest logit is the label with the largest target.
    """
    logits = _logits(open_engine(specification, weights, settings=settings), data.images)
    right = logits.argmax(axis=1) == data.targets.argmax(axis=1)
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    logarithms = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return float(right.mean()), float(-(data.targets * logarithms).sum(axis=1).mean())


def _logits(engine: Engine, images: Batch) -> Batch:
    return np.concatenate([engine.logits(images[at : at + _BATCH]) for at in range(0, len(images), _BATCH)])


def distillation_targets(
    data: LabelledImages,
    specification: Specification,
    weights: Mapping[str, NDArray[np.float32]],
    *,
    share: float,
    temperature: float,
    settings: EngineSettings,
) -> LabelledImages:
    """Return images whose targets are a mixture of the targets of `data` and a teacher network's predictions.

    Parameters
    ----------
    data
        The images with their original targets.
    specification, weights
        The teacher network.
    share
        The weight of the teacher's predictions in the mixture, 0..1.
    temperature
        The divisor of the teacher's logits before the softmax. Values above 1 make the predictions less certain.
    """
    logits = _logits(open_engine(specification, weights, settings=settings), data.images)
    soft = softmax(logits.astype(np.float64) / temperature, axis=1)
    return LabelledImages(data.images, ((1 - share) * data.targets + share * soft).astype(np.float32))
