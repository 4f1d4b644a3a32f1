"""Where tensors are placed among servers, and the networks whose tensors are known.

Which parameter server holds which part of a network's weights.

As printed (Šlampa 2017, algorithm 3.7) tensors are placed whole, in the order of the list, each on the server that
holds least. A network with one tensor that is larger than a server's fair share then has one server that is the
slowest of every transfer, while the formulas (4.12, 4.21) count on equal shards. `placed_evenly_corrected` cuts
tensors where a server is full, so that the shards are equal. Both place every element exactly once.

The four networks whose training Šlampa (2017) predicts and measures, as tables of layers.

They are here to be counted, not trained: how many parameters a transfer carries, and in which tensors, decides how
evenly algorithm 3.7 places them on servers.

- VGG-16E: configuration E of Simonyan and Zisserman 2015 (arXiv:1409.1556), which is VGG-19.
- GoogLeNet: Szegedy et al. 2015 (arXiv:1409.4842), table 1, without batch normalisation, with or without its two
  auxiliary heads.
- SqueezeNet 1.0: Iandola et al. 2016 (arXiv:1602.07360), table 1.
- ResNet-34: He et al. 2016 (arXiv:1512.03385), table 1, shortcuts by projection where the shape changes (option B).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A run of one tensor's elements, in the order in which they lie in memory.

    Attributes
    ----------
    tensor
        The tensor's place in the list, from 0.
    start, stop
        The first element, and the one after the last.
    """

    tensor: int
    start: int
    stop: int

    def __post_init__(self) -> None:
        if self.tensor < 0 or not 0 <= self.start < self.stop:
            raise ValueError(f"no piece of a tensor: {self}")

    @property
    def size(self) -> int:
        """Number of elements, at least 1."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Placement:
    """The pieces that each server holds. Every element of every tensor is placed once.

    Attributes
    ----------
    sizes
        Elements of each tensor, in the order of the list.
    servers
        Each server's pieces, in the order of the list. A server may hold none: there may be more servers than tensors.
    """

    sizes: tuple[int, ...]
    servers: tuple[tuple[Piece, ...], ...]

    def __post_init__(self) -> None:
        _check_sizes(self.sizes, servers=len(self.servers))
        pieces = sorted((piece for held in self.servers for piece in held), key=lambda one: (one.tensor, one.start))
        reached = [0] * len(self.sizes)
        for piece in pieces:
            if piece.tensor >= len(self.sizes) or piece.start != reached[piece.tensor]:
                raise ValueError(f"placed twice, or a gap before it: {piece}")
            reached[piece.tensor] = piece.stop
        if reached != list(self.sizes):
            raise ValueError("some elements are placed on no server, or there are more than the tensors have")

    @property
    def loads(self) -> tuple[int, ...]:
        """Elements that each server holds."""
        return tuple(sum(piece.size for piece in held) for held in self.servers)

    @property
    def shares(self) -> tuple[float, ...]:
        """The part of all elements that each server holds, 0 to 1; they sum to 1."""
        whole = sum(self.sizes)
        return tuple(load / whole for load in self.loads)


def placed_whole(sizes: Sequence[int], *, servers: int) -> Placement:
    """Place whole tensors: algorithm 3.7 of Šlampa (2017) as printed.

    In the order of the list, each tensor goes to the server that holds least, the first of them where several do.

    Parameters
    ----------
    sizes
        Elements of each tensor, each at least 1.
    servers
        How many there are, at least 1.

    Raises
    ------
    ValueError
        If there are no tensors, a size is below 1, or there is no server.
    """
    _check_sizes(sizes, servers=servers)
    held: list[list[Piece]] = [[] for _ in range(servers)]
    loads = [0] * servers
    for tensor, size in enumerate(sizes):
        least = loads.index(min(loads))
        held[least].append(Piece(tensor=tensor, start=0, stop=size))
        loads[least] += size
    return Placement(tuple(sizes), tuple(map(tuple, held)))


def placed_evenly_corrected(sizes: Sequence[int], *, servers: int) -> Placement:
    """Place equal shards, cutting tensors where a server is full: algorithm 3.7 corrected.

    All elements, in the order of the list, are cut into runs whose lengths differ by 1 at most.

    Parameters and errors are those of `placed_whole`.
    """
    _check_sizes(sizes, servers=servers)
    whole = sum(sizes)
    held: list[list[Piece]] = [[] for _ in range(servers)]
    server = begin = 0
    for tensor, size in enumerate(sizes):
        start = 0
        while start < size:
            full = whole * (server + 1) // servers
            if full == begin + start:  # also a server that gets nothing, where there are more servers than elements
                server += 1
                continue
            stop = min(size, full - begin)
            held[server].append(Piece(tensor=tensor, start=start, stop=stop))
            start = stop
        begin += size
    return Placement(tuple(sizes), tuple(map(tuple, held)))


def _check_sizes(sizes: Sequence[int], *, servers: int) -> None:
    if servers < 1 or not sizes or min(sizes) < 1:
        raise ValueError(f"need tensors of one element or more and one server or more: {len(sizes)}, {servers}")


INPUT: Final = "image"
_SIDE: Final = 224
_CHANNELS: Final = 3
_CLASSES: Final = 1000
_VGG_GROUPS: Final = ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4))
_VGG_DENSE: Final = 4096
# Outputs of an inception module: 1x1; 1x1 before 3x3, 3x3; 1x1 before 5x5, 5x5; 1x1 after the pool.
_INCEPTIONS: Final = {
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
_POOL_AFTER: Final = ("3b", "4e")
_AUXILIARY_AFTER: Final = ("4a", "4d")
_SQUEEZES: Final = (16, 16, 32, 32, 48, 48, 64, 64)
_POOL_AFTER_FIRE: Final = (3, 7)
_RESNET_STAGES: Final = ((64, 3), (128, 4), (256, 6), (512, 3))

Kind = Literal["conv", "dense", "max_pool", "average_pool", "join", "add"]
Shape = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One step of a network.

    Attributes
    ----------
    outputs
        Channels of a conv or dense layer, 0 for others.
    kernel, stride
        Of a window, in pixels.
    is_padded
        Whether a window also lies over the border, so that the side is divided by the stride and rounded up.
    is_normalised
        Whether batch normalisation, with a scale and an offset per channel, takes the place of the bias.
    """

    name: str
    kind: Kind
    inputs: tuple[str, ...]
    outputs: int = 0
    kernel: int = 1
    stride: int = 1
    is_padded: bool = True
    is_normalised: bool = False


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor that is trained, and so transferred."""

    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class ReferenceNetwork:
    """Layers, each after its inputs."""

    name: str
    layers: tuple[Layer, ...]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All that is trained, in the order in which the layers are made: kernels, biases, scales and offsets."""
        sizes, found = shapes(self.layers), list[Tensor]()
        for layer in self.layers:
            if layer.kind not in ("conv", "dense"):
                continue
            height, width, channels = sizes[layer.inputs[0]]
            window = (layer.kernel, layer.kernel, channels) if layer.kind == "conv" else (height * width * channels,)
            found.append(Tensor(f"{layer.name}/kernel", (*window, layer.outputs)))
            parts = ("scale", "offset") if layer.is_normalised else ("bias",)
            found += [Tensor(f"{layer.name}/{part}", (layer.outputs,)) for part in parts]
        return tuple(found)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Elements of each tensor, for `placement`."""
        return tuple(tensor.size for tensor in self.tensors)

    @property
    def parameters(self) -> int:
        """How many are trained."""
        return sum(self.sizes)


def shapes(layers: Sequence[Layer]) -> dict[str, Shape]:
    """The shape of each layer's output (height, width, channels), by its name, and of the input."""
    found: dict[str, Shape] = {INPUT: (_SIDE, _SIDE, _CHANNELS)}
    for layer in layers:
        height, width, channels = found[layer.inputs[0]]
        if layer.kind == "dense":
            found[layer.name] = (1, 1, layer.outputs)
        elif layer.kind == "join":
            found[layer.name] = (height, width, sum(found[name][2] for name in layer.inputs))
        elif layer.kind == "add":
            found[layer.name] = (height, width, channels)
        else:
            found[layer.name] = (_side(height, layer), _side(width, layer), layer.outputs or channels)
    return found


