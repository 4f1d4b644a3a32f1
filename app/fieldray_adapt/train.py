"""The training of a classifier (loop: `engine.train_epochs`): what its steps are drawn from, and how it is looked at.

Sources are drawn in given shares, and within each source its classes equally often. Otherwise the network learns to
recognise the source (its letters, collimation, grey levels) instead of the finding.

Where the first layers stay as they are, a step on an image costs mostly what they cost. A few changed copies of each
image are made instead of a new one for every draw, the frozen layers' outputs are computed once and kept
(`FrozenPart`), and the rest of the network is trained on them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fieldray.domain.metrics import auc
from fieldray_adapt.augmentation import Augmentation, augment, draw_motion, moved
from fieldray_adapt.engine import (
    Engine,
    EngineName,
    EngineSettings,
    Progress,
    cosine_rate,
    open_engine,
    train_whole,
)
from fieldray_adapt.files import digest
from fieldray_adapt.keras_engine import layer_reader
from fieldray_adapt.specification import INPUT, Layer, Specification, Weights, channel_sets, shapes


def balanced_draw(
    sources: Sequence[str],
    classes: Sequence[str],
    *,
    count: int,
    shares: Mapping[str, float],
    generator: np.random.Generator,
) -> NDArray[np.int64]:
    """`count` indices in random order; small groups repeat, but nothing repeats before its whole group was drawn.

    A source that `shares` does not name counts 1. Raises ValueError without images.
    """
    groups: dict[tuple[str, str], list[int]] = {}
    for index, key in enumerate(zip(sources, classes, strict=True)):
        groups.setdefault(key, []).append(index)
    if not groups:
        raise ValueError("there are no images to draw from")
    names = sorted({source for source, _ in groups})
    weight = {name: shares.get(name, 1.0) / sum(1 for source, _ in groups if source == name) for name in names}
    total = sum(weight[source] for source, _ in groups)
    drawn = [_repeated(groups[key], round(count * weight[key[0]] / total), generator) for key in sorted(groups)]
    return generator.permutation(np.concatenate(drawn))


def _repeated(members: list[int], count: int, generator: np.random.Generator) -> NDArray[np.int64]:
    rounds = [generator.permutation(members) for _ in range(-(-count // len(members)))]
    return np.concatenate(rounds)[:count] if rounds else np.zeros(0, np.int64)


_PREDICT_BATCH: Final = 64


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Samples:
    """Images (n, height, width, channels) uint8 with targets (n, labels) in 0..1 or nan, their source and patient.

    Attributes
    ----------
    images
        Or float16: what the frozen layers of a network made of them, see `FrozenPart`.
    lungs
        (n, rows, columns) uint8, the share of lung in each cell of the image, 255 being all; None if not known.
    """

    images: NDArray[Any]
    targets: NDArray[np.float32]
    sources: tuple[str, ...]
    patients: tuple[str, ...]
    lungs: NDArray[np.uint8] | None = None

    def __post_init__(self) -> None:
        known = [] if self.lungs is None else [len(self.lungs)]
        lengths = {len(self.images), len(self.targets), len(self.sources), len(self.patients), *known}
        if len(lengths) != 1 or self.targets.ndim != 2 or self.images.ndim != 4:
            raise ValueError("images, targets, sources and patients differ in number")

    def __len__(self) -> int:
        return len(self.images)

    def of_sources(self, names: Collection[str]) -> Samples:
        """Those of some sources."""
        chosen = np.flatnonzero(np.isin(self.sources, list(names)))
        return Samples(
            images=self.images[chosen],
            targets=self.targets[chosen],
            sources=tuple(self.sources[index] for index in chosen),
            patients=tuple(self.patients[index] for index in chosen),
            lungs=None if self.lungs is None else self.lungs[chosen],
        )

    def classes(self) -> tuple[str, ...]:
        """The class of each image for balanced drawing: its first known target, as text."""
        return tuple(_class_of(row) for row in self.targets)


def _class_of(targets: NDArray[np.float32]) -> str:
    known = np.flatnonzero(~np.isnan(targets))
    return f"{known[0]}:{round(float(targets[known[0]]))}" if len(known) else "?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How long and how fast.

    Attributes
    ----------
    images_per_epoch
        0: as many as there are; average_epochs: span of the running mean of the weights, 0 for none.
    shares
        How often each source is drawn, 1 where not named.
    """

    epochs: int
    batch_size: int = 32
    learning_rate: float = 1e-3
    warm_up_epochs: float = 1.0
    average_epochs: float = 1.0
    label_smoothing: float = 0.0
    images_per_epoch: int = 0
    seed: int = 0
    shares: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 2 or not self.learning_rate > 0:
            raise ValueError("epochs must be 1 or more, batch_size 2 or more, learning_rate above 0")

    def rate(self, epoch: float) -> float:
        """Learning rate at a time in epochs: linear warm-up, then a half cosine to 0."""
        return cosine_rate(self.learning_rate, epoch, warm_up=self.warm_up_epochs, end=self.epochs, least=0.02)


