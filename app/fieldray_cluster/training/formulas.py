"""Predict how much faster training is on several machines, by formulas 4.1 to 4.23 of Šlampa (thesis, BUT Brno, 2017).

All times are in seconds. `gradient_s` (t_grad in the thesis) is the time of one machine for the gradient of one batch.
`transfer_s` (t_comm) is the time to transfer all weights, or all gradients, over a free link. `workers` is N,
`batch_count` is D. Links are full duplex. The thesis neglects start, end and updates of the weights; `update_s` adds
the updates.

Names follow the thesis. The thesis has no `slowest_factor`, by which one worker is slower than the others. The other
workers are then served first. The thesis has no formula for the best number of workers. So the speed-up is computed for
each number from 1.

The module also places the weights on parameter servers. The thesis (algorithm 3.7) places whole tensors in order, each
on the server with the smallest load. A very large tensor makes one server the slowest in every transfer, although
formulas 4.12 and 4.21 assume equal shards. `place_equal_shards` cuts tensors, so that the shards are equal. Both
methods place every element exactly once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, get_args

from fieldray.reasons import Reason, reason

ClusterTrainingMode = Literal["async", "sync-join", "sync-split"]
"""How several workers train together.

"async": each gradient of a worker is an update. "sync-join": an update needs the gradient of a batch from each worker.
"sync-split": an update needs one batch, of which each worker computes a part.
"""
ParameterServerKind = Literal["central", "distributed"]
"""The kind of parameter server: one central server, or a server on each machine with a part of the weights."""
CLUSTER_TRAINING_MODES: Final[tuple[ClusterTrainingMode, ...]] = get_args(ClusterTrainingMode)
PARAMETER_SERVER_KINDS: Final[tuple[ParameterServerKind, ...]] = get_args(ParameterServerKind)

# The smallest number of workers with this share of the best speed-up is reported, because machines cost money.
_SUFFICIENT_SHARE: Final = 0.9
# Smaller differences of speed-ups are rounding errors.
_NO_GAIN: Final = 1e-9


@dataclass(frozen=True, slots=True)
class TimeRange:
    """The duration of a training in seconds, in the best and in the worst case (formulas 4.10 and 4.19).

    With fewer batches than workers, the formulas for asynchronous training give a best case that is longer than the
    worst case.
    """

    best_s: float
    worst_s: float

    @property
    def mean_s(self) -> float:
        """The mean of the best and the worst duration, in seconds (formulas 4.11 and 4.20).

        The speed-up is computed from this mean. The mean of the best and the worst speed-up would be wrong.
        """
        return (self.best_s + self.worst_s) / 2

    def scaled(self, factor: float) -> TimeRange:
        """Return the duration of `factor` equal iterations, of which each has this duration (formula 4.2)."""
        return TimeRange(factor * self.best_s, factor * self.worst_s)

    def add(self, best_s: float, worst_s: float) -> TimeRange:
        """Return this duration plus `best_s` seconds in the best case, and plus `worst_s` seconds in the worst case."""
        return TimeRange(self.best_s + best_s, self.worst_s + worst_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingMeasurements:
    """Times measured on one machine and one network link, and the number of batches of a training.

    Attributes
    ----------
    gradient_s
        Seconds that one machine takes for the gradient of one batch.
    transfer_s
        Seconds to transfer all weights in one direction over a link without other traffic.
    batch_count
        Number of batches to train on (D in the thesis), 1 or more.
    update_s
        Seconds that one machine takes to update all weights by a gradient. 0 to neglect updates, as the thesis does.
    slowest_worker_factor
        Time of the slowest worker divided by the time of the other workers, 1 or more.
    rounds_up_batches
        Whether the number of batches of one worker is rounded up to a whole number.
    tensor_sizes
        Number of elements of each tensor of the network, if distributed servers have whole tensors (algorithm 3.7).
        Empty if the servers have equal shards.

    Raises
    ------
    ValueError
        If `gradient_s` or `transfer_s` is not above 0, `update_s` is below 0, `slowest_worker_factor` or `batch_count`
        is below 1, or a number is not finite.
    """

    gradient_s: float
    transfer_s: float
    batch_count: int
    update_s: float = 0.0
    slowest_worker_factor: float = 1.0
    rounds_up_batches: bool = False
    tensor_sizes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        times = (self.gradient_s, self.transfer_s)
        if not all(math.isfinite(time_s) and time_s > 0 for time_s in times):
            raise ValueError(f"times must be above 0 and finite: {times}")
        if not 0 <= self.update_s < math.inf:
            raise ValueError(f"the time of an update must be 0 or above and finite: {self.update_s}")
        if not 1 <= self.slowest_worker_factor < math.inf or self.batch_count < 1:
            raise ValueError(
                f"a factor of 1 or more, one batch or more: {self.slowest_worker_factor}, {self.batch_count}"
            )

    @property
    def one_machine_training_s(self) -> float:
        """The seconds that one machine takes for all batches: for the gradients and for the updates of the weights."""
        return self.batch_count * (self.gradient_s + self.update_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class AsynchronousTiming:
    """The durations of asynchronous training, in which each worker gets weights and sends gradients without waiting.

    In the formulas, N is the number of workers, D the number of batches, tc the time to transfer all weights, and tg
    the time of a gradient.

    With D = N, the training is one synchronous iteration: every worker gets the weights, computes one gradient, and
    sends the gradient. So formulas 4.4 to 4.12 are formulas 4.13 to 4.21 with D = N.

    Raises ValueError if `worker_count` is below 1.
    """

    measured: TrainingMeasurements
    worker_count: int

    def __post_init__(self) -> None:
        if self.worker_count < 1:
            raise ValueError(f"one worker or more: {self.worker_count}")

    @property
    def batches_per_worker(self) -> float:
        """The number of batches that one worker computes, D/N.

        The number may be a fraction, as in the thesis. With `Measurements.rounds_up_batches`, the number is rounded up.
        """
        rounds = self.measured.batch_count / self.worker_count
        return float(math.ceil(rounds)) if self.measured.rounds_up_batches else rounds

    @property
    def slowest_gradient_s(self) -> float:
        """The seconds that the slowest worker takes for the gradient of a batch.

        This is an addition to the thesis, in which all workers are equally fast. A single worker is not slowed down.
        """
        return self.measured.gradient_s * (self.measured.slowest_worker_factor if self.worker_count > 1 else 1.0)

    @property
    def best_with_free_server_s(self) -> float:
        """The shortest duration in seconds if no worker ever waits for a busy server (formulas 4.4, 4.13).

        The duration is (N-1)tc + (D/N)(2tc + tg). The worker that is served last waits once for all other workers, and
        then never again.
        """
        transfer_s = self.measured.transfer_s
        return (self.worker_count - 1) * transfer_s + self.batches_per_worker * (
            2 * transfer_s + self.slowest_gradient_s
        )

    @property
    def best_with_busy_server_s(self) -> float:
        """The shortest duration in seconds if the server never waits for a worker (formulas 4.5, 4.14).

        The duration is (D+1)tc + tg: the server receives all gradients without a pause.
        """
        return (self.measured.batch_count + 1) * self.measured.transfer_s + self.measured.gradient_s

    @property
    def worst_s(self) -> float:
        """The duration in seconds in the worst case, (D/N)(2N tc + tg) (formulas 4.7 to 4.9, 4.16 to 4.18).

        In the worst case, all workers use the server's link at the same time in every transfer.
        """
        return self.batches_per_worker * (2 * self.worker_count * self.measured.transfer_s + self.slowest_gradient_s)

    @property
    def central_server_range(self) -> TimeRange:
        """The duration with one central parameter server, in the best and in the worst case (formulas 4.10 and 4.19).

        The best case is the larger of `best_with_busy_server_s` and `best_with_free_server_s` (formulas 4.6, 4.15).
        """
        return TimeRange(max(self.best_with_busy_server_s, self.best_with_free_server_s), self.worst_s)

    def distributed_servers_s(self, shares: Sequence[float] = ()) -> float:
        """Return the duration in seconds with a parameter server on every machine (formulas 4.12, 4.21).

        With equal shards, the duration is (D/N)(2tc(N-1)/N + tg): each machine sends 1/N of the weights to each of the
        other N-1 machines.

        The formula for unequal shards is an addition to the thesis. The machine with the busiest link decides: each
        machine sends its shard to all other machines, and gets their shards. This formula is only an estimate. With one
        very large shard, the real duration can be half as long (decision 44 in docs/decisions), because transfers in
        both directions overlap.

        Parameters
        ----------
        shares
            The share of each machine of all weights, 0..1, with the sum 1. Empty for equal shards.

        Raises ValueError if the number of shares is not the number of workers.
        """
        if shares and len(shares) != self.worker_count:
            raise ValueError(f"{len(shares)} shares for {self.worker_count} machines")
        held = shares or (1 / self.worker_count,)
        transferred = max(max((self.worker_count - 1) * share, 1 - share) for share in held)
        return self.batches_per_worker * (2 * self.measured.transfer_s * transferred + self.slowest_gradient_s)

    def time_range(self, server: ParameterServerKind) -> TimeRange:
        """Return the duration with parameter servers of the kind `server`, in the best and in the worst case.

        With distributed servers, both cases are equal, because the thesis has only one formula.
        """
        if server == "central":
            return self.central_server_range
        tensors = self.measured.tensor_sizes
        time_s = self.distributed_servers_s(server_shares(tensors, servers=self.worker_count) if tensors else ())
        return TimeRange(time_s, time_s)

    def update_s(self, server: ParameterServerKind) -> float:
        """Return the seconds that parameter servers of the kind `server` take to update all weights once.

        The thesis neglects this time. Distributed servers update their shards at the same time, so the largest shard
        decides.
        """
        if server == "central":
            return self.measured.update_s
        shares = (
            server_shares(self.measured.tensor_sizes, servers=self.worker_count) if self.measured.tensor_sizes else ()
        )
        return self.measured.update_s * max(shares or (1 / self.worker_count,))


def training_time_range(
    measured: TrainingMeasurements,
    *,
    mode: ClusterTrainingMode,
    server: ParameterServerKind,
    workers: int,
    as_printed_in_thesis: bool = False,
) -> TimeRange:
    """Return the duration of a training in the best and in the worst case (formulas 4.2 to 4.21).

    The time of updates is included if `measured.update_s` is above 0. A synchronous iteration ends with one update. In
    asynchronous training, each gradient is an update. In the best case, a worker waits only for its own update; in the
    worst case, for the updates of all workers. With distributed servers, the best case includes all updates, too,
    because a server shares its machine with a worker.

    Parameters
    ----------
    measured
        The times of one machine and one link.
    mode, server
        How the workers train together, and the kind of parameter server.
    workers
        Number of workers, 1 or more.
    as_printed_in_thesis
        For the mode sync-split. True: the gradient of a part takes as long as that of a whole batch, as printed in the
        thesis. False: this time is divided by the number of workers.

    Raises ValueError if `workers` is below 1.
    """
    whole = AsynchronousTiming(measured=measured, worker_count=workers)
    update_s = whole.update_s(server)
    if mode == "async":
        span, rounds_s = whole.time_range(server), whole.batches_per_worker * update_s
        if server == "distributed":
            return span.add(workers * rounds_s, workers * rounds_s)
        server_s = 2 * measured.transfer_s + measured.gradient_s + measured.batch_count * update_s
        span = span.add(rounds_s, workers * rounds_s)
        return replace(span, best_s=max(span.best_s, server_s))
    iteration, iterations = replace(measured, batch_count=workers), whole.batches_per_worker
    if mode == "sync-split":
        iterations = float(measured.batch_count)
        if not as_printed_in_thesis:
            # Corrected: a part of a batch takes a part of the time. Very small parts take longer than that.
            iteration = replace(iteration, gradient_s=measured.gradient_s / workers)
    span = AsynchronousTiming(measured=iteration, worker_count=workers).time_range(server)
    return span.add(update_s, update_s).scaled(iterations)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingEstimate:
    """The estimated duration and speed-up of a training with `worker_count` workers.

    A speed-up is the duration on one machine divided by the duration with several workers.

    Attributes
    ----------
    time_range
        The duration in the best and in the worst case.
    speed_up
        The speed-up for the mean of the best and the worst duration (formulas 4.22 and 4.23).
    lowest_speed_up, highest_speed_up
        The speed-up for the longer duration, and the speed-up for the shorter duration.
    thesis_speed_up
        The speed-up by the formulas as printed in the thesis, without the corrections and additions of this module.
    """

    mode: ClusterTrainingMode
    server: ParameterServerKind
    worker_count: int
    time_range: TimeRange
    speed_up: float
    lowest_speed_up: float
    highest_speed_up: float
    thesis_speed_up: float


def estimate_training(
    measured: TrainingMeasurements, *, mode: ClusterTrainingMode, server: ParameterServerKind, workers: int
) -> TrainingEstimate:
    """Estimate how long a training takes with several workers, and how many times faster it is than on one machine.

    Parameters
    ----------
    measured
        The times of one machine and one link, and the number of batches.
    mode, server
        How the workers train together, and the kind of parameter server.
    workers
        Number of workers, 1 or more.

    Raises ValueError if `workers` is below 1.
    """
    span = training_time_range(measured, mode=mode, server=server, workers=workers)
    plain = replace(measured, rounds_up_batches=False, tensor_sizes=(), update_s=0.0)
    printed = training_time_range(plain, mode=mode, server=server, workers=workers, as_printed_in_thesis=True)
    return TrainingEstimate(
        mode=mode,
        server=server,
        worker_count=workers,
        time_range=span,
        speed_up=measured.one_machine_training_s / span.mean_s,
        lowest_speed_up=measured.one_machine_training_s / max(span.worst_s, span.best_s),
        highest_speed_up=measured.one_machine_training_s / min(span.worst_s, span.best_s),
        thesis_speed_up=plain.one_machine_training_s / printed.mean_s,
    )


def estimate_each_worker_count(
    measured: TrainingMeasurements, *, mode: ClusterTrainingMode, server: ParameterServerKind, max_workers: int
) -> Iterator[TrainingEstimate]:
    """Yield the estimate of a training with 1 worker, then with 2 workers, and so on up to `max_workers`.

    The other parameters are those of `estimate_training`.
    """
    for workers in range(1, max_workers + 1):
        yield estimate_training(measured, mode=mode, server=server, workers=workers)


def best_choice_sentences(
    measured: TrainingMeasurements,
    *,
    mode: ClusterTrainingMode,
    max_workers: int,
    servers: Sequence[ParameterServerKind] = PARAMETER_SERVER_KINDS,
) -> Iterator[Reason]:
    """Yield sentences about the best number of workers and kind of server for one mode.

    The sentences name the fastest choice with at most `max_workers` workers, the smallest number of workers with 90 %
    of the fastest choice's speed-up, and the speed-up of two workers.
    """
    known = [
        one
        for server in servers
        for one in estimate_each_worker_count(measured, mode=mode, server=server, max_workers=max_workers)
    ]
    best = _fastest(known)
    if best.speed_up > 1 + _NO_GAIN:
        yield _sentence("estimate_best", best)
        enough = [one for one in known if one.speed_up >= _SUFFICIENT_SHARE * best.speed_up]
        least = min(one.worker_count for one in enough)
        if least < best.worker_count:
            yield _sentence("estimate_fewest", _fastest([one for one in enough if one.worker_count == least]))
    else:
        yield reason("estimate_one_machine", mode=mode, workers=max_workers)
    if pairs := [one for one in known if one.worker_count == 2]:
        second = _fastest(pairs)
        yield _sentence("estimate_second" if second.speed_up > 1 + _NO_GAIN else "estimate_second_not", second)


def _fastest(estimates: Sequence[TrainingEstimate]) -> TrainingEstimate:
    """Return the estimate with the largest speed-up. If several are equal, the fewest workers win."""
    return min(estimates, key=lambda one: (-round(one.speed_up, 9), one.worker_count))


def _sentence(code: str, one: TrainingEstimate) -> Reason:
    return reason(
        code,
        mode=one.mode,
        workers=one.worker_count,
        server=one.server,
        speed_up=f"{one.speed_up:.2f}",
    )


# ---- placement of weights on servers


ElementRanges = tuple[tuple[int, int], ...]
"""The elements of a server's shard, as ranges in the vector of all weights: (first index, index after the last)."""


