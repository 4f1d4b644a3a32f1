"""The training loop of all networks, its checkpoints, and training on images in memory.

An epoch is a number of steps. Weights are averaged over the steps, and a checkpoint is written after each epoch. All
randomness depends on seed and epoch, so an interrupted training resumes exactly. A training resumes only if all of its
inputs are unchanged. A target of nan is unknown and has no loss, so data sets with different labels can be combined.

`train_on_arrays` trains the original network of a pruning study, and its pruned networks. With a teacher, the targets
are a mixture of labels and the teacher's softmax [1]_. The cross-entropy with a mixture of targets is the mixture of
the cross-entropies, so only the targets differ.

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
from fieldray_adapt.recipes.tables import key, table
from fieldray_adapt.training.engine_choice import open_engine, uses_torch
from fieldray_adapt.training.engine_interface import Batch, Checkpointable, Engine, EngineName, EngineSettings

CHECKPOINT_NAME: Final = "checkpoint.npz"
"""The file name of all checkpoints. The checkpoints of a step are removed once it is done."""

_ENGINE_PARTS: Final = ("weights", "optimiser")


class EpochFigures(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The figures of an epoch, a row of `history.json`. Figures that a training does not measure are absent.

    Attributes
    ----------
    auc
        Classifier: AUC of each label on the validation images; None if a class is missing.
    side
        Lung fields: side of the images in pixels.
    dice, least_dice, region_dice, region_least_dice
        Lung fields: mean and lowest Dice, of the visible lung and of the lung region.
    cells_wrong
        Lung fields: share of mask pixels that are wrong, 0..1.
    frontal
        Lung fields: share of validation images, 0..1, that the check of the whole image takes for frontal chests.
    staleness_mean, staleness_most
        Training by several workers: mean and largest number of updates by which gradients were late.
    seconds
        Duration of the epoch.
    time_s
        Training by several workers: seconds of training from its start to the end of this epoch.
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


class TrainingCourse(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The progress of a training: figures of its epochs, and the number of steps."""

    history: tuple[EpochFigures, ...]
    steps: int = 0


