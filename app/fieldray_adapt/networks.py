"""The networks of the toolchain, as specifications, and the weights that they start from.

ResNet50 V1 (He et al. 2016, arXiv:1512.03385), VGG-16 (Simonyan and Zisserman 2015, arXiv:1409.1556) with the small
input of the dissertation's MNIST study, and MobileNet v1 (Howard et al. 2017, arXiv:1704.04861). Layers carry the
names Keras gives them in `keras.applications`.

ResNet50 and MobileNet end in the class-map head: a 1x1 convolution to one map per label, the mean of each map is the
label's logit. So a map is the classifier's evidence. Every whole-map mean is an average pool: the Edge TPU maps that
for any number of channels.

Weights to start from: those of a pack.

A pack holds a network written for use: each convolution has its batch normalisation folded in. Training needs the two
apart. The convolution's output over some images gives each channel's mean and variance; gamma and beta then cancel what
they do, so that the network starts with the file's answers and trains like any other. The last layers, which were
trained for other labels, are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from ai_edge_litert import schema_py_generated as schema
from numpy.typing import NDArray

from fieldray.errors import UsageProblem
from fieldray.packs.verified import read_files, read_verified_manifest
from fieldray.reasons import reason
from fieldray_adapt.keras_engine import build_network, set_weights
from fieldray_adapt.specification import INPUT, Activation, Layer, Specification, Weights, initial_weights

LABELS: Final = "labels"
_RESNET_BLOCKS: Final = (3, 4, 6, 3)
_VGG_BLOCKS: Final = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
_MOBILENET_BLOCKS: Final = (
    *((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)),
    *((512, 1),) * 5,
    *((1024, 2), (1024, 1)),
)


def resnet50(
    *,
    height: int,
    width: int,
    labels: int,
    input_channels: int = 1,
    blocks: tuple[int, ...] = _RESNET_BLOCKS,
    last_stride: int = 2,
) -> Specification:
    """ResNet50 V1 with the class-map head; channel sets "conv1", one per stage sum, two inside each block.

    Parameters
    ----------
    blocks
        Per stage. Three stages end at a sixteenth of the side instead of a thirty-second: their class maps have four
        times as many cells. Fewer blocks make a shorter network of the same kind, for quick trials.
    last_stride
        Of the last stage's first block; 1 leaves the class maps as fine as the stage before.
    """
    layers = [
        convolution("conv1", INPUT, "conv1", kernel=7, stride=2),
        Layer(name="pool1", kind="max_pool", inputs=("conv1",), kernel=3, stride=2),
    ]
    channels, last = {"conv1": 64}, "pool1"
    for stage, count in enumerate(blocks, start=2):
        inner = 64 * 2 ** (stage - 2)
        stride = 1 if stage == 2 else last_stride if stage == len(blocks) + 1 else 2
        for block in range(1, count + 1):
            name = f"conv{stage}_block{block}"
            layers += _bottleneck(name, last, f"conv{stage}", stride=stride if block == 1 else 1)
            channels |= {f"{name}_1": inner, f"{name}_2": inner, f"conv{stage}": 4 * inner}
            last = f"{name}_out"
    head, outputs = _class_map_head(last)
    return Specification(
        name="resnet50",
        height=height,
        width=width,
        input_channels=input_channels,
        layers=(*layers, *head),
        channels={**channels, LABELS: labels},
        outputs=outputs,
        epsilon=1.001e-5,
    )


def mobilenet(*, height: int, width: int, labels: int, input_channels: int = 1) -> Specification:
    """MobileNet v1 with the class-map head; a depthwise layer keeps the channel set it reads."""
    layers = [convolution("conv1", INPUT, "conv1", kernel=3, stride=2, activation="relu6")]
    channels, last = {"conv1": 32}, "conv1"
    for number, (count, stride) in enumerate(_MOBILENET_BLOCKS, start=1):
        depthwise, pointwise = f"conv_dw_{number}", f"conv_pw_{number}"
        layers.append(depthwise_convolution(depthwise, last, stride=stride, activation="relu6"))
        layers.append(convolution(pointwise, depthwise, pointwise, activation="relu6"))
        channels[pointwise], last = count, pointwise
    head, outputs = _class_map_head(last)
    return Specification(
        name="mobilenet",
        height=height,
        width=width,
        input_channels=input_channels,
        layers=(*layers, *head),
        channels={**channels, LABELS: labels},
        outputs=outputs,
    )


def vgg16(
    *,
    height: int = 28,
    width: int = 28,
    labels: int = 10,
    input_channels: int = 1,
    dense_units: int = 4096,
    dropout: float = 0.5,
) -> Specification:
    """VGG-16 with its dense head. Pools round up, so 28 x 28 ends as 1 x 1; no batch normalisation, as published."""
    layers, channels, last = list[Layer](), dict[str, int](), INPUT
    for block, (count, convolutions) in enumerate(_VGG_BLOCKS, start=1):
        for number in range(1, convolutions + 1):
            name = f"block{block}_conv{number}"
            layers.append(Layer(name=name, kind="conv", inputs=(last,), channels=name, kernel=3, activation="relu"))
            channels[name], last = count, name
        layers.append(Layer(name=f"block{block}_pool", kind="max_pool", inputs=(last,), kernel=2, stride=2))
        last = f"block{block}_pool"
    layers.append(Layer(name="flatten", kind="flatten", inputs=(last,)))
    last = "flatten"
    for name in ("fc1", "fc2"):
        layers.append(Layer(name=name, kind="dense", inputs=(last,), channels=name, activation="relu"))
        layers.append(Layer(name=f"{name}_dropout", kind="dropout", inputs=(name,), rate=dropout))
        channels[name], last = dense_units, f"{name}_dropout"
    layers.append(Layer(name="logits", kind="dense", inputs=(last,), channels=LABELS))
    layers.append(Layer(name="scores", kind="activation", inputs=("logits",), activation="softmax"))
    return Specification(
        name="vgg16",
        height=height,
        width=width,
        input_channels=input_channels,
        layers=tuple(layers),
        channels={**channels, LABELS: labels},
        outputs={"logits": "logits", "scores": "scores"},
    )


NETWORKS: Final[Mapping[str, Callable[..., Specification]]] = {
    "resnet50": resnet50,
    "mobilenet": mobilenet,
    "vgg16": vgg16,
}


def convolution(
    name: str, source: str, channels: str, *, kernel: int = 1, stride: int = 1, activation: Activation = "relu"
) -> Layer:
    """A convolution with batch normalisation."""
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
    """A 3x3 convolution of each channel by itself, with batch normalisation."""
    return Layer(
        name=name,
        kind="depthwise",
        inputs=(source,),
        kernel=3,
        stride=stride,
        batch_norm=True,
        activation=activation,
    )


def _bottleneck(name: str, source: str, stage: str, *, stride: int) -> list[Layer]:
    """1x1 (with the stride, as in V1), 3x3, 1x1, added to the shortcut; the first block of a stage projects it."""
    projected = name.endswith("_block1")
    layers = [convolution(f"{name}_0", source, stage, stride=stride, activation="none")] if projected else []
    shortcut = f"{name}_0" if projected else source
    return [
        *layers,
        convolution(f"{name}_1", source, f"{name}_1", stride=stride),
        convolution(f"{name}_2", f"{name}_1", f"{name}_2", kernel=3),
        convolution(f"{name}_3", f"{name}_2", stage, activation="none"),
        Layer(name=f"{name}_out", kind="add", inputs=(shortcut, f"{name}_3"), activation="relu"),
    ]


def _class_map_head(source: str) -> tuple[list[Layer], dict[str, str]]:
    layers = [
        Layer(name="class_maps", kind="conv", inputs=(source,), channels=LABELS),
        Layer(name="logits", kind="average_all", inputs=("class_maps",)),
        Layer(name="scores", kind="activation", inputs=("logits",), activation="sigmoid"),
        Layer(name="features", kind="average_all", inputs=(source,)),
    ]
    return layers, {name: name for name in ("logits", "scores", "class_maps", "features")}


Folded = Mapping[str, tuple[NDArray[np.float32], NDArray[np.float32]]]


def unfold_batchnorm(specification: Specification, folded: Folded, images: NDArray[np.uint8]) -> Weights:
    """The weights of the layers that have a normalisation.

    Parameters
    ----------
    specification
        The network to start; its height and width may differ from those of the images.
    folded
        By layer: kernel (height, width, in, out) and bias (out,).
    images
        (n, height, width, channels), a few dozen: they give the statistics.

    Raises
    ------
    UsageProblem
        `weights_unfit` naming the layer whose kernel has another shape.
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


