"""Which parameter server holds which part of a network's weights, and networks whose tensors are known.

As printed (Šlampa 2017, algorithm 3.7) tensors are placed whole, in the order of the list, each on the server that
holds least. A network with one tensor that is larger than a server's fair share then has one server that is the
slowest of every transfer, while the formulas (4.12, 4.21) count on equal shards. `placed_evenly_corrected` cuts
tensors where a server is full, so that the shards are equal. Both place every element exactly once.

The networks are the four whose training Šlampa predicts and measures: how many parameters a transfer carries, and in
which tensors, decides how evenly algorithm 3.7 places them on servers. Those that can be trained are counted as they
are (`fieldray_adapt.networks`); VGG-16E, which is VGG-19, and GoogLeNet's auxiliary heads are counted alone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

Runs = tuple[tuple[int, int], ...]
"""The first element and the one after the last of each part that a server holds, in the vector of all tensors."""

_CHANNELS: Final = 3
_CLASSES: Final = 1000
_SIDE: Final = 224
_VGG_GROUPS: Final = ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4))
_VGG_DENSE: Final = 4096
_AUXILIARY_AFTER: Final = {"inception_4a_projection/bias": 512, "inception_4d_projection/bias": 528}
_AUXILIARY_SIDE: Final = 4  # of the image before its dense layers


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
    sizes = list[int]()
    for name, size in _learnt("googlenet", classes):
        sizes.append(size)
        if has_auxiliary_heads and name in _AUXILIARY_AFTER:
            inputs = _AUXILIARY_AFTER[name]
            sizes += [*_conv(inputs, 128), *_conv(128, 1024, kernel=_AUXILIARY_SIDE), *_conv(1024, classes)]
    return tuple(sizes)


def squeezenet(*, classes: int = _CLASSES) -> tuple[int, ...]:
    """SqueezeNet 1.0: 1,248,424 parameters with 1000 classes."""
    return tuple(size for _, size in _learnt("squeezenet", classes))


def resnet34(*, classes: int = _CLASSES) -> tuple[int, ...]:
    """ResNet-34: 21,797,672 parameters with 1000 classes."""
    return tuple(size for _, size in _learnt("resnet34", classes))


def _learnt(kind: str, classes: int) -> Iterator[tuple[str, int]]:
    """Name and elements of each tensor of a network that is trained, without what batch normalisation notes."""
    from fieldray_adapt.engine import STATISTICS  # only now: the formulas alone need none of this
    from fieldray_adapt.networks import NETWORKS
    from fieldray_adapt.specification import weight_shapes

    made = NETWORKS[kind](height=_SIDE, width=_SIDE, labels=classes, input_channels=_CHANNELS)
    return ((key, math.prod(shape)) for key, shape in weight_shapes(made).items() if not key.endswith(STATISTICS))


def _conv(inputs: int, outputs: int, *, kernel: int = 1) -> list[int]:
    """A kernel and a bias; a dense layer is a convolution whose window is the whole image."""
    return [kernel * kernel * inputs * outputs, outputs]


REFERENCE_NETWORKS: Final[Mapping[str, Callable[[], tuple[int, ...]]]] = {
    "vgg-16e": vgg16e,
    "googlenet": googlenet,
    "googlenet-auxiliary": lambda: googlenet(has_auxiliary_heads=True),
    "squeezenet": squeezenet,
    "resnet-34": resnet34,
}
"""By the name that the command line gives them."""
