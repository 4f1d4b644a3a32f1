"""The time of networks per image, all measured in one run, alternating, on one thread; and of their layers.

Three kinds, and each network is only ever compared with the original of the same kind:
- "engine_batch": float32 in the engine that trains, batches of 100 (as the dissertation measured in Keras);
- "float32": the float TensorFlow Lite file, one image at a time;
- "int8": the full int8 TensorFlow Lite file, one image at a time, which is what a clinic's computer runs.

Parameters and multiply-adds tell little about where an int8 network spends its time (thin layers use the vector units
badly, large maps cost memory). So each layer is also made as a TensorFlow Lite file of one operator and run on one
thread, as it is and with fewer channels: what one channel of a set costs (`channel_costs`).
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final, Literal, TypeVar

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema
from numpy.typing import NDArray

from fieldray_adapt.engine import EngineSettings, open_engine
from fieldray_adapt.quantise import quantise, to_float_file
from fieldray_adapt.specification import Layer, Specification, Weights, channel_sets, shapes

_BATCH: Final = 100
ROUNDS: Final = 7
_SLICE_S: Final = 0.15
Network = tuple[Specification, Weights]
Key = TypeVar("Key", str, tuple[str, str])


@dataclass(frozen=True, slots=True, eq=False)
class Files:
    """A network as a full int8 TensorFlow Lite file and, where it was asked for, as a float32 one."""

    int8: bytes
    float32: bytes | None


def files_of(network: Network, *, images: NDArray[np.uint8], with_float: bool = True) -> Files:
    """Convert a network; the int8 ranges are taken from `images`, (n, height, width, channels) uint8 for training."""
    whole = to_float_file(*network).data if with_float else None
    return Files(quantise(*network, representative=images).data, whole)


@dataclass(frozen=True, slots=True)
class Timed:
    """Median milliseconds per image of each kind, and the size of the int8 file."""

    milliseconds: Mapping[str, float]
    int8_bytes: int

    def against(self, original: Timed) -> dict[str, float]:
        """Times faster than the original, by kind."""
        return {kind: original.milliseconds[kind] / own for kind, own in self.milliseconds.items()}


def time_networks(
    networks: Mapping[str, Network],
    *,
    files: Mapping[str, Files],
    images: NDArray[np.uint8],
    settings: EngineSettings,
    rounds: int = ROUNDS,
) -> dict[str, Timed]:
    """Time every network alternating, so that what else the machine does falls on all alike.

    Parameters
    ----------
    files
        Of each network.
    images
        (n, height, width, channels) uint8, for timing in the engine.
    rounds
        How often each network is timed; the median counts.
    """
    runs: dict[tuple[str, str], tuple[Callable[[], object], int]] = {}
    batch = images[:_BATCH].astype(np.float32) / 255
    for name, (specification, weights) in networks.items():
        runs[name, "engine_batch"] = (_engine_run(specification, weights, batch, settings), len(batch))
        if (whole := files[name].float32) is not None:
            runs[name, "float32"] = (_file_run(whole), 1)
        runs[name, "int8"] = (_file_run(files[name].int8), 1)
    taken = _alternating(runs, rounds=rounds)
    return {
        name: Timed(
            {kind: milliseconds for (owner, kind), milliseconds in taken.items() if owner == name},
            len(files[name].int8),
        )
        for name in networks
    }


def time_files(files: Mapping[str, bytes], *, rounds: int = ROUNDS) -> dict[str, float]:
    """Median milliseconds per image of TensorFlow Lite files by name, on one thread and alternating."""
    return _alternating({name: (_file_run(data), 1) for name, data in files.items()}, rounds=rounds)


def _alternating(runs: Mapping[Key, tuple[Callable[[], object], int]], *, rounds: int) -> dict[Key, float]:
    """Median milliseconds per image of each run, given with the number of images it does."""
    seconds: dict[Key, list[float]] = {key: [] for key in runs}
    for _ in range(rounds):
        for key, (run, count) in runs.items():
            seconds[key].append(median_seconds(run, slice_s=_SLICE_S) / count)
    return {key: statistics.median(rows) * 1e3 for key, rows in seconds.items()}


def median_seconds(run: Callable[[], object], *, slice_s: float) -> float:
    """Median seconds of the runs that fit into a slice of time, at least one, after one to warm up."""
    run()
    taken: list[float] = []
    began = ended = time.perf_counter()
    while not taken or ended - began < slice_s:
        begun = time.perf_counter()
        run()
        ended = time.perf_counter()
        taken.append(ended - begun)
    return statistics.median(taken)


def _engine_run(
    specification: Specification, weights: Weights, images: NDArray[np.float32], settings: EngineSettings
) -> Callable[[], object]:
    engine = open_engine(specification, weights, settings=settings)
    return lambda: engine.logits(images)


def _file_run(data: bytes) -> Callable[[], object]:
    """Runs of a TensorFlow Lite file on one thread, with an image copied in and the scores read each time."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_content=data, num_threads=1)
    interpreter.allocate_tensors()
    entrance, exits = interpreter.get_input_details()[0], interpreter.get_output_details()
    image = np.random.default_rng(0).random(entrance["shape"], np.float32)
    image = (image * 255).astype(np.uint8) if entrance["dtype"] == np.uint8 else image

    def run() -> object:
        interpreter.set_tensor(entrance["index"], image)
        interpreter.invoke()
        return [interpreter.get_tensor(row["index"]) for row in exits]

    return run


_LAYER_SLICE_S: Final = 0.02
_LAYER_ROUNDS: Final = 3
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
    return min(median_seconds(interpreter.invoke, slice_s=_LAYER_SLICE_S) for _ in range(_LAYER_ROUNDS)) * 1e3


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