class _Stored(TrainingCourse, frozen=True, kw_only=True):
    key: str = ""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class CheckpointContent:
    """The content of a checkpoint besides the engine's state.

    Attributes
    ----------
    course
        Figures of the epochs until now, and the number of steps.
    arrays
        The averaged weights, by name.
    """

    course: TrainingCourse
    arrays: Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The file that stores the state of a training.

    A state is resumed only with an equal key, by an engine of the class that wrote it. The key is the digest of all
    inputs of the training (see `files.digest`): network, weights, data, schedule, settings.
    """

    path: Path

    def holds(self, kind: type, *, key: str) -> bool:
        """Return whether the file stores a training with these inputs, by an engine of the class `kind`.

        `key` is the digest of the inputs.
        """
        if not self.path.is_file():
            return False
        with open_arrays(self.path) as arrays:
            return _stored(arrays).key == _whole_key(kind, key)

    def restore(self, engine: Checkpointable, *, key: str) -> CheckpointContent | None:
        """Load the stored state of a training into the engine. Returns the other content of the file.

        Returns None, and changes nothing, if there is no file or if it was written for other inputs. `key` is the
        digest of the inputs.
        """
        if not self.path.is_file():
            return None
        with open_arrays(self.path) as arrays:
            course = _stored(arrays)
            if course.key != _whole_key(type(engine), key):
                return None
            parts: dict[str, dict[str, NDArray[Any]]] = {"weights": {}, "optimiser": {}, "more": {}}
            for name in set(arrays) - {"facts"}:
                part, _, rest = name.partition("/")
                parts[part][rest] = arrays[name]
        engine.set_weights(parts["weights"])
        engine.set_optimiser_state(parts["optimiser"])
        return CheckpointContent(course=course, arrays=parts["more"])

    def save(self, engine: Checkpointable, content: CheckpointContent, *, key: str) -> None:
        """Write the state of a training to the file. Raises StorageProblem.

        `key` is the digest of the training's inputs, by which `restore` recognises the state.
        """
        found = dict(zip(_ENGINE_PARTS, (engine.weights(), engine.optimiser_state()), strict=True))
        found["more"] = dict(content.arrays)
        arrays = {f"{part}/{name}": array for part, own in found.items() for name, array in own.items()}
        facts = json.dumps({**to_builtins(content.course), "key": _whole_key(type(engine), key)})
        save_arrays(self.path, arrays | {"facts": np.frombuffer(facts.encode(), np.uint8)})


def _stored(arrays: Mapping[str, NDArray[Any]]) -> _Stored:
    return parse_json(arrays["facts"].tobytes(), _Stored)


def remove_checkpoints(folder: Path) -> None:
    """Remove all checkpoints in a folder and its subfolders."""
    for path in folder.rglob(CHECKPOINT_NAME):
        path.unlink()


def _whole_key(kind: type, key: str) -> str:
    return f"{kind.__name__} {key}"


Progress = Callable[[EpochFigures], None]
"""A function that receives the figures of each epoch."""
_AVERAGED_EVERY: Final = 4
"""Steps between two samples of the running mean. Copying the weights takes a tenth of a step."""
_LONGEST_MEAN: Final = 0.98


class TrainingTask(Protocol):
    """A training task: the steps of an epoch, and the validation after each epoch."""

    def steps(self, epoch: int) -> Iterator[float]:
        """Perform the steps of an epoch (from 0) one by one, and yield the loss before each step."""

    def averaging_weight(self, steps: int) -> float:
        """Return the weight (0..1) with which the network's current weights are added to their running mean.

        `steps` is the number of steps until now. With 0 the current weights are left out.
        """

    def validate(self, average: Weights, figures: EpochFigures) -> EpochFigures:
        """Validate the averaged weights after an epoch. The engine keeps its own weights.

        Returns the figures of the epoch, with those of the validation added.
        """


@dataclass(slots=True)
class TrainingState:
    """The state of a training between two epochs: averaged weights, figures of each epoch, and number of steps."""

    average: Weights
    history: list[EpochFigures] = field(default_factory=list)
    steps: int = 0

    def resume(self, checkpoint: Checkpoint, engine: Checkpointable, *, key: str) -> bool:
        """Load the state of a training from its checkpoint into this object and the engine. Returns whether there was
        one.

        `key` is the digest of the training's inputs; a checkpoint with another key is not loaded.
        """
        if kept := checkpoint.restore(engine, key=key):
            self.average, self.history, self.steps = dict(kept.arrays), [*kept.course.history], kept.course.steps
        return kept is not None


def train_epochs(
    task: TrainingTask,
    engine: Checkpointable,
    state: TrainingState,
    *,
    until: int,
    epochs: int,
    checkpoint: Checkpoint,
    key: str,
    progress: Progress,
) -> None:
    """Train the epochs that `state` does not have yet, up to the epoch `until`. A checkpoint is written after each
    epoch.

    Parameters
    ----------
    until
        Number of epochs that are trained afterwards, from the first one on.
    epochs
        Number of epochs of the whole training, for the figures.
    key
        The digest of the training's inputs, which is stored in the checkpoint.
    progress
        Receives the figures of each epoch.

    Raises UsageProblem `training_diverged` if a loss is not a number (the checkpoint of the epoch before stays),
    StorageProblem if a checkpoint cannot be written.
    """
    for epoch in range(len(state.history), until):
        started, losses = time.monotonic(), list[float]()
        for loss in task.steps(epoch):
            losses.append(loss)
            if not math.isfinite(loss):
                raise UsageProblem(reason("training_diverged", epoch=epoch + 1, step=len(losses)))
            state.steps += 1
            if share := np.float32(task.averaging_weight(state.steps)):
                _average(state.average, engine.weights(), share=share)
        ended = EpochFigures(epoch=epoch + 1, epochs=epochs, loss=float(np.mean(losses)))
        ended = task.validate(state.average, ended)
        state.history.append(structs.replace(ended, seconds=round(time.monotonic() - started, 3)))
        course = TrainingCourse(history=tuple(state.history), steps=state.steps)
        checkpoint.save(engine, CheckpointContent(course=course, arrays=state.average), key=key)
        progress(state.history[-1])


def train_or_resume(
    task: TrainingTask,
    engine: Checkpointable,
    *,
    average: Weights,
    epochs: int,
    folder: Path,
    key: str,
    progress: Progress,
) -> tuple[Weights, list[EpochFigures]]:
    """Train all epochs with one engine, or resume the training from the checkpoint in `folder`.

    Returns the averaged weights, whose mean starts from `average`, and the figures of each epoch. The checkpoint stays
    until the caller has stored the result. Raises as `train_epochs`.
    """
    state, checkpoint = TrainingState(average), Checkpoint(folder / CHECKPOINT_NAME)
    state.resume(checkpoint, engine, key=key)
    train_epochs(task, engine, state, until=epochs, epochs=epochs, checkpoint=checkpoint, key=key, progress=progress)
    return state.average, state.history


def _average(average: Weights, current: Weights, *, share: np.float32) -> None:
    for name, mean in average.items():
        np.add(mean, share * (current[name] - mean), out=mean)


def sparse_averaging_share(steps: int) -> float:
    """Return the weight (0..1) of the current network in a running mean to which every fourth step is added.

    It is 0 for all other steps. `steps` is the number of steps until now. At the beginning the mean is short, and new
    weights count more. A method `TrainingTask.averaging_weight` may return this.
    """
    if steps % _AVERAGED_EVERY:
        return 0.0
    count = steps // _AVERAGED_EVERY
    return 1 - min(_LONGEST_MEAN, count / (count + 9))


def cosine_rate(highest: float, now: float, *, warm_up: float, end: float = 1.0, start: float = 0.002) -> float:
    """Return the learning rate at a time of a training.

    It rises linearly until `warm_up`, then falls to 0 along half a cosine wave until `end`.

    Parameters
    ----------
    highest
        The rate at the end of the warm-up.
    now, warm_up, end
        The current time, the end of the warm-up and the end of training, all in the same unit.
    start
        Before this time the rate does not rise. So the first steps have a rate above 0.
    """
    if now < warm_up:
        return highest * max(now, start) / warm_up
    done = (now - warm_up) / max(end - warm_up, 1e-9)
    return highest * (1 + math.cos(math.pi * min(done, 1.0))) / 2


_BATCH: Final = 500
_WARM_UP_SHARE: Final = 0.05
_MOST_PARTS: Final = 20


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

    def part(self, start: int, stop: int | None = None) -> LabelledImages:
        """Return the images from index `start` up to `stop` (exclusive)."""
        return LabelledImages(self.images[start:stop], self.targets[start:stop])


@table
class Effort:
    """Duration and learning rate of a training."""

    batch_size: int = key("Images in each training step.", unit="images", low=1, example=32)
    epochs: float = key("Passes over the images; parts of one are allowed.", above=0, example=10.0)
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
    """Train a network on images in memory, or resume the training from the checkpoint in `folder`.

    The learning rate has a short warm-up and a cosine decay. The training is divided into up to twenty parts, which are
    reported as epochs. A resumed training gives equal weights, but for the random draws of dropout. Raises as
    `train_or_resume`.
    """
    seed_dropout(seed)  # before the engine is opened, because Keras seeds a layer when the layer is made
    engine = open_engine(specification, weights, settings=settings)
    task = _FitTask(engine, data, effort, seed)
    key = digest(specification, weights, data, effort, seed, settings)
    train_or_resume(task, engine, average={}, epochs=task.parts, folder=folder, key=key, progress=progress)
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
        """The number of all steps."""
        return max(1, round(len(self.data) * self.effort.epochs / self.effort.batch_size))

    @property
    def parts(self) -> int:
        """The number of parts, which have about equally many steps."""
        return min(self.count, _MOST_PARTS)

    def steps(self, epoch: int) -> Iterator[float]:
        """Perform the steps of a part, and yield the loss of each (see `TrainingTask.steps`)."""
        data, effort, count = self.data, self.effort, self.count
        first, last = (count * part // self.parts for part in (epoch, epoch + 1))
        drawn = enumerate(_drawn(len(data), effort.batch_size, self.seed, count))
        for step, chosen in islice(drawn, first, last):
            rate = effort.learning_rate * _share_of_rate(step, count)
            yield self.engine.step(data.images[chosen], data.targets[chosen], learning_rate=rate)

    def averaging_weight(self, _steps: int) -> float:
        """Return 0, because no mean is used (see `TrainingTask.averaging_weight`)."""
        return 0.0

    def validate(self, _average: Weights, figures: EpochFigures) -> EpochFigures:
        """Return the epoch's figures unchanged (see `TrainingTask.validate`)."""
        return figures


