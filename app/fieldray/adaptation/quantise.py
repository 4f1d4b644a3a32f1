"""From trained weights to TensorFlow Lite files: full int8 (uint8 in and out) and float.

Keras 3 models convert through `model.export` and `from_saved_model`; the converter's other entrances leave variables
unfrozen. The representative images decide the ranges of the integers, so they must come from training images only.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fieldray.adaptation.keras_network import build_network, set_weights
from fieldray.adaptation.rounding import correct_rounding
from fieldray.adaptation.specification import Specification
from fieldray.domain.model import OutputRoles

OUTPUTS: Final = ("scores", "class_maps", "features")


@dataclass(frozen=True, eq=False, slots=True)
class Converted:
    """A TensorFlow Lite file and which of its outputs is what, by index."""

    data: bytes
    outputs: Mapping[str, int]

    def roles(self, specification: Specification) -> OutputRoles:
        """As the manifest states it."""
        activation = specification.layer(specification.outputs["scores"]).activation
        if activation not in ("sigmoid", "softmax"):
            raise ValueError(f"the scores need a sigmoid or softmax, not {activation}")
        return OutputRoles(activation=activation, **self.outputs)


def quantise(
    specification: Specification,
    weights: Mapping[str, NDArray[np.float32]],
    *,
    representative: NDArray[np.uint8],
) -> Converted:
    """The full int8 file: weights and every tensor int8, image and outputs uint8.

    representative  (n, height, width, channels) training images as the network sees them, 100 to 300 are enough
    Raises ValueError without images or if the converter cannot express the network in integers.
    """
    if not len(representative):
        raise ValueError("quantising needs representative images")

    def configure(converter: Any, tensorflow: Any) -> None:
        converter.optimizations = [tensorflow.lite.Optimize.DEFAULT]
        converter.representative_dataset = lambda: _one_by_one(representative)
        converter.target_spec.supported_ops = [tensorflow.lite.OpsSet.TFLITE_BUILTINS_INT8]
        converter.inference_input_type = tensorflow.uint8
        converter.inference_output_type = tensorflow.uint8

    return _convert(specification, correct_rounding(specification, weights, representative=representative), configure)


def to_float_file(specification: Specification, weights: Mapping[str, NDArray[np.float32]]) -> Converted:
    """The same network in float32, to compare with; the image is float32 in 0..1."""
    return _convert(specification, weights, None)


def _one_by_one(images: NDArray[np.uint8]) -> Iterator[list[NDArray[np.float32]]]:
    for image in images:
        yield [image[None].astype(np.float32) / 255]


def _convert(
    specification: Specification,
    weights: Mapping[str, NDArray[np.float32]],
    configure: Callable[[Any, Any], None] | None,
) -> Converted:
    import keras
    import tensorflow

    keras.config.set_dtype_policy("float32")
    names = [name for name in OUTPUTS if name in specification.outputs]
    model = build_network(specification, outputs=names)
    set_weights(model, weights)
    shape = (1, specification.height, specification.width, specification.input_channels)
    with tempfile.TemporaryDirectory(prefix="fieldray-") as folder:
        model.export(folder, input_signature=[keras.InputSpec(shape=shape, dtype="float32")], verbose=False)
        converter = tensorflow.lite.TFLiteConverter.from_saved_model(folder)
        if configure is not None:
            configure(converter, tensorflow)
        data: bytes = converter.convert()
    return Converted(data, _find_outputs(data, names))


def _find_outputs(data: bytes, names: Sequence[str]) -> dict[str, int]:
    """Which output is which: the converter may reorder them; the signature keeps the order of the model's list."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_content=data)
    indices = [row["index"] for row in interpreter.get_output_details()]
    signature = interpreter.get_signature_list()["serving_default"]["outputs"]
    runner = interpreter.get_signature_runner("serving_default").get_output_details()
    return {name: indices.index(runner[key]["index"]) for name, key in zip(names, signature, strict=True)}
