"""The speed-up by several machines, by formulas 4.1 to 4.23 of Šlampa (BUT Brno, 2017), and the best choice by them.

All times are in seconds. `gradient_s` (t_grad in the source) is the time of one machine for the gradient of one batch.
`transfer_s` (t_comm) is the time to transfer all weights, or all gradients, over a free link. `workers` is N, `batches`
is D. Links are full duplex. The source neglects start and end, and the update of the weights: `update_s` adds it.

Names follow the source. Values that are corrected or added here have `corrected` in their name. The factor `slowest`,
by which one worker is slower than the others, is added here. The other workers are then served first. The source has no
closed form for the best number of workers: the speed-up is evaluated for each number, one machine included.

The module also places the weights on parameter servers. As printed (algorithm 3.7), whole tensors are placed in order,
each on the server with the smallest load. A tensor that is larger than a server's fair share then makes one server the
slowest of every transfer, while formulas 4.12 and 4.21 assume equal shards. `place_evenly_corrected` cuts tensors, so
that the shards are equal. Both place every element exactly once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, get_args

from fieldray.reasons import Reason, reason

Mode = Literal["async", "sync-join", "sync-split"]
"""The way of training.

"async": an update for each gradient. "sync-join": an update for one batch of each worker. "sync-split": an update for
one batch, of which each worker has a part.
"""
ServerKind = Literal["central", "distributed"]
"""The kind of parameter server: one central server, or a server on each machine with a part of the weights."""
MODES: Final[tuple[Mode, ...]] = get_args(Mode)
SERVERS: Final[tuple[ServerKind, ...]] = get_args(ServerKind)

# Share of the best speed-up for which the smallest number of workers is reported: machines cost money.
_MOST: Final = 0.9
# Smaller differences of speed-ups are rounding errors.
_NO_GAIN: Final = 1e-9


@dataclass(frozen=True, slots=True)
class TimeRange:
    """The duration of a training in seconds, in the best and in the worst case (formulas 4.10 and 4.19).

    With fewer batches than workers, the thesis's best case of asynchronous training is longer than its worst case.
    """

    best_s: float
    worst_s: float

    @property
    def mean_s(self) -> float:
        """The mean of the best and the worst duration, in seconds (formulas 4.11 and 4.20).

        A speed-up is calculated from this mean. The mean of the two speed-ups would be a different, wrong number.
        """
        return (self.best_s + self.worst_s) / 2

    def scaled(self, factor: float) -> TimeRange:
        """Return the duration of a number of equal iterations, if this is the duration of one (formula 4.2).

        `factor` is the number of iterations.
        """
        return TimeRange(factor * self.best_s, factor * self.worst_s)

    def plus(self, best_s: float, worst_s: float) -> TimeRange:
        """Return a longer duration: `best_s` seconds more in the best case, `worst_s` more in the worst case."""
        return TimeRange(self.best_s + best_s, self.worst_s + worst_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """Times measured on one machine and one link, and the amount of training.

    Attributes
    ----------
    gradient_s
        Seconds that one machine takes for the gradient of one batch.
    transfer_s
        Seconds to transfer all weights one way over a link that nobody else uses.
    batches
        Number of batches to train on (D in the thesis), 1 or more.
    update_s
        Seconds that one machine takes to update all weights by a gradient. 0 leaves the update out, as the thesis does.
    slowest
        Time of the slowest worker divided by the time of the others, 1 or more. 1 if all are equally fast.
    rounds_up_batches
        Whether the number of batches of one worker is rounded up to a whole number.
    tensors
        Number of elements of each tensor of the network, if distributed servers hold whole tensors (algorithm 3.7).
        Empty if the servers hold equal shards.

    Raises
    ------
    ValueError
        If `gradient_s` or `transfer_s` is not above 0, `update_s` is below 0, `slowest` or `batches` is below 1, or a
        number is not finite.
    """

    gradient_s: float
    transfer_s: float
    batches: int
    update_s: float = 0.0
    slowest: float = 1.0
    rounds_up_batches: bool = False
    tensors: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        times = (self.gradient_s, self.transfer_s)
        if not all(math.isfinite(time_s) and time_s > 0 for time_s in times):
            raise ValueError(f"times must be above 0 and finite: {times}")
        if not 0 <= self.update_s < math.inf:
            raise ValueError(f"the time of an update must be 0 or above and finite: {self.update_s}")
        if not 1 <= self.slowest < math.inf or self.batches < 1:
            raise ValueError(f"a factor of 1 or more, one batch or more: {self.slowest}, {self.batches}")

    @property
    def serial_s(self) -> float:
        """The seconds that one machine takes for the gradients of all batches and for the updates of the weights by
        them.
        """
        return self.batches * (self.gradient_s + self.update_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class AsynchronousTiming:
    """The durations of asynchronous training: workers get weights and send gradients without waiting for others.

    In the formulas, N is the number of workers and D the number of batches. tc is the time to transfer all weights, tg
    the time of a gradient.

    With as many batches as workers, the training is one synchronous iteration: every worker gets the weights, computes
    one gradient, and sends it. So formulas 4.4 to 4.12 are formulas 4.13 to 4.21 with D = N.

    Raises ValueError if `workers` is below 1.
    """

    measured: Measurements
    workers: int

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ValueError(f"one worker or more: {self.workers}")

    @property
    def rounds(self) -> float:
        """The number of batches that one worker computes, D/N.

        It is a real number, as printed in the thesis, unless `Measurements.rounds_up_batches` rounds it up. The thesis
        does not say what happens if N does not divide D.
        """
        rounds = self.measured.batches / self.workers
        return float(math.ceil(rounds)) if self.measured.rounds_up_batches else rounds

    @property
    def slowest_gradient_s(self) -> float:
        """The seconds that the slowest worker takes for the gradient of a batch.

        This is a correction: the thesis has equally fast workers only. A single worker is not slowed down.
        """
        return self.measured.gradient_s * (self.measured.slowest if self.workers > 1 else 1.0)

    @property
    def best_worker_s(self) -> float:
        """The shortest time in seconds that the workers take, if the server is never the one to wait for (formulas 4.4,
        4.13).

        The worker that is served last waits once for all others. From then on it has the link for itself: (N-1)tc +
        (D/N)(2tc + tg).
        """
        transfer_s = self.measured.transfer_s
        return (self.workers - 1) * transfer_s + self.rounds * (2 * transfer_s + self.slowest_gradient_s)

    @property
    def best_server_s(self) -> float:
        """The shortest time in seconds that the server takes, if it never waits for a worker (formulas 4.5, 4.14).

        It receives all gradients one after another: (D+1)tc + tg.
        """
        return (self.measured.batches + 1) * self.measured.transfer_s + self.measured.gradient_s

    @property
    def worst_s(self) -> float:
        """The duration in seconds in the worst case (formulas 4.7 to 4.9, 4.16 to 4.18).

        All workers use the server's link at the same time, at every transfer: (D/N)(2N tc + tg).
        """
        return self.rounds * (2 * self.workers * self.measured.transfer_s + self.slowest_gradient_s)

    @property
    def central_range(self) -> TimeRange:
        """The duration with one central parameter server, in the best and in the worst case (formulas 4.10 and 4.19).

        In the best case it is the longer of the server's time and the workers' time (formulas 4.6, 4.15).
        """
        return TimeRange(max(self.best_server_s, self.best_worker_s), self.worst_s)

    def distributed_s(self, shares: Sequence[float] = ()) -> float:
        """Return the duration in seconds with a parameter server on every machine (formulas 4.12, 4.21).

        With equal shards it is (D/N)(2tc(N-1)/N + tg). Each machine sends 1/N of the weights to each of the other N-1
        machines, and keeps its own part.

        The machine with the busiest link decides if shards are unequal, which is a correction. It sends its own shard
        to all others, and gets the shards of all others. This is an estimate. A machine that has its weights early
        sends its gradient while others still receive weights. So with one very large shard, the training takes as
        little as half this time (decision 44).

        Parameters
        ----------
        shares
            Each machine's share of all weights, 0 to 1, with the sum 1. Empty for equal shards.

        Raises ValueError if the number of shares is not the number of workers.
        """
        if shares and len(shares) != self.workers:
            raise ValueError(f"{len(shares)} shares for {self.workers} machines")
        held = shares or (1 / self.workers,)
        transferred = max(max((self.workers - 1) * share, 1 - share) for share in held)
        return self.rounds * (2 * self.measured.transfer_s * transferred + self.slowest_gradient_s)

    def span(self, server: ServerKind) -> TimeRange:
        """Return the duration of the training with this kind of server, in the best and in the worst case.

        With distributed servers both are equal, because the thesis has only one formula for them.
        """
        if server == "central":
            return self.central_range
        tensors = self.measured.tensors
        time_s = self.distributed_s(server_shares(tensors, servers=self.workers) if tensors else ())
        return TimeRange(time_s, time_s)

    def update_s(self, server: ServerKind) -> float:
        """Return the seconds in which servers of this kind update all weights once. The thesis leaves this time out.

        Distributed servers update their shards at the same time, so the largest shard decides.
        """
        if server == "central":
            return self.measured.update_s
        shares = server_shares(self.measured.tensors, servers=self.workers) if self.measured.tensors else ()
        return self.measured.update_s * max(shares or (1 / self.workers,))


def training_time_range(
    measured: Measurements, *, mode: Mode, server: ServerKind, workers: int, is_printed: bool = False
) -> TimeRange:
    """Return the duration of a training in the best and in the worst case (formulas 4.2 to 4.21).

    The updates of the weights are included if `measured.update_s` is above 0. A synchronous iteration ends with one
    update. Asynchronous servers make one update for each gradient: a worker waits for its own update in the best case,
    and for those of all workers in the worst case. Distributed servers update while their machine computes gradients.
    So their best case waits for all updates, too.

    Parameters
    ----------
    measured
        The times of one machine and one link.
    mode, server
        The way of training, and the kind of parameter server.
    workers
        Number of workers, 1 or more.
    is_printed
        True counts the gradient time of a whole batch in the mode sync-split, as printed in the thesis. False divides
        this time by the number of workers.

    Raises ValueError if `workers` is below 1.
    """
    whole = AsynchronousTiming(measured=measured, workers=workers)
    update_s = whole.update_s(server)
    if mode == "async":
        span, rounds_s = whole.span(server), whole.rounds * update_s
        if server == "distributed":
            return span.plus(workers * rounds_s, workers * rounds_s)
        server_s = 2 * measured.transfer_s + measured.gradient_s + measured.batches * update_s
        span = span.plus(rounds_s, workers * rounds_s)
        return replace(span, best_s=max(span.best_s, server_s))
    iteration, iterations = replace(measured, batches=workers), whole.rounds
    if mode == "sync-split":
        iterations = float(measured.batches)
        if not is_printed:  # corrected: gradient time is linear in the batch size, which small parts do not reach
            iteration = replace(iteration, gradient_s=measured.gradient_s / workers)
    span = AsynchronousTiming(measured=iteration, workers=workers).span(server)
    return span.plus(update_s, update_s).scaled(iterations)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The estimated duration and speed-up of a training with a number of workers.

    A speed-up says how many times faster the training is than on one machine.

    Attributes
    ----------
    span
        The duration in the best and in the worst case.
    speed_up
        The speed-up by the mean of the best and the worst duration (formulas 4.22 and 4.23).
    lowest_speed_up, highest_speed_up
        The speed-ups by the longer and by the shorter of the two durations.
    printed_speed_up
        The speed-up by the formulas as printed in the thesis. They count the gradient time of a whole batch in the mode
        sync-split. They do not round the batches of a worker, have equal shards, and leave the time of updates out.
    """

    mode: Mode
    server: ServerKind
    workers: int
    span: TimeRange
    speed_up: float
    lowest_speed_up: float
    highest_speed_up: float
    printed_speed_up: float


