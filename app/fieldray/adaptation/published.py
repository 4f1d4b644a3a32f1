"""Published ImageNet weights, as Keras offers them, in this toolchain's names."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fieldray.adaptation.specification import Specification
from fieldray.adaptation.weights import Weights
from fieldray.errors import UsageProblem
from fieldray.reasons import reason

_KERAS_NAMES: Final = {"resnet50": "ResNet50", "mobilenet": "MobileNet", "vgg16": "VGG16"}
_BLUE_GREEN_RED_MEANS: Final = (103.939, 116.779, 123.68)
# What Keras feeds its networks, of a value x in 0..1: x * scale + offset of each channel.
_INPUTS: Final = {
    "resnet50": (255.0, tuple(-mean for mean in _BLUE_GREEN_RED_MEANS)),
    "vgg16": (255.0, tuple(-mean for mean in _BLUE_GREEN_RED_MEANS)),
    "mobilenet": (2.0, (-1.0, -1.0, -1.0)),
}


def imagenet_weights(specification: Specification) -> Weights:
    """Weights of the network of the same name; Keras downloads them once.

    A convolution's bias before a normalisation moves into its mean; for one input channel the three of the first
    kernel are added up. Raises UsageProblem `weights_unreachable`.
    """
    import keras

    try:
        model = getattr(keras.applications, _KERAS_NAMES[specification.name])(include_top=False, weights="imagenet")
    except (OSError, ValueError) as problem:
        detail = str(problem).splitlines()[0]
        raise UsageProblem(reason("weights_unreachable", name=specification.name, detail=detail)) from problem
    return translate(model, specification)


def translate(model: Any, specification: Specification) -> Weights:
    """The weights of a Keras model whose layers are named as in `networks`."""
    found = Weights()
    for layer in model.layers:
        name, parts = layer.name, [np.asarray(array, np.float32) for array in layer.get_weights()]
        if name.endswith("_bn") and len(parts) == 4:
            names = ("gamma", "beta", "mean", "variance")
            found |= {f"{name[:-3]}/{part}": array for part, array in zip(names, parts, strict=True)}
        elif parts:
            base = name.removesuffix("_conv")
            found |= {f"{base}/{part}": array for part, array in zip(("kernel", "bias"), parts, strict=False)}
    for key in [key for key in found if key.endswith("/bias")]:
        mean = key.replace("/bias", "/mean")
        if mean in found:
            found[mean] = found[mean] - found.pop(key)
    _adapt_input(found, specification)
    return found


def _adapt_input(found: Weights, specification: Specification) -> None:
    """Make the first kernel read grey values in 0..1; what it made of the constant offset goes to mean or bias."""
    name = specification.layers[0].name
    scale, offsets = _INPUTS[specification.name]
    kernel: NDArray[np.float32] = found[f"{name}/kernel"]
    constant = np.einsum("hwio,i->o", kernel, np.array(offsets, np.float32))
    if f"{name}/mean" in found:
        found[f"{name}/mean"] -= constant
    else:
        found[f"{name}/bias"] += constant
    grey = kernel.sum(axis=2, keepdims=True) if specification.input_channels == 1 else kernel
    found[f"{name}/kernel"] = grey * np.float32(scale)
