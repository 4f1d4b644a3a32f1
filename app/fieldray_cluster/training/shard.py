"""A server's shard of the weights: one run of numbers, its update by AdamW, and the running mean of the weights.

The whole network is one vector, its tensors one after another in the order of their names; a shard is what a placement
gives a server of it (`formulas`). AdamW goes element by element (arXiv:1711.05101, with Keras's
order: first the decay, then Adam's step), so it does not matter how the vector is cut. What couples all elements is the
largest norm of a gradient: a server that holds everything applies it to the mean of the workers' gradients, exactly as
one process would; where there are several servers, or no mean, each worker applies it to its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fieldray_adapt.networks.specification import Weights
from fieldray_adapt.training.engine_interface import STATISTICS
from fieldray_cluster.training.formulas import Runs, placed_evenly_corrected, placed_whole

Vector = NDArray[np.float32]
_BETAS: Final = (0.9, 0.999)
_EPSILON: Final = 1e-8
_YOUNG: Final = 9
"""Young means forget faster, as in local training: the share of the newest is 9 / (count + 9) at least."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How a network's weights lie in one vector: names and shapes, in order."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, weights: Mapping[str, NDArray[np.float32]]) -> Layout:
        """The layout of weights, in the order of the mapping."""
        return cls(tuple(weights), tuple(array.shape for array in weights.values()))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Elements of each tensor."""
        return tuple(math.prod(shape) for shape in self.shapes)

    @property
    def size(self) -> int:
        """Elements of all tensors."""
        return sum(self.sizes)

    def vector(self, weights: Mapping[str, NDArray[np.float32]]) -> Vector:
        """Weights, or a gradient, as one vector; what is missing is 0."""
        parts = [
            np.ravel(weights[name]).astype(np.float32, copy=False) if name in weights else np.zeros(size, np.float32)
            for name, size in zip(self.names, self.sizes, strict=True)
        ]
        return np.concatenate(parts)

    def weights(self, vector: Vector) -> Weights:
        """The inverse: views of the vector."""
        found, start = Weights(), 0
        for name, shape, size in zip(self.names, self.shapes, self.sizes, strict=True):
            found[name] = vector[start : start + size].reshape(shape)
            start += size
        return found

    def ranges(self, servers: int, *, evenly: bool) -> tuple[Runs, ...]:
        """What each server holds: whole tensors, as printed, or equal shards."""
        return (placed_evenly_corrected if evenly else placed_whole)(self.sizes, servers=servers)


def gathered(vector: Vector, runs: Runs) -> Vector:
    """The elements of some runs, one after another."""
    if len(runs) == 1:
        return vector[runs[0][0] : runs[0][1]]
    return np.concatenate([vector[start:stop] for start, stop in runs]) if runs else np.zeros(0, np.float32)


def scatter(values: Vector, runs: Runs, *, into: Vector) -> None:
    """The inverse: write them to their places in the whole vector."""
    begin = 0
    for start, stop in runs:
        into[start:stop] = values[begin : begin + stop - start]
        begin += stop - start


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How weights are updated and averaged.

    Attributes
    ----------
    weight_decay
        Of kernels.
    clip
        The largest norm of a gradient, 0 for any.
    frozen
        Names of layers that stay as they are.
    average_every, average_least
        Updates between two that the running mean takes in, and the newest's least share in it.
    """

    weight_decay: float
    clip: float = 0.0
    frozen: frozenset[str] = frozenset()
    average_every: int = 1
    average_least: float = 0.02


def clipped(gradient: Vector, layout: Layout, clip: float) -> Vector:
    """A whole gradient of at most that norm; the changes of statistics are none of it."""
    if not clip:
        return gradient
    trained = [part.ravel() for name, part in layout.weights(gradient).items() if not name.endswith(STATISTICS)]
    norm = math.sqrt(sum(float(np.dot(part, part)) for part in trained))
    if norm <= clip:
        return gradient
    return layout.vector(
        {
            name: part if name.endswith(STATISTICS) else part * np.float32(clip / norm)
            for name, part in layout.weights(gradient).items()
        },
    )


@dataclass(frozen=True, slots=True, eq=False)
class ShardState:
    """What a shard has come to: `values`, their running mean, Adam's two moments, and the number of updates."""

    values: Vector
    average: Vector
    first: Vector
    second: Vector
    steps: int = 0

    @classmethod
    def new(cls, values: Vector, average: Vector | None = None) -> ShardState:
        """Before the first update."""
        zeros = np.zeros_like(values)
        return cls(values, values if average is None else average, zeros, zeros)

    @property
    def is_finite(self) -> bool:
        """Whether all of it are numbers: one that is not would be with the training for good."""
        return all(bool(np.isfinite(one).all()) for one in (self.values, self.average, self.first, self.second))

    def part(self, runs: Runs) -> ShardState:
        """The state of some runs of it."""
        values, average, first, second = (
            gathered(one, runs) for one in (self.values, self.average, self.first, self.second)
        )
        return ShardState(values, average, first, second, self.steps)

    def joined(self) -> Vector:
        """The four vectors one after another, as they travel."""
        return np.concatenate([self.values, self.average, self.first, self.second])


class Shard:
    """The elements of some runs at learning. Every update makes new arrays: who has the old ones may read on."""

    def __init__(self, state: ShardState, *, layout: Layout, runs: Runs, rule: Rule) -> None:
        self.state, self._rule = state, rule
        self._is_whole = sum(stop - start for start, stop in runs) == layout.size
        self._layout = layout
        marks = [np.empty(size, np.int8) for size in layout.sizes]
        for mark, name in zip(marks, layout.names, strict=True):
            is_frozen = name.rpartition("/")[0] in rule.frozen
            mark[:] = 0 if is_frozen else 3 if name.endswith(STATISTICS) else 2 if name.endswith("/kernel") else 1
        own = gathered(np.concatenate(marks).astype(np.float32), runs)
        self._noted, self._trained = own == 3, (own == 1) | (own == 2)
        self._decay = np.where(own == 2, np.float32(rule.weight_decay), np.float32(0))

    def update(self, gradient: Vector, *, rate: float) -> None:
        """One step of AdamW with a gradient of these elements; a statistic loses what its gradient says."""
        if self._is_whole:
            gradient = clipped(gradient, self._layout, self._rule.clip)
        # What is no number any more is found in the state (`is_finite`).
        with np.errstate(invalid="ignore", over="ignore"):
            self.state = self._updated(gradient, rate)

    def _updated(self, gradient: Vector, rate: float) -> ShardState:
        old, steps = self.state, self.state.steps + 1
        masked = np.where(self._trained, gradient, np.float32(0))
        first = old.first + (masked - old.first) * np.float32(1 - _BETAS[0])
        second = old.second + (np.square(masked) - old.second) * np.float32(1 - _BETAS[1])
        pace = np.float32(rate * math.sqrt(1 - _BETAS[1] ** steps) / (1 - _BETAS[0] ** steps))
        values = old.values - old.values * self._decay * np.float32(rate)
        values -= np.where(self._noted, gradient, first * pace / (np.sqrt(second) + np.float32(_EPSILON)))
        average, every = old.average, self._rule.average_every
        if steps % every == 0:
            share = max(self._rule.average_least, _YOUNG / (steps // every + _YOUNG))
            average = average + np.float32(share) * (values - average)
        return ShardState(values, average, first, second, steps)
