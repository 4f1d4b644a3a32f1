"""The network architectures that can be trained, and initial weights from the network of a pack.

Layers have the names of `keras.applications`, if the network exists there. The numbers of parameters below are the
published numbers, with three input channels and 1000 labels, without the statistics of batch normalisation:

- ResNet50 V1 and ResNet-34: He et al. 2016, arXiv:1512.03385; ResNet-34 has 21,797,672 parameters.
- MobileNet v1: Howard et al. 2017, arXiv:1704.04861.
- VGG-16: Simonyan and Zisserman 2015, arXiv:1409.1556; 138,357,544. `vgg16` has convolutions over the whole image in
  place of dense layers, as in section 3.2 of the paper. `vgg16_dense` has dense layers, for the small images of MNIST.
- SqueezeNet 1.0: Iandola et al. 2016, arXiv:1602.07360, table 1; 1,248,424.
- GoogLeNet: Szegedy et al. 2015, arXiv:1409.4842, table 1; 6,998,552. This module leaves out the auxiliary heads and
  the local response normalisation (which has no parameters).

All networks but `vgg16_dense` end in a class-map head: a 1x1 convolution to one map for each label, whose mean is the
label's logit. So a map shows the evidence for its label. The head has as many parameters as a dense layer. The mean
is an average pool, which the Edge TPU supports for any number of channels.

In the network of a pack, batch normalisation is folded into the convolutions. For training, normalisation and
convolution are separated again. Mean and variance of a channel are measured on some images. Gamma and beta are chosen
so that the normalisation changes nothing. So the network has the outputs of the pack and can be trained. The last
layers are not taken from the pack, because these layers belong to the pack's labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from ai_edge_litert import schema_py_generated as schema
from numpy.typing import NDArray

from fieldray.errors import UsageProblem
from fieldray.packs.verified import read_pack, require_classifier
from fieldray.reasons import reason
from fieldray_adapt.networks.specification import (
    INPUT_NAME,
    Activation,
    Layer,
    LayerKind,
    Specification,
    Weights,
    initial_weights,
)
from fieldray_adapt.training.keras_engine import build_network, set_weights

LABELS_CHANNEL_SET: Final = "labels"
"""The name of the channel set (group of channels) that has one channel for each label."""
HEAD_LAYER: Final = "class_maps"
"""The name of a classifier's last convolution, whose outputs are the class maps."""
_RESNET_BLOCKS: Final = (3, 4, 6, 3)
_VGG16_BLOCKS: Final = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))  # channels and number of the convolutions
_VGG19_BLOCKS: Final = ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4))
_VGG_DENSE: Final = 4096
_SQUEEZES: Final = (16, 16, 32, 32, 48, 48, 64, 64)  # channels of the fire modules 2 to 9
# Channels of the convolutions of an inception module: 1x1; 1x1 before 3x3, 3x3; 1x1 before 5x5, 5x5; 1x1 after pool.
_INCEPTIONS: Final[Mapping[str, tuple[int, int, int, int, int, int]]] = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}
_MOBILENET_BLOCKS: Final = (
    *((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)),
    *((512, 1),) * 5,
    *((1024, 2), (1024, 1)),
)


def resnet50(*, blocks: tuple[int, ...] = _RESNET_BLOCKS, last_stride: int = 2, **head: int) -> Specification:
    """Return the specification of ResNet50 V1.

    The channel sets are "conv1", one set for the sums of each stage, and two sets inside each block.

    Parameters
    ----------
    blocks
        Number of blocks in each stage. Four stages reduce the side to 1/32, three stages to 1/16.
    last_stride
        Stride of the last stage's first block. 1 keeps the class maps as fine as the stage before.
    head
        The arguments of all networks with a class-map head: `height` and `width` of the input in pixels, number of
        `labels`, and `input_channels` (by default 1).
    """
    return _resnet("resnet50", blocks, last_stride, kernels=(1, 3, 1), **head)


def resnet34(*, blocks: tuple[int, ...] = _RESNET_BLOCKS, last_stride: int = 2, **head: int) -> Specification:
    """Return the specification of ResNet-34 with projection shortcuts. The parameters are those of `resnet50`.

    There is one channel set for the sums of each stage, and one inside each block. The first convolution has the
    channel set of the first stage, because its output is part of the sums of the first stage.
    """
    return _resnet("resnet34", blocks, last_stride, kernels=(3, 3), **head)