def _side(side: int, layer: Layer) -> int:
    return math.ceil(side / layer.stride) if layer.is_padded else (side - layer.kernel) // layer.stride + 1


class _Builder:
    """Layers one after another, each on the one before unless it says on which."""

    def __init__(self) -> None:
        self.layers: list[Layer] = []
        self.last = INPUT

    def add(self, kind: Kind, name: str, *inputs: str, **more: Any) -> str:
        self.layers.append(Layer(name=name, kind=kind, inputs=inputs or (self.last,), **more))
        self.last = name
        return name


def vgg16e(*, classes: int = _CLASSES) -> ReferenceNetwork:
    """VGG-16E: 143,667,240 parameters with 1000 classes."""
    build = _Builder()
    for group, (channels, count) in enumerate(_VGG_GROUPS, 1):
        for number in range(1, count + 1):
            build.add("conv", f"conv{group}_{number}", outputs=channels, kernel=3)
        build.add("max_pool", f"pool{group}", kernel=2, stride=2)
    for name, outputs in (("fc6", _VGG_DENSE), ("fc7", _VGG_DENSE), ("fc8", classes)):
        build.add("dense", name, outputs=outputs)
    return ReferenceNetwork("VGG-16E", tuple(build.layers))


def googlenet(*, classes: int = _CLASSES, has_auxiliary_heads: bool = False) -> ReferenceNetwork:
    """GoogLeNet: 6,998,552 parameters with 1000 classes, 13,378,280 with the auxiliary heads."""
    build = _Builder()
    build.add("conv", "conv1", outputs=64, kernel=7, stride=2)
    build.add("max_pool", "pool1", kernel=3, stride=2)
    build.add("conv", "conv2_reduce", outputs=64)
    build.add("conv", "conv2", outputs=192, kernel=3)
    build.add("max_pool", "pool2", kernel=3, stride=2)
    for name, outputs in _INCEPTIONS.items():
        joined = _inception(build, f"inception{name}", outputs)
        if has_auxiliary_heads and name in _AUXILIARY_AFTER:
            build.add("average_pool", f"auxiliary{name}_pool", kernel=5, stride=3, is_padded=False)
            build.add("conv", f"auxiliary{name}_conv", outputs=128)
            build.add("dense", f"auxiliary{name}_fc", outputs=1024)
            build.add("dense", f"auxiliary{name}_classes", outputs=classes)
            build.last = joined
        if name in _POOL_AFTER:
            build.add("max_pool", f"pool{name[0]}", kernel=3, stride=2)
    build.add("average_pool", "pool5", kernel=7, is_padded=False)
    build.add("dense", "classes", outputs=classes)
    return ReferenceNetwork("GoogLeNet", tuple(build.layers))


