"""A network of the toolchain in PyTorch, with each step of fusion by itself.

The steps are those that PZNet (Buniatyan) takes for volumes, where PyTorch can take them one at a time: the batch
normalisation is folded into the convolution, channels lie next to each other, kernels are packed for the processor's
vectors, the activation and the sum of a residual block are computed before the convolution stores its output (the
operators of oneDNN that TorchInductor calls), and padding is a border that is there already.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from benchmarks.padded_view import PaddedView
from fieldray_adapt.specification import INPUT, Layer, Specification, channel_sets

Pads = tuple[int, int, int, int]
_KINDS: Final = frozenset({"conv", "depthwise", "max_pool", "average_all", "add", "upsample", "activation", "dropout"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Which steps are taken.

    Attributes
    ----------
    is_folded
        No batch normalisation of its own.
    is_channels_last
        The layout (images, rows, columns, channels).
    is_packed
        Kernels laid out for the processor; convolutions are called through oneDNN's fused operators.
    has_activation, has_sum
        What is computed within the convolution; both need `is_packed`.
    padding
        "within" the convolution where both sides are alike; a "copy" into a larger tensor; or as a "view": written
        into a buffer that has its border already.
    """

    is_folded: bool = False
    is_channels_last: bool = False
    is_packed: bool = False
    has_activation: bool = False
    has_sum: bool = False
    padding: Literal["within", "copy", "view"] = "within"


def folded(specification: Specification, weights: Mapping[str, NDArray[np.float32]]) -> dict[str, NDArray[np.float32]]:
    """The weights with W' = W g/sqrt(v+e) and b' = (b-m) g/sqrt(v+e) + beta: kernels and biases alone."""
    found: dict[str, NDArray[np.float32]] = {}
    for layer in specification.layers:
        if not layer.has_weights:
            continue
        name, kernel = layer.name, weights[f"{layer.name}/kernel"]
        if not layer.batch_norm:
            found |= {f"{name}/kernel": kernel, f"{name}/bias": weights[f"{name}/bias"]}
            continue
        gamma, beta, mean, variance = (weights[f"{name}/{part}"] for part in ("gamma", "beta", "mean", "variance"))
        factor = gamma / np.sqrt(variance + specification.epsilon)
        shape = (1, 1, -1, 1) if layer.kind == "depthwise" else (1, 1, 1, -1)
        found |= {f"{name}/kernel": kernel * factor.reshape(shape), f"{name}/bias": beta - mean * factor}
    return found