_INT8: Final = 9


def pack_weights(folder: Path, specification: Specification) -> Weights:
    """The weights of the convolutions of a pack's network that a network like it has too.

    Each channel's statistics come from the pack's own golden images.

    Parameters
    ----------
    specification
        The network to start; of another side it may be, without the last stages, and with other labels.

    Raises
    ------
    UsageProblem
        `weights_unfit` where the pack has no golden images or another network.
    PackProblem
    """
    folded, images = _read_pack(folder, specification)
    if images is None:
        raise UsageProblem(reason("weights_unfit", path=folder))
    return unfold_batchnorm(specification, folded, images)


def pack_channels(folder: Path, specification: Specification) -> dict[str, int]:
    """How many channels each hidden channel set of a network has in a pack. Raises as `pack_weights`."""
    folded, _ = _read_pack(folder, specification)
    return {specification.layer(name).channels: len(bias) for name, (_, bias) in folded.items()}


def _read_pack(folder: Path, specification: Specification) -> tuple[Folded, NDArray[np.uint8] | None]:
    """Kernel and bias of each convolution below the head by the name it has here, and the pack's golden images."""
    model = read_files(folder, read_verified_manifest(folder)).model("signed")
    layers = [layer for layer in specification.layers if layer.kind == "conv" and layer.batch_norm]
    operators = list(convolutions(model.files["litert"]))[:-1]  # the last one is the head, for other labels
    pairs = list(zip(layers, operators, strict=False))
    if len(pairs) < len(layers) or any(layer.name not in name for layer, (name, _, _) in pairs):
        raise UsageProblem(reason("weights_unfit", path=folder))
    folded = {layer.name: (kernel, bias) for layer, (_, kernel, bias) in pairs}
    return folded, None if model.golden is None else model.golden.inputs


