"""A shard of a network's weights on a parameter server: the elements, their update, and their running mean.

All weights of a network are one vector. A shard is the part of the vector that a placement gives to a server
(`formulas`). AdamW (arXiv:1711.05101) and SGD work on single elements, in Keras's order: first the decay, then the
step. So dividing the vector does not change the result. Only the clipping of gradients by norm needs all elements. A
single server clips the mean of the gradients, as a training in one process does. With several servers, or in
asynchronous training, each worker clips its own gradient.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fieldray_adapt.networks.specification import Weights
from fieldray_adapt.training.engine_interface import BATCH_NORM_STATISTIC_SUFFIXES
from fieldray_cluster.training.formulas import ElementRanges, place_equal_shards, place_whole_tensors

Vector = NDArray[np.float32]
"""A vector of float32 numbers."""
_BETAS: Final = (0.9, 0.999)
_EPSILON: Final = 1e-8
_YOUNG: Final = 9
"""In a running mean of few values, the newest value has at least the weight N / (count + N), where N is this number."""


@dataclass(frozen=True, slots=True)
class WeightLayout:
    """The order of a network's weight tensors in one vector: the name and the shape of each tensor."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def from_weights(cls, weights: Mapping[str, NDArray[np.float32]]) -> WeightLayout:
        """Return the layout of `weights`, with the tensors in the order of the mapping."""
        return cls(tuple(weights), tuple(array.shape for array in weights.values()))

    @property
    def tensor_sizes(self) -> tuple[int, ...]:
        """The number of elements of each weight tensor, in order."""
        return tuple(math.prod(shape) for shape in self.shapes)

    @property
    def element_count(self) -> int:
        """The number of elements of all weight tensors together."""
        return sum(self.tensor_sizes)

    def to_vector(self, weights: Mapping[str, NDArray[np.float32]]) -> Vector:
        """Join the tensors of weights or of a gradient to one vector. Missing tensors become zeros."""
        parts = [
            np.ravel(weights[name]).astype(np.float32, copy=False) if name in weights else np.zeros(size, np.float32)
            for name, size in zip(self.names, self.tensor_sizes, strict=True)
        ]
        return np.concatenate(parts)

    def to_weights(self, vector: Vector) -> Weights:
        """Split a vector into weight tensors by name. The tensors are views of the vector, not copies."""
        found, start = Weights(), 0
        for name, shape, size in zip(self.names, self.shapes, self.tensor_sizes, strict=True):
            found[name] = vector[start : start + size].reshape(shape)
            start += size
        return found

    def shard_ranges(self, servers: int, *, evenly: bool) -> tuple[ElementRanges, ...]:
        """Divide the vector among `servers` servers. Returns the element ranges of each server's shard.

        The shards are equal if `evenly`. Otherwise whole tensors are placed (algorithm 3.7 of Šlampa 2017).
        """
        return (place_equal_shards if evenly else place_whole_tensors)(self.tensor_sizes, servers=servers)


def gather(vector: Vector, ranges: ElementRanges) -> Vector:
    """Return the elements of a vector in the ranges `ranges`, joined to one shorter vector."""
    if len(ranges) == 1:
        return vector[ranges[0][0] : ranges[0][1]]
    return np.concatenate([vector[start:stop] for start, stop in ranges]) if ranges else np.zeros(0, np.float32)


