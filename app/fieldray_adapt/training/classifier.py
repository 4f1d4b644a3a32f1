"""Train a classifier: draw the batches, validate the network after each epoch, and average several networks.

Images are drawn from the sources in given shares, and within a source equally often from each class. Otherwise the
network would learn to recognise the source (letters, collimation, grey levels) and not the finding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from fieldray.domain.metrics import auc
from fieldray_adapt.data.augmentation import Augmentation, apply_geometric_change, augment, draw_geometric_change
from fieldray_adapt.files import digest
from fieldray_adapt.networks.specification import Specification, Weights
from fieldray_adapt.training.engine_choice import open_engine
from fieldray_adapt.training.engine_interface import Engine, EngineName, EngineSettings
from fieldray_adapt.training.loop import EpochFigures, Progress, cosine_learning_rate, seed_dropout, train_or_resume


def draw_balanced_indices(
    sources: Sequence[str],
    classes: Sequence[str],
    *,
    count: int,
    shares: Mapping[str, float],
    generator: np.random.Generator,
) -> NDArray[np.int64]:
    """Draw about `count` indices of images in random order, with equal shares for all classes of a source.

    Images of small classes are drawn several times. No image is drawn again before all images of its source and class
    were drawn.

    Parameters
    ----------
    sources, classes
        Source and class of each image.
    shares
        Relative frequency of each source; 1 for a source without an entry.

    Raises ValueError if there are no images.
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
    """Images for training, with targets, sources and patients.

    Attributes
    ----------
    images
        Images (n, height, width, channels) uint8.
    targets
        Targets (n, labels) in 0..1, nan if unknown.
    lungs
        Share of lung in each cell of a grid over the image, (n, rows, columns) uint8, 255 for all lung. None if
        unknown.
    """

    images: NDArray[np.uint8]
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

    def select_sources(self, names: Collection[str]) -> Samples:
        """Return only the images of the sources `names`, with their targets and patients."""
        chosen = np.flatnonzero(np.isin(self.sources, list(names)))
        return Samples(
            images=self.images[chosen],
            targets=self.targets[chosen],
            sources=tuple(self.sources[index] for index in chosen),
            patients=tuple(self.patients[index] for index in chosen),
            lungs=None if self.lungs is None else self.lungs[chosen],
        )

    def class_of_each_image(self) -> tuple[str, ...]:
        """Return the class of each image, for class-balanced sampling: the first known label, and its target."""
        return tuple(_class_of(row) for row in self.targets)


