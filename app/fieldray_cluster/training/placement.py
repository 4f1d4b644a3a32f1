"""Which parameter server holds which part of a network's weights, and networks whose tensors are known.

As printed (Šlampa 2017, algorithm 3.7) tensors are placed whole, in the order of the list, each on the server that
holds least. A network with one tensor that is larger than a server's fair share then has one server that is the
slowest of every transfer, while the formulas (4.12, 4.21) count on equal shards. `placed_evenly_corrected` cuts
tensors where a server is full, so that the shards are equal. Both place every element exactly once.

The networks are the four whose training Šlampa predicts and measures. They are here to be counted, not trained: how
many parameters a transfer carries, and in which tensors, decides how evenly algorithm 3.7 places them on servers.

- VGG-16E: configuration E of Simonyan and Zisserman 2015 (arXiv:1409.1556), which is VGG-19.
- GoogLeNet: Szegedy et al. 2015 (arXiv:1409.4842), table 1, without batch normalisation, with or without its two
  auxiliary heads.
- SqueezeNet 1.0: Iandola et al. 2016 (arXiv:1602.07360), table 1.
- ResNet-34: He et al. 2016 (arXiv:1512.03385), table 1, shortcuts by projection where the shape changes (option B).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Final

Runs = tuple[tuple[int, int], ...]
"""The first element and the one after the last of each part that a server holds, in the vector of all tensors."""

_CHANNELS: Final = 3
_CLASSES: Final = 1000
_VGG_GROUPS: Final = ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4))
_VGG_DENSE: Final = 4096
# Outputs of an inception module: 1x1; 1x1 before 3x3, 3x3; 1x1 before 5x5, 5x5; 1x1 after the pool.
INCEPTIONS: Final[Mapping[str, tuple[int, int, int, int, int, int]]] = {
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
_AUXILIARY_AFTER: Final = ("4a", "4d")
_AUXILIARY_SIDE: Final = 4  # of the image before its dense layers
_SQUEEZES: Final = (16, 16, 32, 32, 48, 48, 64, 64)
_RESNET_STAGES: Final = ((64, 3), (128, 4), (256, 6), (512, 3))


def placed_whole(sizes: Sequence[int], *, servers: int) -> tuple[Runs, ...]:
    """Place whole tensors: algorithm 3.7 of Šlampa (2017) as printed; the runs of each server.

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
    _require_sizes(sizes, servers=servers)
    held: list[list[tuple[int, int]]] = [[] for _ in range(servers)]
    loads, start = [0] * servers, 0
    for size in sizes:
        least = loads.index(min(loads))
        held[least].append((start, start + size))
        loads[least] += size
        start += size
    return tuple(map(tuple, held))


