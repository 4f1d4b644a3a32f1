"""A server's shard of the weights: its elements, their update by AdamW, and the running mean of the weights.

A network is one vector, with the tensors in the order of their names. A shard is the part that a placement gives to a
server (`formulas`). AdamW works on single elements (arXiv:1711.05101, in Keras's order: first the decay, then Adam's
step), so that dividing the vector does not change the result. Only gradient clipping by norm couples all elements. A
server that holds everything clips the mean of the gradients, as a training in one process does. With several servers,
or in asynchronous training, each worker clips its own gradient.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fieldray_adapt.networks.specification import Weights
from fieldray_adapt.training.engine_interface import STATISTIC_SUFFIXES
from fieldray_cluster.training.formulas import ElementRanges, place_evenly_corrected, place_whole_tensors

Vector = NDArray[np.float32]
"""A vector of float32 numbers."""
_BETAS: Final = (0.9, 0.999)
_EPSILON: Final = 1e-8
_YOUNG: Final = 9
"""Weight of new values in a short mean, as in local training: the newest has a weight of at least 9 / (count + 9)."""


@dataclass(frozen=True, slots=True)
class WeightLayout:
    """The arrangement of a network's weights in one vector: names and shapes, in order."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def from_weights(cls, weights: Mapping[str, NDArray[np.float32]]) -> WeightLayout:
        """Return the layout of weights, in the order of the mapping."""
        return cls(tuple(weights), tuple(array.shape for array in weights.values()))

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of elements of each weight tensor, in order."""
        return tuple(math.prod(shape) for shape in self.shapes)

    @property
    def size(self) -> int:
        """The number of elements of all weight tensors together."""
        return sum(self.sizes)

    def vector(self, weights: Mapping[str, NDArray[np.float32]]) -> Vector:
        """Join weights, or a gradient, to one vector. Missing tensors are 0."""
        parts = [
            np.ravel(weights[name]).astype(np.float32, copy=False) if name in weights else np.zeros(size, np.float32)
            for name, size in zip(self.names, self.sizes, strict=True)
        ]
        return np.concatenate(parts)

    def weights(self, vector: Vector) -> Weights:
        """Split a vector into weights, which are views of the vector."""
        found, start = Weights(), 0
        for name, shape, size in zip(self.names, self.shapes, self.sizes, strict=True):
            found[name] = vector[start : start + size].reshape(shape)
            start += size
        return found

    def ranges(self, servers: int, *, evenly: bool) -> tuple[ElementRanges, ...]:
        """Return the element ranges of each server: equal shards if `evenly`, else whole tensors (algorithm 3.7 as
        printed).
        """
        return (place_evenly_corrected if evenly else place_whole_tensors)(self.sizes, servers=servers)


def gather(vector: Vector, ranges: ElementRanges) -> Vector:
    """Return the elements of a vector that lie in some ranges, joined to one shorter vector."""
    if len(ranges) == 1:
        return vector[ranges[0][0] : ranges[0][1]]
    return np.concatenate([vector[start:stop] for start, stop in ranges]) if ranges else np.zeros(0, np.float32)


def scatter(values: Vector, ranges: ElementRanges, *, into: Vector) -> None:
    """Write the elements that `gather` returned back to their places: `values` into the ranges of the whole vector
    `into`.
    """
    begin = 0
    for start, stop in ranges:
        into[start:stop] = values[begin : begin + stop - start]
        begin += stop - start


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateRule:
    """The rule by which weights are updated and averaged.

    Attributes
    ----------
    weight_decay
        Weight decay of kernels.
    clip
        Largest norm of a gradient; 0 for no limit.
    frozen
        Names of layers that are not trained.
    average_every
        Number of updates after which the weights are added to the running mean once.
    average_minimum_weight
        The smallest weight with which they are added. At the beginning the weight is larger, because the mean is short.
    """

    weight_decay: float
    clip: float = 0.0
    frozen: frozenset[str] = frozenset()
    average_every: int = 1
    average_minimum_weight: float = 0.02


def clip_gradient(gradient: Vector, layout: WeightLayout, clip: float) -> Vector:
    """Return a gradient scaled down to a norm of at most `clip`. With a `clip` of 0 it is returned unchanged.

    The parts for statistics of batch normalisation are not scaled, and do not count in the norm.
    """
    if not clip:
        return gradient
    trained = [part.ravel() for name, part in layout.weights(gradient).items() if not name.endswith(STATISTIC_SUFFIXES)]
    norm = math.sqrt(sum(float(np.dot(part, part)) for part in trained))
    if norm <= clip:
        return gradient
    return layout.vector(
        {
            name: part if name.endswith(STATISTIC_SUFFIXES) else part * np.float32(clip / norm)
            for name, part in layout.weights(gradient).items()
        },
    )


@dataclass(frozen=True, slots=True, eq=False)
class ShardState:
    """The state of a shard: values, their running mean, Adam's first and second moment, and the number of updates."""

    values: Vector
    average: Vector
    first: Vector
    second: Vector
    steps: int = 0

    @classmethod
    def initial(cls, values: Vector, average: Vector | None = None) -> ShardState:
        """Return the state of a shard before its first update, with Adam's moments at 0.

        Parameters
        ----------
        values
            The elements of the shard (n,) float32.
        average
            The running mean of the elements (n,) float32. None to start it with `values`.
        """
        zeros = np.zeros_like(values)
        return cls(values, values if average is None else average, zeros, zeros)

    @property
    def is_finite(self) -> bool:
        """Whether all numbers are finite. An infinite number would remain for the rest of the training."""
        return all(bool(np.isfinite(one).all()) for one in (self.values, self.average, self.first, self.second))

    def part(self, ranges: ElementRanges) -> ShardState:
        """Return the state of only those elements of this shard that lie in the ranges `ranges`."""
        values, average, first, second = (
            gather(one, ranges) for one in (self.values, self.average, self.first, self.second)
        )
        return ShardState(values, average, first, second, self.steps)

    def join(self) -> Vector:
        """Return the four vectors of the state joined to one, for sending."""
        return np.concatenate([self.values, self.average, self.first, self.second])


