"""Turn an int8 or uint8 file into one "for the Edge TPU" that the test double can run.

As the real compiler does with a network that maps whole, the graph becomes one `edgetpu-custom-op` whose options hold
a flatbuffer named DWN1 with the oldest runtime version that can run it and its executables. Here they are empty, and
the last field of that flatbuffer is the original file, which the double runs.
"""

from __future__ import annotations

from typing import Any, Final

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

from tiny_models import packed_model

OPERATOR: Final = b"edgetpu-custom-op"
COMPILER: Final = "test double"
_EIGHT_BITS: Final = (schema.TensorType.UINT8, schema.TensorType.INT8)


def fake_compile(file: bytes, *, oldest_runtime: int = 13) -> bytes:
    """The compiled file. Raises ValueError if inputs or outputs are not 8-bit, as the real compiler refuses them."""
    model = schema.ModelT.InitFromPackedBuf(file, 0)
    graph = model.subgraphs[0]
    inputs, outputs = ([graph.tensors[index] for index in side] for side in (graph.inputs, graph.outputs))
    for tensor in (*inputs, *outputs):
        if tensor.type not in _EIGHT_BITS:
            raise ValueError(f"tensor {tensor.name!r} is not 8-bit")
        tensor.buffer = 0
    graph.tensors = [*inputs, *outputs]
    graph.inputs = list(range(len(inputs)))
    graph.outputs = list(range(len(inputs), len(graph.tensors)))
    graph.operators = [_operator(graph, package(file, oldest_runtime=oldest_runtime))]
    model.operatorCodes, model.buffers = [_operator_code()], [schema.BufferT()]
    model.metadata = model.metadataBuffer = model.signatureDefs = None
    return packed_model(model)


def package(content: bytes, *, oldest_runtime: int) -> bytes:
    """The DWN1 flatbuffer; field numbers as in libedgetpu's executable.fbs, table Package."""
    executables = flatbuffers.Builder(16)
    executables.StartObject(0)
    executables.Finish(executables.EndObject())
    builder = flatbuffers.Builder(len(content) + 256)
    compiler, inside = builder.CreateString(COMPILER), builder.CreateByteVector(content)
    none = builder.CreateByteVector(bytes(executables.Output()))
    builder.StartObject(6)
    builder.PrependInt32Slot(0, oldest_runtime, 0)
    for field, offset in ((1, none), (4, compiler), (5, inside)):
        builder.PrependUOffsetTRelativeSlot(field, offset, 0)
    builder.Finish(builder.EndObject(), b"DWN1")
    return bytes(builder.Output())


def _operator(graph: Any, options: bytes) -> Any:
    made = schema.OperatorT()
    made.opcodeIndex, made.inputs, made.outputs = 0, graph.inputs, graph.outputs
    made.customOptions, made.customOptionsFormat = np.frombuffer(options, np.uint8), 0
    return made


def _operator_code() -> Any:
    made = schema.OperatorCodeT()
    made.deprecatedBuiltinCode = made.builtinCode = schema.BuiltinOperator.CUSTOM
    made.customCode, made.version = OPERATOR, 1
    return made
