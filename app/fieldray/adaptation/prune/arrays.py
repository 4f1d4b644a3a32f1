"""A pruning task over labelled images in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fieldray.adaptation.engine import EngineSettings
from fieldray.adaptation.fit import Effort, Labelled, Progress, fit, quality
from fieldray.adaptation.profile import fastest_batch_size, inference_seconds
from fieldray.adaptation.prune.scale import restore_scale
from fieldray.adaptation.prune.selection import Keep
from fieldray.adaptation.prune.statistics import Scores, zero_shares
from fieldray.adaptation.specification import Specification
from fieldray.adaptation.weights import Weights, keep_channels


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ArrayTask:
    """Classification of images in memory; quality is accuracy.

    Attributes
    ----------
    calibration
        Number of training images that APoZ is measured on.
    timed_batch
        Images in a batch when inference is timed.
    batch_sizes
        Candidates of the profile; none leaves the choice to the laws alone.
    dropout_rate
        While retraining: a thin layer has nothing to spare.
    progress
        Is told of each step of a retraining.
    """

    training: Labelled
    validation: Labelled
    settings: EngineSettings
    calibration: int = 500
    timed_batch: int = 100
    batch_sizes: Sequence[int] = ()
    dropout_rate: float = 0.0
    progress: Progress = lambda _step, _steps, _loss: None

    def zero_shares(self, specification: Specification, weights: Weights) -> Scores:
        """APoZ on the first training images (their order is drawn)."""
        images = self.training.images[: self.calibration]
        return zero_shares(specification, weights, batches=[images[at : at + 100] for at in range(0, len(images), 100)])

    def cut(self, specification: Specification, weights: Weights, *, keep: Keep) -> tuple[Specification, Weights]:
        """The weights carried over, with the strength of the signal restored on the calibration images."""
        smaller, sliced = keep_channels(specification, weights, keep=keep)
        images = self.training.images[: self.calibration]
        return smaller, restore_scale((specification, weights), (smaller, sliced), keep=keep, images=images)

    def retrain(self, specification: Specification, weights: Weights, *, effort: Effort, seed: int) -> Weights:
        """Train on the training part."""
        thin = with_dropout(specification, self.dropout_rate)
        trained, _ = fit(
            thin,
            weights,
            data=self.training,
            effort=effort,
            seed=seed,
            settings=self.settings,
            progress=self.progress,
        )
        return trained

    def quality(self, specification: Specification, weights: Weights) -> tuple[float, float]:
        """Accuracy and cross-entropy on the validation part."""
        return quality(specification, weights, data=self.validation, settings=self.settings)

    def seconds_per_image(self, specification: Specification, weights: Weights) -> float:
        """Median of batches from the third on."""
        images = self.validation.images[: self.timed_batch]
        return inference_seconds(specification, weights, images=images, settings=self.settings)

    def propose_batch_size(self, specification: Specification, weights: Weights) -> int | None:
        """By a profile of training steps at the candidate sizes."""
        return fastest_batch_size(specification, weights, batch_sizes=self.batch_sizes, settings=self.settings)


def with_dropout(specification: Specification, rate: float) -> Specification:
    """The same network, with another rate in each dropout layer."""
    layers = (replace(layer, rate=rate) if layer.kind == "dropout" else layer for layer in specification.layers)
    return replace(specification, layers=tuple(layers))