def placed_evenly_corrected(sizes: Sequence[int], *, servers: int) -> tuple[Runs, ...]:
    """Place equal shards, cutting tensors where a server is full: algorithm 3.7 corrected.

    All elements, in the order of the list, are cut into runs whose lengths differ by 1 at most. Where there are more
    servers than elements some hold nothing. Parameters and errors are those of `placed_whole`.
    """
    _require_sizes(sizes, servers=servers)
    cuts = [sum(sizes) * server // servers for server in range(servers + 1)]
    return tuple(((start, stop),) if start < stop else () for start, stop in itertools.pairwise(cuts))


def loads_of(placement: Sequence[Runs]) -> list[int]:
    """How many elements each server holds."""
    return [sum(stop - start for start, stop in runs) for runs in placement]


def shares_of(sizes: Sequence[int], *, servers: int) -> tuple[float, ...]:
    """The part of all elements that each server holds where tensors are placed whole, 0 to 1; they sum to 1."""
    return tuple(load / sum(sizes) for load in loads_of(placed_whole(sizes, servers=servers)))


def _require_sizes(sizes: Sequence[int], *, servers: int) -> None:
    if servers < 1 or not sizes or min(sizes) < 1:
        raise ValueError(f"need tensors of one element or more and one server or more: {len(sizes)}, {servers}")


# ---- known networks: the elements of each tensor, in the order in which the layers are made


def vgg16e(*, classes: int = _CLASSES) -> tuple[int, ...]:
    """VGG-16E: 143,667,240 parameters with 1000 classes."""
    sizes, inputs = list[int](), _CHANNELS
    for channels, count in _VGG_GROUPS:
        for _ in range(count):
            sizes += _conv(inputs, channels, kernel=3)
            inputs = channels
    return (*sizes, *_conv(inputs, _VGG_DENSE, kernel=7), *_conv(_VGG_DENSE, _VGG_DENSE), *_conv(_VGG_DENSE, classes))


def googlenet(*, classes: int = _CLASSES, has_auxiliary_heads: bool = False) -> tuple[int, ...]:
    """GoogLeNet: 6,998,552 parameters with 1000 classes, 13,378,280 with the auxiliary heads."""
    sizes, inputs = [*_conv(_CHANNELS, 64, kernel=7), *_conv(64, 64), *_conv(64, 192, kernel=3)], 192
    for name, outputs in INCEPTIONS.items():
        sizes += inception(inputs, outputs)
        inputs = outputs[0] + outputs[2] + outputs[4] + outputs[5]
        if has_auxiliary_heads and name in _AUXILIARY_AFTER:
            sizes += [*_conv(inputs, 128), *_conv(128, 1024, kernel=_AUXILIARY_SIDE), *_conv(1024, classes)]
    return (*sizes, *_conv(inputs, classes))


def inception(inputs: int, outputs: tuple[int, int, int, int, int, int]) -> list[int]:
    """The tensors of one inception module: four branches side by side."""
    single, before_three, three, before_five, five, pooled = outputs
    return [
        *_conv(inputs, single),
        *_conv(inputs, before_three),
        *_conv(before_three, three, kernel=3),
        *_conv(inputs, before_five),
        *_conv(before_five, five, kernel=5),
        *_conv(inputs, pooled),
    ]


def squeezenet(*, classes: int = _CLASSES) -> tuple[int, ...]:
    """SqueezeNet 1.0: 1,248,424 parameters with 1000 classes."""
    sizes, inputs = _conv(_CHANNELS, 96, kernel=7), 96
    for squeeze in _SQUEEZES:
        sizes += [*_conv(inputs, squeeze), *_conv(squeeze, 4 * squeeze), *_conv(squeeze, 4 * squeeze, kernel=3)]
        inputs = 8 * squeeze
    return (*sizes, *_conv(inputs, classes))


def resnet34(*, classes: int = _CLASSES) -> tuple[int, ...]:
    """ResNet-34: 21,797,672 parameters with 1000 classes."""
    sizes, inputs = _normalised(_CHANNELS, 64, kernel=7), 64
    for channels, count in _RESNET_STAGES:
        for _ in range(count):
            sizes += [*_normalised(inputs, channels, kernel=3), *_normalised(channels, channels, kernel=3)]
            if inputs != channels:  # the shortcut changes the shape
                sizes += _normalised(inputs, channels)
            inputs = channels
    return (*sizes, *_conv(inputs, classes))


def _conv(inputs: int, outputs: int, *, kernel: int = 1) -> list[int]:
    """A kernel and a bias; a dense layer is a convolution whose window is the whole image."""
    return [kernel * kernel * inputs * outputs, outputs]


def _normalised(inputs: int, outputs: int, *, kernel: int = 1) -> list[int]:
    """A kernel, and the scale and offset of a batch normalisation in place of a bias."""
    return [*_conv(inputs, outputs, kernel=kernel), outputs]


REFERENCE_NETWORKS: Final[Mapping[str, Callable[[], tuple[int, ...]]]] = {
    "vgg-16e": vgg16e,
    "googlenet": googlenet,
    "googlenet-auxiliary": lambda: googlenet(has_auxiliary_heads=True),
    "squeezenet": squeezenet,
    "resnet-34": resnet34,
}
"""By the name that the command line gives them."""