def scatter(values: Vector, ranges: ElementRanges, *, into: Vector) -> None:
    """Write the elements `values` to the ranges `ranges` of the vector `into`. This is the inverse of `gather`."""
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
        Weight decay, for kernels only.
    momentum
        Momentum of SGD; 0 for AdamW.
    clip_norm
        Largest norm of a gradient; 0 for no limit.
    frozen_layers
        Names of layers that are not trained.
    updates_per_averaging
        Number of updates between two additions of the weights to the running mean.
    minimum_averaging_factor
        The smallest factor (0..1) of the newest weights in the running mean. The first additions have larger factors.
    """

    weight_decay: float
    momentum: float = 0.0
    clip_norm: float = 0.0
    frozen_layers: frozenset[str] = frozenset()
    updates_per_averaging: int = 1
    minimum_averaging_factor: float = 0.02


def clip_gradient(gradient: Vector, layout: WeightLayout, max_norm: float) -> Vector:
    """Return a gradient scaled down to a norm of at most `max_norm`; unchanged if `max_norm` is 0.

    The elements for statistics of batch normalisation are not scaled, and do not count in the norm.
    """
    if not max_norm:
        return gradient
    trained = [
        part.ravel()
        for name, part in layout.to_weights(gradient).items()
        if not name.endswith(BATCH_NORM_STATISTIC_SUFFIXES)
    ]
    norm = math.sqrt(sum(float(np.dot(part, part)) for part in trained))
    if norm <= max_norm:
        return gradient
    return layout.to_vector(
        {
            name: part if name.endswith(BATCH_NORM_STATISTIC_SUFFIXES) else part * np.float32(max_norm / norm)
            for name, part in layout.to_weights(gradient).items()
        },
    )


@dataclass(frozen=True, slots=True, eq=False)
class ShardState:
    """The state of a shard: weights, running mean of the weights, Adam's two moments, and number of updates.

    A shard is the part of a network's weights that one server stores. With SGD, `first_moment` is the velocity, and
    `second_moment` stays 0.
    """

    weights: Vector
    averaged_weights: Vector
    first_moment: Vector
    second_moment: Vector
    update_count: int = 0

    @classmethod
    def initial(cls, values: Vector, average: Vector | None = None) -> ShardState:
        """Return the state of a shard before its first update, with Adam's moments at 0.

        Parameters
        ----------
        values
            The weights of the shard (n,) float32.
        average
            The running mean of the weights (n,) float32. None for a running mean equal to `weights`.
        """
        zeros = np.zeros_like(values)
        return cls(values, values if average is None else average, zeros, zeros)

    @property
    def is_finite(self) -> bool:
        """Whether all numbers of the state are finite. If not, the training cannot be continued."""
        return all(
            bool(np.isfinite(one).all())
            for one in (self.weights, self.averaged_weights, self.first_moment, self.second_moment)
        )

    def part(self, ranges: ElementRanges) -> ShardState:
        """Return the state of the elements in the ranges `ranges`, as the state of a smaller shard."""
        values, average, first, second = (
            gather(one, ranges) for one in (self.weights, self.averaged_weights, self.first_moment, self.second_moment)
        )
        return ShardState(values, average, first, second, self.update_count)

    def to_vector(self) -> Vector:
        """Return one vector (4 n,) float32 for sending: n weights, their running mean, first moment, second moment."""
        return np.concatenate([self.weights, self.averaged_weights, self.first_moment, self.second_moment])


class Shard:
    """A shard (part) of a network's weights in training, which gradients update.

    Every update makes new arrays, so that another thread can still read the old arrays.
    """

    def __init__(self, state: ShardState, *, layout: WeightLayout, ranges: ElementRanges, rule: UpdateRule) -> None:
        self.state, self._rule = state, rule
        self._is_whole = sum(stop - start for start, stop in ranges) == layout.element_count
        self._layout = layout
        marks = [np.empty(size, np.int8) for size in layout.tensor_sizes]
        for mark, name in zip(marks, layout.names, strict=True):
            is_frozen = name.rpartition("/")[0] in rule.frozen_layers
            mark[:] = (
                0
                if is_frozen
                else 3
                if name.endswith(BATCH_NORM_STATISTIC_SUFFIXES)
                else 2
                if name.endswith("/kernel")
                else 1
            )
        own = gather(np.concatenate(marks).astype(np.float32), ranges)
        self._noted, self._trained = own == 3, (own == 1) | (own == 2)
        self._decay = np.where(own == 2, np.float32(rule.weight_decay), np.float32(0))

    def update(self, gradient: Vector, *, learning_rate: float) -> None:
        """Update the weights of the shard by one step of AdamW or SGD, and update the running mean.

        Weights that are statistics of batch normalisation are changed without AdamW or SGD: their elements of
        `gradient` are subtracted.
        """
        if self._is_whole:
            gradient = clip_gradient(gradient, self._layout, self._rule.clip_norm)
        # Numbers that are not finite are found later, in the state (`is_finite`).
        with np.errstate(invalid="ignore", over="ignore"):
            self.state = self._updated(gradient, learning_rate)

    def _updated(self, gradient: Vector, rate: float) -> ShardState:
        old, steps = self.state, self.state.update_count + 1
        masked = np.where(self._trained, gradient, np.float32(0))
        if momentum := self._rule.momentum:
            first = np.asarray(old.first_moment * np.float32(momentum) - masked * np.float32(rate), np.float32)
            second, step = old.second_moment, -first
        else:
            first = old.first_moment + (masked - old.first_moment) * np.float32(1 - _BETAS[0])
            second = np.asarray(
                old.second_moment + (np.square(masked) - old.second_moment) * np.float32(1 - _BETAS[1]), np.float32
            )
            pace = np.float32(rate * math.sqrt(1 - _BETAS[1] ** steps) / (1 - _BETAS[0] ** steps))
            step = np.asarray(first * pace / (np.sqrt(second) + np.float32(_EPSILON)), np.float32)
        values = old.weights - old.weights * self._decay * np.float32(rate)
        values -= np.where(self._noted, gradient, step)
        average, every = old.averaged_weights, self._rule.updates_per_averaging
        if steps % every == 0:
            share = max(self._rule.minimum_averaging_factor, _YOUNG / (steps // every + _YOUNG))
            average = average + np.float32(share) * (values - average)
        return ShardState(values, average, first, second, steps)
