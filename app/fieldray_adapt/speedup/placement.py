"""Which parameter server holds which part of a network's weights.

As printed (Šlampa 2017, algorithm 3.7) tensors are placed whole, in the order of the list, each on the server that
holds least. A network with one tensor that is larger than a server's fair share then has one server that is the
slowest of every transfer, while the formulas (4.12, 4.21) count on equal shards. `placed_evenly_corrected` cuts
tensors where a server is full, so that the shards are equal. Both place every element exactly once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


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
