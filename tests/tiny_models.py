"""A tiny network as a TensorFlow Lite file, made by code. Its outputs follow simple formulas:

    b = block means of the input / 255              4x4 convolution, stride 4
    features = [b, 1 - b, relu(2b - 1), relu(1 - 2b)]
    class map of label k = gain_k * (features[0] - features[1]) = gain_k * (2b - 1)
    score of label k = sigmoid(mean of its map) = sigmoid(gain_k * (2 * mean(input) / 255 - 1))

with gain +4 for even labels and -4 for odd ones: a bright image is abnormal. Output 0: scores, 1: class maps,
2: pooled features, as in the packs that ship.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, Literal

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema
from numpy.typing import NDArray

from fieldray.domain.model import (
    Estimate,
    GoldenVectors,
    InputSpec,
    Label,
    Manifest,
    Model,
    OperatingPoint,
    OutputRoles,
)

TinyType = Literal["uint8", "int8", "float32"]
SIDE: Final = 64
LEGACY_SIDE: Final = 128
BLOCK: Final = 4
GAIN: Final = 4.0
_FEATURES: Final = 4
_TENSOR_TYPES: Final = {"uint8": 3, "int8": 9, "int32": 2, "float32": 0}
_LEVELS: Final = (1.0, -128)  # of grey levels 0..255 as int8
_UNIT: Final = (1 / 255, -128)  # quantisation of values 0..1 as int8
_MAP: Final = (GAIN / 127, 0)
_LOGIT: Final = (8 / 127, 0)
_SCORE: Final = (1 / 256, -128)  # the quantisation that LOGISTIC requires of an int8 output

Quantisation = tuple[float, int]


def tiny_gains(labels: int = 1) -> NDArray[np.float64]:
    """Return the gain (labels,) of each label."""
    return np.where(np.arange(labels) % 2 == 0, GAIN, -GAIN)


def tiny_scores(inputs: NDArray[np.uint8], *, labels: int = 1) -> NDArray[np.float32]:
    """Return the scores (n, labels) of inputs (n, h, w, 1) by the formula of this module, without quantisation."""
    brightness = inputs.reshape(len(inputs), -1).mean(axis=1) / 255
    logits = (2 * brightness - 1)[:, None] * tiny_gains(labels)[None, :]
    return (1 / (1 + np.exp(-logits))).astype(np.float32)


def tiny_inputs() -> NDArray[np.uint8]:
    """Return inputs (5, SIDE, SIDE, 1): three even greys, a ramp down and a ramp across."""
    ramp = np.linspace(0, 255, SIDE).astype(np.uint8)
    even = [np.full((SIDE, SIDE), level, np.uint8) for level in (20, 128, 235)]
    return np.stack([*even, np.tile(ramp[:, None], SIDE), np.tile(ramp // 2, (SIDE, 1))])[..., None]


def tiny_model_bytes(dtype: TinyType = "uint8", *, side: int = SIDE, labels: int = 1, fills_mb: int = 0) -> bytes:
    """Return the file. uint8 has int8 inside, as converters make it; int8 and float32 have one type throughout.

    `fills_mb` are megabytes that a further operator fills when the file is opened or run.
    """
    network = _Network(dtype)
    maps_side = side // BLOCK
    image = network.tensor("image", (1, side, side, 1), dtype, _outer(_UNIT, dtype))
    inside = network.as_inside(image, "image_int8", (1, side, side, 1), _UNIT)
    stem_shape = (1, maps_side, maps_side, _FEATURES)
    stem = network.convolution(inside, "stem", stem_shape, _UNIT, **_stem_weights())
    maps_shape = (1, maps_side, maps_side, labels)
    maps = network.convolution(stem, "maps", maps_shape, _MAP, **_map_weights(labels))
    logits = network.global_average(maps, "logits", maps_side, labels, _MAP)
    scores = network.tensor("scores", (1, labels), network.inside, _SCORE)
    network.operator(schema.BuiltinOperator.LOGISTIC, [logits], [scores])
    pooled = network.global_average(stem, "pooled", maps_side, _FEATURES, _UNIT)
    if fills_mb:
        network.fill(fills_mb)
    outputs = [
        network.as_outside(scores, "scores_out", (1, labels), _SCORE),
        network.as_outside(maps, "maps_out", maps_shape, _MAP),
        network.as_outside(pooled, "pooled_out", (1, _FEATURES), _UNIT),
    ]
    return network.pack([image], outputs)


def legacy_scores(levels: NDArray[Any]) -> NDArray[np.float64]:
    """Return the scores (2,) abnormal and normal of grey levels 0..255, as
    `legacy_model_bytes` without quantisation.
    """
    logit = GAIN * (2 * levels.mean() / 255 - 1)
    powers = np.exp([logit, -logit])
    return np.asarray(powers / powers.sum())


def legacy_model_bytes(dtype: TinyType) -> bytes:
    """Return a network with the order and scale of the dissertation's.

    The input is 128 x 128 grey levels of 0..255 without scaling, the output two shares of 1, abnormal first. A bright
    image is abnormal. uint8 has int8 inside.
    """
    network, cells, shape = _Network(dtype), LEGACY_SIDE // BLOCK, (1, LEGACY_SIDE, LEGACY_SIDE, 1)
    image = network.tensor("image", shape, dtype, _outer(_LEVELS, dtype))
    inside = network.as_inside(image, "image_int8", shape, _LEVELS)
    weights = _stem_weights()
    levels = {
        "weights": weights["weights"] / 255,
        "bias": weights["bias"],
        "weight_scale": weights["weight_scale"] / 255,
    }
    stem = network.convolution(inside, "stem", (1, cells, cells, _FEATURES), _UNIT, **levels, source_scale=_LEVELS[0])
    maps = network.convolution(stem, "maps", (1, cells, cells, 2), _MAP, **_map_weights(2))
    logits = network.global_average(maps, "logits", cells, 2, _MAP)
    scores = network.tensor("scores", (1, 2), network.inside, _SCORE)
    softmax = schema.SoftmaxOptionsT()
    softmax.beta = 1.0
    network.operator(
        schema.BuiltinOperator.SOFTMAX, [logits], [scores], (schema.BuiltinOptions.SoftmaxOptions, softmax)
    )
    return network.pack([image], [network.as_outside(scores, "scores_out", (1, 2), _SCORE)])


def lungs_bytes(weights: Sequence[tuple[float, float, float]], *, masks: int = 1) -> bytes:
    """Return the file of a tiny lung-field network: output 0 the mask, 1 - b; output 1 a score for each of `weights`.

    A second mask is 1.2 - b, where less dark is enough. Each weight gives the bias of a logit, and the amounts that a
    mean of 1 of relu(2b - 1) and of relu(1 - 2b) adds to it.
    """
    network, side, cells, count = _Network("uint8"), SIDE, SIDE // BLOCK, len(weights)
    image = network.tensor("image", (1, side, side, 1), "uint8", _outer(_UNIT, "uint8"))
    inside = network.as_inside(image, "image_int8", (1, side, side, 1), _UNIT)
    stem = network.convolution(inside, "stem", (1, cells, cells, _FEATURES), _UNIT, **_stem_weights())
    of_dark = np.array([[0.0, 1.0, 0.0, 0.0]] * masks).reshape(masks, 1, 1, _FEATURES)
    dark = {"weights": of_dark, "bias": np.array([0.0, 0.2][:masks])}
    mask = network.convolution(stem, "mask", (1, cells, cells, masks), _UNIT, **dark, weight_scale=1 / 127)
    factors = np.array([(0.0, 0.0, bright, dark) for _, bright, dark in weights]).reshape(count, 1, 1, _FEATURES)
    head = {"weights": factors, "bias": np.array([bias for bias, _, _ in weights]), "weight_scale": 10 / 127}
    parts = network.convolution(stem, "parts", (1, cells, cells, count), _LOGIT, **head)
    logits = network.global_average(parts, "logits", cells, count, _LOGIT)
    scores = network.tensor("checks", (1, count), network.inside, _SCORE)
    network.operator(schema.BuiltinOperator.LOGISTIC, [logits], [scores])
    outputs = [
        network.as_outside(mask, "mask_out", (1, cells, cells, masks), _UNIT),
        network.as_outside(scores, "checks_out", (1, count), _SCORE),
    ]
    return network.pack([image], outputs)


def changed_model(change: Callable[[Any], object], data: bytes | None = None) -> bytes:
    """Return a changed network file, by default of the tiny network."""
    model = schema.ModelT.InitFromPackedBuf(tiny_model_bytes() if data is None else data, 0)
    change(model)
    return packed_model(model)


def tensor_called(graph: Any, name: str) -> int:
    """Return the index of a tensor by its name."""
    return next(index for index, tensor in enumerate(graph.tensors) if tensor.name == name.encode())


def remember(model: Any) -> None:
    """Give a float32 network a state: twice the last addition to the logits is added to the next ones.

    A bright image gets 0.967, and so does a dark one after it.
    """
    graph, code = model.subgraphs[0], schema.OperatorCodeT()
    logits, total = tensor_called(graph, "logits"), len(graph.tensors) + 1
    for name in (b"sum", b"total"):
        made = schema.TensorT()
        made.name, made.shape, made.type, made.isVariable = name, [1, 1], schema.TensorType.FLOAT32, name == b"total"
        graph.tensors.append(made)
    reads = next(index for index, each in enumerate(graph.operators) if logits in each.inputs)
    graph.operators[reads].inputs = [total - 1]
    code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.ADD
    code.version = 1
    model.operatorCodes.append(code)
    for inputs, output in (([total - 1, total - 1], total), ([total, logits], total - 1)):
        add = schema.OperatorT()
        add.opcodeIndex, add.inputs, add.outputs = len(model.operatorCodes) - 1, inputs, [output]
        add.builtinOptionsType, add.builtinOptions = schema.BuiltinOptions.AddOptions, schema.AddOptionsT()
        graph.operators.insert(reads, add)


def packed_model(model: Any) -> bytes:
    """Return the file of a model object."""
    builder = flatbuffers.Builder(4096)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def with_custom_operator(name: bytes) -> bytes:
    """Return the network as int8 with a first operator that no runtime knows."""
    model = schema.ModelT.InitFromPackedBuf(tiny_model_bytes("int8"), 0)
    custom = model.operatorCodes[model.subgraphs[0].operators[0].opcodeIndex]
    custom.builtinCode = custom.deprecatedBuiltinCode = schema.BuiltinOperator.CUSTOM
    custom.customCode, custom.version = name, 1
    first = model.subgraphs[0].operators[0]
    first.builtinOptionsType, first.builtinOptions = 0, None
    return packed_model(model)


def tiny_manifest(*, side: int = SIDE, labels: int = 1, **changes: Any) -> Manifest:
    """Return a manifest for `tiny_model_bytes`: label `opacity` (then `label1`, ...), operating point `screening`."""
    codes = ["opacity", *(f"label{index}" for index in range(1, labels))]
    point = OperatingPoint(
        name="screening",
        label="opacity",
        threshold=0.5,
        unsure_low=0.4,
        unsure_high=0.6,
        sensitivity=Estimate(0.9, 0.85, 0.95),
        specificity=Estimate(0.8, 0.75, 0.85),
        titles={"en": "screening", "uk": "скринінг"},
        measured_on={"en": "synthetic images", "uk": "намальованих знімках"},
    )
    manifest = Manifest(
        pack_id="tiny",
        version="1.0.0",
        names={"en": "Tiny test pack", "uk": "Маленький тестовий пакет"},
        descriptions={"en": "Bright images are abnormal."},
        intended_use={"en": "Tests."},
        limits={"en": "Of no medical meaning."},
        input=InputSpec(height=side, width=side),
        labels=tuple(Label(code=code, scheme="fieldray", meaning={"en": code}) for code in codes),
        outputs=OutputRoles(scores=0, class_maps=1, features=2),
        operating_points=(point,),
    )
    return replace(manifest, **changes)


def tiny_golden(*, labels: int = 1, tolerance: float = 0.02) -> GoldenVectors:
    """Return golden vectors of `tiny_inputs` for a model of the default side."""
    inputs = tiny_inputs()
    return GoldenVectors(inputs=inputs, scores=tiny_scores(inputs, labels=labels), tolerance=tolerance)


def tiny_model(dtype: TinyType = "uint8", *, labels: int = 1, manifest: Manifest | None = None) -> Model:
    """Return a model in memory, as a loaded pack would be."""
    data = tiny_model_bytes(dtype, labels=labels)
    return Model(
        manifest=manifest or tiny_manifest(labels=labels),
        trust="builtin",
        fingerprint="",
        model_sha256=hashlib.sha256(data).hexdigest(),
        files={"litert": data},
        golden=tiny_golden(labels=labels),
    )


def _stem_weights() -> dict[str, Any]:
    share = 1 / BLOCK**2
    factors = np.array([1.0, -1.0, 2.0, -2.0]) * share
    weights = np.broadcast_to(factors[:, None, None, None], (_FEATURES, BLOCK, BLOCK, 1))
    return {"weights": weights, "bias": np.array([0.0, 1.0, -1.0, 1.0]), "weight_scale": 1 / 512}


def _map_weights(labels: int) -> dict[str, Any]:
    weights = np.zeros((labels, 1, 1, _FEATURES))
    weights[:, 0, 0, 0], weights[:, 0, 0, 1] = tiny_gains(labels), -tiny_gains(labels)
    return {"weights": weights, "bias": np.zeros(labels), "weight_scale": GAIN / 127}


def _outer(inside: Quantisation, dtype: str) -> Quantisation:
    """Return the quantisation of equal real values as uint8: the zero point moves by 128."""
    return (inside[0], inside[1] + 128) if dtype == "uint8" else inside


class _Network:
    """Collects tensors and operators of one subgraph."""

    def __init__(self, dtype: TinyType) -> None:
        self.dtype = dtype
        self.inside = "float32" if dtype == "float32" else "int8"
        self._tensors: list[Any] = []
        self._buffers: list[Any] = [schema.BufferT()]
        self._operators: list[Any] = []
        self._codes: list[int] = []

    def tensor(
        self, name: str, shape: tuple[int, ...], dtype: str, quantisation: Quantisation, data: Any = None
    ) -> int:
        made = schema.TensorT()
        made.name, made.shape, made.type = name.encode(), list(shape), _TENSOR_TYPES[dtype]
        if dtype != "float32":
            made.quantization = schema.QuantizationParametersT()
            made.quantization.scale, made.quantization.zeroPoint = [quantisation[0]], [quantisation[1]]
        if data is not None:
            made.buffer = len(self._buffers)
            self._buffers.append(schema.BufferT())
            self._buffers[-1].data = np.frombuffer(data.astype(dtype).tobytes(), np.uint8)
        self._tensors.append(made)
        return len(self._tensors) - 1

    def operator(self, code: int, inputs: list[int], outputs: list[int], options: tuple[int, Any] = (0, None)) -> None:
        if code not in self._codes:
            self._codes.append(code)
        made = schema.OperatorT()
        made.opcodeIndex, made.inputs, made.outputs = self._codes.index(code), inputs, outputs
        made.builtinOptionsType, made.builtinOptions = options
        self._operators.append(made)

    def convolution(
        self,
        source: int,
        name: str,
        shape: tuple[int, ...],
        quantisation: Quantisation,
        *,
        weights: NDArray[np.float64],
        bias: NDArray[np.float64],
        weight_scale: float,
        source_scale: float = _UNIT[0],
    ) -> int:
        """Add a convolution with stride = kernel size. The int8 output range clips as RELU does in float."""
        weight_shape, weight_type, bias_type = weights.shape, self.inside, self.inside
        if self.inside == "int8":
            bias_type = "int32"
            weights = np.round(weights / weight_scale)
            bias = np.round(bias / (weight_scale * source_scale))
        kernel = self.tensor(f"{name}/kernel", weight_shape, weight_type, (weight_scale, 0), weights)
        offset = self.tensor(f"{name}/bias", bias.shape, bias_type, (weight_scale * source_scale, 0), bias)
        result = self.tensor(name, shape, self.inside, quantisation)
        options = schema.Conv2DOptionsT()
        options.padding = schema.Padding.VALID
        options.strideH = options.strideW = weight_shape[1]
        relu = quantisation == _UNIT
        options.fusedActivationFunction = (
            schema.ActivationFunctionType.RELU if relu else schema.ActivationFunctionType.NONE
        )
        self.operator(
            schema.BuiltinOperator.CONV_2D,
            [source, kernel, offset],
            [result],
            (schema.BuiltinOptions.Conv2DOptions, options),
        )
        return result

    def global_average(self, source: int, name: str, side: int, channels: int, quantisation: Quantisation) -> int:
        pooled = self.tensor(f"{name}/pool", (1, 1, 1, channels), self.inside, quantisation)
        options = schema.Pool2DOptionsT()
        options.padding = schema.Padding.VALID
        options.filterHeight = options.filterWidth = options.strideH = options.strideW = side
        self.operator(
            schema.BuiltinOperator.AVERAGE_POOL_2D,
            [source],
            [pooled],
            (schema.BuiltinOptions.Pool2DOptions, options),
        )
        shape = self.tensor(f"{name}/shape", (2,), "int32", (0.0, 0), np.array([1, channels]))
        self._tensors[shape].quantization = None
        result = self.tensor(name, (1, channels), self.inside, quantisation)
        reshape = schema.ReshapeOptionsT()
        reshape.newShape = [1, channels]
        self.operator(
            schema.BuiltinOperator.RESHAPE,
            [pooled, shape],
            [result],
            (schema.BuiltinOptions.ReshapeOptions, reshape),
        )
        return result

    def fill(self, megabytes: int) -> None:
        """Add a float32 tensor of that size, of which the file has the shape and one value."""
        shape = self.tensor("fill/shape", (1,), "int32", (0.0, 0), np.array([megabytes * 2**18]))
        self._tensors[shape].quantization = None
        value = self.tensor("fill/value", (), "float32", (0.0, 0), np.zeros(()))
        filled = self.tensor("fill", (megabytes * 2**18,), "float32", (0.0, 0))
        options = (schema.BuiltinOptions.FillOptions, schema.FillOptionsT())
        self.operator(schema.BuiltinOperator.FILL, [shape, value], [filled], options)

    def as_inside(self, source: int, name: str, shape: tuple[int, ...], quantisation: Quantisation) -> int:
        return self._quantise(source, name, shape, "int8", quantisation) if self.dtype == "uint8" else source

    def as_outside(self, source: int, name: str, shape: tuple[int, ...], quantisation: Quantisation) -> int:
        if self.dtype != "uint8":
            return source
        return self._quantise(source, name, shape, "uint8", _outer(quantisation, "uint8"))

    def _quantise(self, source: int, name: str, shape: tuple[int, ...], dtype: str, to: Quantisation) -> int:
        result = self.tensor(name, shape, dtype, to)
        options = (schema.BuiltinOptions.QuantizeOptions, schema.QuantizeOptionsT())
        self.operator(schema.BuiltinOperator.QUANTIZE, [source], [result], options)
        return result

    def pack(self, inputs: list[int], outputs: list[int]) -> bytes:
        graph = schema.SubGraphT()
        graph.name, graph.inputs, graph.outputs = b"main", inputs, outputs
        graph.tensors, graph.operators = self._tensors, self._operators
        model = schema.ModelT()
        model.version, model.description = 3, b"fieldray tiny test network"
        model.operatorCodes = [self._operator_code(code) for code in self._codes]
        model.subgraphs, model.buffers = [graph], self._buffers
        return packed_model(model)

    @staticmethod
    def _operator_code(code: int) -> Any:
        made = schema.OperatorCodeT()
        made.builtinCode = made.deprecatedBuiltinCode = code
        # version of each operator with int8 support, from the runtime's kernel registry
        made.version = {
            schema.BuiltinOperator.CONV_2D: 3,
            schema.BuiltinOperator.AVERAGE_POOL_2D: 2,
            schema.BuiltinOperator.LOGISTIC: 2,
            schema.BuiltinOperator.SOFTMAX: 2,
        }.get(code, 1)
        return made
