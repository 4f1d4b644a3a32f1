"""Write a network of `fieldray adapt` as an ONNX file, operator by operator, without folding or fusing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fieldray_adapt.networks.specification import INPUT_NAME, Layer, Specification, channel_set_by_layer, layer_shapes

_OPSET: Final = 17
_FORMAT: Final = 9
_WINDOWED: Final = ("conv", "depthwise", "max_pool")
_ACTIVATIONS: Final = {"relu": "Relu", "sigmoid": "Sigmoid", "softmax": "Softmax", "tanh": "Tanh"}


def onnx_file(
    specification: Specification, weights: Mapping[str, NDArray[np.float32]], *, outputs: tuple[str, ...], images: int
) -> bytes:
    """Return a network as the bytes of an ONNX file, for batches of `images` images.

    The input is (images, channels, rows, columns) float32 in 0..1. `outputs` are the roles of the outputs. Raises
    ValueError for a layer without an ONNX operator.
    """
    from onnx import TensorProto, helper

    writer = _Writer(specification, weights)
    for layer in specification.layers:
        writer.add(layer)
    shape = (images, specification.input_channels, specification.height, specification.width)
    graph = helper.make_graph(
        writer.nodes,
        specification.name,
        [helper.make_tensor_value_info(INPUT_NAME, TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(specification.outputs[name], TensorProto.FLOAT, None) for name in outputs],
        writer.constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)])
    model.ir_version = _FORMAT
    data: bytes = model.SerializeToString()
    return data


class _Writer:
    """Collects the nodes and constants of an ONNX file. The output of a layer is a tensor with the layer's name."""

    def __init__(self, specification: Specification, weights: Mapping[str, NDArray[np.float32]]) -> None:
        self._specification, self._weights = specification, weights
        self._sets, self._shapes = channel_set_by_layer(specification), layer_shapes(specification)
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def add(self, layer: Layer) -> None:
        """Add all nodes of a layer: operation, batch normalisation, activation."""
        steps = [self._operation(layer)]
        if layer.batch_norm:
            parts = [self._constant(layer, part) for part in ("gamma", "beta", "mean", "variance")]
            steps.append(("BatchNormalization", parts, {"epsilon": self._specification.epsilon}))
        if layer.activation == "relu6":
            steps.append(("Clip", [self._number(layer, "low", 0.0), self._number(layer, "high", 6.0)], {}))
        elif layer.activation != "none":
            steps.append((_ACTIVATIONS[layer.activation], [], {}))
        source = list(layer.inputs)
        for number, (operator, more, attributes) in enumerate(steps, 1):
            target = layer.name if number == len(steps) else f"{layer.name}:{number}"
            self._node(operator, [*source, *more], target, attributes)
            source = [target]

    def _operation(self, layer: Layer) -> tuple[str, list[str], dict[str, Any]]:
        window: dict[str, Any] = (
            {"kernel_shape": [layer.kernel] * 2, "strides": [layer.stride] * 2, "pads": self._pads(layer)}
            if layer.kind in _WINDOWED
            else {}
        )
        match layer.kind:
            case "conv" | "depthwise":
                groups = self._specification.channels[self._sets[layer.name]] if layer.kind == "depthwise" else 1
                parts = ["kernel"] if layer.batch_norm else ["kernel", "bias"]
                return "Conv", [self._constant(layer, part) for part in parts], {**window, "group": groups}
            case "max_pool":
                return "MaxPool", [], window
            case "average_all":
                return "ReduceMean", [], {"axes": [2, 3], "keepdims": 0}
            case "add" | "concat":
                return ("Add", [], {}) if layer.kind == "add" else ("Concat", [], {"axis": 1})
            case "upsample":
                none, scales = self._array(layer, "none", []), self._array(layer, "scales", [1, 1, *[layer.stride] * 2])
                return "Resize", [none, scales], {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}
            case "activation" | "dropout":
                return "Identity", [], {}
        raise ValueError(f"no operator for a layer of the kind {layer.kind}")

    def _pads(self, layer: Layer) -> list[int]:
        """Return how many pixels TensorFlow's padding "same" adds for a layer: (top, left, bottom, right).

        All numbers are 0 if the window is smaller than the stride.
        """
        totals = [
            max((-(-side // layer.stride) - 1) * layer.stride + layer.kernel - side, 0)
            for side in self._shapes[layer.inputs[0]][:2]
        ]
        return [*(total // 2 for total in totals), *(total - total // 2 for total in totals)]

    def _node(self, operator: str, inputs: list[str], output: str, attributes: Mapping[str, Any]) -> None:
        from onnx import helper

        self.nodes.append(helper.make_node(operator, inputs, [output], name=f"{output}_{operator}", **attributes))

    def _constant(self, layer: Layer, part: str) -> str:
        array = self._weights[f"{layer.name}/{part}"]
        if array.ndim == 4:
            array = array.transpose((2, 3, 0, 1) if layer.kind == "depthwise" else (3, 2, 0, 1))
        return self._array(layer, part, array)

    def _number(self, layer: Layer, part: str, value: float) -> str:
        return self._array(layer, part, np.float32(value))

    def _array(self, layer: Layer, part: str, values: Any) -> str:
        from onnx import numpy_helper

        name = f"{layer.name}/{part}"
        self.constants.append(
            numpy_helper.from_array(np.ascontiguousarray(values, np.float32).reshape(np.shape(values)), name)
        )
        return name
