"""TensorFlow Lite files that are wrong in one way each, made from the tiny network of the tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

from tiny_models import tiny_model_bytes

_FLOAT32, _INT32 = 0, 2


def changed(change: Callable[[Any], None]) -> bytes:
    """The tiny network with its tables changed."""
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(tiny_model_bytes(), 0))
    change(model)
    builder = flatbuffers.Builder(4096)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def with_custom_operator() -> bytes:
    """Its first operator is one that no runtime knows."""

    def change(model: Any) -> None:
        code = model.operatorCodes[0]
        code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.CUSTOM
        code.customCode = b"Evil"

    return changed(change)


def with_input_side(pixels: int) -> bytes:
    """Its input is so many pixels wide and high."""

    def change(model: Any) -> None:
        graph = model.subgraphs[0]
        graph.tensors[graph.inputs[0]].shape = np.array([1, pixels, pixels, 1], np.int32)

    return changed(change)


def with_fill(megabytes: int) -> bytes:
    """One more operator fills a tensor of this size, which nothing uses."""

    def change(model: Any) -> None:
        dimensions = np.array([megabytes, 2**18], np.int32)
        shape = _constant(model, b"fill/shape", _INT32, [2], dimensions)
        value = _constant(model, b"fill/value", _FLOAT32, [], np.array([1.5], np.float32))
        result = _tensor(model, b"fill/result", _FLOAT32, dimensions.tolist(), 0)
        code = schema.OperatorCodeT()
        code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.FILL
        code.version = 1
        model.operatorCodes.append(code)
        operator = schema.OperatorT()
        operator.opcodeIndex = len(model.operatorCodes) - 1
        operator.inputs, operator.outputs = [shape, value], [result]
        operator.builtinOptionsType, operator.builtinOptions = schema.BuiltinOptions.FillOptions, schema.FillOptionsT()
        model.subgraphs[0].operators.append(operator)

    return changed(change)


def with_wild_index() -> bytes:
    """An operator reads a tensor that is not there."""

    def change(model: Any) -> None:
        model.subgraphs[0].operators[0].inputs = np.array([2**31 - 1, 1, 2], np.int32)

    return changed(change)


def with_cycle() -> bytes:
    """The last operator's output is the first one's input."""

    def change(model: Any) -> None:
        operators = model.subgraphs[0].operators
        operators[0].inputs = [*operators[-1].outputs[:1], *list(operators[0].inputs)[1:]]

    return changed(change)


def _constant(model: Any, name: bytes, kind: int, shape: list[int], values: Any) -> int:
    buffer = schema.BufferT()
    buffer.data = np.frombuffer(values.tobytes(), np.uint8)
    model.buffers.append(buffer)
    return _tensor(model, name, kind, shape, len(model.buffers) - 1)


def _tensor(model: Any, name: bytes, kind: int, shape: list[int], buffer: int) -> int:
    tensor = schema.TensorT()
    tensor.name, tensor.type, tensor.shape, tensor.buffer = name, kind, shape, buffer
    model.subgraphs[0].tensors.append(tensor)
    return len(model.subgraphs[0].tensors) - 1