def convolutions(data: bytes) -> Iterator[tuple[str, NDArray[np.float32], NDArray[np.float32]]]:
    """Name of the output, kernel (height, width, in, out) and bias (out,) of each convolution, in the file's order."""
    model = schema.ModelT.InitFromPackedBuf(data, 0)
    graph = model.subgraphs[0]
    for operator in graph.operators:
        code = model.operatorCodes[operator.opcodeIndex]
        if max(code.builtinCode, code.deprecatedBuiltinCode) == schema.BuiltinOperator.CONV_2D:
            kernel, bias = (_numbers(model, graph.tensors[index]) for index in operator.inputs[1:3])
            yield graph.tensors[operator.outputs[0]].name.decode(), kernel.transpose(1, 2, 3, 0), bias


def _numbers(model: Any, tensor: Any) -> NDArray[np.float32]:
    """A constant of the file as float32; scales run along its first axis."""
    raw = np.asarray(model.buffers[tensor.buffer].data, np.uint8).tobytes()
    whole = np.frombuffer(raw, np.int8 if tensor.type == _INT8 else np.int32).reshape(tensor.shape)
    scale = np.asarray(tensor.quantization.scale, np.float32).reshape(-1, *[1] * (whole.ndim - 1))
    return np.asarray(whole.astype(np.float32) * scale, np.float32)