class Shard:
    """A shard of the weights in training, which applies gradients to its elements.

    Every update makes new arrays, so that another thread may still read the old ones.
    """

    def __init__(self, state: ShardState, *, layout: WeightLayout, runs: ElementRanges, rule: UpdateRule) -> None:
        self.state, self._rule = state, rule
        self._is_whole = sum(stop - start for start, stop in runs) == layout.size
        self._layout = layout
        marks = [np.empty(size, np.int8) for size in layout.sizes]
        for mark, name in zip(marks, layout.names, strict=True):
            is_frozen = name.rpartition("/")[0] in rule.frozen
            mark[:] = (
                0 if is_frozen else 3 if name.endswith(STATISTIC_SUFFIXES) else 2 if name.endswith("/kernel") else 1
            )
        own = gather(np.concatenate(marks).astype(np.float32), runs)
        self._noted, self._trained = own == 3, (own == 1) | (own == 2)
        self._decay = np.where(own == 2, np.float32(rule.weight_decay), np.float32(0))

    def update(self, gradient: Vector, *, learning_rate: float) -> None:
        """Update the weights by one step of AdamW. A statistic of batch normalisation is reduced by its part of the
        gradient.
        """
        if self._is_whole:
            gradient = clip_gradient(gradient, self._layout, self._rule.clip)
        # Numbers that are not finite are found later, in the state (`is_finite`).
        with np.errstate(invalid="ignore", over="ignore"):
            self.state = self._updated(gradient, learning_rate)

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
            share = max(self._rule.average_minimum_weight, _YOUNG / (steps // every + _YOUNG))
            average = average + np.float32(share) * (values - average)
        return ShardState(values, average, first, second, steps)