def place_whole_tensors(sizes: Sequence[int], *, servers: int) -> tuple[ElementRanges, ...]:
    """Place whole tensors on servers (algorithm 3.7 of Šlampa 2017). Returns the element ranges of each server.

    Each tensor, in order, is placed on the server with the fewest elements. Of equal servers, the first is chosen.

    Parameters
    ----------
    sizes
        Number of elements of each tensor, at least 1.
    servers
        Number of servers, at least 1.

    Raises
    ------
    ValueError
        If there are no tensors or no servers, or a size is below 1.
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


def place_equal_shards(sizes: Sequence[int], *, servers: int) -> tuple[ElementRanges, ...]:
    """Place equal shards of the weights on servers. Returns the element ranges of each server.

    Tensors are cut where a shard ends. The lengths of the shards differ by at most 1. If there are more servers than
    elements, some servers get no element. Parameters and errors as `place_whole_tensors`.
    """
    _require_sizes(sizes, servers=servers)
    cuts = [sum(sizes) * server // servers for server in range(servers + 1)]
    return tuple(((start, stop),) if start < stop else () for start, stop in itertools.pairwise(cuts))


def server_loads(placement: Sequence[ElementRanges]) -> list[int]:
    """Return the number of weight elements on each server for a placement (the element ranges of each server)."""
    return [sum(stop - start for start, stop in runs) for runs in placement]


def server_shares(sizes: Sequence[int], *, servers: int) -> tuple[float, ...]:
    """Return the share of all weight elements on each server, 0..1, if whole tensors are placed.

    Parameters and errors as `place_whole_tensors`.
    """
    return tuple(load / sum(sizes) for load in server_loads(place_whole_tensors(sizes, servers=servers)))


def _require_sizes(sizes: Sequence[int], *, servers: int) -> None:
    if servers < 1 or not sizes or min(sizes) < 1:
        raise ValueError(f"need tensors of one element or more and one server or more: {len(sizes)}, {servers}")


# ---- tensor sizes of known networks, in the order of their layers

# Networks whose training Šlampa predicts and measures. The sizes of their tensors decide how evenly algorithm 3.7
# places them on servers. The auxiliary heads of GoogLeNet are counted here, because this program cannot train them.

_CHANNELS: Final = 3
_CLASSES: Final = 1000
_SIDE: Final = 224
_AUXILIARY_AFTER: Final = {"inception_4a_projection/bias": 512, "inception_4d_projection/bias": 528}
_AUXILIARY_SIDE: Final = 4  # side in pixels of an auxiliary head's feature maps before its dense layers


def trained_tensor_sizes(kind: str, *, classes: int = _CLASSES, has_auxiliary_heads: bool = False) -> tuple[int, ...]:
    """Return the number of elements of each trained tensor of a network of the kind `kind`.

    Statistics of batch normalisation are left out. The totals for 1000 classes are: SqueezeNet 1.0 1,248,424, ResNet-34
    21,797,672, VGG-19 (Šlampa's VGG-16E) 143,667,240, GoogLeNet 6,998,552, and GoogLeNet with `has_auxiliary_heads`
    13,378,280.
    """
    # Imported here, because the formulas need no toolchain.
    from fieldray_adapt.networks.architectures import NETWORKS
    from fieldray_adapt.networks.specification import weight_shapes
    from fieldray_adapt.training.engine_interface import BATCH_NORM_STATISTIC_SUFFIXES

    sizes = list[int]()
    made = NETWORKS[kind](height=_SIDE, width=_SIDE, labels=classes, input_channels=_CHANNELS)
    for name, shape in weight_shapes(made).items():
        if not name.endswith(BATCH_NORM_STATISTIC_SUFFIXES):
            sizes.append(math.prod(shape))
        if has_auxiliary_heads and name in _AUXILIARY_AFTER:
            inputs = _AUXILIARY_AFTER[name]
            sizes += [*_conv(inputs, 128), *_conv(128, 1024, kernel=_AUXILIARY_SIDE), *_conv(1024, classes)]
    return tuple(sizes)


def _conv(inputs: int, outputs: int, *, kernel: int = 1) -> list[int]:
    """Return the numbers of elements of a convolution's kernel and bias.

    A dense layer counts as a convolution over the whole image.
    """
    return [kernel * kernel * inputs * outputs, outputs]


REFERENCE_NETWORK_TENSOR_SIZES: Final[Mapping[str, Callable[[], tuple[int, ...]]]] = {
    "vgg-16e": lambda: trained_tensor_sizes("vgg19"),
    "googlenet": lambda: trained_tensor_sizes("googlenet"),
    "googlenet-auxiliary": lambda: trained_tensor_sizes("googlenet", has_auxiliary_heads=True),
    "squeezenet": lambda: trained_tensor_sizes("squeezenet"),
    "resnet-34": lambda: trained_tensor_sizes("resnet34"),
}
"""Functions that return the number of elements of each tensor of a network, by name of the network."""
