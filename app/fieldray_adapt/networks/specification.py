"""A network as data: the layers, the number of channels in each channel set, and the weights as arrays.

A *channel set* is a group of channels. Layers whose outputs are added share a channel set, so a residual stage has one
number of channels. Pruning keeps some channels of each set and slices the weights (`keep_channels`), without a
framework's graph. After a concatenation, the channel sets follow one another. Spatial padding is "same". Arrays are
(height, width, channels). Weights are named "layer/part".
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fieldray_adapt.files import open_arrays, raise_if_damaged, save_arrays, write_atomically

LayerKind = Literal[
    "conv", "depthwise", "dense", "max_pool", "average_all", "add", "concat", "upsample", "flatten", "activation",
    "dropout",
]  # fmt: skip
"""The operation that a layer of a network performs."""
Activation = Literal["none", "relu", "relu6", "sigmoid", "softmax"]
Shape = tuple[int, ...]
"""The shape of an array: its size along each axis."""

INPUT_NAME: Final = "image"
"""The name by which layers refer to the network's input."""
_MULTIPLE: Final = 8
_JOINED: Final = "+"
_WEIGHTED: Final = frozenset({"conv", "depthwise", "dense"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A layer of a network: an operation, then (if `batch_norm`) batch normalisation, then an activation.

    Attributes
    ----------
    channels
        The channel set of the output, for conv and dense layers. "" for all other layers, whose output has the channel
        set of their input.
    kernel
        Side of the window in pixels, for conv and max_pool.
    stride
        Step of the window in pixels; for upsample (bilinear) the factor of enlargement.
    rate
        For a dropout layer: the share of values that training sets to 0.
    """

    name: str
    kind: LayerKind
    inputs: tuple[str, ...]
    channels: str = ""
    kernel: int = 1
    stride: int = 1
    batch_norm: bool = False
    activation: Activation = "none"
    rate: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in get_args(LayerKind) or self.activation not in get_args(Activation):
            raise ValueError(f"layer {self.name}: unknown kind {self.kind} or activation {self.activation}")
        if bool(self.channels) != (self.kind in ("conv", "dense")):
            raise ValueError(f"layer {self.name}: a channel set belongs to conv and dense layers")
        wanted = {"add": 2, "concat": max(2, len(self.inputs))}.get(self.kind, 1)
        if len(self.inputs) != wanted or self.kernel < 1 or self.stride < 1:
            raise ValueError(f"layer {self.name}: wrong inputs, kernel or stride")

    @property
    def has_weights(self) -> bool:
        """Whether the layer is a conv, depthwise or dense layer."""
        return self.kind in _WEIGHTED


@dataclass(frozen=True, slots=True)
class Axis:
    """The channels along one axis of a weight array.

    Attributes
    ----------
    joined_channel_set_names
        The name of the channel set along the axis; "" for an axis without channels. After a concatenation, several
        names joined by "+".
    repeat_count
        How many times the sequence of channels is repeated along the axis: more than 1 after a flatten layer.
    """

    joined_channel_set_names: str
    repeat_count: int = 1

    @property
    def channel_sets(self) -> tuple[str, ...]:
        """The names of the channel sets along the axis, in order; empty for an axis without channels."""
        return tuple(self.joined_channel_set_names.split(_JOINED)) if self.joined_channel_set_names else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Specification:
    """A network: layers, numbers of channels, and outputs.

    Attributes
    ----------
    layers
        The layers, each after the layers that give its input. `INPUT_NAME` is the name of the network's input.
    channels
        The number of channels (1 or more) of each channel set, by name of the set.
    outputs
        The name of the layer for each role. The roles are "logits" (for training) and "scores", "class_maps" and
        "features", and for lung fields "mask_logits" and "mask". An encoder has only the role "features".
    epsilon
        The number that batch normalisation adds to the variance.

    Raises
    ------
    ValueError
        If layers and channel sets do not fit together.
    """

    name: str
    height: int
    width: int
    input_channels: int
    layers: tuple[Layer, ...]
    channels: Mapping[str, int]
    outputs: Mapping[str, str]
    epsilon: float = 1e-3

    def __post_init__(self) -> None:
        used = {layer.channels for layer in self.layers if layer.channels}
        if used != set(self.channels) or min(self.channels.values()) < 1:
            raise ValueError(f"{self.name}: channel sets and layers differ, or a set is empty")
        layer_shapes(self)
        if not ({"logits", "scores"} <= set(self.outputs) or set(self.outputs) == {"features"}):
            raise ValueError(f"{self.name}: needs the outputs logits and scores, or features alone")

    def layer(self, name: str) -> Layer:
        """Return the layer with the name `name`. Raises KeyError if no layer has this name."""
        for layer in self.layers:
            if layer.name == name:
                return layer
        raise KeyError(name)

    def channel_count(self, axis: Axis) -> int:
        """Return the number of channels along an axis, summed over all channel sets of the axis."""
        return sum(self.channels[name] for name in axis.channel_sets)

    def with_channels(self, channels: Mapping[str, int]) -> Specification:
        """Return a copy of the network with new numbers of channels.

        `channels` has the new number by name of the channel set. Channel sets without an entry keep their number.
        """
        return replace(self, channels={**self.channels, **channels})

    def with_scaled_channels(self, channel_factor: float) -> Specification:
        """Return a copy of the network in which each hidden channel set has `channel_factor` times as many channels.

        The numbers are rounded to multiples of 8. The input and the labels do not change.
        """
        return self.with_channels(
            {
                name: max(_MULTIPLE, round(count * channel_factor / _MULTIPLE) * _MULTIPLE)
                for name, count in self.channels.items()
                if name != self.label_channel_set
            }
        )

    @property
    def label_channel_set(self) -> str:
        """The name of the channel set that has a channel for each label; for an encoder, the set of the features."""
        return channel_set_by_layer(self)[self.outputs.get("logits", self.outputs.get("features", ""))]

    def to_json(self) -> str:
        """Return the specification as JSON text. Equal specifications give equal text."""
        return json.dumps(asdict(self), indent=1)


def specification_from_json(text: str) -> Specification:
    """Return the specification in a text of `Specification.to_json`. Raises ValueError or TypeError if invalid."""
    fields = json.loads(text)
    layers = tuple(Layer(**{**row, "inputs": tuple(row["inputs"])}) for row in fields.pop("layers"))
    return Specification(**fields, layers=layers)


def channel_set_by_layer(specification: Specification) -> dict[str, str]:
    """Return the name of the channel set of each layer's output, by name of the layer; "" for the network's input.

    A channel set is a group of channels. Layers whose outputs are added share a channel set. After a concatenation, the
    names of the channel sets are joined by "+".

    Raises ValueError if an addition mixes two channel sets, or if a concatenation includes the network's input. An
    addition may include the network's input if the numbers of channels are equal.
    """
    found = {INPUT_NAME: ""}
    for layer in specification.layers:
        sets = {found[name] for name in layer.inputs}
        if layer.kind == "concat":
            if "" in sets:
                raise ValueError(f"layer {layer.name} joins the input")
            sets = {_JOINED.join(found[name] for name in layer.inputs)}
        if any(specification.channel_count(Axis(name)) == specification.input_channels for name in sets - {""}):
            sets -= {""}
        if len(sets) > 1:
            raise ValueError(f"layer {layer.name} adds the channel sets {sorted(sets)}")
        found[layer.name] = layer.channels or sets.pop()
    return found


def layer_shapes(specification: Specification) -> dict[str, Shape]:
    """Return each layer's output shape by name: (height, width, channels), or (n,) after flatten or average_all."""
    sets = channel_set_by_layer(specification)
    found: dict[str, Shape] = {INPUT_NAME: (specification.height, specification.width, specification.input_channels)}
    for layer in specification.layers:
        shape = found[layer.inputs[0]]
        own = Axis(sets[layer.name])
        count = specification.channel_count(own) if own.channel_sets else specification.input_channels
        if layer.kind in ("conv", "depthwise", "max_pool"):
            found[layer.name] = (math.ceil(shape[0] / layer.stride), math.ceil(shape[1] / layer.stride), count)
        elif layer.kind == "upsample":
            found[layer.name] = (shape[0] * layer.stride, shape[1] * layer.stride, count)
        elif layer.kind == "flatten":
            found[layer.name] = (math.prod(shape),)
        elif layer.kind == "concat":
            found[layer.name] = (*shape[:-1], count)
        else:
            found[layer.name] = (count,) if layer.kind in ("average_all", "dense") else shape
    return found


def weight_axes(specification: Specification) -> dict[str, tuple[Axis, ...]]:
    """Return the axes of each weight array, by the array's name "layer/part".

    The parts are "kernel" and "bias". A layer with batch normalisation has "gamma", "beta", "mean" and "variance" in
    place of "bias". A kernel is (kernel, kernel, in, out) for conv layers, (kernel, kernel, in, 1) for depthwise
    layers, and (in, out) for dense layers. All other parts are (out,).
    """
    sets, sizes, axes = channel_set_by_layer(specification), layer_shapes(specification), dict[str, tuple[Axis, ...]]()
    none = Axis("")
    for layer in specification.layers:
        if not layer.has_weights:
            continue
        source, out = sets[layer.inputs[0]], Axis(sets[layer.name])
        incoming = Axis(source)
        if layer.kind == "dense":
            incoming = Axis(source, sizes[layer.inputs[0]][0] // specification.channel_count(incoming))
        last = none if layer.kind == "depthwise" else out
        axes[f"{layer.name}/kernel"] = (incoming, out) if layer.kind == "dense" else (none, none, incoming, last)
        for part in ("gamma", "beta", "mean", "variance") if layer.batch_norm else ("bias",):
            axes[f"{layer.name}/{part}"] = (out,)
    return axes


def weight_shapes(specification: Specification) -> dict[str, Shape]:
    """Return the shape of each weight array, by the array's name "layer/part"."""
    return {key: _weight_shape(specification, key, axes) for key, axes in weight_axes(specification).items()}


def _weight_shape(specification: Specification, key: str, axes: tuple[Axis, ...]) -> Shape:
    layer = specification.layer(key.rpartition("/")[0])
    plain = (layer.kernel, layer.kernel, specification.input_channels, 1)
    return tuple(
        specification.channel_count(axis) * axis.repeat_count if axis.joined_channel_set_names else plain[position]
        for position, axis in enumerate(axes)
    )


def parameter_count(specification: Specification) -> int:
    """Return the number of parameters of a network, including mean and variance of batch normalisation."""
    return sum(math.prod(shape) for shape in weight_shapes(specification).values())


def multiply_add_count(specification: Specification) -> int:
    """Return the number of multiply-add operations that conv, depthwise and dense layers need for one image."""
    sizes, weights = layer_shapes(specification), weight_shapes(specification)
    total = 0
    for layer in specification.layers:
        if layer.has_weights:
            positions = math.prod(sizes[layer.name][:2]) if layer.kind != "dense" else 1
            total += positions * math.prod(weights[f"{layer.name}/kernel"])
    return total


Weights = dict[str, NDArray[np.float32]]
"""The weight arrays of a network, by the name "layer/part", such as "conv1/kernel"."""


def initial_weights(specification: Specification, *, seed: int) -> Weights:
    """Return initial weights of a network: random He-normal kernels (arXiv:1502.01852) and zero biases.

    The last normalisation of a residual branch starts with gamma 0.5. The kernel of the logits is multiplied by 0.01,
    so that all scores start near 0.5.
    """
    generator, weights = np.random.default_rng(seed), Weights()
    axes = weight_axes(specification)
    added = {name for layer in specification.layers if layer.kind == "add" for name in layer.inputs[1:]}
    for key, shape in weight_shapes(specification).items():
        layer, _, part = key.rpartition("/")
        if part == "kernel":
            fan_in = math.prod(shape[:2]) if shape[-1] == 1 and len(shape) == 4 else math.prod(shape[:-1])
            is_head = (
                "logits" in specification.outputs
                and axes[key][-1].joined_channel_set_names == specification.label_channel_set
            )
            size = 0.01 if is_head else 1.0
            weights[key] = (generator.standard_normal(shape) * size * math.sqrt(2 / fan_in)).astype(np.float32)
        else:
            starts = {"gamma": 0.5 if layer in added else 1.0, "variance": 1.0}
            weights[key] = np.full(shape, starts.get(part, 0.0), np.float32)
    return weights


def keep_channels(
    specification: Specification, weights: Mapping[str, NDArray[np.float32]], *, keep: Mapping[str, NDArray[Any]]
) -> tuple[Specification, Weights]:
    """Return a smaller network that has only some of the channels, and the weights of the smaller network.

    Parameters
    ----------
    keep
        Indices of the channels to keep, by name of the channel set. A channel set without an entry keeps all channels.
        To remove a label, keep all other channels of the set `Specification.label_channel_set`.

    Raises ValueError if the indices of a set are empty, repeated or out of range.
    """
    chosen = {name: _checked(name, indices, specification.channels[name]) for name, indices in keep.items()}
    smaller = specification.with_channels({name: len(indices) for name, indices in chosen.items()})
    sliced = Weights()
    for key, axes in weight_axes(specification).items():
        array = weights[key]
        for position, axis in enumerate(axes):
            if not chosen.keys().isdisjoint(axis.channel_sets):
                array = np.take(array, _along(axis, chosen, specification), axis=position)
        sliced[key] = np.ascontiguousarray(array)
    return smaller, sliced


def _checked(name: str, indices: NDArray[Any], count: int) -> NDArray[np.int64]:
    ordered = np.unique(np.asarray(indices, np.int64))
    if not len(ordered) or len(ordered) != len(indices) or ordered[0] < 0 or ordered[-1] >= count:
        raise ValueError(f"channels to keep of {name}: need distinct indices in 0..{count - 1}")
    return ordered


def _along(axis: Axis, chosen: Mapping[str, NDArray[np.int64]], specification: Specification) -> NDArray[np.int64]:
    kept, start = list[NDArray[np.int64]](), 0
    for name in axis.channel_sets:
        count = specification.channels[name]
        kept.append(start + chosen.get(name, np.arange(count)))
        start += count
    return (np.arange(axis.repeat_count)[:, None] * start + np.concatenate(kept)).reshape(-1)


def copy_matching_weights(source: Mapping[str, NDArray[np.float32]], target: Weights) -> int:
    """Copy arrays from `source` to `target` where name and shape are equal. Returns the number of copied arrays."""
    matching = [key for key, array in source.items() if key in target and target[key].shape == array.shape]
    for key in matching:
        target[key] = np.array(source[key], np.float32)
    return len(matching)


def save_weights(path: Path, weights: Mapping[str, NDArray[Any]]) -> None:
    """Write the weights of a network to an .npz file, whole or not at all. Raises StorageProblem."""
    save_arrays(path, weights)


def load_weights(path: Path) -> Weights:
    """Read a network's weights from an .npz file, as float32. Raises OSError, StorageProblem (run_file_damaged)."""
    with open_arrays(path) as arrays:
        return {key: np.asarray(arrays[key], np.float32) for key in arrays}


def save_network(
    weights_path: Path, specification_path: Path, specification: Specification, weights: Mapping[str, NDArray[Any]]
) -> None:
    """Write the weights (.npz) and the specification (.json) of a network. Raises StorageProblem.

    The file of the weights is written last. If this file exists, both files are complete.
    """
    write_atomically(specification_path, specification.to_json().encode())
    save_weights(weights_path, weights)


def load_network(weights_path: Path, specification_path: Path) -> tuple[Specification, Weights]:
    """Read a network that `save_network` wrote. Raises OSError, StorageProblem (run_file_damaged)."""
    with raise_if_damaged(specification_path):
        specification = specification_from_json(specification_path.read_text(encoding="utf-8"))
    return specification, load_weights(weights_path)