def _resnet(
    name: str,
    blocks: tuple[int, ...],
    last_stride: int,
    *,
    kernels: tuple[int, ...],
    **head: int,
) -> Specification:
    """Return the specification of a residual network.

    Parameters
    ----------
    blocks
        Number of blocks in each stage. Four stages reduce the side to 1/32. Three stages reduce the side to 1/16, so
        that the class maps have four times as many cells. Fewer blocks give a shorter network for quick experiments.
    last_stride
        Stride of the last stage's first block. 1 keeps the class maps as fine as the stage before.
    kernels
        Kernel sides of a block's convolutions. The last of three convolutions has four times the channels of the first.
    """
    is_deep = len(kernels) == 3
    stem = "conv1" if is_deep else "conv2"
    made = _Layers()
    made.layers.append(convolution("conv1", INPUT_NAME, stem, kernel=7, stride=2))
    made.channels[stem], last = 64, made.pool("pool1", "conv1")
    for stage, count in enumerate(blocks, start=2):
        inner = 64 * 2 ** (stage - 2)
        stride = 1 if stage == 2 else last_stride if stage == len(blocks) + 1 else 2
        for block in range(1, count + 1):
            own, begins = f"conv{stage}_block{block}", block == 1
            is_projected = begins and f"conv{stage}" != stem
            made.layers += _residual(
                own, last, f"conv{stage}", kernels=kernels, stride=stride if begins else 1, is_projected=is_projected
            )
            made.channels |= {f"{own}_{number}": inner for number in range(1, len(kernels))}
            made.channels[f"conv{stage}"], last = 4 * inner if is_deep else inner, f"{own}_out"
    return replace(made.with_class_maps(name, last, **head), epsilon=1.001e-5)


def mobilenet(**head: int) -> Specification:
    """Return the specification of MobileNet v1. The arguments are those in `head` of `resnet50`.

    A depthwise layer has the channel set of its input.
    """
    made = _Layers()
    made.layers.append(convolution("conv1", INPUT_NAME, "conv1", kernel=3, stride=2, activation="relu6"))
    made.channels["conv1"], last = 32, "conv1"
    for number, (count, stride) in enumerate(_MOBILENET_BLOCKS, start=1):
        depthwise, pointwise = f"conv_dw_{number}", f"conv_pw_{number}"
        made.layers.append(depthwise_convolution(depthwise, last, stride=stride, activation="relu6"))
        made.layers.append(convolution(pointwise, depthwise, pointwise, activation="relu6"))
        made.channels[pointwise], last = count, pointwise
    return made.with_class_maps("mobilenet", last, **head)


def vgg16_dense(
    *,
    height: int = 28,
    width: int = 28,
    labels: int = 10,
    input_channels: int = 1,
    dense_units: int = _VGG_DENSE,
    dense_layers: int = 2,
    dropout: float = 0.5,
) -> Specification:
    """Return the specification of VGG-16 with dense layers and a softmax, and without batch normalisation.

    Pools round sizes up, so that 28 x 28 pixels become 1 x 1. `dense_layers` is the number of hidden dense layers. With
    0 hidden layers, the network has 14,718,666 parameters (Taran 2022), and a dropout follows the convolutions.
    """
    made = _Layers()
    last = made.add("flatten", "flatten", _vgg_blocks(made, _VGG16_BLOCKS))
    if not dense_layers:
        last = made.add("dropout", "dropout", last, rate=dropout)
    for name in (f"fc{number}" for number in range(1, dense_layers + 1)):
        made.channels[name] = dense_units
        last = made.add(name, "dense", last, channels=name, activation="relu")
        last = made.add(f"{name}_dropout", "dropout", last, rate=dropout)
    made.add("logits", "dense", last, channels=LABELS_CHANNEL_SET)
    made.add("scores", "activation", "logits", activation="softmax")
    return Specification(
        name="vgg16",
        height=height,
        width=width,
        input_channels=input_channels,
        layers=tuple(made.layers),
        channels={**made.channels, LABELS_CHANNEL_SET: labels},
        outputs={"logits": "logits", "scores": "scores"},
    )


def vgg16(**head: int) -> Specification:
    """Return the specification of VGG-16 for images of any size. The arguments are those in `head` of `resnet50`.

    The layer fc1 is a 7x7 convolution; fc2 and the head are 1x1 convolutions.
    """
    return _vgg("vgg16", _VGG16_BLOCKS, **head)


