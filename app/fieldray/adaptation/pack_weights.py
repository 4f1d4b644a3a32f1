"""Weights to start from out of a pack: the integers of its network made numbers again, with normalisations.

A pack holds each convolution with its normalisation folded in. Training wants it apart: the convolution's output over
the pack's own golden films gives each channel's mean and variance, and gamma and beta undo exactly what they do. So
the network answers as the pack's does, and learns as one that was trained here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from ai_edge_litert import schema_py_generated as schema
from numpy.typing import NDArray

from fieldray.adaptation.keras_network import build_network, set_weights
from fieldray.adaptation.specification import Layer, Specification
from fieldray.adaptation.weights import Weights, initial_weights
from fieldray.errors import UsageProblem
from fieldray.packs.sealed import read_files, read_sealed
from fieldray.reasons import reason

_INT8: Final = 9


def pack_weights(folder: Path, specification: Specification) -> Weights:
    """The weights of the convolutions of a pack's network that a network like it has too.

    specification    the network to start; of another side it may be, and with other labels
    Raises UsageProblem `weights_unfit` where the pack has no golden films or another network, PackProblem.
    """
    model = read_files(folder, read_sealed(folder)).model("signed")
    layers = [layer for layer in specification.layers if layer.kind == "conv"]
    operators = list(convolutions(model.cpu_file))
    fits = len(layers) == len(operators) and all(
        layer.name in name or not layer.batch_norm for layer, (name, _, _) in zip(layers, operators, strict=False)
    )
    if not fits or model.golden is None:
        raise UsageProblem(reason("weights_unfit", path=folder))
    folded = {layer.name: (kernel, bias) for layer, (_, kernel, bias) in zip(layers, operators, strict=True)}
    films = model.golden.inputs.astype(np.float32) / 255
    normalised = [layer for layer in layers if layer.batch_norm]
    sized = replace(specification, height=films.shape[1], width=films.shape[2])
    return _unfolded(sized, normalised, folded, films)


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


def _unfolded(
    specification: Specification,
    layers: list[Layer],
    folded: Mapping[str, tuple[NDArray[np.float32], NDArray[np.float32]]],
    films: NDArray[np.float32],
) -> Weights:
    found = initial_weights(specification, seed=0)
    for layer in layers:
        kernel, bias = folded[layer.name]
        if kernel.shape != found[f"{layer.name}/kernel"].shape:
            raise UsageProblem(reason("weights_unfit", path=layer.name))
        found[f"{layer.name}/kernel"], found[f"{layer.name}/beta"] = kernel, bias
        found[f"{layer.name}/gamma"] = np.ones_like(bias)
        found[f"{layer.name}/variance"] = np.full_like(bias, 1 - specification.epsilon)
    outputs = _normalised_outputs(specification, layers, found, films)
    for layer, output in zip(layers, outputs, strict=True):
        mean, variance = output.mean((0, 1, 2)), output.var((0, 1, 2))
        found[f"{layer.name}/mean"] = mean - found[f"{layer.name}/beta"]
        found[f"{layer.name}/variance"] = variance
        found[f"{layer.name}/gamma"] = np.sqrt(variance + specification.epsilon)
        found[f"{layer.name}/beta"] = mean
    names = {layer.name for layer in layers}
    return {key: array for key, array in found.items() if key.rpartition("/")[0] in names}


def _normalised_outputs(
    specification: Specification, layers: list[Layer], weights: Weights, films: NDArray[np.float32]
) -> list[NDArray[np.float32]]:
    """What each layer's normalisation gives, before the activation."""
    import keras

    model = build_network(specification, outputs=["logits"])
    set_weights(model, weights)
    inside = keras.Model(model.input, [model.get_layer(f"{layer.name}_bn").output for layer in layers])
    return [np.asarray(value, np.float32) for value in inside.predict_on_batch(films)]
