"""The interface of training engines: TensorFlow, which is always installed, and PyTorch, which is often faster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from fieldray.domain.mask import interval_overlaps
from fieldray_adapt.networks.specification import Weights

EngineName = Literal["auto", "tensorflow", "torch"]
Precision = Literal["float32", "bfloat16"]
Loss = Literal["binary", "categorical"]
Batch = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """The settings of a training engine.

    Attributes
    ----------
    weight_decay
        Weight decay of AdamW (arXiv:1711.05101), for kernels only.
    frozen
        Names of layers whose weights and normalisation statistics do not change in training.
    loss
        "binary": a sigmoid for each label. "categorical": one softmax over all labels.
    threads
        Number of CPU threads; 0 for the framework's default.
    label_weights
        Weight of each label's binary loss; empty for equal weights.
    outside_weights
        Weight of the second loss for each label's evidence outside the lungs (see `Engine.step`); empty for no second
        loss.
    """

    weight_decay: float = 1e-4
    frozen: frozenset[str] = frozenset()
    loss: Loss = "binary"
    precision: Precision = "float32"
    threads: int = 0
    label_weights: tuple[float, ...] = ()
    outside_weights: tuple[float, ...] = ()


class Checkpointable(Protocol):
    """The interface of networks in training that a checkpoint can save and restore."""

    def weights(self) -> Weights:
        """Return a copy of the network's weights."""

    def set_weights(self, weights: Mapping[str, NDArray[np.float32]]) -> None:
        """Replace the weights of the network. The state of the optimiser does not change."""

    def optimiser_state(self) -> dict[str, NDArray[Any]]:
        """Return the state of the optimiser as arrays by name."""

    def set_optimiser_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Set the state of the optimiser to `state`, from an engine with equal specification and settings."""


class Engine(Checkpointable, Protocol):
    """The interface of a training engine: a library with a network in training.

    Images are (n, height, width, channels) float32 in 0..1. Targets are (n, labels) in 0..1, or nan if unknown.
    """

    def step(self, images: Batch, targets: Batch, *, learning_rate: float, lungs: Batch | None = None) -> float:
        """Perform one optimiser step. Returns the mean loss of the batch before the step.

        Parameters
        ----------
        lungs
            Share of lung (n, rows, columns), 0..1, in a grid of any size. If the engine has `outside_weights`, the mean
            of the positive class-map values outside the lungs is added to the loss.
        """

    def logits(self, images: Batch) -> Batch:
        """Return the logits (n, labels) of images in inference mode, without dropout."""

    def gradient(self, images: Batch, targets: Batch, *, lungs: Batch | None = None) -> tuple[Weights, float]:
        """Return the gradient of a batch, and the batch's mean loss, without changing the network.

        The gradient has an array for each weight that changes in training. For a statistic of batch normalisation, the
        array is the old value minus the value after a step. Parameters as in `step`.
        """


BATCH_NORM_STATISTIC_SUFFIXES: Final = ("/mean", "/variance")
"""The ends of the names of batch-normalisation statistics, which are measured and not trained by gradient."""


def section_mean_matrix(size: int, count: int) -> NDArray[np.float64]:
    """Return a matrix (count, size) float64 that averages a line of `size` values into `count` equal sections.

    A value on the border of two sections counts in both, in proportion. So the averages are exact for any two sizes.
    """
    edges, values = np.arange(count + 1) * size / count, np.arange(size + 1.0)
    return interval_overlaps(edges, values) * count / size