def seed_dropout(seed: int, *, name: EngineName = "auto") -> None:
    """Seed the dropout of the training engine `name` (PyTorch or Keras), before the engine is opened."""
    if uses_torch(name):
        import torch

        torch.manual_seed(seed)
    else:
        import keras

        keras.utils.set_random_seed(seed)


def _share_of_rate(step: int, steps: int) -> float:
    """Return the share of the learning rate at a step: a linear warm-up over a twentieth, then a cosine to 0.

    The decay follows arXiv:1608.03983.
    """
    warm_up = max(1.0, _WARM_UP_SHARE * steps)
    return min((step + 1) / warm_up, 0.5 * (1 + math.cos(math.pi * step / steps)))


def _drawn(count: int, size: int, seed: int, steps: int) -> Iterator[NDArray[np.int64]]:
    """Yield the image indices of each step, shuffled in each pass. A batch larger than the data is the whole data."""
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
    """Return the accuracy (0..1) and the mean cross-entropy of a network.

    An image is correct if its largest logit is at its largest target.
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
    """Return the same images with other targets: a mixture of their own targets and the teacher's predictions.

    Parameters
    ----------
    specification, weights
        The teacher's network.
    share
        The share of the teacher's predictions in the mixture, 0..1.
    temperature
        The teacher's logits are divided by this before the softmax. Above 1 it makes the predictions less certain.
    """
    logits = _logits(open_engine(specification, weights, settings=settings), data.images)
    soft = softmax(logits.astype(np.float64) / temperature, axis=1)
    return LabelledImages(data.images, ((1 - share) * data.targets + share * soft).astype(np.float32))
