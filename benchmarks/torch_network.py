"""A network of `fieldray adapt` in PyTorch, operator by operator, without folding or fusing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from fieldray_adapt.networks.specification import INPUT_NAME, Layer, Specification, channel_set_by_layer

Pads = tuple[int, int, int, int]
_KINDS: Final = frozenset(
    {"conv", "depthwise", "max_pool", "average_all", "add", "concat", "upsample", "activation", "dropout"}
)


class TorchNetwork(torch.nn.Module):  # type: ignore[misc]
    """A network as a PyTorch module, from images (n, channels, rows, columns) float32 in 0..1 to several outputs."""

    def __init__(
        self, specification: Specification, weights: Mapping[str, NDArray[np.float32]], *, outputs: tuple[str, ...]
    ) -> None:
        super().__init__()
        sets = channel_set_by_layer(specification)
        if unknown := {layer.kind for layer in specification.layers} - _KINDS:
            raise ValueError(f"no operators for layers of these kinds: {unknown}")
        self._layers, self._epsilon = specification.layers, specification.epsilon
        self._outputs = tuple(specification.outputs[name] for name in outputs)
        self._groups = {
            layer.name: specification.channels[sets[layer.name]] if layer.kind == "depthwise" else 1
            for layer in specification.layers
        }
        for key, array in weights.items():
            tensor = _tensor(array, is_depthwise=specification.layer(key.rpartition("/")[0]).kind == "depthwise")
            self.register_parameter(_name(key), torch.nn.Parameter(tensor, requires_grad=False))

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the outputs of the network for a batch of images, in the order given to the constructor."""
        values: dict[str, torch.Tensor] = {INPUT_NAME: image}
        for layer in self._layers:
            value = self._operate(layer, values[layer.inputs[0]], values)
            if layer.batch_norm:
                parts = (self._weight(layer, part) for part in ("mean", "variance", "gamma", "beta"))
                value = functional.batch_norm(value, *parts, False, 0.0, self._epsilon)
            values[layer.name] = _activated(layer, value)
        return tuple(values[name] for name in self._outputs)

    def _operate(self, layer: Layer, first: torch.Tensor, values: Mapping[str, torch.Tensor]) -> torch.Tensor:
        if layer.kind in ("conv", "depthwise"):
            left, right, top, bottom = pads = _pads(layer, first)
            is_within = left == right and top == bottom  # conv2d itself can only pad both sides equally
            return functional.conv2d(
                first if is_within else functional.pad(first, pads), self._weight(layer, "kernel"), self._bias(layer),
                layer.stride, (top, left) if is_within else 0, groups=self._groups[layer.name],
            )  # fmt: skip
        if layer.kind == "max_pool":
            padded = functional.pad(first, _pads(layer, first), value=-math.inf)
            return functional.max_pool2d(padded, layer.kernel, layer.stride)
        if layer.kind == "average_all":
            return first.mean((2, 3))
        if layer.kind in ("add", "concat"):
            several = [values[name] for name in layer.inputs]
            return torch.add(*several) if layer.kind == "add" else torch.cat(several, 1)
        if layer.kind == "upsample":
            return functional.interpolate(first, scale_factor=layer.stride, mode="bilinear")
        return first

    def _weight(self, layer: Layer, part: str) -> torch.Tensor:
        found: torch.Tensor = getattr(self, _name(f"{layer.name}/{part}"))
        return found

    def _bias(self, layer: Layer) -> torch.Tensor | None:
        return self._weight(layer, "bias") if hasattr(self, _name(f"{layer.name}/bias")) else None


def _pads(layer: Layer, value: torch.Tensor) -> Pads:
    """Return how many pixels TensorFlow's padding "same" adds for a layer: (left, right, top, bottom).

    If the number of pixels to add is odd, the right or the bottom gets one pixel more.
    """
    found = []
    for side in (value.shape[3], value.shape[2]):
        total = max((math.ceil(side / layer.stride) - 1) * layer.stride + layer.kernel - side, 0)
        found += [total // 2, total - total // 2]
    return found[0], found[1], found[2], found[3]


def _activated(layer: Layer, value: torch.Tensor) -> torch.Tensor:
    match layer.activation:
        case "relu":
            return functional.relu(value)
        case "relu6":
            return functional.relu6(value)
        case "sigmoid":
            return torch.sigmoid(value)
        case "softmax":
            return torch.softmax(value, -1)
        case "tanh":
            return torch.tanh(value)
    return value


def _name(key: str) -> str:
    return key.replace("/", "__").replace(".", "_")


def _tensor(array: NDArray[np.float32], *, is_depthwise: bool) -> torch.Tensor:
    """Convert a weight array from the layout of Keras (h, w, in, out) to the layout of PyTorch (out, in, h, w)."""
    if array.ndim == 4:
        array = array.transpose((2, 3, 0, 1) if is_depthwise else (3, 2, 0, 1))
    return torch.from_numpy(np.array(array, np.float32, order="C"))
