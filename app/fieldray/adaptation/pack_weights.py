"""Weights to start from out of a pack: the integers of its network made numbers again, with normalisations."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from ai_edge_litert import schema_py_generated as schema
from numpy.typing import NDArray

from fieldray.adaptation.specification import Specification
from fieldray.adaptation.unfold_batchnorm import Folded, unfold_batchnorm
from fieldray.adaptation.weights import Weights
from fieldray.errors import UsageProblem
from fieldray.packs.verified import read_files, read_verified_manifest
from fieldray.reasons import reason

_INT8: Final = 9


def pack_weights(folder: Path, specification: Specification) -> Weights:
    """The weights of the convolutions of a pack's network that a network like it has too.

    Each channel's statistics come from the pack's own golden images.
    specification    the network to start; of another side it may be, and with other labels
    Raises UsageProblem `weights_unfit` where the pack has no golden images or another network, PackProblem.
    """
    folded, images = _read(folder, specification)
    if images is None:
        raise UsageProblem(reason("weights_unfit", path=folder))
    return unfold_batchnorm(specification, folded, images)


def pack_channels(folder: Path, specification: Specification) -> dict[str, int]:
    """How many channels each hidden channel set of a network has in a pack. Raises as `pack_weights`."""
    folded, _ = _read(folder, specification)
    counts = {specification.layer(name).channels: len(bias) for name, (_, bias) in folded.items()}
    return {name: count for name, count in counts.items() if name != specification.label_set}


def _read(folder: Path, specification: Specification) -> tuple[Folded, NDArray[np.uint8] | None]:
    """Kernel and bias of each convolution by the name it has here, and the pack's golden images."""
    model = read_files(folder, read_verified_manifest(folder)).model("signed")
    layers = [layer for layer in specification.layers if layer.kind == "conv"]
    operators = list(convolutions(model.files["litert"]))
    fits = len(layers) == len(operators) and all(
        layer.name in name or not layer.batch_norm for layer, (name, _, _) in zip(layers, operators, strict=False)
    )
    if not fits:
        raise UsageProblem(reason("weights_unfit", path=folder))
    folded = {layer.name: (kernel, bias) for layer, (_, kernel, bias) in zip(layers, operators, strict=True)}
    return folded, None if model.golden is None else model.golden.inputs


def convolutions(data: bytes) -> Iterator[tuple[str, NDArray[np.float32], NDArray[np.float32]]]:
    """Name of the output, kernel (height, width, in, out) and bias (out,) of each convolution, in the file's order."""
    model = schema.ModelT.InitFromPackedBuf(data, 0)
    graph = model.subgraphs[0]
    for operator in graph.operators:
        code = model.operatorCodes[operator.opcodeIndex]
        if max(code.builtinCode, code.deprecatedBuiltinCode) == schema.BuiltinOperator.CONV_2D:
            kernel, bias = (_numbers(model, graph.tensors[index]) for index in operator.inputs[1:3])
            yield graph.tensors[operator.outputs[0]].name.decode(), kernel.transpose(1, 2, 3, 0), bias


def _numbers(model: Any, tensor: Any) -> NDArray[np.float32]:
    """A constant of the file as float32; scales run along its first axis."""
    raw = np.asarray(model.buffers[tensor.buffer].data, np.uint8).tobytes()
    whole = np.frombuffer(raw, np.int8 if tensor.type == _INT8 else np.int32).reshape(tensor.shape)
    scale = np.asarray(tensor.quantization.scale, np.float32).reshape(-1, *[1] * (whole.ndim - 1))
    return np.asarray(whole.astype(np.float32) * scale, np.float32)
