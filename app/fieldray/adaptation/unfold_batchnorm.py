"""Convolutions with their normalisations folded in, made ready to learn: convolution and normalisation apart again.

A network that was written for use holds each convolution with its normalisation folded in. Training wants it apart:
the convolution's output over some images gives each channel's mean and variance, and gamma and beta undo exactly what
they do. So the network answers as the file's does, and learns as one that was trained here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fieldray.adaptation.keras_network import build_network, set_weights
from fieldray.adaptation.specification import Layer, Specification
from fieldray.adaptation.weights import Weights, initial_weights
from fieldray.errors import UsageProblem
from fieldray.reasons import reason

Folded = Mapping[str, tuple[NDArray[np.float32], NDArray[np.float32]]]


def unfold_batchnorm(specification: Specification, folded: Folded, images: NDArray[np.uint8]) -> Weights:
    """The weights of the layers that have a normalisation.

    specification    the network to start; its height and width may differ from those of the images
    folded           by layer: kernel (height, width, in, out) and bias (out,)
    images            (n, height, width, channels), a few dozen: they give the statistics
    Raises UsageProblem `weights_unfit` naming the layer whose kernel has another shape.
    """
    sized = replace(specification, height=images.shape[1], width=images.shape[2])
    layers = [layer for layer in sized.layers if layer.kind == "conv" and layer.batch_norm]
    found = initial_weights(sized, seed=0)
    for layer in layers:
        kernel, bias = folded[layer.name]
        if kernel.shape != found[f"{layer.name}/kernel"].shape:
            raise UsageProblem(reason("weights_unfit", path=layer.name))
        found[f"{layer.name}/kernel"], found[f"{layer.name}/beta"] = kernel, bias
        found[f"{layer.name}/gamma"] = np.ones_like(bias)
        found[f"{layer.name}/variance"] = np.full_like(bias, 1 - sized.epsilon)
    outputs = _normalised_outputs(sized, layers, found, images.astype(np.float32) / 255)
    for layer, output in zip(layers, outputs, strict=True):
        mean, variance = output.mean((0, 1, 2)), output.var((0, 1, 2))
        found[f"{layer.name}/mean"] = mean - found[f"{layer.name}/beta"]
        found[f"{layer.name}/variance"] = variance
        found[f"{layer.name}/gamma"] = np.sqrt(variance + sized.epsilon)
        found[f"{layer.name}/beta"] = mean
    names = {layer.name for layer in layers}
    return {key: array for key, array in found.items() if key.rpartition("/")[0] in names}


def _normalised_outputs(
    specification: Specification, layers: list[Layer], weights: Weights, images: NDArray[np.float32]
) -> list[NDArray[np.float32]]:
    """What each layer's normalisation gives, before the activation."""
    import keras

    model = build_network(specification, outputs=["logits"])
    set_weights(model, weights)
    inside = keras.Model(model.input, [model.get_layer(f"{layer.name}_bn").output for layer in layers])
    return [np.asarray(value, np.float32) for value in inside.predict_on_batch(images)]