def vgg19(**head: int) -> Specification:
    """Return the specification of VGG-19, which is configuration E of Simonyan and Zisserman (arXiv:1409.1556).

    The kinds of layers and the arguments are those of `vgg16`.
    """
    return _vgg("vgg19", _VGG19_BLOCKS, **head)


def _vgg(name: str, blocks: Sequence[tuple[int, int]], **head: int) -> Specification:
    made = _Layers()
    last = _vgg_blocks(made, blocks)
    for layer, kernel in (("fc1", 7), ("fc2", 1)):
        last = made.add(f"{layer}_dropout", "dropout", made.conv(layer, last, _VGG_DENSE, kernel=kernel), rate=0.5)
    return made.with_class_maps(name, last, **head)


def squeezenet(**head: int) -> Specification:
    """Return the specification of SqueezeNet 1.0. The arguments are those in `head` of `resnet50`.

    The ReLU after the class maps is left out, because logits can be negative.
    """
    made = _Layers()
    last = made.pool("pool1", made.conv("conv1", INPUT_NAME, 96, kernel=7, stride=2))
    for number, squeeze in enumerate(_SQUEEZES, start=2):
        name = f"fire{number}"
        narrow = made.conv(f"{name}_squeeze", last, squeeze)
        wide = [made.conv(f"{name}_expand{kernel}x{kernel}", narrow, 4 * squeeze, kernel=kernel) for kernel in (1, 3)]
        last = made.add(name, "concat", *wide)
        if number in (4, 8):
            last = made.pool(f"pool{number}", last)
    return made.with_class_maps("squeezenet", made.add("dropout", "dropout", last, rate=0.5), **head)


def googlenet(**head: int) -> Specification:
    """Return the specification of GoogLeNet (Szegedy 2015) without the two auxiliary classifiers.

    The arguments are those in `head` of `resnet50`.
    """
    made = _Layers()
    last = made.pool("pool1", made.conv("conv1", INPUT_NAME, 64, kernel=7, stride=2))
    last = made.conv("conv2", made.conv("conv2_reduce", last, 64), 192, kernel=3)
    stage = ""
    for name, (single, before_three, three, before_five, five, pooled) in _INCEPTIONS.items():
        if name[0] != stage:
            stage, last = name[0], made.pool(f"pool{name[0]}", last)
        own = f"inception_{name}"
        branches = [
            made.conv(f"{own}_1x1", last, single),
            made.conv(f"{own}_3x3", made.conv(f"{own}_3x3_reduce", last, before_three), three, kernel=3),
            made.conv(f"{own}_5x5", made.conv(f"{own}_5x5_reduce", last, before_five), five, kernel=5),
            made.conv(f"{own}_projection", made.pool(f"{own}_pool", last, stride=1), pooled),
        ]
        last = made.add(own, "concat", *branches)
    return made.with_class_maps("googlenet", made.add("dropout", "dropout", last, rate=0.4), **head)


NETWORKS: Final[Mapping[str, Callable[..., Specification]]] = {
    "resnet50": resnet50,
    "resnet34": resnet34,
    "mobilenet": mobilenet,
    "vgg16": vgg16,
    "vgg19": vgg19,
    "squeezenet": squeezenet,
    "googlenet": googlenet,
}
"""The function that returns the specification of each network, by the value of the recipe's key `network.kind`."""


class _Layers:
    """Collects the layers of a network. The methods `add`, `conv` and `pool` return the name of the added layer."""

    def __init__(self) -> None:
        self.layers: list[Layer] = []
        self.channels: dict[str, int] = {}

    def add(self, name: str, kind: LayerKind, *inputs: str, **more: Any) -> str:
        """Add a layer of any kind. Returns the layer's name. `more` are further fields of `Layer`."""
        self.layers.append(Layer(name=name, kind=kind, inputs=inputs, **more))
        return name

    def conv(self, name: str, source: str, count: int, *, kernel: int = 1, stride: int = 1) -> str:
        """Add a convolution with bias and ReLU, and a channel set with the layer's name. Returns the layer's name."""
        self.channels[name] = count
        return self.add(name, "conv", source, channels=name, kernel=kernel, stride=stride, activation="relu")

    def pool(self, name: str, source: str, *, kernel: int = 3, stride: int = 2) -> str:
        """Add a maximum pool. Returns the layer's name."""
        return self.add(name, "max_pool", source, kernel=kernel, stride=stride)

    def with_class_maps(
        self, name: str, source: str, *, height: int, width: int, labels: int, input_channels: int = 1
    ) -> Specification:
        """Return the specification of the finished network, with a class-map head on the layer `source`.

        The head is a 1x1 convolution with one map for each label, and the mean of each map as the label's logit.
        """
        self.add(HEAD_LAYER, "conv", source, channels=LABELS_CHANNEL_SET)
        self.add("logits", "average_all", HEAD_LAYER)
        self.add("scores", "activation", "logits", activation="sigmoid")
        self.add("features", "average_all", source)
        return Specification(
            name=name,
            height=height,
            width=width,
            input_channels=input_channels,
            layers=tuple(self.layers),
            channels={**self.channels, LABELS_CHANNEL_SET: labels},
            outputs={name: name for name in ("logits", "scores", "class_maps", "features")},
        )