def _class_of(targets: NDArray[np.float32]) -> str:
    known = np.flatnonzero(~np.isnan(targets))
    return f"{known[0]}:{round(float(targets[known[0]]))}" if len(known) else "?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The duration, the learning rate and the draw of the images in a classifier's training.

    Attributes
    ----------
    images_per_epoch
        Number of images drawn in an epoch; 0 for as many as there are training images.
    average_epochs
        Number of epochs over which a running mean of the weights is taken; 0 for no mean.
    shares
        Relative frequency of each source; 1 for a source without an entry.
    groups
        Groups of sources. A network is trained on each group, and the networks are averaged. Empty to train one network
        on all sources.
    networks
        Number of networks that are trained from equal starting weights, with the seeds `seed`, `seed` + 1 and so on,
        and averaged. With groups: the number for each group.
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
    groups: tuple[tuple[str, ...], ...] = ()
    networks: int = 1

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 2 or not self.learning_rate > 0:
            raise ValueError("epochs must be 1 or more, batch_size 2 or more, learning_rate above 0")

    def learning_rate_at(self, epoch: float) -> float:
        """Return the learning rate after `epoch` epochs (a fraction): a linear warm-up, then a half cosine to 0."""
        return cosine_learning_rate(
            self.learning_rate, epoch, warm_up_end=self.warm_up_epochs, end=self.epochs, start=0.02
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    """The options of a classifier's training: schedule, augmentation, and settings and name of the engine.

    Attributes
    ----------
    starting_weights_share
        The share of the starting weights in the final weights, at least 0 and below 1. A network that is averaged with
        its starting weights keeps more of its accuracy at other hospitals [1]_.

    References
    ----------
    .. [1] Wortsman M. et al., Robust fine-tuning of zero-shot models, CVPR 2022, arXiv:2109.01903.
    """

    schedule: Schedule
    augmentation: Augmentation
    engine_settings: EngineSettings
    engine_name: EngineName = "auto"
    starting_weights_share: float = 0.0


def train(
    specification: Specification,
    weights: Weights,
    *,
    training: Samples,
    validation: Samples,
    options: TrainingOptions,
    folder: Path,
    progress: Progress = lambda _: None,
) -> tuple[Weights, list[EpochFigures]]:
    """Train a classifier, or resume the training from the checkpoint in `folder`.

    Returns the averaged weights, and the figures of each epoch. A resumed training gives the weights of an
    uninterrupted training, except for differences by random dropout. The caller stores the result and then deletes the
    checkpoint.

    Raises UsageProblem (`training_diverged`) if a loss is not a number; the checkpoint of the epoch before is kept.
    Raises StorageProblem if a checkpoint cannot be written.
    """
    schedule, augmentation, settings = options.schedule, options.augmentation, options.engine_settings
    seed_dropout(schedule.seed, name=options.engine_name)
    own = open_engine(specification, weights, settings=settings, name=options.engine_name)
    return train_or_resume(
        ClassifierTask(own, training, validation, schedule, augmentation),
        own,
        initial_weights={key: array.copy() for key, array in weights.items()},
        epochs=schedule.epochs,
        folder=folder,
        fingerprint=digest(specification, weights, training, validation, schedule, augmentation, settings),
        progress=progress,
    )


def train_and_average_networks(
    specification: Specification,
    weights: Weights,
    *,
    training: Samples,
    validation: Samples,
    options: TrainingOptions,
    folder: Path,
    progress: Callable[[Path], Progress],
    train_one: Callable[..., tuple[Weights, list[EpochFigures]]] = train,
) -> tuple[Weights, list[EpochFigures]]:
    """Train a network for each group of sources and each seed of the schedule, and average the networks.

    `progress` is called with the folder of a training, and returns a callback for the epochs of that training.
    `train_one` is a function that trains one network, with the arguments of `train`. Returns the averaged weights, and
    the figures of each epoch of the last training. Raises the exceptions of `train`.
    """

    def on(samples: Samples, subfolder: Path, seed: int) -> tuple[Weights, list[EpochFigures]]:
        return train_one(
            specification,
            dict(weights),
            training=samples,
            validation=validation,
            options=replace(options, schedule=replace(schedule, seed=seed)),
            folder=subfolder,
            progress=progress(subfolder),
        )

    schedule = options.schedule
    groups = [names for names in schedule.groups if set(names) & set(training.sources)]
    seeds = range(schedule.seed, schedule.seed + schedule.networks)
    if not groups and len(seeds) == 1 and not options.starting_weights_share:
        return on(training, folder, schedule.seed)
    share = dict(schedule.shares)
    parts, weight = list[tuple[Weights, list[EpochFigures]]](), list[float]()
    for number, names in enumerate(groups or [tuple(sorted(set(training.sources)))]):
        for seed in seeds:
            subfolder = folder / (f"group-{number}" if len(seeds) == 1 else f"group-{number}-seed-{seed}")
            parts.append(on(training.select_sources(names) if groups else training, subfolder, seed))
            weight.append(sum(share.get(name, 1.0) for name in names))
    trained = _mean(weight, [own for own, _ in parts])
    mean = _mean([1 - options.starting_weights_share, options.starting_weights_share], [trained, weights])
    last = open_engine(specification, mean, settings=options.engine_settings, name=options.engine_name)
    history = parts[-1][1]
    recalibrate_batchnorm(last, specification, training, schedule=schedule, augmentation=options.augmentation)
    averaged = last.weights()
    areas = validation_aucs(last, averaged, validation)
    history[-1] = structs.replace(history[-1], auc=areas)  # the AUC of the averaged network
    return averaged, history


def _mean(shares: Sequence[float], networks: Sequence[Weights]) -> Weights:
    """Return the mean of the weights of several networks, weighted by `shares`.

    The networks must have been trained from equal initial weights.
    """
    parts = [(share / sum(shares), weights) for share, weights in zip(shares, networks, strict=True)]
    return {key: np.asarray(sum(share * own[key] for share, own in parts), np.float32) for key in networks[0]}


@dataclass(eq=False, slots=True)
class ClassifierTask:
    """The `TrainingTask` of a classifier: balanced batches, and a running mean of the weights over all steps."""

    engine: Engine
    training: Samples
    validation: Samples
    schedule: Schedule
    augmentation: Augmentation
    _steps_per_epoch: int = 1

    def run_steps(self, epoch: int) -> Iterator[float]:
        """Perform the training steps of an epoch, and yield the loss of each step (see `TrainingTask.run_steps`)."""
        samples, schedule, generator = self.training, self.schedule, np.random.default_rng((self.schedule.seed, epoch))
        order = draw_balanced_indices(
            samples.sources,
            samples.class_of_each_image(),
            count=schedule.images_per_epoch or len(samples),
            shares=dict(schedule.shares),
            generator=generator,
        )
        self._steps_per_epoch = steps = max(1, len(order) // schedule.batch_size)
        for step in range(steps):
            chosen = order[step * schedule.batch_size : (step + 1) * schedule.batch_size]
            images, lungs = augmented_batch(samples, chosen, self.augmentation, generator)
            targets = smooth_labels(samples.targets[chosen], schedule.label_smoothing)
            yield self.engine.step(
                images, targets, learning_rate=schedule.learning_rate_at(epoch + step / steps), lungs=lungs
            )

    def averaging_weight(self, step_count: int) -> float:
        """Return the factor (0..1) of the current weights in the running mean (see `TrainingTask.averaging_weight`)."""
        horizon = self.schedule.average_epochs * self._steps_per_epoch
        return max(1 / max(horizon, 1.0), 9 / (step_count + 9))

    def validate(self, averaged_weights: Weights, figures: EpochFigures) -> EpochFigures:
        """Return `figures` with the AUC of each label on the validation images added (see `TrainingTask.validate`)."""
        return structs.replace(figures, auc=validation_aucs(self.engine, averaged_weights, self.validation))


def predict_logits(engine: Engine, images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the logits (n, labels) that the engine's network gives for images (n, height, width, channels) uint8."""
    parts = [
        engine.logits(scale_to_unit(images[start : start + _PREDICT_BATCH]))
        for start in range(0, len(images), _PREDICT_BATCH)
    ]
    return np.concatenate(parts)


def validation_aucs(engine: Engine, weights: Weights, samples: Samples) -> tuple[float | None, ...]:
    """Return the AUC on `samples` of each label, for the engine's network with the weights `weights`.

    The AUC of a label is None if `samples` has no positive or no negative images. The engine's weights are restored
    afterwards.
    """
    if not len(samples):
        return ()
    kept = engine.weights()
    engine.set_weights(weights)
    logits = predict_logits(engine, samples.images)
    engine.set_weights(kept)
    areas = list[float | None]()
    for label in range(samples.targets.shape[1]):
        known = ~np.isnan(samples.targets[:, label])
        area = auc(logits[known, label].astype(np.float64), samples.targets[known, label] >= 0.5)
        areas.append(None if math.isnan(area) else area)
    return tuple(areas)


_NOTED_BATCHES: Final = 60


def recalibrate_batchnorm(
    engine: Engine,
    specification: Specification,
    samples: Samples,
    *,
    schedule: Schedule,
    augmentation: Augmentation,
) -> None:
    """Measure the statistics of batch normalisation again, on augmented training batches. Other weights do not change.

    This is necessary after networks were averaged. The averaged network has other activations than each single network
    [1]_, so that the statistics of the single networks are wrong.

    References
    ----------
    .. [1] Wortsman M. et al., Model soups, ICML 2022, arXiv:2203.05482; Izmailov P. et al., Averaging Weights Leads to
       Wider Optima and Better Generalization, UAI 2018, arXiv:1803.05407, section 3.2 on the statistics.
    """
    if not any(layer.batch_norm for layer in specification.layers):
        return
    generator = np.random.default_rng((schedule.seed, schedule.epochs))
    order = draw_balanced_indices(
        samples.sources,
        samples.class_of_each_image(),
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
    """Return randomly augmented copies of some images, and the shares of lung, moved in the same way as each image.

    Parameters
    ----------
    chosen
        Indices of the images in `samples`.
    settings
        The largest strength of each change.

    Returns
    -------
    images
        (n, height, width, channels) float32 in 0..1.
    shares of lung
        (n, rows, columns) float32 in 0..1; None if `samples` has no shares of lung.
    """
    channels, images, lungs = samples.images.shape[3], [], []
    for index in chosen:
        motion = draw_geometric_change(settings, generator)
        images.append(augment(samples.images[index, :, :, 0], settings, generator=generator, motion=motion))
        if samples.lungs is not None:
            lungs.append(apply_geometric_change(samples.lungs[index], motion))
    whole = scale_to_unit(np.stack(images)[..., None])
    shares = np.stack(lungs).astype(np.float32) / np.float32(255) if lungs else None
    return np.repeat(whole, channels, axis=3) if channels > 1 else whole, shares


def scale_to_unit(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return images of uint8 values (0..255) as float32 values in 0..1."""
    return images.astype(np.float32) / np.float32(255)


def smooth_labels(targets: NDArray[np.float32], amount: float) -> NDArray[np.float32]:
    """Return targets moved towards 0.5 by the share `amount` (label smoothing, arXiv:1512.00567)."""
    return targets * np.float32(1 - amount) + np.float32(amount / 2)