def _inception(build: _Builder, name: str, outputs: Sequence[int]) -> str:
    below = build.last
    branches = [build.add("conv", f"{name}_1x1", below, outputs=outputs[0])]
    for side, before, after in ((3, outputs[1], outputs[2]), (5, outputs[3], outputs[4])):
        reduced = build.add("conv", f"{name}_{side}x{side}_reduce", below, outputs=before)
        branches.append(build.add("conv", f"{name}_{side}x{side}", reduced, outputs=after, kernel=side))
    pooled = build.add("max_pool", f"{name}_pool", below, kernel=3)
    branches.append(build.add("conv", f"{name}_pool_1x1", pooled, outputs=outputs[5]))
    return build.add("join", name, *branches)


def squeezenet(*, classes: int = _CLASSES) -> ReferenceNetwork:
    """SqueezeNet 1.0: 1,248,424 parameters with 1000 classes."""
    build = _Builder()
    build.add("conv", "conv1", outputs=96, kernel=7, stride=2)
    build.add("max_pool", "pool1", kernel=3, stride=2)
    for number, squeeze in enumerate(_SQUEEZES, 1):
        squeezed = build.add("conv", f"fire{number}_squeeze", outputs=squeeze)
        wide = [
            build.add("conv", f"fire{number}_expand{side}x{side}", squeezed, outputs=4 * squeeze, kernel=side)
            for side in (1, 3)
        ]
        build.add("join", f"fire{number}", *wide)
        if number in _POOL_AFTER_FIRE:
            build.add("max_pool", f"pool_fire{number}", kernel=3, stride=2)
    build.add("conv", "classes", outputs=classes)
    build.add("average_pool", "pool_all", kernel=shapes(build.layers)["classes"][0], is_padded=False)
    return ReferenceNetwork("SqueezeNet", tuple(build.layers))


def resnet34(*, classes: int = _CLASSES) -> ReferenceNetwork:
    """ResNet-34: 21,797,672 parameters with 1000 classes."""
    build = _Builder()
    build.add("conv", "conv1", outputs=64, kernel=7, stride=2, is_normalised=True)
    build.add("max_pool", "pool1", kernel=3, stride=2)
    channels_before = 64
    for stage, (channels, count) in enumerate(_RESNET_STAGES, 2):
        for number in range(1, count + 1):
            name, below = f"conv{stage}_{number}", build.last
            stride = 2 if channels != channels_before else 1
            build.add("conv", f"{name}_1", outputs=channels, kernel=3, stride=stride, is_normalised=True)
            main = build.add("conv", f"{name}_2", outputs=channels, kernel=3, is_normalised=True)
            if stride > 1:
                below = build.add(
                    "conv", f"{name}_shortcut", below, outputs=channels, stride=stride, is_normalised=True
                )
            build.add("add", name, main, below)
            channels_before = channels
    build.add("average_pool", "pool_all", kernel=7, is_padded=False)
    build.add("dense", "classes", outputs=classes)
    return ReferenceNetwork("ResNet-34", tuple(build.layers))


REFERENCE_NETWORKS: Final[Mapping[str, Callable[[], ReferenceNetwork]]] = {
    "vgg-16e": vgg16e,
    "googlenet": googlenet,
    "googlenet-auxiliary": lambda: googlenet(has_auxiliary_heads=True),
    "squeezenet": squeezenet,
    "resnet-34": resnet34,
}
"""By the name that the command line gives them."""
