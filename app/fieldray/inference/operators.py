"""Check that a network is a pure function of its image: equal images give equal answers, whatever ran before.

A file may contain operators that draw random numbers, keep values for the next image, or have no use in image networks.
A self-test on a few images cannot detect such operators, so only listed operators are allowed. A tensor that is read
before it is written is refused, too. Such a tensor would leak content of an earlier image or of another program.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from fieldray.errors import BackendProblem
from fieldray.reasons import reason

EDGETPU_OPERATOR: Final = "edgetpu-custom-op"
# The operators that this project's toolchain, TensorFlow's converter, ai-edge-torch and onnx2tf use for image networks.
# The names are those of BuiltinOperator in TensorFlow Lite's schema.fbs. No listed operator has a state, draws random
# numbers, or runs another graph.
# fmt: off
ALLOWED_OPERATORS: Final = frozenset({
    EDGETPU_OPERATOR,
    "CONV_2D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV", "FULLY_CONNECTED", "BATCH_MATMUL", "AVERAGE_POOL_2D",
    "MAX_POOL_2D", "L2_POOL_2D", "L2_NORMALIZATION", "LOCAL_RESPONSE_NORMALIZATION", "RELU", "RELU6", "RELU_0_TO_1",
    "RELU_N1_TO_1", "LEAKY_RELU", "PRELU", "ELU", "GELU", "HARD_SWISH", "LOGISTIC", "TANH", "SOFTMAX",
    "LOG_SOFTMAX", "ABS", "ADD", "ADD_N", "CEIL", "COS", "DIV", "EXP", "FLOOR", "FLOOR_DIV", "FLOOR_MOD", "LOG",
    "MAXIMUM", "MINIMUM", "MUL", "NEG", "POW", "ROUND", "RSQRT", "SIGN", "SIN", "SQRT", "SQUARE",
    "SQUARED_DIFFERENCE", "SUB", "CUMSUM", "EQUAL", "NOT_EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL",
    "LOGICAL_AND", "LOGICAL_NOT", "LOGICAL_OR", "SELECT", "SELECT_V2", "ARG_MAX", "ARG_MIN", "MEAN", "REDUCE_ALL",
    "REDUCE_ANY", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD", "SUM", "TOPK_V2", "BATCH_TO_SPACE_ND", "BROADCAST_TO",
    "CONCATENATION", "DEPTH_TO_SPACE", "EXPAND_DIMS", "FILL", "GATHER", "GATHER_ND", "MIRROR_PAD", "ONE_HOT",
    "PACK", "PAD", "PADV2", "RANGE", "RANK", "RESHAPE", "RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR", "REVERSE_V2",
    "SHAPE", "SLICE", "SPACE_TO_BATCH_ND", "SPACE_TO_DEPTH", "SPLIT", "SPLIT_V", "SQUEEZE", "STRIDED_SLICE", "TILE",
    "TRANSPOSE", "UNPACK", "ZEROS_LIKE", "CAST", "DEQUANTIZE", "QUANTIZE",
})
# fmt: on
_LEFT_OUT: Final = -1  # stands for an optional input that an operator does not get


def require_stateless_network(interpreter: Any) -> None:
    """Raise BackendProblem("bad_model") if a network is not a pure function of its input.

    The exception names the operator or tensor at fault.

    interpreter  a TensorFlow Lite interpreter without delegates, before its memory is allocated
    """
    operators = interpreter._get_ops_details()  # no public method returns the operators
    if foreign := sorted({each["op_name"] for each in operators} - ALLOWED_OPERATORS):
        raise _problem(f"it has operators that are not allowed in a pack: {', '.join(foreign)}")
    tensors = {details["index"]: details for details in interpreter.get_tensor_details()}
    written = {details["index"] for details in interpreter.get_input_details()}

    def require_written(read: Iterable[int], reader: str) -> None:
        for tensor in read:
            if not (tensor in written or tensor == _LEFT_OUT or _is_constant(interpreter, tensors[tensor])):
                name = tensors[tensor]["name"]
                raise _problem(f"{reader} a tensor that keeps its value from image to image: {name}")

    for each in operators:
        require_written(each["inputs"], f"{each['op_name']} reads")
        for tensor in each["outputs"]:
            if tensor in written or _is_constant(interpreter, tensors[tensor]):
                raise _problem(f"{each['op_name']} writes a tensor twice: {tensors[tensor]['name']}")
            written.add(tensor)
    require_written((details["index"] for details in interpreter.get_output_details()), "an output is")


def _is_constant(interpreter: Any, details: Mapping[str, Any]) -> bool:
    """Return whether the file contains the values of a tensor, or the tensor has no values."""
    if 0 in details["shape"]:
        return True
    try:
        interpreter.tensor(details["index"])()
    except ValueError:  # the tensor has no memory yet
        return False
    return True


def _problem(detail: str) -> BackendProblem:
    return BackendProblem(reason("bad_model", detail=detail))
