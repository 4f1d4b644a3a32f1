"""Where an int8 network spends its time: each layer timed alone, and what one channel of a set costs.

Parameters and multiply-adds tell little about it (thin layers use the vector units badly, large maps cost memory), so
each layer is made as a TensorFlow Lite file of one operator and run on one thread, as it is and with fewer channels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final, Literal

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema
from numpy.typing import NDArray

from fieldray.adaptation.prune.timing import median_seconds
from fieldray.adaptation.specification import Layer, Specification, channel_sets, shapes

_SLICE_S: Final = 0.02
_ROUNDS: Final = 3
_FEWER: Final = 0.25
_SCALE: Final = 0.02
_INT8, _INT32 = 9, 2
_VERSIONS: Final = {"conv": 3, "depthwise": 3, "dense": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShape:
    """All that the time of a layer depends on: input side lengths in pixels, kernel, stride, channels in and out."""

    kind: Literal["conv", "depthwise", "dense"]
    height: int
    width: int
    kernel: int
    stride: int
    incoming: int
    outgoing: int


def channel_costs(
    specification: Specification, *, milliseconds: Callable[[LayerShape], float] | None = None
) -> dict[str, float]:
    """Milliseconds per image that one channel of each set costs, in all layers that make or read it together.

    A straight line through each layer's time now and with a quarter of the channels less; never below 0. Additions,
    pools and activations are not counted.

    Parameters
    ----------
    milliseconds
        Of a layer; measured here if not given.
    """
    measure = milliseconds or layer_milliseconds
    sets, sizes = channel_sets(specification), shapes(specification)
    costs = dict.fromkeys(specification.channels, 0.0)
    for layer in specification.layers:
        if layer.has_weights:
            for name, changed, fewer in _variants(specification, layer, sets, sizes):
                now = measure(_shape_of(specification, layer, sets, sizes))
                costs[name] += max(now - measure(changed), 0.0) / fewer
    return costs


def _shape_of(
    specification: Specification, layer: Layer, sets: Mapping[str, str], sizes: Mapping[str, tuple[int, ...]]
) -> LayerShape:
    source = sizes[layer.inputs[0]]
    assert layer.kind in ("conv", "depthwise", "dense")
    return LayerShape(
        kind=layer.kind,
        height=source[0] if layer.kind != "dense" else 1,
        width=source[1] if layer.kind != "dense" else 1,
        kernel=layer.kernel,
        stride=layer.stride,
        incoming=source[-1],
        outgoing=specification.channels[sets[layer.name]],
    )


def _variants(
    specification: Specification, layer: Layer, sets: Mapping[str, str], sizes: Mapping[str, tuple[int, ...]]
) -> list[tuple[str, LayerShape, int]]:
    """For each channel set a layer touches: the layer with fewer of its channels, and how many fewer."""
    shape, found = _shape_of(specification, layer, sets, sizes), []
    made, read = sets[layer.name], sets[layer.inputs[0]]
    if layer.kind == "depthwise":
        fewer = _fewer(shape.outgoing)
        changed = replace(shape, incoming=shape.incoming - fewer, outgoing=shape.outgoing - fewer)
        return [(made, changed, fewer)] if fewer else []
    if fewer := _fewer(shape.outgoing):
        found.append((made, replace(shape, outgoing=shape.outgoing - fewer), fewer))
    if read and (fewer := _fewer(specification.channels[read])):
        # Behind a flatten each channel of the set comes in many times.
        repeats = shape.incoming // specification.channels[read]
        found.append((read, replace(shape, incoming=shape.incoming - fewer * repeats), fewer))
    return found


def _fewer(channels: int) -> int:
    return min(max(1, round(channels * _FEWER)), channels - 1)


@cache
def layer_milliseconds(shape: LayerShape) -> float:
    """Median milliseconds of an int8 layer on one thread, the best of a few rounds; measured once in a process."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_content=layer_file(shape), num_threads=1)
    interpreter.allocate_tensors()
    return min(median_seconds(interpreter.invoke, slice_s=_SLICE_S) for _ in range(_ROUNDS)) * 1e3