def _vgg_blocks(layers: _Layers, blocks: Sequence[tuple[int, int]]) -> str:
    last = INPUT_NAME
    for block, (count, convolutions) in enumerate(blocks, start=1):
        for number in range(1, convolutions + 1):
            last = layers.conv(f"block{block}_conv{number}", last, count, kernel=3)
        last = layers.pool(f"block{block}_pool", last, kernel=2)
    return last


def convolution(
    name: str, source: str, channels: str, *, kernel: int = 1, stride: int = 1, activation: Activation = "relu"
) -> Layer:
    """Return a convolution layer with batch normalisation.

    Parameters
    ----------
    name, source
        The name of the convolution layer, and the name of the layer before it.
    channels
        The name of the channel set of the output.
    kernel, stride
        Side and step of the window, in pixels.
    """
    return Layer(
        name=name,
        kind="conv",
        inputs=(source,),
        channels=channels,
        kernel=kernel,
        stride=stride,
        batch_norm=True,
        activation=activation,
    )


def depthwise_convolution(name: str, source: str, *, stride: int, activation: Activation = "relu") -> Layer:
    """Return a 3x3 depthwise convolution layer with batch normalisation, after the layer `source`."""
    return Layer(
        name=name,
        kind="depthwise",
        inputs=(source,),
        kernel=3,
        stride=stride,
        batch_norm=True,
        activation=activation,
    )


def _residual(
    name: str, source: str, stage: str, *, kernels: tuple[int, ...], stride: int, is_projected: bool
) -> list[Layer]:
    """Return the layers of a residual block `name` after the layer `source`, in the stage `stage`.

    The first convolution has the stride. The shortcut is a 1x1 convolution if `is_projected`, else the identity.
    """
    layers = [convolution(f"{name}_0", source, stage, stride=stride, activation="none")] if is_projected else []
    shortcut, last = f"{name}_0" if is_projected else source, source
    for number, kernel in enumerate(kernels, start=1):
        own, is_last = f"{name}_{number}", number == len(kernels)
        activation: Activation = "none" if is_last else "relu"
        channels = stage if is_last else own
        layers.append(convolution(own, last, channels, kernel=kernel, stride=stride, activation=activation))
        stride, last = 1, own
    return [*layers, Layer(name=f"{name}_out", kind="add", inputs=(shortcut, last), activation="relu")]


FoldedKernel = tuple[NDArray[np.float32], NDArray[np.float32]]
"""The kernel (height, width, in, out) and the bias (out,) of a convolution."""
FoldedKernels = Mapping[str, FoldedKernel]
"""Kernel (height, width, in, out) and bias (out,) with folded batch normalisation, by name of the layer."""


