"""The operators that a network may have: its output must depend on the image alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from fieldray.domain.model import GoldenVectors
from fieldray.errors import BackendProblem
from fieldray.inference.backend import NetworkOutput, run_self_test
from fieldray.inference.litert import Network, NetworkSpec, load_runtime
from fieldray.inference.operators import ALLOWED_OPERATORS, EDGETPU_OPERATOR
from raised import raises
from tiny_models import (
    changed_model,
    remember,
    tensor_called,
    tiny_inputs,
    tiny_manifest,
    tiny_model_bytes,
    tiny_scores,
)


def opened(file: bytes) -> Network:
    return Network(file, NetworkSpec.from_manifest(tiny_manifest()), runtime=load_runtime(), threads=1)


def with_operator(name: str, *, custom: bytes = b"") -> bytes:
    """The tiny network with one more operator, whose output is not used."""

    def add(model: Any) -> None:
        code, graph, made = schema.OperatorCodeT(), model.subgraphs[0], schema.TensorT()
        code.builtinCode = getattr(schema.BuiltinOperator, name)
        code.deprecatedBuiltinCode, code.version = min(code.builtinCode, 127), 1
        code.customCode = custom or None
        model.operatorCodes.append(code)
        made.name, made.shape, made.type = b"more", [1], schema.TensorType.FLOAT32
        graph.tensors.append(made)
        operator = schema.OperatorT()
        operator.opcodeIndex = len(model.operatorCodes) - 1
        operator.inputs, operator.outputs = graph.inputs, [len(graph.tensors) - 1]
        graph.operators.append(operator)

    return changed_model(add, tiny_model_bytes("float32"))


def late(model: Any) -> None:
    """Move the operator that makes the logits behind its reader, which then gets the logits of the previous image."""
    operators, logits = model.subgraphs[0].operators, tensor_called(model.subgraphs[0], "logits")
    place = next(index for index, each in enumerate(operators) if logits in each.outputs)
    operators[place], operators[place + 1] = operators[place + 1], operators[place]


def twice(model: Any) -> None:
    graph = model.subgraphs[0]
    graph.operators[-1].outputs = graph.operators[0].outputs


def over_its_weights(model: Any) -> None:
    graph = model.subgraphs[0]
    graph.operators[-1].outputs = [tensor_called(graph, "stem/bias")]


def without_an_end(model: Any) -> None:
    graph, lost = model.subgraphs[0], schema.TensorT()
    lost.name, lost.shape, lost.type = b"lost", [1, 1], schema.TensorType.FLOAT32
    graph.tensors.append(lost)
    graph.outputs = [len(graph.tensors) - 1, *graph.outputs[1:]]


FOREIGN = ["RANDOM_UNIFORM", "RANDOM_STANDARD_NORMAL", "MULTINOMIAL", "STABLEHLO_RNG_BIT_GENERATOR", "VAR_HANDLE"]
FOREIGN += ["READ_VARIABLE", "ASSIGN_VARIABLE", "HASHTABLE_FIND", "CALL_ONCE", "WHILE", "IF", "SVDF", "RNN"]
FOREIGN += ["UNIDIRECTIONAL_SEQUENCE_LSTM"]


@pytest.mark.parametrize("name", FOREIGN)
def test_an_operator_with_state_or_randomness_is_refused_by_name(name: str) -> None:
    with raises(BackendProblem, "bad_model", says=f"operators that are not allowed in a pack: {name}"):
        opened(with_operator(name))


@pytest.mark.parametrize("name", ["FlexRandomUniform", "CONV_2D2", "AudioSpectrogram2"])
def test_a_custom_operator_is_refused_by_name(name: str) -> None:
    with raises(BackendProblem, "bad_model", says=name):
        opened(with_operator("CUSTOM", custom=name.encode()))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (remember, "ADD reads a tensor that keeps its value from image to image: total"),
        (late, "LOGISTIC reads a tensor that keeps its value from image to image: logits"),
        (twice, "RESHAPE writes a tensor twice: stem"),
        (over_its_weights, "RESHAPE writes a tensor twice: stem/bias"),
        (without_an_end, "an output is a tensor that keeps its value from image to image: lost"),
    ],
)
def test_a_network_that_keeps_values_between_images_is_refused(change: Callable[[Any], None], says: str) -> None:
    with raises(BackendProblem, "bad_model", says=says):
        opened(changed_model(change, tiny_model_bytes("float32")))


def test_operators_of_converted_image_networks_are_allowed() -> None:
    known = {name for name in vars(schema.BuiltinOperator) if name.isupper()}
    assert ALLOWED_OPERATORS - known == {EDGETPU_OPERATOR}
    for dtype in ("uint8", "int8", "float32"):
        scores = [opened(tiny_model_bytes(dtype)).run(image).scores for image in tiny_inputs()]
        assert np.stack(scores) == pytest.approx(tiny_scores(tiny_inputs()), abs=0.01)


def test_the_self_test_finds_a_network_that_keeps_values() -> None:
    """The golden scores are those of its first pass, so only the second pass differs."""
    inputs = tiny_inputs()[[0, 2]]
    ran: list[float] = []

    def run(image: np.ndarray[Any, Any]) -> NetworkOutput:
        ran.append(float(image.mean()))
        score = 0.5 if len(ran) == 4 else 0.501  # at the last of four
        return NetworkOutput(scores=np.array([score], np.float32), class_maps=None, features=None, latency_ms=1)

    golden = GoldenVectors(inputs=inputs, scores=np.full((2, 1), 0.501, np.float32), tolerance=0.02)
    with raises(BackendProblem, "self_test", says="an image that runs again gets a score that differs by 0.0010"):
        run_self_test(run, golden)
    assert ran == [20, 235, 235, 20]