def train(
    specification: Specification,
    weights: Weights,
    *,
    training: Samples,
    validation: Samples,
    schedule: Schedule,
    augmentation: Augmentation,
    settings: EngineSettings,
    folder: Path,
    engine: EngineName = "auto",
    progress: Progress = lambda _: None,
) -> tuple[Weights, list[dict[str, Any]]]:
    """Train, or resume this very training from the folder's checkpoint; the averaged weights, and figures by epoch.

    The checkpoint stays until the caller has kept what came of it. Raises UsageProblem `training_diverged` when a loss
    is not a number (the checkpoint of the epoch before stays), StorageProblem when a checkpoint cannot be written.
    """
    own = open_engine(specification, weights, settings=settings, name=engine)
    return train_whole(
        ClassifierTask(own, training, validation, schedule, augmentation),
        own,
        average={key: array.copy() for key, array in weights.items()},
        epochs=schedule.epochs,
        folder=folder,
        key=digest(specification, weights, training, validation, schedule, augmentation, settings),
        progress=progress,
    )


@dataclass(eq=False, slots=True)
class ClassifierTask:
    """Steps of balanced draws; every step has its share in the mean, and young means forget faster."""

    engine: Engine
    training: Samples
    validation: Samples
    schedule: Schedule
    augmentation: Augmentation
    _steps_per_epoch: int = 1

    def steps(self, epoch: int) -> Iterator[float]:
        """As `TrainingTask`."""
        samples, schedule, generator = self.training, self.schedule, np.random.default_rng((self.schedule.seed, epoch))
        order = balanced_draw(
            samples.sources,
            samples.classes(),
            count=schedule.images_per_epoch or len(samples),
            shares=dict(schedule.shares),
            generator=generator,
        )
        self._steps_per_epoch = steps = max(1, len(order) // schedule.batch_size)
        for step in range(steps):
            chosen = order[step * schedule.batch_size : (step + 1) * schedule.batch_size]
            images, lungs = augmented_batch(samples, chosen, self.augmentation, generator)
            targets = smoothed(samples.targets[chosen], schedule.label_smoothing)
            yield self.engine.step(images, targets, learning_rate=schedule.rate(epoch + step / steps), lungs=lungs)

    def share(self, steps: int) -> float:
        """As `TrainingTask`."""
        horizon = self.schedule.average_epochs * self._steps_per_epoch
        return max(1 / max(horizon, 1.0), 9 / (steps + 9))

    def validate(self, average: Weights, _epoch: int) -> dict[str, Any]:
        """As `TrainingTask`."""
        return validate(self.engine, average, self.validation)


def predict(engine: Engine, images: NDArray[Any]) -> NDArray[np.float32]:
    """Logits (n, labels) of images (n, height, width, channels) uint8."""
    parts = [
        engine.logits(scaled(images[start : start + _PREDICT_BATCH])) for start in range(0, len(images), _PREDICT_BATCH)
    ]
    return np.concatenate(parts)


def validate(engine: Engine, weights: Weights, samples: Samples) -> dict[str, Any]:
    """AUC of each label (None where a class is missing) with the weights given; the engine keeps its own."""
    if not len(samples):
        return {"auc": []}
    kept = engine.weights()
    engine.set_weights(weights)
    logits = predict(engine, samples.images)
    engine.set_weights(kept)
    areas = []
    for label in range(samples.targets.shape[1]):
        known = ~np.isnan(samples.targets[:, label])
        area = auc(logits[known, label].astype(np.float64), samples.targets[known, label] >= 0.5)
        areas.append(None if math.isnan(area) else area)
    return {"auc": areas}


_NOTED_BATCHES: Final = 60


def recalibrate_batchnorm(
    engine: Engine,
    specification: Specification,
    samples: Samples,
    *,
    schedule: Schedule,
    augmentation: Augmentation,
) -> None:
    """Have the batch normalisations note their statistics anew, as a training does; no other weight changes.

    The mean of networks that began alike computes on the way what none of them does [1]_, so that what each noted of
    its own activations does not fit.

    References
    ----------
    .. [1] Wortsman M. et al., Model soups, ICML 2022, arXiv:2203.05482; Izmailov P. et al., Averaging Weights Leads to
       Wider Optima and Better Generalization, UAI 2018, arXiv:1803.05407, section 3.2 on the statistics.
    """
    if not any(layer.batch_norm for layer in specification.layers):
        return
    generator = np.random.default_rng((schedule.seed, schedule.epochs))
    order = balanced_draw(
        samples.sources,
        samples.classes(),
        count=_NOTED_BATCHES * schedule.batch_size,
        shares=dict(schedule.shares),
        generator=generator,
    )
    for start in range(0, len(order) - schedule.batch_size + 1, schedule.batch_size):
        chosen = order[start : start + schedule.batch_size]
        images, lungs = augmented_batch(samples, chosen, augmentation, generator)
        engine.step(images, samples.targets[chosen], learning_rate=0.0, lungs=lungs)


def augmented_batch(
    samples: Samples,
    chosen: Sequence[int] | NDArray[np.int64],
    settings: Augmentation,
    generator: np.random.Generator,
) -> tuple[NDArray[np.float32], NDArray[np.float32] | None]:
    """Changed copies of the images (n, height, width, channels) in 0..1, and of the shares of lung, moved alike.

    What is no image any more but what frozen layers made of one stays as it is.
    """
    if samples.images.dtype != np.uint8:
        known = None if samples.lungs is None else samples.lungs[chosen].astype(np.float32) / np.float32(255)
        return samples.images[chosen].astype(np.float32), known
    channels, images, lungs = samples.images.shape[3], [], []
    for index in chosen:
        motion = draw_motion(settings, generator)
        images.append(augment(samples.images[index, :, :, 0], settings, generator=generator, motion=motion))
        if samples.lungs is not None:
            lungs.append(moved(samples.lungs[index], motion))
    whole = scaled(np.stack(images)[..., None])
    shares = np.stack(lungs).astype(np.float32) / np.float32(255) if lungs else None
    return np.repeat(whole, channels, axis=3) if channels > 1 else whole, shares


def scaled(images: NDArray[Any]) -> NDArray[np.float32]:
    """As a network gets them: images uint8 in 0..1, what frozen layers made of them as it is."""
    values = images.astype(np.float32)
    return values / np.float32(255) if images.dtype == np.uint8 else values


def smoothed(targets: NDArray[np.float32], amount: float) -> NDArray[np.float32]:
    """Targets moved towards a half by that share (arXiv:1512.00567)."""
    return targets * np.float32(1 - amount) + np.float32(amount / 2)


_LEAST_SPREAD: Final = 1e-4


def frozen_end(specification: Specification, frozen: frozenset[str]) -> int:
    """How many of the first layers can be computed once: frozen or without weights, the rest reads the last of them.

    0 where there are none, or where the first layer is trained.
    """
    layers, end = specification.layers, 0
    for count in range(1, len(layers)):
        last = layers[count - 1]
        if last.has_weights and last.name not in frozen:
            break
        before = {layer.name for layer in layers[: count - 1]} | {INPUT}
        if not any(before & set(layer.inputs) for layer in layers[count:]):
            end = count
    return end


def upper_part(specification: Specification, end: int) -> Specification:
    """The network that reads the output of the layer before `end` as its image."""
    cut, rows_columns = specification.layers[end - 1].name, shapes(specification)[specification.layers[end - 1].name]
    layers = tuple(_reading(layer, cut) for layer in specification.layers[end:])
    used = {layer.channels for layer in layers if layer.channels}
    return replace(
        specification,
        height=rows_columns[0],
        width=rows_columns[1],
        input_channels=specification.channels[channel_sets(specification)[cut]],
        layers=layers,
        channels={name: count for name, count in specification.channels.items() if name in used},
    )


def _reading(layer: Layer, cut: str) -> Layer:
    return replace(layer, inputs=tuple(INPUT if name == cut else name for name in layer.inputs))


@dataclass(frozen=True, eq=False, slots=True)
class ChannelScale:
    """What makes a head's inputs alike in size, so that all of it learns equally fast.

    Attributes
    ----------
    mean, spread
        (channels,) over the training images, of each channel averaged over an image.
    """

    mean: NDArray[np.float32]
    spread: NDArray[np.float32]

    @classmethod
    def of(cls, samples: Samples) -> ChannelScale:
        """That of what frozen layers made of some images."""
        pooled = np.stack([image.mean((0, 1), dtype=np.float32) for image in samples.images])
        return cls(pooled.mean(0), pooled.std(0) + np.float32(_LEAST_SPREAD))

    def scaled(self, samples: Samples) -> Samples:
        """The samples with each channel's mean 0 and spread 1."""
        images = np.empty_like(samples.images)
        for index, image in enumerate(samples.images):
            images[index] = (image - self.mean) / self.spread
        return replace(samples, images=images)

    def unscaled(self, weights: Mapping[str, NDArray[np.float32]], head: str) -> Weights:
        """The weights (with a `head` of 1 x 1 kernels) that give the same answers on what is not scaled."""
        kernel = weights[f"{head}/kernel"] / self.spread[:, None]
        shift = np.einsum("hwio,i->o", kernel, self.mean)
        return {**weights, f"{head}/kernel": kernel, f"{head}/bias": weights[f"{head}/bias"] - shift}


@dataclass(frozen=True, eq=False, slots=True)
class FrozenPart:
    """The first `end` layers of a network, and what they made of the images seen so far.

    Attributes
    ----------
    copies
        Changed copies of each training image; the image as it is comes besides.
    kept
        By the digest of an image: outputs float16 (copies + 1, rows, columns, channels) and shares of lung.
    """

    specification: Specification
    weights: Mapping[str, NDArray[np.float32]]
    end: int
    augmentation: Augmentation
    copies: int
    seed: int
    kept: dict[bytes, tuple[NDArray[np.float16], NDArray[np.uint8] | None]] = field(default_factory=dict)

    @property
    def upper(self) -> Specification:
        """The rest of the network."""
        return upper_part(self.specification, self.end)

    def upper_weights(self) -> Weights:
        """The weights of the rest."""
        names = {layer.name for layer in self.specification.layers[self.end :]}
        return {key: np.array(array) for key, array in self.weights.items() if key.rpartition("/")[0] in names}

    def samples(self, samples: Samples, *, copies: bool) -> Samples:
        """The samples as the rest of the network sees them: with `copies` the changed ones as well, each a sample."""
        self._compute(samples)
        count = self.copies + 1 if copies else 1
        found = [self.kept[_key(samples, index)] for index in range(len(samples))]
        nothing = np.zeros((0, *shapes(self.upper)[INPUT]), np.float16)
        return Samples(
            images=np.concatenate([nothing, *(outputs[:count] for outputs, _ in found)]),
            targets=np.repeat(samples.targets, count, axis=0),
            sources=tuple(name for name in samples.sources for _ in range(count)),
            patients=tuple(name for name in samples.patients for _ in range(count)),
            lungs=None if samples.lungs is None else _joined([lungs for _, lungs in found], count, samples.lungs),
        )

    def _compute(self, samples: Samples) -> None:
        missing = [index for index in range(len(samples)) if _key(samples, index) not in self.kept]
        if not missing:
            return
        last = self.specification.layers[self.end - 1].name
        read = layer_reader(self.specification, self.weights, [last])
        for index in missing:
            key = _key(samples, index)
            # By the image and not by its place: it is then the same in every fold.
            generator = np.random.default_rng((self.seed, int.from_bytes(key[:8], "big")))
            settings = [Augmentation(), *[self.augmentation] * self.copies]
            images, lungs = zip(*(augmented_batch(samples, [index], own, generator) for own in settings), strict=True)
            outputs = np.asarray(read(np.concatenate(images))[last], np.float16)
            self.kept[key] = (
                outputs,
                None if lungs[0] is None else np.rint(255 * np.concatenate(lungs)).astype(np.uint8),
            )


def _key(samples: Samples, index: int) -> bytes:
    return hashlib.sha256(samples.images[index].tobytes()).digest()


def _joined(parts: list[NDArray[np.uint8] | None], count: int, like: NDArray[np.uint8]) -> NDArray[np.uint8]:
    known = [part[:count] for part in parts if part is not None]
    return np.concatenate([np.zeros((0, *like.shape[1:]), np.uint8), *known])
