"""Weights as plain arrays by name ("layer/part"): initial values, files, slicing, published weights."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldray.adaptation.files import write_atomically
from fieldray.adaptation.specification import Axis, Specification, weight_axes, weight_shapes

Weights = dict[str, NDArray[np.float32]]


def initial_weights(specification: Specification, *, seed: int) -> Weights:
    """He-normal kernels (arXiv:1502.01852), zero biases; the last normalisation of a residual branch starts at a half.

    The layer of the labels starts at a hundredth of that, so that training begins undecided.
    """
    generator, weights = np.random.default_rng(seed), Weights()
    axes = weight_axes(specification)
    added = {name for layer in specification.layers if layer.kind == "add" for name in layer.inputs[1:]}
    for key, shape in weight_shapes(specification).items():
        layer, _, part = key.rpartition("/")
        if part == "kernel":
            fan_in = math.prod(shape[:2]) if shape[-1] == 1 and len(shape) == 4 else math.prod(shape[:-1])
            size = 0.01 if axes[key][-1].channels == specification.label_set else 1.0
            weights[key] = (generator.standard_normal(shape) * size * math.sqrt(2 / fan_in)).astype(np.float32)
        else:
            starts = {"gamma": 0.5 if layer in added else 1.0, "variance": 1.0}
            weights[key] = np.full(shape, starts.get(part, 0.0), np.float32)
    return weights


def keep_channels(
    specification: Specification, weights: Mapping[str, NDArray[np.float32]], *, keep: Mapping[str, NDArray[Any]]
) -> tuple[Specification, Weights]:
    """The smaller network that has only the channels `keep` (indices by channel set), and its weights.

    Sets not named stay whole. Removing a label is keeping the others of the label set.
    Raises ValueError for indices that are empty, repeated or out of range.
    """
    chosen = {name: _checked(name, indices, specification.channels[name]) for name, indices in keep.items()}
    smaller = specification.with_channels({name: len(indices) for name, indices in chosen.items()})
    sliced = Weights()
    for key, axes in weight_axes(specification).items():
        array = weights[key]
        for position, axis in enumerate(axes):
            if axis.channels in chosen:
                array = np.take(array, _along(axis, chosen, specification), axis=position)
        sliced[key] = np.ascontiguousarray(array)
    return smaller, sliced


def _checked(name: str, indices: NDArray[Any], count: int) -> NDArray[np.int64]:
    ordered = np.unique(np.asarray(indices, np.int64))
    if not len(ordered) or len(ordered) != len(indices) or ordered[0] < 0 or ordered[-1] >= count:
        raise ValueError(f"channels to keep of {name}: need distinct indices in 0..{count - 1}")
    return ordered


def _along(axis: Axis, chosen: Mapping[str, NDArray[np.int64]], specification: Specification) -> NDArray[np.int64]:
    count = specification.channels[axis.channels]
    return (np.arange(axis.repeats)[:, None] * count + chosen[axis.channels]).reshape(-1)


def copy_matching(source: Mapping[str, NDArray[np.float32]], target: Weights) -> int:
    """Copy the arrays of `source` whose name and shape occur in `target` (changed in place); returns how many."""
    matching = [key for key, array in source.items() if key in target and target[key].shape == array.shape]
    for key in matching:
        target[key] = np.array(source[key], np.float32)
    return len(matching)


def save_weights(path: Path, weights: Mapping[str, NDArray[Any]]) -> None:
    """Write an .npz beside and rename it. Raises StorageProblem if it cannot be written."""
    buffer = io.BytesIO()
    np.savez(buffer, **dict(weights))
    write_atomically(path, buffer.getvalue())


def load_weights(path: Path) -> Weights:
    """Read what `save_weights` wrote, as float32. Raises OSError or ValueError."""
    with np.load(path, allow_pickle=False) as arrays:
        return {key: np.asarray(arrays[key], np.float32) for key in arrays.files}
