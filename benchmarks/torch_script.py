"""A PyTorch script in the manner of torchxrayvision: ResNet50 in float32, values in -1024..1024, one after another.

The weights are random, because only the time counts. PyTorch uses all cores.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image as Picture

from benchmarks.scripts import Loop, shown
from fieldray.processes.priority import usable_cores
from fieldray.processes.wire import Message

_BLOCKS = (3, 4, 6, 3)


class TorchScript:
    """The opening message names the size of the network's input (`rows`, `columns`)."""

    def __init__(self, message: Message) -> None:
        import torch

        torch.set_num_threads(usable_cores())
        self._torch: Any = torch
        self._size = message.body["columns"], message.body["rows"]
        self._network = _resnet50(torch.nn).eval()
        self.detail = f"torch {torch.__version__}, {torch.get_num_threads()} threads"

    def do(self, path: str) -> None:
        """From file to scores."""
        grey = shown(path)
        top = max(float(grey.max()), 1.0)
        grey = (2 * (grey / top) - 1) * 1024
        side = min(grey.shape)
        row, column = (grey.shape[0] - side) // 2, (grey.shape[1] - side) // 2
        square = Picture.fromarray(grey[row : row + side, column : column + side])
        small = np.array(square.resize(self._size, Picture.Resampling.BILINEAR), np.float32)
        with self._torch.no_grad():
            self._network(self._torch.from_numpy(small)[None, None]).numpy()


def _resnet50(nn: Any) -> Any:
    """ResNet50 V1 for one grey channel (He et al. 2016, arXiv:1512.03385)."""

    def convolution(inputs: int, outputs: int, kernel: int, stride: int) -> list[Any]:
        step = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
        return [step, nn.BatchNorm2d(outputs)]

    class Bottleneck(nn.Module):  # type: ignore[misc]
        def __init__(self, inputs: int, inner: int, stride: int) -> None:
            super().__init__()
            first, second = convolution(inputs, inner, 1, stride), convolution(inner, inner, 3, 1)
            third = convolution(inner, 4 * inner, 1, 1)
            self.body = nn.Sequential(*first, nn.ReLU(True), *second, nn.ReLU(True), *third)
            is_same = inputs == 4 * inner
            self.shortcut = nn.Identity() if is_same else nn.Sequential(*convolution(inputs, 4 * inner, 1, stride))
            self.activation = nn.ReLU(True)

        def forward(self, values: Any) -> Any:
            return self.activation(self.body(values) + self.shortcut(values))

    layers = [*convolution(1, 64, 7, 2), nn.ReLU(True), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for stage, count in enumerate(_BLOCKS):
        inner = 64 * 2**stage
        for block in range(count):
            layers.append(Bottleneck(inputs, inner, 2 if block == 0 and stage else 1))
            inputs = 4 * inner
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 18), nn.Sigmoid())


handle = Loop(TorchScript).handle
