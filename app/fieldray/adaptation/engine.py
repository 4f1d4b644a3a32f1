"""What trains and runs a specification: one interface, on TensorFlow (always there) or PyTorch (faster on many CPUs).

A target of nan is unknown and counts for nothing, so several data sets that label different things train one network.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from fieldray.adaptation.specification import Specification
from fieldray.adaptation.weights import Weights

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
    """What a checkpoint keeps of a network in training."""

    def weights(self) -> Weights:
        """A copy of the weights."""

    def set_weights(self, weights: Mapping[str, NDArray[np.float32]]) -> None:
        """Replace the weights; the optimiser's memory stays."""

    def optimiser_state(self) -> dict[str, NDArray[Any]]:
        """What the optimiser remembers, by name."""

    def set_optimiser_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """The inverse of `optimiser_state`, on an engine of the same specification and settings."""


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


def open_engine(
    specification: Specification,
    weights: Mapping[str, NDArray[np.float32]],
    *,
    settings: EngineSettings,
    name: EngineName = "auto",
) -> Engine:
    """An engine holding `weights`; "auto" takes PyTorch where it is installed. Raises ModuleNotFoundError."""
    if name == "torch" or (name == "auto" and importlib.util.find_spec("torch") is not None):
        # Read when the library loads: threads that spin while they wait are five times slower on a busy machine.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
        from fieldray.adaptation.torch_engine import TorchEngine

        return TorchEngine(specification, weights, settings=settings)
    from fieldray.adaptation.keras_engine import KerasEngine

    return KerasEngine(specification, weights, settings=settings)
