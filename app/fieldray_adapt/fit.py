"""Training on arrays that fit into memory: an original network, and the retraining of a pruned one.

With a teacher, the targets are a mixture of labels and the teacher's softmax [1]_. The cross-entropy with a mixture of
two targets is the mixture of the two cross-entropies, so training needs nothing but other targets.

References
----------
.. [1] Hinton G. et al., Distilling the Knowledge in a Neural Network, 2015, arXiv:1503.02531.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from fieldray.errors import UsageProblem
from fieldray.reasons import reason
from fieldray_adapt.engine import Checkpoint, EngineSettings, Kept, open_engine
from fieldray_adapt.files import digest
from fieldray_adapt.specification import Specification, Weights
from fieldray_adapt.tables import Key, require_ranges

_PREDICT_BATCH: Final = 500
_WARM_UP_SHARE: Final = 0.05

Progress = Callable[[int, int, float], None]


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
        """Those from `start` up to, not including, `stop`."""
        return Labelled(self.images[start:stop], self.targets[start:stop])


@dataclass(frozen=True, slots=True)
class Effort:
    """How long and how fast a network is trained."""

    batch_size: Annotated[int, Key(doc="Images in a step.", unit="images", low=1, example=32)]
    epochs: Annotated[float, Key(doc="Passes over the images; parts of one are allowed.", above=0, example=10.0)]
    learning_rate: Annotated[float, Key(doc="The highest rate.", above=0, example=1e-3)]

    def __post_init__(self) -> None:
        require_ranges(self)


def fit(
    specification: Specification,
    weights: Mapping[str, NDArray[np.float32]],
    *,
    data: Labelled,
    effort: Effort,
    seed: int,
    settings: EngineSettings,
    progress: Progress = lambda _step, _steps, _loss: None,
    checkpoint: Checkpoint | None = None,
) -> tuple[Weights, float]:
    """Train with a short warm-up and cosine decay; returns the weights and the mean loss of the last tenth.

    Parameters
    ----------
    progress
        Is told, after each step, how many of how many are done, and the step's loss.
    checkpoint
        Where a killed training resumes from: as it would have gone on, but for what a dropout draws; it stays until
        the caller has kept what came of it.

    Raises
    ------
    UsageProblem
        (training_diverged) if the loss is not finite.
    StorageProblem
    """
    _seed_dropout(seed)  # before the engine: Keras gives a layer its seed when it makes it
    engine = open_engine(specification, weights, settings=settings)
    steps = max(1, round(len(data) * effort.epochs / effort.batch_size))
    key = digest(specification, weights, data, effort, seed, settings) if checkpoint else ""
    kept = checkpoint.restore(engine, key=key) if checkpoint else None
    losses: list[float] = list(kept.facts["losses"]) if kept else []
    if losses:
        _seed_dropout(seed + len(losses))
    for step, chosen in enumerate(_drawn(len(data), effort.batch_size, seed, steps)):
        if step < len(losses):
            continue
        rate = effort.learning_rate * _share_of_rate(step, steps)
        losses.append(engine.step(data.images[chosen], data.targets[chosen], learning_rate=rate))
        if not math.isfinite(losses[-1]):
            epoch = 1 + step * effort.batch_size // len(data)
            raise UsageProblem(reason("training_diverged", epoch=epoch, step=step + 1))
        if checkpoint:
            checkpoint.save_if_due(engine, Kept(facts={"losses": losses}, arrays={}), key=key)
        progress(step + 1, steps, losses[-1])
    return engine.weights(), float(np.mean(losses[-max(1, steps // 10) :]))


def _seed_dropout(seed: int) -> None:
    if importlib.util.find_spec("torch") is not None:
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
    """The images of each step, shuffled again each time round; a batch longer than the data is the data."""
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
    engine = open_engine(specification, weights, settings=settings)
    starts = range(0, len(data), _PREDICT_BATCH)
    logits = np.concatenate([engine.logits(data.images[start : start + _PREDICT_BATCH]) for start in starts])
    right = logits.argmax(axis=1) == data.targets.argmax(axis=1)
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    logarithms = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return float(right.mean()), float(-(data.targets * logarithms).sum(axis=1).mean())


_BATCH: Final = 500


def taught(
    data: Labelled,
    specification: Specification,
    weights: Mapping[str, NDArray[np.float32]],
    *,
    share: float,
    temperature: float,
    settings: EngineSettings,
) -> Labelled:
    """The same images with targets (n, labels) that are to `share` the teacher's softmax at a temperature."""
    engine = open_engine(specification, weights, settings=settings)
    parts = [engine.logits(data.images[at : at + _BATCH]) for at in range(0, len(data), _BATCH)]
    logits = np.concatenate(parts).astype(np.float64) / temperature
    soft = softmax(logits, axis=1)
    return Labelled(data.images, ((1 - share) * data.targets + share * soft).astype(np.float32))