class TorchNetwork(torch.nn.Module):  # type: ignore[misc]
    """Images (n, channels, rows, columns) float32 in 0..1 to the outputs named, in their order."""

    def __init__(
        self,
        specification: Specification,
        weights: Mapping[str, NDArray[np.float32]],
        *,
        outputs: tuple[str, ...],
        steps: Steps,
    ) -> None:
        super().__init__()
        if steps.is_folded:
            weights = folded(specification, weights)
        sets = channel_sets(specification)
        if unknown := {layer.kind for layer in specification.layers} - _KINDS:
            raise ValueError(f"no operators for layers of these kinds: {unknown}")
        self._layers, self._steps = specification.layers, steps
        self._epsilon = specification.epsilon
        self._outputs = tuple(specification.outputs[name] for name in outputs)
        self._groups = {
            layer.name: specification.channels[sets[layer.name]] if layer.kind == "depthwise" else 1
            for layer in specification.layers
        }
        self._fused_sums = fused_sums(specification) if steps.has_sum else {}
        self._views: dict[tuple[str, tuple[int, ...]], Any] = {}
        for key, array in weights.items():
            tensor = _tensor(array, is_depthwise=specification.layer(key.rpartition("/")[0]).kind == "depthwise")
            if steps.is_channels_last and tensor.ndim == 4:
                tensor = tensor.contiguous(memory_format=torch.channels_last)
            self.register_parameter(_name(key), torch.nn.Parameter(tensor, requires_grad=False))

    def pack(self, image: torch.Tensor) -> None:
        """Lay kernels out as oneDNN wants them for images like this one."""
        with torch.inference_mode():
            inputs: dict[str, torch.Tensor] = {}
            self._run(image, inputs)
            for layer in self._layers:
                if layer.kind in ("conv", "depthwise"):
                    first = inputs[layer.inputs[0]]
                    kernel = self._weight(layer, "kernel")
                    within = [self._within(layer, first)[0]] * 2
                    packed = torch.ops.mkldnn._reorder_convolution_weight(
                        kernel, within, [layer.stride] * 2, [1, 1], self._groups[layer.name],
                        list(self._padded(layer, first).shape),
                    )  # fmt: skip
                    setattr(self, _name(f"{layer.name}/kernel"), torch.nn.Parameter(packed, requires_grad=False))

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The outputs."""
        values: dict[str, torch.Tensor] = {}
        self._run(image, values)
        return tuple(values[name] for name in self._outputs)

    def _run(self, image: torch.Tensor, values: dict[str, torch.Tensor]) -> None:
        if self._steps.is_channels_last:
            image = image.contiguous(memory_format=torch.channels_last)
        values[INPUT] = image
        for layer in self._layers:
            if layer.name not in self._fused_sums.values():
                values[layer.name] = self._apply(layer, values)
            else:  # computed by the convolution before it
                convolution = next(name for name, total in self._fused_sums.items() if total == layer.name)
                values[layer.name] = values[convolution]

    def _apply(self, layer: Layer, values: Mapping[str, torch.Tensor]) -> torch.Tensor:
        first = values[layer.inputs[0]]
        if self._steps.is_packed and layer.kind in ("conv", "depthwise"):
            return self._fused(layer, values)
        value = self._operate(layer, first, values)
        if layer.batch_norm and not self._steps.is_folded:
            gamma, beta, mean, variance = (self._weight(layer, part) for part in ("gamma", "beta", "mean", "variance"))
            value = functional.batch_norm(value, mean, variance, gamma, beta, False, 0.0, self._epsilon)
        if self._steps.padding == "view" and value.ndim == 4 and layer.activation == "relu":
            return self._written_inside(layer, value)
        return _activated(layer, value)

    def _operate(self, layer: Layer, first: torch.Tensor, values: Mapping[str, torch.Tensor]) -> torch.Tensor:
        if layer.kind in ("conv", "depthwise"):
            return functional.conv2d(
                self._padded(layer, first), self._weight(layer, "kernel"), self._bias(layer), layer.stride,
                self._within(layer, first), groups=self._groups[layer.name],
            )  # fmt: skip
        if layer.kind == "max_pool":
            pads = _pads(layer, first)
            return functional.max_pool2d(functional.pad(first, pads, value=-math.inf), layer.kernel, layer.stride)
        if layer.kind == "average_all":
            return first.mean((2, 3))
        if layer.kind == "add":
            return first + values[layer.inputs[1]]
        return (
            functional.interpolate(first, scale_factor=layer.stride, mode="bilinear")
            if layer.kind == "upsample"
            else first
        )

    def _fused(self, layer: Layer, values: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """A convolution through oneDNN's fused operators, with the activation and the sum that belong to it."""
        first, operator = values[layer.inputs[0]], torch.ops.mkldnn._convolution_pointwise
        kernel, bias = self._weight(layer, "kernel"), self._bias(layer)
        shape = [*[list(self._within(layer, first)), [layer.stride] * 2, [1, 1]], self._groups[layer.name]]
        total = self._fused_sums.get(layer.name)
        if total:
            adding = next(one for one in self._layers if one.name == total)
            other = values[next(name for name in adding.inputs if name != layer.name)]
            after = "relu" if adding.activation == "relu" and self._steps.has_activation else None
            value = operator.binary(self._padded(layer, first), other, kernel, bias, *shape, "add", 1.0, after, [], "")
            return value if after else _activated(adding, value)
        has_own = self._steps.has_activation and layer.activation == "relu"
        value = operator(self._padded(layer, first), kernel, bias, *shape, "relu" if has_own else "none", [], "")
        return value if has_own else _activated(layer, value)

    def _padded(self, layer: Layer, value: torch.Tensor) -> torch.Tensor:
        """The input with its border, where the convolution itself does not pad."""
        pads = _pads(layer, value)
        if not any(pads) or self._within(layer, value) != (0, 0):
            return value
        if self._steps.padding == "view":
            buffer = self._views.get((layer.inputs[0], (*value.shape, *pads)))
            if buffer is not None:
                return buffer
        return functional.pad(value, pads)

    def _within(self, layer: Layer, value: torch.Tensor) -> tuple[int, int]:
        left, right, top, bottom = _pads(layer, value)
        is_even = left == right and top == bottom
        return (top, left) if self._steps.padding == "within" and is_even else (0, 0)

    def _written_inside(self, layer: Layer, value: torch.Tensor) -> torch.Tensor:
        """The activation, written into the buffer that the next convolution reads, where that one pads."""
        readers = [one for one in self._layers if layer.name in one.inputs and one.kind in ("conv", "depthwise")]
        borders = {pads for one in readers if any(pads := _pads(one, value))}
        if len(borders) != 1:
            return functional.relu(value)
        (pads,) = borders
        key = (layer.name, (*value.shape, *pads))
        if key not in self._views:
            left, right, top, bottom = pads
            self._views[key] = value.new_zeros(
                (*value.shape[:2], value.shape[2] + top + bottom, value.shape[3] + left + right)
            )
        inside = inside_of(self._views[key], pads)
        return torch.clamp_min(value, 0.0, out=inside)

    def _weight(self, layer: Layer, part: str) -> torch.Tensor:
        found: torch.Tensor = getattr(self, _name(f"{layer.name}/{part}"))
        return found

    def _bias(self, layer: Layer) -> torch.Tensor | None:
        return self._weight(layer, "bias") if hasattr(self, _name(f"{layer.name}/bias")) else None


