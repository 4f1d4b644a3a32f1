"""The loop of every training, and the state of a long one in one file.

A target of nan is unknown and counts for nothing, so several data sets that label different things train one network.
With a checkpoint a kill costs minutes and not the training.

The one loop of every training: epochs of steps, a running mean of the weights, a checkpoint after each epoch.

All randomness depends on (seed, epoch), so a training that was killed resumes exactly. Only the same training resumes:
if anything that it depends on has changed, it starts again.

Training on arrays that fit into memory: an original network, and the retraining of a pruned one.

With a teacher, the targets are a mixture of labels and the teacher's softmax [1]_. The cross-entropy with a mixture of
two targets is the mixture of the two cross-entropies, so training needs nothing but other targets.

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
from fieldray.typed_json import decoded
from fieldray_adapt.files import arrays_in, digest, plain, save_arrays
from fieldray_adapt.networks.specification import Specification, Weights
from fieldray_adapt.recipes.tables import key, table
from fieldray_adapt.training.engine_choice import _is_torch, open_engine
from fieldray_adapt.training.engine_interface import Batch, Engine, EngineName, EngineSettings, Trainable

"""How names of what batch normalisation notes, and no gradient moves, end."""

CHECKPOINT: Final = "checkpoint.npz"
"""The name of every checkpoint: a run removes those of a step that is done."""

_ENGINE_PARTS: Final = ("weights", "optimiser")


class EpochFigures(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Figures of one epoch of a training, a row of `history.json`; what a training does not measure is absent.

    A classifier has the AUC of each label on the validation images, None where a class is missing. Lung fields have the
    side of the images in pixels, Dice of the visible lung and of the region, and shares of wrong cells and of images
    taken for frontal. A divided training has `time_s`, without validation, and how many updates of others a worker's
    own came late.
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
    """The progress of a training: its epochs, and the steps since the beginning."""

    history: tuple[EpochFigures, ...]
    steps: int = 0


class _Stored(TrainingCourse, frozen=True, kw_only=True):
    key: str = ""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Kept:
    """The content of a checkpoint besides the engine's own state."""

    course: TrainingCourse
    arrays: Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where a training keeps its state.

    Only a state written with the same key, by an engine of the same kind, is resumed. The key is the digest of
    everything that goes into the training (see `files.digest`): network, weights, data, schedule, settings.
    """

    path: Path

    def holds(self, kind: type, *, key: str) -> bool:
        """Whether there is a state with this key, of an engine of this kind."""
        if not self.path.is_file():
            return False
        with arrays_in(self.path) as arrays:
            return _stored(arrays).key == _whole_key(kind, key)

    def restore(self, engine: Trainable, *, key: str) -> Kept | None:
        """Restore the engine to the stored state; without such a state None, and the engine unchanged."""
        if not self.path.is_file():
            return None
        with arrays_in(self.path) as arrays:
            course = _stored(arrays)
            if course.key != _whole_key(type(engine), key):
                return None
            parts: dict[str, dict[str, NDArray[Any]]] = {"weights": {}, "optimiser": {}, "more": {}}
            for name in set(arrays) - {"facts"}:
                part, _, rest = name.partition("/")
                parts[part][rest] = arrays[name]
        engine.set_weights(parts["weights"])
        engine.set_optimiser_state(parts["optimiser"])
        return Kept(course=course, arrays=parts["more"])

    def save(self, engine: Trainable, kept: Kept, *, key: str) -> None:
        """Write the state. Raises StorageProblem."""
        found = dict(zip(_ENGINE_PARTS, (engine.weights(), engine.optimiser_state()), strict=True))
        found["more"] = dict(kept.arrays)
        arrays = {f"{part}/{name}": array for part, own in found.items() for name, array in own.items()}
        facts = json.dumps({**plain(kept.course), "key": _whole_key(type(engine), key)})
        save_arrays(self.path, arrays | {"facts": np.frombuffer(facts.encode(), np.uint8)})


def _stored(arrays: Mapping[str, NDArray[Any]]) -> _Stored:
    return decoded(arrays["facts"].tobytes(), _Stored)


def remove_checkpoints(folder: Path) -> None:
    """Remove every checkpoint in a folder and below, once their results are stored."""
    for path in folder.rglob(CHECKPOINT):
        path.unlink()


def _whole_key(kind: type, key: str) -> str:
    return f"{kind.__name__} {key}"


Progress = Callable[[EpochFigures], None]
_AVERAGED_EVERY: Final = 4
"""Steps: taking the weights out of the framework costs a tenth of a step."""
_LONGEST_MEAN: Final = 0.98


class TrainingTask(Protocol):
    """A training task: the steps of an epoch, and the validation after each."""

    def steps(self, epoch: int) -> Iterator[float]:
        """Perform the steps of an epoch, counted from 0, one by one; the loss of each, before it."""

    def share(self, steps: int) -> float:
        """Return the weight of the current weights in their running mean after `steps` steps; 0 to skip them."""

    def validate(self, average: Weights, ended: EpochFigures) -> EpochFigures:
        """Validate the averaged weights after an epoch.

        Returns the epoch's figures; the engine keeps its own weights.
        """


@dataclass(slots=True)
class TrainingState:
    """The state of a training: averaged weights, figures by epoch, steps since the beginning."""

    average: Weights
    history: list[EpochFigures] = field(default_factory=list)
    steps: int = 0

    def resume(self, checkpoint: Checkpoint, engine: Trainable, *, key: str) -> bool:
        """Load a checkpoint of this training, engine included. Returns whether there was one."""
        if kept := checkpoint.restore(engine, key=key):
            self.average, self.history, self.steps = dict(kept.arrays), [*kept.course.history], kept.course.steps
        return kept is not None


def train_epochs(
    task: TrainingTask,
    engine: Trainable,
    state: TrainingState,
    *,
    until: int,
    epochs: int,
    checkpoint: Checkpoint,
    key: str,
    progress: Progress,
) -> None:
    """Train from the epoch that `state` has come to up to, not including, `until`; of all there are `epochs`.

    Raises UsageProblem `training_diverged` when a loss is not a number (the checkpoint of the epoch before stays),
    StorageProblem when a checkpoint cannot be written.
    """
    for epoch in range(len(state.history), until):
        started, losses = time.monotonic(), list[float]()
        for loss in task.steps(epoch):
            losses.append(loss)
            if not math.isfinite(loss):
                raise UsageProblem(reason("training_diverged", epoch=epoch + 1, step=len(losses)))
            state.steps += 1
            if share := np.float32(task.share(state.steps)):
                _average(state.average, engine.weights(), share=share)
        ended = EpochFigures(epoch=epoch + 1, epochs=epochs, loss=float(np.mean(losses)))
        ended = task.validate(state.average, ended)
        state.history.append(structs.replace(ended, seconds=round(time.monotonic() - started, 3)))
        course = TrainingCourse(history=tuple(state.history), steps=state.steps)
        checkpoint.save(engine, Kept(course=course, arrays=state.average), key=key)
        progress(state.history[-1])


def train_whole(
    task: TrainingTask,
    engine: Trainable,
    *,
    average: Weights,
    epochs: int,
    folder: Path,
    key: str,
    progress: Progress,
) -> tuple[Weights, list[EpochFigures]]:
    """Train all epochs with one engine, or resume this very training from the folder's checkpoint.

    Averaged weights, whose mean begins with `average`, and figures by epoch. The checkpoint stays until the caller has
    kept what came of it. Raises as `train_epochs`.
    """
    state, checkpoint = TrainingState(average), Checkpoint(folder / CHECKPOINT)
    state.resume(checkpoint, engine, key=key)
    train_epochs(task, engine, state, until=epochs, epochs=epochs, checkpoint=checkpoint, key=key, progress=progress)
    return state.average, state.history


def _average(average: Weights, current: Weights, *, share: np.float32) -> None:
    for name, mean in average.items():
        np.add(mean, share * (current[name] - mean), out=mean)


def share_of_some(steps: int) -> float:
    """Return `TrainingTask.share` of a mean over some of the steps; a short mean forgets faster."""
    if steps % _AVERAGED_EVERY:
        return 0.0
    count = steps // _AVERAGED_EVERY
    return 1 - min(_LONGEST_MEAN, count / (count + 9))


def cosine_rate(highest: float, at: float, *, warm_up: float, end: float = 1.0, least: float = 0.002) -> float:
    """Learning rate at a time: from `least` on a linear rise up to `warm_up`, then a half cosine to 0 at the `end`."""
    if at < warm_up:
        return highest * max(at, least) / warm_up
    done = (at - warm_up) / max(end - warm_up, 1e-9)
    return highest * (1 + math.cos(math.pi * min(done, 1.0))) / 2


_BATCH: Final = 500
_WARM_UP_SHARE: Final = 0.05
_MOST_PARTS: Final = 20


@dataclass(frozen=True, slots=True, eq=False)
class Labelled:
    """Images (n, height, width, channels) float32 in 0..1 and targets (n, labels) float32 that sum to 1."""

    images: NDArray[np.float32]
    targets: NDArray[np.float32]

    def __post_init__(self) -> None:
        if self.images.ndim != 4 or self.targets.ndim != 2 or len(self.images) != len(self.targets):
            raise ValueError(f"images {self.images.shape} and targets {self.targets.shape} do not fit")

    def __len__(self) -> int:
        return len(self.images)

    def part(self, start: int, stop: int | None = None) -> Labelled:
        """The images from `start` up to, not including, `stop`."""
        return Labelled(self.images[start:stop], self.targets[start:stop])


@table
class Effort:
    """How long and how fast a network is trained."""

    batch_size: int = key("Images in a step.", unit="images", low=1, example=32)
    epochs: float = key("Passes over the images; parts of one are allowed.", above=0, example=10.0)
    learning_rate: float = key("The highest learning rate.", above=0, example=1e-3)


def fit(
    specification: Specification,
    weights: Mapping[str, NDArray[np.float32]],
    *,
    data: Labelled,
    effort: Effort,
    seed: int,
    settings: EngineSettings,
    folder: Path,
    progress: Progress = lambda _: None,
) -> Weights:
    """Train with a short warm-up and cosine decay, or resume this very training from the folder's checkpoint.

    It resumes as it would have gone on, but for what a dropout draws; its "epochs" are up to twenty parts of it. Raises
    as `train_whole`.
    """
    seed_dropout(seed)  # before the engine: Keras gives a layer its seed when it makes it
    engine = open_engine(specification, weights, settings=settings)
    task = _FitTask(engine, data, effort, seed)
    key = digest(specification, weights, data, effort, seed, settings)
    train_whole(task, engine, average={}, epochs=task.parts, folder=folder, key=key, progress=progress)
    return engine.weights()


@dataclass(frozen=True, eq=False, slots=True)
class _FitTask:
    """Steps on arrays; nothing is averaged, and nothing looked at."""

    engine: Engine
    data: Labelled
    effort: Effort
    seed: int

    @property
    def count(self) -> int:
        """The number of all steps."""
        return max(1, round(len(self.data) * self.effort.epochs / self.effort.batch_size))

    @property
    def parts(self) -> int:
        """The number of parts, each of about equally many steps."""
        return min(self.count, _MOST_PARTS)

    def steps(self, epoch: int) -> Iterator[float]:
        """Perform the steps of an epoch (see `TrainingTask.steps`)."""
        data, effort, count = self.data, self.effort, self.count
        first, last = (count * part // self.parts for part in (epoch, epoch + 1))
        drawn = enumerate(_drawn(len(data), effort.batch_size, self.seed, count))
        for step, chosen in islice(drawn, first, last):
            rate = effort.learning_rate * _share_of_rate(step, count)
            yield self.engine.step(data.images[chosen], data.targets[chosen], learning_rate=rate)

    def share(self, _steps: int) -> float:
        """Weight of the weights in their running mean (see `TrainingTask.share`)."""
        return 0.0

    def validate(self, _average: Weights, ended: EpochFigures) -> EpochFigures:
        """The epoch as it ended, without validation (see `TrainingTask.validate`)."""
        return ended


def seed_dropout(seed: int, *, name: EngineName = "auto") -> None:
    """Have the dropouts of an engine of that name that is opened next draw as they did with this seed."""
    if _is_torch(name):
        import torch

        torch.manual_seed(seed)
    else:
        import keras

        keras.utils.set_random_seed(seed)


def _share_of_rate(step: int, steps: int) -> float:
    """Linear warm-up over the first twentieth, then a cosine down to 0 (arXiv:1608.03983)."""
    warm_up = max(1.0, _WARM_UP_SHARE * steps)
    return min((step + 1) / warm_up, 0.5 * (1 + math.cos(math.pi * step / steps)))


def _drawn(count: int, size: int, seed: int, steps: int) -> Iterator[NDArray[np.int64]]:
    """Yield the image indices of each step, shuffled again in each pass; a batch longer than the data is the data."""
    generator, size = np.random.default_rng(seed), min(size, count)
    starts = range(0, count - size + 1, size)
    for step in range(steps):
        if step % len(starts) == 0:
            order = generator.permutation(count)
        start = starts[step % len(starts)]
        yield order[start : start + size]


def quality(
    specification: Specification,
    weights: Mapping[str, NDArray[np.float32]],
    *,
    data: Labelled,
    settings: EngineSettings,
) -> tuple[float, float]:
    """Accuracy (the largest logit is at the largest target) in 0..1, and the mean cross-entropy."""
    logits = _logits(open_engine(specification, weights, settings=settings), data.images)
    right = logits.argmax(axis=1) == data.targets.argmax(axis=1)
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    logarithms = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return float(right.mean()), float(-(data.targets * logarithms).sum(axis=1).mean())


def _logits(engine: Engine, images: Batch) -> Batch:
    return np.concatenate([engine.logits(images[at : at + _BATCH]) for at in range(0, len(images), _BATCH)])


def distillation_targets(
    data: Labelled,
    specification: Specification,
    weights: Mapping[str, NDArray[np.float32]],
    *,
    share: float,
    temperature: float,
    settings: EngineSettings,
) -> Labelled:
    """The images with targets (n, labels), of which `share` is the teacher's softmax at a temperature."""
    logits = _logits(open_engine(specification, weights, settings=settings), data.images)
    soft = softmax(logits.astype(np.float64) / temperature, axis=1)
    return Labelled(data.images, ((1 - share) * data.targets + share * soft).astype(np.float32))
