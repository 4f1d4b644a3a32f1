"""A fake edgetpu_compiler, and compiled files that the test double of the Edge TPU can run.

The real compiler turns an int8 or uint8 graph that maps as a whole into one `edgetpu-custom-op`. Its options are a
flatbuffer named DWN1 with the oldest runtime version that can run it, and executables. The fake one does the same, and
adds the original file as the last field, which the double runs.
"""

from __future__ import annotations

import stat
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

from fieldray.domain.model import Model
from tiny_models import TinyType, packed_model, tiny_model

EDGETPU_OPERATOR_NAME = b"edgetpu-custom-op"
_EIGHT_BITS = (schema.TensorType.UINT8, schema.TensorType.INT8)


def fake_compiler(folder: Path, made: bytes | None, *, says: str = "", status: int = 0) -> Path:
    """Write a program that takes edgetpu_compiler's arguments, prints a text, and writes the file `made` if given."""
    program, source = folder / "edgetpu_compiler", folder / "made.tflite"
    source.write_bytes(made or b"")
    program.write_text(
        f"#!{sys.executable}\n"
        "import shutil, sys\n"
        "from pathlib import Path\n"
        "out = Path(sys.argv[sys.argv.index('--out_dir') + 1])\n"
        f"if {made is not None}: shutil.copy({str(source)!r}, out / 'model_edgetpu.tflite')\n"
        f"print({says!r})\n"
        f"sys.exit({status})\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


def edgetpu_model(dtype: TinyType = "uint8") -> Model:
    """Return the tiny network with a file for the test double of the Edge TPU."""
    model = tiny_model(dtype)
    return replace(model, files={**model.files, "edgetpu": fake_compile(model.files["litert"])})


def fake_compile(file: bytes, *executables: tuple[int, int], oldest_runtime: int = 13, is_whole: bool = True) -> bytes:
    """Return the compiled file. If not `is_whole`, it keeps its operators before that of the Edge TPU.

    Raises ValueError if inputs or outputs are not 8-bit, which the real compiler refuses.
    """
    model = schema.ModelT.InitFromPackedBuf(file, 0)
    graph = model.subgraphs[0]
    inputs, outputs = ([graph.tensors[index] for index in side] for side in (graph.inputs, graph.outputs))
    code, made = schema.OperatorCodeT(), schema.OperatorT()
    code.deprecatedBuiltinCode = code.builtinCode = schema.BuiltinOperator.CUSTOM
    code.customCode, code.version = EDGETPU_OPERATOR_NAME, 1
    options = package(*executables, oldest_runtime=oldest_runtime, inside=file)
    made.customOptions, made.customOptionsFormat = np.frombuffer(options, np.uint8), 0
    if is_whole:
        for tensor in (*inputs, *outputs):
            if tensor.type not in _EIGHT_BITS:
                raise ValueError(f"tensor {tensor.name!r} is not 8-bit")
            tensor.buffer = 0
        graph.tensors, model.buffers = [*inputs, *outputs], [schema.BufferT()]
        graph.inputs = list(range(len(inputs)))
        graph.outputs = list(range(len(inputs), len(graph.tensors)))
        graph.operators, model.operatorCodes = [], []
        model.metadata = model.metadataBuffer = model.signatureDefs = None
    made.opcodeIndex, made.inputs, made.outputs = len(model.operatorCodes), graph.inputs, graph.outputs
    graph.operators, model.operatorCodes = [*graph.operators, made], [*model.operatorCodes, code]
    return packed_model(model)


def package(*executables: tuple[int, int], oldest_runtime: int = 14, inside: bytes = b"") -> bytes:
    """Return the DWN1 flatbuffer with executables of (type, bytes of parameters), nested as by the compiler.

    Field numbers are those of libedgetpu's executable.fbs, tables Package, MultiExecutable and Executable.
    """
    tables = [_table({6: bytes(size), 13: kind}) for kind, size in executables]
    fields = {0: oldest_runtime, 1: _table({0: tables}), 4: b"test double", 5: inside}
    return _table(fields, identifier=b"DWN1")


def _table(fields: Mapping[int, int | bytes | list[bytes]], identifier: bytes | None = None) -> bytes:
    """Return a flatbuffer of one table with numbers, byte vectors and vectors of strings."""
    builder = flatbuffers.Builder(256)
    offsets = {}
    for field, value in fields.items():
        if isinstance(value, bytes):
            offsets[field] = builder.CreateByteVector(value)
        elif isinstance(value, list):
            rows = [builder.CreateString(row) for row in value]
            builder.StartVector(4, len(rows), 4)
            for row in reversed(rows):
                builder.PrependUOffsetTRelative(row)
            offsets[field] = builder.EndVector()
    builder.StartObject(16)
    for field, value in fields.items():
        if field in offsets:
            builder.PrependUOffsetTRelativeSlot(field, offsets[field], 0)
        else:
            builder.PrependInt32Slot(field, value, 0)
    builder.Finish(builder.EndObject(), file_identifier=identifier)
    return bytes(builder.Output())
