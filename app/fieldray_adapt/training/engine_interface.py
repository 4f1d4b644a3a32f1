"""The interface of training engines: TensorFlow, which is always installed, and PyTorch, which is often faster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

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
        Names of layers whose weights and normalisation statistics do not change.
    loss
        "binary": a sigmoid for each label. "categorical": one softmax over all labels.
    threads
        Number of CPU threads; 0 for the framework's default.
    label_weights
        Weight of each label's binary loss; empty for equal weights.
    outside_weights
        Weight of each label's evidence outside the lungs (see `Engine.step`); empty for none.
    """

    weight_decay: float = 1e-4
    frozen: frozenset[str] = frozenset()
    loss: Loss = "binary"
    precision: Precision = "float32"
    threads: int = 0
    label_weights: tuple[float, ...] = ()
    outside_weights: tuple[float, ...] = ()


class Checkpointable(Protocol):
    """The methods by which a checkpoint saves and restores a network in training."""

    def weights(self) -> Weights:
        """Return a copy of the network's weights."""

    def set_weights(self, weights: Mapping[str, NDArray[np.float32]]) -> None:
        """Replace the weights. The state of the optimiser stays."""

    def optimiser_state(self) -> dict[str, NDArray[Any]]:
        """Return the state of the optimiser, by name."""

    def set_optimiser_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore the optimiser from the state of an engine with equal specification and settings."""


class Engine(Checkpointable, Protocol):
    """A network in training.

    Images are (n, height, width, channels) float32 in 0..1. Targets are (n, labels) in 0..1, or nan if unknown.
    """

    def step(self, images: Batch, targets: Batch, *, learning_rate: float, lungs: Batch | None = None) -> float:
        """Perform one optimiser step. Returns the mean loss of the batch before the step.

        Parameters
        ----------
        lungs
            (n, rows, columns) share of lung, 0..1, in a grid that divides each cell of the class maps evenly. If
            `outside_weights` are set, positive values of a class map outside the lungs, averaged over its cells, add to
            the loss.
        """

    def logits(self, images: Batch) -> Batch:
        """Return the logits (n, labels) in inference mode."""

    def gradient(self, images: Batch, targets: Batch, *, lungs: Batch | None = None) -> tuple[Weights, float]:
        """Return the gradient of a batch and its mean loss, without changing the network.

        The gradient has an array for each weight that changes in training. For a statistic of batch normalisation, the
        array says by how much the step would reduce it. The parameters are those of `step`.
        """


STATISTIC_SUFFIXES: Final = ("/mean", "/variance")
"""Name suffixes of the statistics of batch normalisation, which are measured and not trained by gradient."""