def unfold_batchnorm(specification: Specification, folded: FoldedKernels, images: NDArray[np.uint8]) -> Weights:
    """Convert kernels with folded batch normalisation to weights of convolutions with separate batch normalisation.

    The outputs of the network do not change.

    Parameters
    ----------
    specification
        The network that gets the weights. Height and width may differ from those of the images.
    folded
        Kernel (height, width, in, out) and bias (out,), by name of the layer.
    images
        A few dozen images (n, height, width, channels) uint8, on which mean and variance are measured.

    Raises
    ------
    UsageProblem
        `weights_unfit`, with the name of the layer, if a kernel of `folded` does not have the shape of its layer.
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
    outputs = _normalised_outputs(sized, layers, found, images.astype(np.float32) / np.float32(255))
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
    """Return the output of each layer's batch normalisation, before the activation, for images in 0..1.

    Each output is (n, rows, columns, channels).
    """
    import keras

    model = build_network(specification, outputs=["logits"])
    set_weights(model, weights)
    inside = keras.Model(model.input, [model.get_layer(f"{layer.name}_bn").output for layer in layers])
    return [np.asarray(value, np.float32) for value in inside.predict_on_batch(images)]


_INT8: Final = 9


def weights_from_pack(folder: Path, specification: Specification) -> Weights:
    """Return initial weights for the convolutions of a network, taken from the network of a pack.

    The statistics of batch normalisation are measured on the pack's golden images (the images of its self-test). The
    head has the pack's number of labels.

    Parameters
    ----------
    folder
        The folder of the pack.
    specification
        The network that gets the weights. Input size and labels may differ from the pack's network, and the last stages
        may be missing.

    Raises
    ------
    UsageProblem
        `weights_unfit` if the pack has no golden images, or a network of another kind.
    PackProblem
    """
    folded, (kernel, bias), images = _read_pack(folder, specification)
    if images is None:
        raise UsageProblem(reason("weights_unfit", path=folder))
    head = {f"{HEAD_LAYER}/kernel": kernel, f"{HEAD_LAYER}/bias": bias}
    return {**unfold_batchnorm(specification, folded, images), **head}


def channels_from_pack(folder: Path, specification: Specification) -> dict[str, int]:
    """Return the number of channels of each channel set in the network of a pack, without the labels' channel set.

    The pack's network may be pruned. `specification` is the network before pruning. Raises UsageProblem
    (`weights_unfit`) if the pack's network is of another kind, and PackProblem.
    """
    folded, _, _ = _read_pack(folder, specification)
    return {specification.layer(name).channels: len(bias) for name, (_, bias) in folded.items()}


def _read_pack(
    folder: Path, specification: Specification
) -> tuple[FoldedKernels, FoldedKernel, NDArray[np.uint8] | None]:
    """Return a pack's convolutions by name of the layer in `specification`, the head, and the golden images.

    The convolutions have folded batch normalisation. Without golden images, the last value is None.
    """
    pack = read_pack(folder)
    require_classifier(pack.manifest.content)
    layers = [layer for layer in specification.layers if layer.kind == "conv" and layer.batch_norm]
    operators = list(read_convolutions(pack.model.files["litert"]))
    pairs = list(zip(layers, operators[:-1], strict=False))  # the last convolution is the head
    if not layers or len(pairs) < len(layers) or any(layer.name not in name for layer, (name, _, _) in pairs):
        raise UsageProblem(reason("weights_unfit", path=folder))
    folded = {layer.name: (kernel, bias) for layer, (_, kernel, bias) in pairs}
    return folded, operators[-1][1:], None if pack.model.golden is None else pack.model.golden.inputs


def read_convolutions(data: bytes) -> Iterator[tuple[str, NDArray[np.float32], NDArray[np.float32]]]:
    """Yield the convolutions of a TensorFlow Lite file, in order.

    A convolution is the name of its output, the kernel (height, width, in, out) and the bias (out,).
    """
    model = schema.ModelT.InitFromPackedBuf(data, 0)
    graph = model.subgraphs[0]
    for operator in graph.operators:
        code = model.operatorCodes[operator.opcodeIndex]
        if max(code.builtinCode, code.deprecatedBuiltinCode) == schema.BuiltinOperator.CONV_2D:
            kernel, bias = (_numbers(model, graph.tensors[index]) for index in operator.inputs[1:3])
            yield graph.tensors[operator.outputs[0]].name.decode(), kernel.transpose(1, 2, 3, 0), bias


def _numbers(model: Any, tensor: Any) -> NDArray[np.float32]:
    """Return a constant int8 or int32 tensor of a TensorFlow Lite file as float32 values.

    The quantisation scales of the tensor belong to the first axis.
    """
    raw = np.asarray(model.buffers[tensor.buffer].data, np.uint8).tobytes()
    whole = np.frombuffer(raw, np.int8 if tensor.type == _INT8 else np.int32).reshape(tensor.shape)
    scale = np.asarray(tensor.quantization.scale, np.float32).reshape(-1, *[1] * (whole.ndim - 1))
    return np.asarray(whole.astype(np.float32) * scale, np.float32)
