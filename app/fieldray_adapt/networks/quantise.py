"""Conversion of a network to TensorFlow Lite files: full int8 (uint8 input and output) and float.

The network is converted as one function with constants in place of variables. Otherwise the converter would keep the
variables. Conversion by way of a saved model gives equal results and takes five times as long. The ranges of the int8
values are measured on training images only.

Three steps keep the int8 network close to the float network:

- `equalise_channels`: an int8 tensor has one scale for all channels, set by the largest channel. A channel with small
  values uses only a few of the 255 levels. So each channel is multiplied by a factor where the channel is computed, and
  divided by the factor where the channel is used [1]_, section 4.1. ReLU does not change this. Channels that are added
  share a factor.
- `correct_rounding`: rounding a kernel shifts the mean output of a channel by the sum of the rounding errors times the
  mean input. The shift is computed and subtracted from the bias [1]_, section 4.2.
- `refit_head`: quantisation noise adds up over the layers, partly in one direction. The linear head is fitted again by
  ridge regression, to give the float logits from the int8 features. No labels are needed.

References
----------
.. [1] Nagel M. et al., Data-Free Quantization Through Weight Equalization and Bias Correction, ICCV 2019,
   arXiv:1906.04721.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import Ridge

from fieldray.domain.model import InputSpec, OutputRoles
from fieldray.inference.litert import Network, NetworkSpec, load_runtime
from fieldray_adapt.networks.specification import (
    INPUT_NAME,
    Layer,
    Specification,
    Weights,
    channel_set_by_layer,
    weight_axes,
)
from fieldray_adapt.training.keras_engine import build_network, layer_output_function, set_weights


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class NetworkOutputs:
    """The outputs of a network file for n images.

    Attributes
    ----------
    scores
        Scores (n, labels) in 0..1, before calibration.
    features
        Features (n, f), averaged over the image.
    class_maps
        Logits (n, labels, rows, columns): the evidence for each label in each cell of the image.
    """

    scores: NDArray[np.float64]
    features: NDArray[np.float32]
    class_maps: NDArray[np.float32]


def run_network(
    file: bytes,
    images: NDArray[np.uint8],
    *,
    spec: InputSpec,
    outputs: OutputRoles,
    labels: int,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> NetworkOutputs:
    """Run a network file on images (n, height, width, channels) uint8, on one thread. Returns the network's outputs.

    Parameters
    ----------
    spec
        The input of the network.
    outputs
        The index of each output of the file, by role.
    labels
        Number of labels.
    progress
        A function that is called with the number of finished images and the number of all images.

    Raises BackendProblem.
    """
    network = Network(
        file, NetworkSpec(input=spec, outputs=outputs, label_count=labels), runtime=load_runtime(), threads=1
    )
    found = []
    for index, image in enumerate(images):
        found.append(network.run(image))
        progress(index + 1, len(images))
    none = np.zeros(0, np.float32)
    return NetworkOutputs(
        scores=np.stack([one.scores for one in found]).astype(np.float64),
        features=np.stack([none if one.features is None else one.features for one in found]),
        class_maps=np.stack([none if one.class_maps is None else one.class_maps for one in found]),
    )


_LARGEST_FACTOR: Final = 16.0
_TINY: Final = 1e-6
_BATCH: Final = 16

ChannelFactors = dict[str, NDArray[np.float32]]
"""A number for each channel, as arrays (channels,) float32, by name of the channel set or by name of the layer."""


def equalise_channels(
    specification: Specification, weights: Mapping[str, NDArray[np.float32]], *, representative: NDArray[np.uint8]
) -> Weights:
    """Return weights of an equivalent network in which the values of all channels have similar ranges.

    The network's outputs do not change. Only channel sets of layers with a ReLU or without activation are changed. The
    channel set of the labels is not changed.

    Parameters
    ----------
    representative
        (n, height, width, channels) uint8 training images, by which the ranges are measured.
    """
    factors = {
        name: np.clip(1 / share, 1, _LARGEST_FACTOR).astype(np.float32)
        for name, share in _shares(specification, weights, representative).items()
    }
    return scale_channels(specification, weights, factors)


def scale_channels(
    specification: Specification, weights: Mapping[str, NDArray[np.float32]], factors: ChannelFactors
) -> Weights:
    """Return weights of an equivalent network whose hidden channels are multiplied by factors.

    The layer that computes a channel multiplies by the channel's factor; each layer that uses the channel divides by
    the factor. So the outputs do not change. `factors` has an array (channels,) for each channel set to scale.
    """
    scaled = Weights()
    for key, axes in weight_axes(specification).items():
        name, _, part = key.rpartition("/")
        array = np.array(weights[key], np.float32)
        for position, axis in enumerate(axes):
            if not factors.keys().isdisjoint(axis.channel_sets):
                power = _power(part, is_read=position == len(axes) - 2, layer=specification.layer(name))
                shape = [-1 if dim == position else 1 for dim in range(array.ndim)]
                own = [factors.get(one, np.ones(specification.channels[one], np.float32)) for one in axis.channel_sets]
                array *= np.tile(np.concatenate(own), axis.repeat_count).reshape(shape) ** power
        scaled[key] = array
    return scaled


def _power(part: str, *, is_read: bool, layer: Layer) -> int:
    """Return the exponent of the channel factors by which an axis of a weight array is multiplied: 1, -1 or 0.

    `part` is the kind of the array, such as "kernel". `is_read` is whether the axis belongs to the input channels, for
    which the exponent is -1. A layer with batch normalisation multiplies gamma and beta, and not the kernel.
    """
    if part == "kernel":
        return -1 if is_read else int(not layer.batch_norm)
    return int(part in ("gamma", "beta", "bias"))


def _shares(
    specification: Specification, weights: Mapping[str, NDArray[np.float32]], images: NDArray[np.uint8]
) -> ChannelFactors:
    """Return the range of each channel divided by the largest range in the channel's tensor, by channel set.

    If several tensors have the same channel set, the largest quotient counts.
    """
    sets = channel_set_by_layer(specification)
    shares: ChannelFactors = {}
    for name, ranges in _ranges(specification, weights, images, names=_levelled(specification)).items():
        share = np.maximum(ranges / max(float(ranges.max()), _TINY), _TINY)
        shares[sets[name]] = np.maximum(shares.get(sets[name], np.float32(0)), share)
    return shares


def _levelled(specification: Specification) -> list[str]:
    """Return the names of the layers whose output channels `equalise_channels` may scale."""
    sets = channel_set_by_layer(specification)
    kept = {specification.label_channel_set} | {
        sets[layer.name] for layer in specification.layers if layer.activation not in ("none", "relu")
    }
    return [
        layer.name
        for layer in specification.layers
        if (layer.has_weights or layer.kind == "add") and sets[layer.name] not in kept
    ]


def _ranges(
    specification: Specification,
    weights: Mapping[str, NDArray[np.float32]],
    images: NDArray[np.uint8],
    *,
    names: list[str],
) -> ChannelFactors:
    """Return the largest absolute value of each output channel over all images, by name of the layer.

    `names` are the layers to measure.
    """
    if not names:
        return {}
    read = layer_output_function(specification, weights, names)
    found: ChannelFactors = {}
    for start in range(0, len(images), _BATCH):
        for name, value in read(images[start : start + _BATCH].astype(np.float32) / np.float32(255)).items():
            largest = np.abs(value).reshape(-1, value.shape[-1]).max(0)
            found[name] = np.maximum(found.get(name, np.float32(0)), largest)
    return found


_MAX_INT8: Final = 127


def correct_rounding(
    specification: Specification, weights: Mapping[str, NDArray[np.float32]], *, representative: NDArray[np.uint8]
) -> Weights:
    """Return weights for which the mean outputs of int8 convolutions equal those of the float convolutions.

    Only biases and the beta of batch normalisation are changed. The int8 kernels have a scale for each channel.

    Parameters
    ----------
    representative
        (n, height, width, channels) uint8 training images, on which the mean inputs are measured. The padding at the
        border is neglected.
    """
    layers = [layer for layer in specification.layers if layer.kind in ("conv", "depthwise")]
    means = _input_means(specification, weights, layers, representative)
    corrected = {key: np.array(array) for key, array in weights.items()}
    for layer in layers:
        shift = _mean_shift(layer, weights, means[layer.inputs[0]], specification.epsilon)
        corrected[f"{layer.name}/{'beta' if layer.batch_norm else 'bias'}"] -= shift
    return corrected


def _input_means(
    specification: Specification,
    weights: Mapping[str, NDArray[np.float32]],
    layers: list[Layer],
    images: NDArray[np.uint8],
) -> dict[str, NDArray[np.float32]]:
    """Return the mean of each input channel of `layers` over all images, by name of the layer that gives the input."""
    names = sorted({layer.inputs[0] for layer in layers} - {INPUT_NAME})
    read = layer_output_function(specification, weights, names)
    sums: dict[str, NDArray[np.float32]] = {}
    for start in range(0, len(images), _BATCH):
        batch = images[start : start + _BATCH].astype(np.float32) / np.float32(255)
        for name, array in {INPUT_NAME: batch, **read(batch)}.items():
            sums[name] = sums.get(name, np.float32(0)) + array.mean((1, 2)).sum(0)
    return {name: (total / len(images)).astype(np.float32) for name, total in sums.items()}


def _mean_shift(
    layer: Layer, weights: Mapping[str, NDArray[np.float32]], means: NDArray[np.float32], epsilon: float
) -> NDArray[np.float32]:
    """Return by how much rounding the kernel to int8 shifts the mean of each output channel: (channels,).

    `means` are the mean inputs of the layer, `epsilon` the number added to the variance in batch normalisation.
    """
    kernel = weights[f"{layer.name}/kernel"]
    if layer.kind == "depthwise":
        kernel = kernel[..., 0]
    if layer.batch_norm:
        scaled = kernel * weights[f"{layer.name}/gamma"] / np.sqrt(weights[f"{layer.name}/variance"] + epsilon)
        kernel = scaled.astype(np.float32, copy=False)
    axes = tuple(range(kernel.ndim - 1))
    scale = np.abs(kernel).max(axes) / _MAX_INT8
    scale = np.where(scale > 0, scale, 1)
    error = np.rint(kernel / scale) * scale - kernel
    if layer.kind == "depthwise":
        return np.asarray(error.sum(axes) * means, np.float32)
    return np.asarray(np.einsum("hwio,i->o", error, means), np.float32)


HEAD_RIDGE_PENALTY_PER_IMAGE: Final = 0.3
"""The ridge penalty of `refit_head` is this number times the number of images."""
_KERNEL: Final = "class_maps/kernel"
_BIAS: Final = "class_maps/bias"


def refit_head(
    weights: Mapping[str, NDArray[np.float32]], *, float_outputs: NetworkOutputs, int8_outputs: NetworkOutputs
) -> Weights:
    """Return the weights with a new head, for which the int8 network's logits are close to the float network's logits.

    The head maps features to labels. The head is fitted by ridge regression to the features of the int8 file.

    Parameters
    ----------
    float_outputs, int8_outputs
        Outputs of the float file and of the int8 file for the same training images.
    """
    kernel = weights[_KERNEL].reshape(-1, weights[_KERNEL].shape[-1]).astype(np.float64)
    features = int8_outputs.features.astype(np.float64)
    missing = float_outputs.class_maps.mean(axis=(2, 3), dtype=np.float64) - features @ kernel
    fitted = Ridge(alpha=HEAD_RIDGE_PENALTY_PER_IMAGE * len(features), solver="cholesky").fit(features, missing)
    change, bias = fitted.coef_.reshape(-1, len(features[0])).T, np.atleast_1d(fitted.intercept_)
    refitted = Weights({name: np.array(array) for name, array in weights.items()})
    refitted[_KERNEL] = (kernel + change).reshape(weights[_KERNEL].shape).astype(np.float32)
    refitted[_BIAS] = bias.astype(np.float32)
    return refitted


OUTPUT_ROLES: Final = ("scores", "class_maps", "features", "mask")
"""The roles that an output of a network file can have."""


@dataclass(frozen=True, eq=False, slots=True)
class ConvertedNetwork:
    """A network as a TensorFlow Lite file, and the index of each output of the file, by role, such as "scores"."""

    data: bytes
    output_indices: Mapping[str, int]

    def output_roles(self, specification: Specification) -> OutputRoles:
        """Return the index of each output of the file by role, and the activation of the scores, for a pack's manifest.

        Raises ValueError if the activation of the scores is neither sigmoid nor softmax.
        """
        activation = specification.layer(specification.outputs["scores"]).activation
        if activation not in ("sigmoid", "softmax"):
            raise ValueError(f"the scores need a sigmoid or softmax, not {activation}")
        return OutputRoles(activation=activation, **self.output_indices)


def quantise(
    specification: Specification,
    weights: Mapping[str, NDArray[np.float32]],
    *,
    representative: NDArray[np.uint8],
) -> ConvertedNetwork:
    """Convert a network to a full int8 file, with uint8 inputs and uint8 outputs.

    Parameters
    ----------
    representative
        (n, height, width, channels) uint8 training images; 100 to 300 are enough.

    Raises
    ------
    ValueError
        If there are no images, or if the converter cannot convert the network to integers.
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