def inside_of(buffer: torch.Tensor, pads: Pads) -> torch.Tensor:
    """The inside of buffers (n, channels, rows, columns) with borders (left, right, top, bottom), as a view."""
    left, right, top, bottom = pads
    count, channels, rows, columns = buffer.shape
    place = PaddedView(
        rows=rows - top - bottom, columns=columns - left - right, top=top, bottom=bottom, left=left, right=right
    )
    strides = (channels * place.plane_stride, place.plane_stride, place.row_stride, 1)
    return buffer.as_strided((count, channels, place.rows, place.columns), strides, place.offset)


def fused_sums(specification: Specification) -> dict[str, str]:
    """The convolution that can compute a sum as it stores its output, and that sum: linear, and of no other use."""
    order = {layer.name: number for number, layer in enumerate(specification.layers)}
    found = {}
    for layer in specification.layers:
        if layer.kind != "add" or len(set(layer.inputs)) < 2:
            continue
        last = max(layer.inputs, key=lambda name: order.get(name, -1))
        if last not in order:
            continue
        before = specification.layers[order[last]]
        users = [one for one in specification.layers if last in one.inputs]
        is_output = last in specification.outputs.values()
        if before.kind == "conv" and before.activation == "none" and len(users) == 1 and not is_output:
            found[last] = layer.name
    return found


def _pads(layer: Layer, value: torch.Tensor) -> Pads:
    """TensorFlow's "same", (left, right, top, bottom): what is odd goes to the right and the bottom."""
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
    """Keras's layout to PyTorch's."""
    if array.ndim == 4:
        array = array.transpose((2, 3, 0, 1) if is_depthwise else (3, 2, 0, 1))
    return torch.from_numpy(np.array(array, np.float32, order="C"))
