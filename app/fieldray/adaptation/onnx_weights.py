"""Weights to start from out of an ONNX file of the same network, as others publish them.

Such a file is written for use: each convolution has its normalisation folded in, and the network reads colour images
in a scale of its own. Both are put right here; its last layers, which know other labels, are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldray.adaptation.specification import Specification
from fieldray.adaptation.unfold_batchnorm import unfold_batchnorm
from fieldray.adaptation.weights import Weights
from fieldray.errors import UsageProblem
from fieldray.reasons import reason

Convolution = tuple[NDArray[np.float32], NDArray[np.float32]]


def onnx_weights(
    path: Path, specification: Specification, *, images: NDArray[np.uint8], scale: float, offsets: Sequence[float]
) -> Weights:
    """The weights of the convolutions, with normalisations made from the images.

    specification    the file's network, or one without its last stages
    images            (n, height, width, channels), a few dozen that are trained on
    scale, offsets   the file's network was fed x * scale + offset of a channel, of a value x in 0..1
    Raises UsageProblem: `data_unreadable` (no ONNX file, or the package onnx is missing), `weights_unfit` (another
    network, or normalisations that are not folded in).
    """
    graph = _read(path)
    layers = [layer for layer in specification.layers if layer.kind == "conv" and layer.batch_norm]
    found = list(_convolutions(graph))
    if len(found) < len(layers) or any(node.op_type == "BatchNormalization" for node in graph.node):
        raise UsageProblem(reason("weights_unfit", path=path))
    kernel, bias = found[0]
    found[0] = _for_grey(kernel, bias, specification.input_channels, scale=scale, offsets=offsets)
    folded = {layer.name: convolution for layer, convolution in zip(layers, found, strict=False)}
    return unfold_batchnorm(specification, folded, images)


def _read(path: Path) -> Any:
    try:
        import onnx

        return onnx.load(path).graph
    except Exception as problem:  # of its parser, whose errors are of many kinds
        detail = str(problem) or type(problem).__name__
        raise UsageProblem(reason("data_unreadable", path=path, detail=detail)) from problem


def _convolutions(graph: Any) -> Iterator[Convolution]:
    """Kernel (height, width, in, out) and bias (out,) of each, in the order of our layers.

    Of two that read the same value the one with more channels, the shortcut, comes first, wherever the file has it.
    """
    from onnx import numpy_helper

    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    nodes = [node for node in graph.node if node.op_type == "Conv" and all(name in arrays for name in node.input[1:])]
    decoders: dict[str, list[Any]] = {}
    for node in nodes:
        decoders.setdefault(node.input[0], []).append(node)
    for shared in decoders.values():
        for node in sorted(shared, key=lambda node: -len(arrays[node.input[1]])):
            kernel = np.asarray(arrays[node.input[1]], np.float32).transpose(2, 3, 1, 0)
            bias = arrays[node.input[2]] if len(node.input) > 2 else np.zeros(kernel.shape[-1])
            yield kernel, np.asarray(bias, np.float32)


def _for_grey(
    kernel: NDArray[np.float32], bias: NDArray[np.float32], channels: int, *, scale: float, offsets: Sequence[float]
) -> Convolution:
    """The first convolution for grey values in 0..1; what it made of the constant offset goes to its bias."""
    constant = np.einsum("hwio,i->o", kernel, np.array(offsets, np.float32))
    grey = kernel.sum(axis=2, keepdims=True) if channels == 1 else kernel
    return grey * np.float32(scale), bias + constant
