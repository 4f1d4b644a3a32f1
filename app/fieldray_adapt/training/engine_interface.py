"""The interface for training and running a specification, on TensorFlow (always installed) or PyTorch (often
faster).
"""

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
    """How an engine trains.

    Attributes
    ----------
    weight_decay
        Of AdamW (arXiv:1711.05101), on kernels only.
    frozen
        Layers whose weights and normalisation statistics stay as they are.
    loss
        "binary": a sigmoid per label; "categorical": one softmax over all labels.
    threads
        CPU threads; 0 leaves the choice to the framework.
    label_weights
        Of each label's loss where it is binary; none: all alike.
    outside_weights
        Of each label's evidence outside the lungs, see `step`; none: it costs nothing.
    """

    weight_decay: float = 1e-4
    frozen: frozenset[str] = frozenset()
    loss: Loss = "binary"
    precision: Precision = "float32"
    threads: int = 0
    label_weights: tuple[float, ...] = ()
    outside_weights: tuple[float, ...] = ()


class Trainable(Protocol):
    """The parts of a network in training that a checkpoint stores."""

    def weights(self) -> Weights:
        """A copy of the weights."""

    def set_weights(self, weights: Mapping[str, NDArray[np.float32]]) -> None:
        """Replace the weights; the optimiser's memory stays."""

    def optimiser_state(self) -> dict[str, NDArray[Any]]:
        """Return the optimiser's state, by name."""

    def set_optimiser_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore the `optimiser_state` of an engine with equal specification and settings."""


class Engine(Trainable, Protocol):
    """A network in training.

    Images are (n, height, width, channels) float32 in 0..1, targets (n, labels) in 0..1 or nan.
    """

    def step(self, images: Batch, targets: Batch, *, learning_rate: float, lungs: Batch | None = None) -> float:
        """One optimiser step; the batch's mean loss before it.

        Parameters
        ----------
        lungs
            (n, rows, columns) share of lung, 0..1, in cells that the class maps' cells are whole blocks of. Where the
            settings weigh it, what a class map has above 0 outside the lungs, averaged over its cells, is a loss too.
        """

    def logits(self, images: Batch) -> Batch:
        """Logits (n, labels), with the statistics of inference."""

    def gradient(self, images: Batch, targets: Batch, *, lungs: Batch | None = None) -> tuple[Weights, float]:
        """Return the gradient of a batch, and its mean loss, without changing the network.

        By name, one array of the weight's shape for everything that learns: a trained weight's gradient, and the
        decrease that the step would cause in a statistic of batch normalisation.
        """


STATISTIC_SUFFIXES: Final = ("/mean", "/variance")
