"""The networks of the toolchain, as specifications.

ResNet50 V1 (He et al. 2016, arXiv:1512.03385), VGG-16 (Simonyan and Zisserman 2015, arXiv:1409.1556) with the small
input of the dissertation's MNIST study, and MobileNet v1 (Howard et al. 2017, arXiv:1704.04861). Layers carry the
names Keras gives them in `keras.applications`, so published weights can be copied in.

ResNet50 and MobileNet end in the class-map head: a 1x1 convolution to one map per label, the mean of each map is the
label's logit. So a map is the classifier's evidence. Every whole-map mean is an average pool: the Edge TPU maps that
for any number of channels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from fieldray_adapt.specification import INPUT, Activation, Layer, Specification

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
    activation: Activation = "sigmoid",
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
    head, outputs = _class_map_head(last, activation)
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


def mobilenet(
    *, height: int, width: int, labels: int, input_channels: int = 1, activation: Activation = "sigmoid"
) -> Specification:
    """MobileNet v1 with the class-map head; a depthwise layer keeps the channel set it reads."""
    layers = [convolution("conv1", INPUT, "conv1", kernel=3, stride=2, activation="relu6")]
    channels, last = {"conv1": 32}, "conv1"
    for number, (count, stride) in enumerate(_MOBILENET_BLOCKS, start=1):
        depthwise, pointwise = f"conv_dw_{number}", f"conv_pw_{number}"
        layers.append(depthwise_convolution(depthwise, last, stride=stride, activation="relu6"))
        layers.append(convolution(pointwise, depthwise, pointwise, activation="relu6"))
        channels[pointwise], last = count, pointwise
    head, outputs = _class_map_head(last, activation)
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
    activation: Activation = "softmax",
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
    layers.append(Layer(name="scores", kind="activation", inputs=("logits",), activation=activation))
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


def _class_map_head(source: str, activation: Activation) -> tuple[list[Layer], dict[str, str]]:
    layers = [
        Layer(name="class_maps", kind="conv", inputs=(source,), channels=LABELS),
        Layer(name="logits", kind="average_all", inputs=("class_maps",)),
        Layer(name="scores", kind="activation", inputs=("logits",), activation=activation),
        Layer(name="features", kind="average_all", inputs=(source,)),
    ]
    return layers, {name: name for name in ("logits", "scores", "class_maps", "features")}