def to_float_file(specification: Specification, weights: Mapping[str, NDArray[np.float32]]) -> ConvertedNetwork:
    """Convert a network to a float32 file, to compare the int8 file with. The file's input is float32 in 0..1."""
    return _convert(specification, weights, None)


def _one_by_one(images: NDArray[np.uint8]) -> Iterator[list[NDArray[np.float32]]]:
    for image in images:
        yield [image[None].astype(np.float32) / np.float32(255)]


def _convert(
    specification: Specification,
    weights: Mapping[str, NDArray[np.float32]],
    configure: Callable[[Any, Any], None] | None,
) -> ConvertedNetwork:
    import keras
    import tensorflow
    from ai_edge_litert.interpreter import Interpreter
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    keras.config.set_dtype_policy("float32")
    names = [name for name in OUTPUT_ROLES if name in specification.outputs]
    model = build_network(specification, outputs=names)
    set_weights(model, weights)
    shape = (1, specification.height, specification.width, specification.input_channels)
    network = tensorflow.function(
        lambda image: model(image, training=False), input_signature=[tensorflow.TensorSpec(shape)], autograph=False
    )
    constant = convert_variables_to_constants_v2(network.get_concrete_function())
    converter = tensorflow.lite.TFLiteConverter.from_concrete_functions([constant])
    if configure is not None:
        configure(converter, tensorflow)
    with warnings.catch_warnings():
        # The converter needs statistics of the inputs. The representative images replace these values.
        warnings.filterwarnings("ignore", "Statistics for quantized inputs")
        data: bytes = converter.convert()
    # The converter may reorder the outputs, so outputs are found by tensor name.
    order = [row["name"] for row in Interpreter(model_content=data).get_output_details()]
    tensors = zip(names, constant.outputs, strict=True)
    return ConvertedNetwork(data, {name: order.index(tensor.op.name) for name, tensor in tensors})