def estimate_training(measured: Measurements, *, mode: Mode, server: ServerKind, workers: int) -> Estimate:
    """Estimate how long a training takes with several workers, and how many times faster it is than on one machine.

    Parameters
    ----------
    measured
        The times of one machine and one link, and the number of batches.
    mode, server
        The way of training, and the kind of parameter server.
    workers
        Number of workers, 1 or more.

    Raises ValueError if `workers` is below 1.
    """
    span = training_time_range(measured, mode=mode, server=server, workers=workers)
    plain = replace(measured, rounds_up_batches=False, tensors=(), update_s=0.0)
    printed = training_time_range(plain, mode=mode, server=server, workers=workers, is_printed=True)
    return Estimate(
        mode=mode,
        server=server,
        workers=workers,
        span=span,
        speed_up=measured.serial_s / span.mean_s,
        lowest_speed_up=measured.serial_s / max(span.worst_s, span.best_s),
        highest_speed_up=measured.serial_s / min(span.worst_s, span.best_s),
        printed_speed_up=plain.serial_s / printed.mean_s,
    )


def estimate_each(measured: Measurements, *, mode: Mode, server: ServerKind, max_workers: int) -> Iterator[Estimate]:
    """Yield the estimate of a training with 1 worker, then with 2 workers, and so on up to `max_workers`.

    The other parameters are those of `estimate_training`.
    """
    for workers in range(1, max_workers + 1):
        yield estimate_training(measured, mode=mode, server=server, workers=workers)


