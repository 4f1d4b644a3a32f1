"""Training on several machines played through, transfer by transfer: a cross-check of the formulas.

Each machine has a link with two directions that do not disturb each other. Links are either *exclusive* (a transfer
waits until both ends are free, the one that asked first goes first) or *shared* (all transfers run at once, each at the
rate that its fuller end leaves it). The source's best cases are those of exclusive links, its worst ones those of
shared links. A worker's batches are whole here: where the number of workers does not divide the batches, some workers
have one more than others.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, Literal

from fieldray_cluster.training.formulas import Measured, Mode, Server, split_corrected_s
from fieldray_cluster.training.placement import shares_of

Links = Literal["exclusive", "shared"]

# What is left of a transfer that is done, relative to it.
_ROUNDING: Final = 1e-11
# More transfers than that take minutes to play through.
MOST_TRANSFERS: Final = 100_000

Then = Callable[[], None]


@dataclass(eq=False, slots=True)
class _Transfer:
    """From one machine to another; `left_s` is what is left of it, as time on a free link."""

    source: int
    target: int
    size_s: float
    then: Then
    left_s: float = 0.0
    is_running: bool = False

    def __post_init__(self) -> None:
        self.left_s = self.size_s


@dataclass(eq=False, slots=True)
class _Network:
    """Transfers and computations, and the time that they take."""

    links: Links
    now_s: float = 0.0
    _transfers: list[_Transfer] = field(default_factory=list)
    _computing: list[tuple[float, int, Then]] = field(default_factory=list)
    _count: int = 0

    def compute(self, duration_s: float, then: Then) -> None:
        """Call `then` after this time."""
        self._count += 1
        heapq.heappush(self._computing, (self.now_s + duration_s, self._count, then))

    def send(self, source: int, target: int, size_s: float, then: Then) -> None:
        """Call `then` when the transfer is done; it begins when its link is free."""
        self._transfers.append(_Transfer(source, target, size_s, then))

    def play(self) -> float:
        """Until nothing is left to do; the time at the end."""
        while self._transfers or self._computing:
            rates = self._rates()
            ends = [self.now_s + one.left_s / rate for one, rate in zip(self._transfers, rates, strict=True) if rate]
            following_s = min([*ends, *(due_s for due_s, _, _ in self._computing[:1])])
            for one, rate in zip(self._transfers, rates, strict=True):
                one.left_s -= rate * (following_s - self.now_s)
            self.now_s = following_s
            for then in self._ended():
                then()
        return self.now_s

    def _ended(self) -> list[Then]:
        done = [one for one in self._transfers if one.left_s <= _ROUNDING * one.size_s]
        self._transfers = [one for one in self._transfers if one.left_s > _ROUNDING * one.size_s]
        ended = [one.then for one in done]
        while self._computing and self._computing[0][0] <= self.now_s * (1 + _ROUNDING):
            ended.append(heapq.heappop(self._computing)[2])
        return ended

    def _rates(self) -> list[float]:
        """The share of a free link's rate that each transfer gets now, 0 to 1."""
        if self.links == "shared":
            out = Counter(one.source for one in self._transfers)
            into = Counter(one.target for one in self._transfers)
            return [1 / max(out[one.source], into[one.target]) for one in self._transfers]
        busy_out = {one.source for one in self._transfers if one.is_running}
        busy_into = {one.target for one in self._transfers if one.is_running}
        for one in self._transfers:
            if not one.is_running and one.source not in busy_out and one.target not in busy_into:
                one.is_running = True
                busy_out.add(one.source)
                busy_into.add(one.target)
        return [1.0 if one.is_running else 0.0 for one in self._transfers]


@dataclass(frozen=True, eq=False, slots=True)
class _Cluster:
    """Who holds which share of the weights, as seen by a worker: the machines 0 to N-1, a central server is N."""

    shares: tuple[float, ...]
    is_central: bool

    @property
    def workers(self) -> int:
        return len(self.shares)

    def servers_of(self, worker: int) -> Iterable[tuple[int, float]]:
        """The other machines that hold something, and how much; beginning after itself, so that not all ask one."""
        if self.is_central:
            return [(self.workers, 1.0)]
        order = ((worker + step) % self.workers for step in range(1, self.workers))
        return [(server, self.shares[server]) for server in order if self.shares[server]]


def transfers_of(measured: Measured, *, mode: Mode, server: Server, workers: int) -> int:
    """How many transfers a simulation plays through; compare with `MOST_TRANSFERS`."""
    rounds = measured.batches if mode == "async" else workers
    return 2 * rounds * (1 if server == "central" else max(workers - 1, 0))


def simulated_s(measured: Measured, *, mode: Mode, server: Server, workers: int, links: Links = "exclusive") -> float:
    """The time of training in seconds, without preparing and finishing.

    Every synchronous iteration is as the first one, which alone is played through. A worker that is slower than the
    others is the last one to be served.

    Raises ValueError without a worker.
    """
    if workers < 1:
        raise ValueError("one worker or more")
    cluster = _cluster(measured, server, workers)
    gradient_s = measured.gradient_s
    if mode == "sync-split":
        gradient_s = split_corrected_s(gradient_s, workers=workers)
    gradients_s = [gradient_s] * workers
    if workers > 1:
        gradients_s[-1] *= measured.slowest
    if mode == "async":
        least, more = divmod(measured.batches, workers)
        rounds = [least + (worker < more) for worker in range(workers)]
        return _played(cluster, gradients_s, rounds, measured.transfer_s, links)
    iterations = float(measured.batches)
    if mode == "sync-join":
        iterations = float(math.ceil(measured.batches / workers))
    return iterations * _played(cluster, gradients_s, [1] * workers, measured.transfer_s, links)


def _cluster(measured: Measured, server: Server, workers: int) -> _Cluster:
    if server == "distributed" and measured.tensors:
        return _Cluster(shares_of(measured.tensors, servers=workers), is_central=False)
    return _Cluster((1 / workers,) * workers, is_central=server == "central")


def _played(cluster: _Cluster, gradients_s: list[float], rounds: list[int], transfer_s: float, links: Links) -> float:
    """The time until every worker has done its rounds: get the weights, compute, give the gradient."""
    network = _Network(links)

    def begin(worker: int, left: int) -> None:
        if left:
            pulls = [(server, worker, share) for server, share in cluster.servers_of(worker)]
            _all(network, pulls, transfer_s, lambda: network.compute(gradients_s[worker], lambda: push(worker, left)))

    def push(worker: int, left: int) -> None:
        pushes = [(worker, server, share) for server, share in cluster.servers_of(worker)]
        _all(network, pushes, transfer_s, lambda: begin(worker, left - 1))

    for worker, count in enumerate(rounds):
        begin(worker, count)
    return network.play()


def _all(network: _Network, wanted: list[tuple[int, int, float]], transfer_s: float, then: Then) -> None:
    """Call `then` when all transfers (source, target, share of the weights) are done, at once if there are none."""
    if not wanted:
        then()
        return
    left = deque(wanted)

    def one_done() -> None:
        left.pop()
        if not left:
            then()

    for source, target, share in wanted:
        network.send(source, target, share * transfer_s, one_done)