def layer_file(shape: LayerShape) -> bytes:
    """A TensorFlow Lite file with the layer alone, int8 in and out, weights drawn; borders are padded ("same")."""
    generator = np.random.default_rng(0)
    weights = generator.integers(-127, 128, _weight_shape(shape), np.int8)
    rows, columns = math.ceil(shape.height / shape.stride), math.ceil(shape.width / shape.stride)
    dense = shape.kind == "dense"
    graph, buffers = schema.SubGraphT(), [schema.BufferT()]
    graph.tensors = [
        _tensor("in", (1, shape.incoming) if dense else (1, shape.height, shape.width, shape.incoming), _INT8),
        _tensor("kernel", weights.shape, _INT8, _channel_axis(shape), data=weights, buffers=buffers),
        _tensor("bias", (shape.outgoing,), _INT32, 0, data=np.zeros(shape.outgoing, np.int32), buffers=buffers),
        _tensor("out", (1, shape.outgoing) if dense else (1, rows, columns, shape.outgoing), _INT8),
    ]
    graph.inputs, graph.outputs, graph.name = [0], [3], b"layer"
    operator = schema.OperatorT()
    operator.opcodeIndex, operator.inputs, operator.outputs = 0, [0, 1, 2], [3]
    operator.builtinOptionsType, operator.builtinOptions = _options(shape)
    graph.operators = [operator]
    code = schema.OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = _operator_of(shape)
    code.version = _VERSIONS[shape.kind]
    model = schema.ModelT()
    model.version, model.subgraphs, model.buffers, model.operatorCodes = 3, [graph], buffers, [code]
    builder = flatbuffers.Builder(weights.size + 4096)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def _weight_shape(shape: LayerShape) -> tuple[int, ...]:
    if shape.kind == "dense":
        return (shape.outgoing, shape.incoming)
    if shape.kind == "depthwise":
        return (1, shape.kernel, shape.kernel, shape.outgoing)
    return (shape.outgoing, shape.kernel, shape.kernel, shape.incoming)


def _channel_axis(shape: LayerShape) -> int:
    return 3 if shape.kind == "depthwise" else 0


def _tensor(
    name: str,
    shape: tuple[int, ...],
    kind: int,
    axis: int | None = None,
    *,
    data: NDArray[Any] | None = None,
    buffers: list[Any] | None = None,
) -> Any:
    """A tensor; with an axis it has a scale for each channel along it, as converters make weights."""
    made = schema.TensorT()
    made.name, made.shape, made.type = name.encode(), list(shape), kind
    made.quantization = schema.QuantizationParametersT()
    count = 1 if axis is None else shape[axis]
    scale = _SCALE * _SCALE if kind == _INT32 else _SCALE
    made.quantization.scale, made.quantization.zeroPoint = [scale] * count, [0] * count
    made.quantization.quantizedDimension = axis or 0
    if data is not None and buffers is not None:
        made.buffer = len(buffers)
        buffers.append(schema.BufferT())
        buffers[-1].data = np.frombuffer(data.tobytes(), np.uint8)
    return made


def _operator_of(shape: LayerShape) -> int:
    operators = schema.BuiltinOperator
    codes: dict[str, int] = {
        "conv": operators.CONV_2D,
        "depthwise": operators.DEPTHWISE_CONV_2D,
        "dense": operators.FULLY_CONNECTED,
    }
    return codes[shape.kind]


def _options(shape: LayerShape) -> tuple[int, Any]:
    kinds = schema.BuiltinOptions
    if shape.kind == "dense":
        return kinds.FullyConnectedOptions, schema.FullyConnectedOptionsT()
    options = schema.Conv2DOptionsT() if shape.kind == "conv" else schema.DepthwiseConv2DOptionsT()
    options.padding, options.strideH, options.strideW = schema.Padding.SAME, shape.stride, shape.stride
    if shape.kind == "conv":
        return kinds.Conv2DOptions, options
    options.depthMultiplier = 1
    return kinds.DepthwiseConv2DOptions, options