def advice(
    measured: Measurements, *, mode: Mode, max_workers: int, servers: Sequence[ServerKind] = SERVERS
) -> Iterator[Reason]:
    """Yield sentences on the best choice for one mode, among all servers and 1 to `max_workers` workers.

    The sentences name the fastest choice, the fewest workers with nine tenths of its speed-up, and the speed-up of two
    workers.
    """
    known = [
        one for server in servers for one in estimate_each(measured, mode=mode, server=server, max_workers=max_workers)
    ]
    best = _fastest(known)
    if best.speed_up > 1 + _NO_GAIN:
        yield _sentence("estimate_best", best)
        enough = [one for one in known if one.speed_up >= _MOST * best.speed_up]
        least = min(one.workers for one in enough)
        if least < best.workers:
            yield _sentence("estimate_fewest", _fastest([one for one in enough if one.workers == least]))
    else:
        yield reason("estimate_one_machine", mode=mode, workers=max_workers)
    if pairs := [one for one in known if one.workers == 2]:
        second = _fastest(pairs)
        yield _sentence("estimate_second" if second.speed_up > 1 + _NO_GAIN else "estimate_second_not", second)


def _fastest(estimates: Sequence[Estimate]) -> Estimate:
    """Return the estimate with the largest speed-up. Of equal ones it is the one with the fewest workers."""
    return min(estimates, key=lambda one: (-round(one.speed_up, 9), one.workers))


