"""Train networks with PyTorch. Layers, padding and weights are those of the Keras model of a specification."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from fieldray_adapt.networks.specification import INPUT_NAME, Layer, Specification, Weights, channel_set_by_layer
from fieldray_adapt.training.engine_interface import (
    BATCH_NORM_STATISTIC_SUFFIXES,
    Batch,
    EngineSettings,
    section_mean_matrix,
)

_MOMENTUM: Final = 0.1
_MIN_KNOWN_WEIGHT: Final = 1e-6
_SLOTS: Final = ("step", "exp_avg", "exp_avg_sq")


class TorchEngine:
    """A training engine (`engine_interface.Engine`) that uses PyTorch, on a GPU if there is one."""

    def __init__(
        self, specification: Specification, weights: Mapping[str, NDArray[np.float32]], *, settings: EngineSettings
    ) -> None:
        if settings.threads:
            torch.set_num_threads(settings.threads)
        self._specification, self._settings = specification, settings
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._groups = {
            layer.name: specification.channels[channel_set_by_layer(specification)[layer.name]]
            for layer in specification.layers
            if layer.kind == "depthwise"
        }
        self._arrays = {key: self._to_device(_inward(key, array, self._groups)) for key, array in weights.items()}
        trained = [key for key in self._arrays if self._is_trained(key)]
        for key in trained:
            self._arrays[key].requires_grad_(True)
        kernels = [self._arrays[key] for key in trained if key.endswith("/kernel")]
        others = [self._arrays[key] for key in trained if not key.endswith("/kernel")]
        groups = [{"params": kernels, "weight_decay": settings.weight_decay}, {"params": others, "weight_decay": 0.0}]
        # The fused optimiser reads the memory once instead of about ten times, which matters for large dense layers.
        self._optimiser = torch.optim.AdamW(groups, lr=0.0, fused=True)

    def step(self, images: Batch, targets: Batch, *, learning_rate: float, lungs: Batch | None = None) -> float:
        """Perform one AdamW step. Returns the mean loss of the batch before the step (see `Engine.step`)."""
        for group in self._optimiser.param_groups:
            group["lr"] = learning_rate
        loss = self._backward(images, targets, lungs)
        self._optimiser.step()
        return loss

    def gradient(self, images: Batch, targets: Batch, *, lungs: Batch | None = None) -> tuple[Weights, float]:
        """Return the gradient of a batch by weight name, and the batch's mean loss (see `Engine.gradient`)."""
        statistics = [key for key in self._arrays if self._is_noted(key)]
        before = {key: self._arrays[key].clone() for key in statistics}
        loss = self._backward(images, targets, lungs)
        found: Weights = {}
        for key, array in self._arrays.items():
            if key in before:
                found[key] = _outward(key, before[key] - array, self._groups)
            elif array.grad is not None:
                found[key] = _outward(key, array.grad, self._groups)
            elif self._is_trained(key):
                found[key] = np.zeros_like(_outward(key, array, self._groups))
        for key, tensor in before.items():
            self._arrays[key].copy_(tensor)
        return found, loss

    def _backward(self, images: Batch, targets: Batch, lungs: Batch | None) -> float:
        self._optimiser.zero_grad(set_to_none=True)
        values = self._forward(images, training=True)
        loss = self._loss(self._logits(values), torch.from_numpy(targets).to(self._device))
        if lungs is not None and any(self._settings.outside_weights):
            loss = loss + self._outside(values[self._specification.outputs["class_maps"]].float(), lungs)
        loss.backward()
        return float(loss.detach())

    def logits(self, images: Batch) -> Batch:
        """Return the logits (n, labels) of images (see `Engine.logits`)."""
        with torch.inference_mode():
            values: Batch = self._logits(self._forward(images, training=False)).cpu().numpy()
            return values

    def weights(self) -> Weights:
        """Return a copy of the network's weights, with the names and the layout of Keras."""
        with torch.no_grad():
            return {key: _outward(key, array, self._groups) for key, array in self._arrays.items()}

    def set_weights(self, weights: Mapping[str, NDArray[np.float32]]) -> None:
        """Replace the network's weights. `weights` have the names and the layout of Keras."""
        with torch.no_grad():
            for key, array in self._arrays.items():
                array.copy_(_inward(key, weights[key], self._groups))

    def optimiser_state(self) -> dict[str, NDArray[Any]]:
        """Return the state of the AdamW optimiser as arrays by name: the number of steps, and the moments."""
        state = self._optimiser.state_dict()["state"]
        return {f"{index}/{slot}": row[slot].cpu().numpy().copy() for index, row in state.items() for slot in _SLOTS}

    def set_optimiser_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Set the state of the AdamW optimiser (number of steps, moments) to a result of `optimiser_state`."""
        rows: dict[int, dict[str, torch.Tensor]] = {}
        for key, array in state.items():
            index, _, slot = key.partition("/")
            # The fused optimiser needs moments with the memory layout of their weights.
            rows.setdefault(int(index), {})[slot] = self._to_device(torch.from_numpy(np.array(array)))
        whole = self._optimiser.state_dict()
        self._optimiser.load_state_dict({**whole, "state": rows})

    def _is_trained(self, key: str) -> bool:
        return not key.endswith(BATCH_NORM_STATISTIC_SUFFIXES) and key.rpartition("/")[0] not in self._settings.frozen

    def _is_noted(self, key: str) -> bool:
        return key.endswith(BATCH_NORM_STATISTIC_SUFFIXES) and key.rpartition("/")[0] not in self._settings.frozen

    def _to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        layout = torch.channels_last if tensor.ndim == 4 else torch.contiguous_format
        return tensor.to(self._device).clone(memory_format=layout)

    def _loss(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if self._settings.loss == "categorical":
            return functional.cross_entropy(logits, targets)
        known = (~torch.isnan(targets)).float()
        if self._settings.label_weights:
            known = known * torch.tensor(self._settings.label_weights, device=known.device)
        losses = functional.binary_cross_entropy_with_logits(logits, torch.nan_to_num(targets), reduction="none")
        return (losses * known).sum() / known.sum().clamp(min=_MIN_KNOWN_WEIGHT)

    def _logits(self, values: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return values[self._specification.outputs["logits"]].float()

    def _outside(self, maps: torch.Tensor, lungs: Batch) -> torch.Tensor:
        down, across = map(section_mean_matrix, lungs.shape[1:], maps.shape[2:])
        shares = torch.from_numpy((down @ lungs @ across.T).astype(np.float32)).to(self._device)[:, None]
        weights = torch.tensor(self._settings.outside_weights, device=self._device)
        return ((functional.relu(maps) * (1 - shares)).mean((0, 2, 3)) * weights).sum()

    def _forward(self, images: Batch, *, training: bool) -> dict[str, torch.Tensor]:
        values = {INPUT_NAME: torch.from_numpy(np.ascontiguousarray(images)).to(self._device).permute(0, 3, 1, 2)}
        wanted = self._specification.outputs["logits"]
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._settings.precision == "bfloat16"):
            for layer in self._specification.layers:
                inputs = [values[name] for name in layer.inputs]
                values[layer.name] = self._apply(layer, inputs, training=training)
                if layer.name == wanted:
                    break
        return values

    def _apply(self, layer: Layer, inputs: list[torch.Tensor], *, training: bool) -> torch.Tensor:
        value = self._operate(layer, inputs, training=training)
        if layer.batch_norm:
            # A batch with one value per channel has no variance: the running statistics normalise the value.
            learning = training and layer.name not in self._settings.frozen and value[:, 0].numel() > 1
            mean, variance, gamma, beta = (
                self._arrays[f"{layer.name}/{part}"] for part in ("mean", "variance", "gamma", "beta")
            )
            value = functional.batch_norm(
                value, mean, variance, gamma, beta, learning, _MOMENTUM, self._specification.epsilon
            )
        if layer.activation == "relu":
            return functional.relu(value, inplace=True)
        return functional.relu6(value, inplace=True) if layer.activation == "relu6" else value

    def _operate(self, layer: Layer, inputs: list[torch.Tensor], *, training: bool) -> torch.Tensor:
        first, name = inputs[0], layer.name
        match layer.kind:
            case "conv" | "depthwise":
                padded, groups = _pad_same(first, layer, fill=0.0), self._groups.get(name, 1)
                bias = self._arrays.get(f"{name}/bias")
                first = functional.conv2d(padded, self._arrays[f"{name}/kernel"], bias, layer.stride, groups=groups)
            case "dense":
                first = functional.linear(first, self._arrays[f"{name}/kernel"], self._arrays[f"{name}/bias"])
            case "max_pool":
                padded = _pad_same(first, layer, fill=-math.inf)
                first = functional.max_pool2d(padded, layer.kernel, layer.stride)
            case "average_all":
                first = first.mean((2, 3))
            case "add":
                first = first + inputs[1]
            case "concat":
                first = torch.cat(inputs, 1)
            case "upsample":
                first = functional.interpolate(first, scale_factor=layer.stride, mode="bilinear")
            case "flatten":
                first = first.permute(0, 2, 3, 1).flatten(1)
            case "dropout":
                first = functional.dropout(first, layer.rate, training)
            case "activation":
                pass
        return first


def _pad_same(value: torch.Tensor, layer: Layer, *, fill: float) -> torch.Tensor:
    """Pad a tensor of images with the value `fill` for a layer, as the padding "same" of TensorFlow does.

    If the number of pixels to add is odd, the bottom or the right gets one pixel more.
    """
    pads = []
    for side in (value.shape[3], value.shape[2]):
        total = max((math.ceil(side / layer.stride) - 1) * layer.stride + layer.kernel - side, 0)
        pads += [total // 2, total - total // 2]
    return functional.pad(value, pads, value=fill) if any(pads) else value


def _inward(key: str, array: NDArray[np.float32], groups: Mapping[str, int]) -> torch.Tensor:
    """Convert a weight array from the layout of Keras (h, w, in, out) to that of PyTorch (out, in, h, w).

    A depthwise kernel (h, w, c, 1) becomes (c, 1, h, w).
    """
    if array.ndim == 4:
        order = (2, 3, 0, 1) if key.rpartition("/")[0] in groups else (3, 2, 0, 1)
        array = array.transpose(order)
    return torch.from_numpy(np.array(array.T if array.ndim == 2 else array, np.float32, order="C"))


def _outward(key: str, tensor: torch.Tensor, groups: Mapping[str, int]) -> NDArray[np.float32]:
    """Convert a weight array from the layout of PyTorch to the layout of Keras (see `_inward`)."""
    array = tensor.detach().cpu().numpy()
    if array.ndim == 4:
        array = array.transpose((2, 3, 0, 1) if key.rpartition("/")[0] in groups else (2, 3, 1, 0))
    return np.array(array.T if array.ndim == 2 else array, np.float32, order="C")