def _sentence(code: str, one: Estimate) -> Reason:
    return reason(
        code,
        mode=one.mode,
        workers=one.workers,
        server="a central server" if one.server == "central" else "distributed servers",
        speed_up=f"{one.speed_up:.2f}",
    )


# ---- placement of weights on servers


ElementRanges = tuple[tuple[int, int], ...]
"""Ranges of elements that a server holds, in the vector of all tensors: first element, and the one after the last."""


def place_whole_tensors(sizes: Sequence[int], *, servers: int) -> tuple[ElementRanges, ...]:
    """Place whole tensors on servers (algorithm 3.7 of Šlampa 2017 as printed). Returns the element ranges of each
    server.

    Each tensor goes, in order, to the server with the fewest elements; of equal servers to the first one.

    Parameters
    ----------
    sizes
        Number of elements of each tensor, at least 1.
    servers
        Number of servers, at least 1.

    Raises
    ------
    ValueError
        Without tensors or servers, or for a size below 1.
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


def place_evenly_corrected(sizes: Sequence[int], *, servers: int) -> tuple[ElementRanges, ...]:
    """Place equal shards of the weights on servers (algorithm 3.7 corrected). Returns the element ranges of each
    server.

    Tensors are cut where a shard ends. The lengths of the shards differ by 1 at most. With more servers than elements,
    some servers get no element. Parameters and errors are those of `place_whole_tensors`.
    """
    _require_sizes(sizes, servers=servers)
    cuts = [sum(sizes) * server // servers for server in range(servers + 1)]
    return tuple(((start, stop),) if start < stop else () for start, stop in itertools.pairwise(cuts))


def server_loads(placement: Sequence[ElementRanges]) -> list[int]:
    """Return the number of weight elements that a placement puts on each server."""
    return [sum(stop - start for start, stop in runs) for runs in placement]


def server_shares(sizes: Sequence[int], *, servers: int) -> tuple[float, ...]:
    """Return each server's share of all weight elements, 0 to 1, if whole tensors are placed.

    Parameters and errors are those of `place_whole_tensors`.
    """
    return tuple(load / sum(sizes) for load in server_loads(place_whole_tensors(sizes, servers=servers)))


def _require_sizes(sizes: Sequence[int], *, servers: int) -> None:
    if servers < 1 or not sizes or min(sizes) < 1:
        raise ValueError(f"need tensors of one element or more and one server or more: {len(sizes)}, {servers}")


# ---- tensor sizes of known networks, in the order of their layers

# Networks whose training Šlampa predicts and measures. The sizes of their tensors decide how evenly algorithm 3.7
# places them on servers. Most are taken from `networks.architectures`. VGG-16E (VGG-19) and the auxiliary heads of
# GoogLeNet are counted here, because this program cannot train them.

_CHANNELS: Final = 3
_CLASSES: Final = 1000
_SIDE: Final = 224
_VGG_GROUPS: Final = ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4))
_VGG_DENSE: Final = 4096
_AUXILIARY_AFTER: Final = {"inception_4a_projection/bias": 512, "inception_4d_projection/bias": 528}
_AUXILIARY_SIDE: Final = 4  # of the image before its dense layers


def vgg16e_sizes() -> tuple[int, ...]:
    """Return the number of elements of each tensor of VGG-16E (VGG-19). With 1000 classes it has 143,667,240
    parameters.
    """
    sizes, inputs = list[int](), _CHANNELS
    for channels, count in _VGG_GROUPS:
        for _ in range(count):
            sizes += _conv(inputs, channels, kernel=3)
            inputs = channels
    dense = (*_conv(inputs, _VGG_DENSE, kernel=7), *_conv(_VGG_DENSE, _VGG_DENSE), *_conv(_VGG_DENSE, _CLASSES))
    return (*sizes, *dense)


def trained_network_sizes(kind: str, *, classes: int = _CLASSES, has_auxiliary_heads: bool = False) -> tuple[int, ...]:
    """Return the number of elements of each trained tensor of a network. Statistics of batch normalisation are left
    out.

    With 1000 classes SqueezeNet 1.0 has 1,248,424 parameters, ResNet-34 21,797,672, and GoogLeNet 6,998,552. GoogLeNet
    has 13,378,280 with `has_auxiliary_heads`.
    """
    # Imported here, because the formulas need no toolchain.
    from fieldray_adapt.networks.architectures import NETWORKS
    from fieldray_adapt.networks.specification import weight_shapes
    from fieldray_adapt.training.engine_interface import STATISTIC_SUFFIXES

    sizes = list[int]()
    made = NETWORKS[kind](height=_SIDE, width=_SIDE, labels=classes, input_channels=_CHANNELS)
    for name, shape in weight_shapes(made).items():
        if not name.endswith(STATISTIC_SUFFIXES):
            sizes.append(math.prod(shape))
        if has_auxiliary_heads and name in _AUXILIARY_AFTER:
            inputs = _AUXILIARY_AFTER[name]
            sizes += [*_conv(inputs, 128), *_conv(128, 1024, kernel=_AUXILIARY_SIDE), *_conv(1024, classes)]
    return tuple(sizes)


def _conv(inputs: int, outputs: int, *, kernel: int = 1) -> list[int]:
    """Return the sizes of a kernel and a bias. A dense layer is a convolution over the whole image."""
    return [kernel * kernel * inputs * outputs, outputs]


REFERENCE_NETWORKS: Final[Mapping[str, Callable[[], tuple[int, ...]]]] = {
    "vgg-16e": vgg16e_sizes,
    "googlenet": lambda: trained_network_sizes("googlenet"),
    "googlenet-auxiliary": lambda: trained_network_sizes("googlenet", has_auxiliary_heads=True),
    "squeezenet": lambda: trained_network_sizes("squeezenet"),
    "resnet-34": lambda: trained_network_sizes("resnet34"),
}
"""For each network name of the command line: a function that returns the number of elements of each tensor."""
