"""What several machines bring by the formulas, and the estimates made of them.

How long training takes on several machines: the formulas 4.1 to 4.23 of Šlampa (BUT Brno, 2017).

All times are in seconds. `gradient_s` is how long one machine computes the gradient of one batch (the source's t_grad),
`transfer_s` how long all weights, or all gradients, take once over a link that nobody else uses (t_comm). `workers` is
N, `batches` is D. Links are full duplex; updating weights, setting up and finishing are left out by the source.

Names follow the source; what is corrected or added here has `corrected` in its name and says so. Where a worker is
slower than the others by the factor `slowest`, which the source leaves out, the others are assumed to be served first.

What several machines would bring: times and speed-ups by mode, server and number of workers.

`formulas` has each formula by itself; here they are put together for a question that somebody asks. Nothing but the
standard library is needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, get_args

from fieldray_cluster.speedup.placement import placed_whole


def computing_s(*, train_s: float, prepare_s: float = 0.0, finish_s: float = 0.0) -> float:
    """4.1: the whole time, from preparing to finishing."""
    return prepare_s + train_s + finish_s


def synchronous_training_s(*, iterations: float, iteration_s: float) -> float:
    """4.2: synchronous training, all of whose iterations take the same time."""
    return iterations * iteration_s


def longest_s(server_s: float, *workers_s: float) -> float:
    """4.3: an iteration lasts until the server and the slowest worker are done."""
    return max(server_s, *workers_s)


def speed_up(serial_s: float, *, parallel_s: float) -> float:
    """4.22: how many times as fast. `linear_speed_up` is the ideal."""
    return serial_s / parallel_s


def linear_speed_up(workers: int) -> float:
    """The ideal that 4.22 is compared with: as many times as fast as there are workers."""
    return float(workers)


def predicted_speed_up(gradient_s: float, *, batches: int, parallel_s: float) -> float:
    """4.23: against one machine, which computes the gradients of all batches one after another.

    The source's prose names the denominator t_train and its formula t_parallel: they are the same.
    """
    return speed_up(batches * gradient_s, parallel_s=parallel_s)


@dataclass(frozen=True, slots=True)
class Span:
    """The best and the worst case in seconds, as in 4.10 and 4.19.

    With fewer batches than workers the source's best case of asynchronous training exceeds its worst one.
    """

    best_s: float
    worst_s: float

    @property
    def mean_s(self) -> float:
        """4.11 and 4.20: the mean of the times. The mean of their speed-ups would be another number, and wrong."""
        return (self.best_s + self.worst_s) / 2

    def holds(self, seconds: float, *, tolerance: float = 1e-9) -> bool:
        """Whether a time lies in 4.10 or 4.19, but for rounding: `tolerance` is relative."""
        return self.best_s * (1 - tolerance) <= seconds <= self.worst_s * (1 + tolerance)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Links:
    """What every formula takes.

    Raises
    ------
    ValueError
        If a time is not above 0 and finite, there is no worker, or `slowest` is below 1 or not finite.
    """

    gradient_s: float
    transfer_s: float
    workers: int
    slowest: float = 1.0

    def __post_init__(self) -> None:
        if not all(math.isfinite(time_s) and time_s > 0 for time_s in (self.gradient_s, self.transfer_s)):
            raise ValueError(f"times must be above 0 and finite: {self.gradient_s}, {self.transfer_s}")
        if self.workers < 1 or not 1 <= self.slowest < math.inf:
            raise ValueError(f"one worker or more, and a factor of 1 or more: {self.workers}, {self.slowest}")

    @property
    def slowest_gradient_s(self) -> float:
        """The gradient time of the slowest worker (corrected: the source has equal workers). Alone, it is not slow."""
        return self.gradient_s * (self.slowest if self.workers > 1 else 1.0)

    @property
    def distributed_transfer_s(self) -> float:
        """tc(N-1)/N: 1/N of the weights for each of the other N-1 machines; the source's own share stays at home."""
        return self.transfer_s * (self.workers - 1) / self.workers

    def distributed_transfer_corrected_s(self, shares: Sequence[float]) -> float:
        """The same where servers hold unequal `shares` (0 to 1, they sum to 1), as algorithm 3.7 places tensors.

        The machine whose link is busiest decides: it sends its own share to all others, and gets all other shares.
        An estimate: a machine that has its weights early gives its gradient while others still get theirs, so that
        with one very large share it takes up to half as long (`simulator` plays it through).
        """
        if len(shares) != self.workers:
            raise ValueError(f"{len(shares)} shares for {self.workers} machines")
        return self.transfer_s * max(max((self.workers - 1) * share, 1 - share) for share in shares)


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration(_Links):
    """One synchronous iteration: every worker gets the weights, computes a gradient, and gives it to the server.

    For sync-join `gradient_s` is that of a batch; for sync-split that of a part of it, see `split_corrected_s`.
    """

    @property
    def central_best_worker_s(self) -> float:
        """4.4: the last worker waits for the other transfers, then has the link to itself: (N-1)tc + tc + tg + tc."""
        return (self.workers - 1) * self.transfer_s + self.transfer_s + self.slowest_gradient_s + self.transfer_s

    @property
    def central_best_server_s(self) -> float:
        """4.5: the server sends N times and waits for the last gradient: (N+1)tc + tg."""
        return (self.workers + 1) * self.transfer_s + self.slowest_gradient_s

    @property
    def central_best_s(self) -> float:
        """4.6: transfers one after another."""
        return longest_s(self.central_best_server_s, self.central_best_worker_s)

    @property
    def central_worst_worker_s(self) -> float:
        """4.7: all transfers at once, each N times as slow, both ways: 2N tc + tg."""
        return 2 * self.workers * self.transfer_s + self.slowest_gradient_s

    @property
    def central_worst_server_s(self) -> float:
        """4.8: as long as any worker."""
        return 2 * self.workers * self.transfer_s + self.slowest_gradient_s

    @property
    def central_worst_s(self) -> float:
        """4.9: transfers all at once."""
        return longest_s(self.central_worst_server_s, self.central_worst_worker_s)

    @property
    def central_span(self) -> Span:
        """4.10: what an iteration with a central server lies between."""
        return Span(self.central_best_s, self.central_worst_s)

    @property
    def central_s(self) -> float:
        """4.11: with a central server, the mean of best and worst case."""
        return self.central_span.mean_s

    @property
    def distributed_s(self) -> float:
        """4.12: with a server on every machine, which hold equal shards: 2tc(N-1)/N + tg."""
        return 2 * self.distributed_transfer_s + self.slowest_gradient_s

    def distributed_corrected_s(self, shares: Sequence[float]) -> float:
        """4.12 corrected for unequal `shares` of the weights. Raises ValueError unless each machine has one."""
        return 2 * self.distributed_transfer_corrected_s(shares) + self.slowest_gradient_s


def split_corrected_s(gradient_s: float, *, workers: int) -> float:
    """tg/N, the gradient time of 1/N of a batch: what sync-split needs in place of tg, and what is never printed.

    It takes gradient time as linear in the batch size, which small parts of a batch do not reach.
    """
    return gradient_s / workers


def rounds_of(batches: int, *, workers: int, is_whole_corrected: bool = False) -> float:
    """D/N, the batches of one worker: as printed a real number, corrected the whole number that the last worker has.

    The source does not say what it does where N does not divide D.
    """
    return float(math.ceil(batches / workers)) if is_whole_corrected else batches / workers


@dataclass(frozen=True, slots=True, kw_only=True)
class Asynchronous(_Links):
    """Asynchronous training on `batches` batches: workers get weights and give gradients without waiting for others.

    Raises ValueError as its base does, and for less than one batch.
    """

    batches: int
    is_whole_corrected: bool = False

    def __post_init__(self) -> None:
        super(Asynchronous, self).__post_init__()
        if self.batches < 1:
            raise ValueError(f"one batch or more: {self.batches}")

    @property
    def rounds(self) -> float:
        """D/N, see `rounds_of`."""
        return rounds_of(self.batches, workers=self.workers, is_whole_corrected=self.is_whole_corrected)

    @property
    def central_best_worker_s(self) -> float:
        """4.13: the last worker waits once, then has the link to itself: (N-1)tc + (D/N)(2tc + tg)."""
        own_s = self.rounds * (2 * self.transfer_s + self.slowest_gradient_s)
        return (self.workers - 1) * self.transfer_s + own_s

    @property
    def central_best_server_s(self) -> float:
        """4.14: the server gets all gradients one after another: (D+1)tc + tg."""
        return (self.batches + 1) * self.transfer_s + self.gradient_s

    @property
    def central_best_s(self) -> float:
        """4.15: the longer of both."""
        return longest_s(self.central_best_server_s, self.central_best_worker_s)

    @property
    def central_worst_worker_s(self) -> float:
        """4.16: the link is always shared by all: (D/N)(2N tc + tg)."""
        return self.rounds * (2 * self.workers * self.transfer_s + self.slowest_gradient_s)

    @property
    def central_worst_server_s(self) -> float:
        """4.17: as long as any worker."""
        return self.rounds * (2 * self.workers * self.transfer_s + self.slowest_gradient_s)

    @property
    def central_worst_s(self) -> float:
        """4.18: the longer of both."""
        return longest_s(self.central_worst_server_s, self.central_worst_worker_s)

    @property
    def central_span(self) -> Span:
        """4.19: what training with a central server lies between; the source's prose writes t_iter for t_train."""
        return Span(self.central_best_s, self.central_worst_s)

    @property
    def central_s(self) -> float:
        """4.20: with a central server, the mean of best and worst case."""
        return self.central_span.mean_s

    @property
    def distributed_s(self) -> float:
        """4.21: with a server on every machine, which hold equal shards: (D/N)(2tc(N-1)/N + tg)."""
        return self.rounds * (2 * self.distributed_transfer_s + self.slowest_gradient_s)

    def distributed_corrected_s(self, shares: Sequence[float]) -> float:
        """4.21 corrected for unequal `shares` of the weights. Raises ValueError unless each machine has one."""
        return self.rounds * (2 * self.distributed_transfer_corrected_s(shares) + self.slowest_gradient_s)


Mode = Literal["async", "sync-join", "sync-split"]
Server = Literal["central", "distributed"]
MODES: Final[tuple[Mode, ...]] = get_args(Mode)
SERVERS: Final[tuple[Server, ...]] = get_args(Server)


def known_mode(name: str) -> Mode:
    """The mode of this name; ValueError for another."""
    for mode in MODES:
        if mode == name:
            return mode
    raise ValueError(f"no mode {name}")


def known_server(name: str) -> Server:
    """The kind of server of this name; ValueError for another."""
    for server in SERVERS:
        if server == name:
            return server
    raise ValueError(f"no server {name}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What was measured on one machine and one link, and how much there is to train.

    Attributes
    ----------
    gradient_s
        One machine's time for the gradient of one batch, in seconds.
    transfer_s
        One transfer of all weights over a link that nobody else uses, one way, in seconds.
    batches
        Batches to train on, D.
    slowest
        How many times as long the slowest worker computes as the others, 1 where all are equal.
    is_whole
        Whether the batches of a worker are rounded up to a whole number.
    tensors
        Elements of each of the network's tensors, in the order of its list: distributed servers then hold whole
        tensors, as algorithm 3.7 places them. Empty for equal shards.

    Raises
    ------
    ValueError
        If a time or factor is not finite and above 0, the factor is below 1, or there is no batch.
    """

    gradient_s: float
    transfer_s: float
    batches: int
    slowest: float = 1.0
    is_whole: bool = False
    tensors: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        times = (self.gradient_s, self.transfer_s)
        if not all(math.isfinite(time_s) and time_s > 0 for time_s in times):
            raise ValueError(f"times must be above 0 and finite: {times}")
        if not 1 <= self.slowest < math.inf or self.batches < 1:
            raise ValueError(f"a factor of 1 or more, one batch or more: {self.slowest}, {self.batches}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """One way to train, and how long it would take.

    Attributes
    ----------
    span
        Best and worst case in seconds; equal with distributed servers, for which the source has one formula.
    speed_up
        Against one machine, from the mean of best and worst case.
    printed_speed_up
        As the source prints it: the gradient time of a whole batch with sync-split, real D/N, equal shards.
    """

    mode: Mode
    server: Server
    workers: int
    span: Span
    speed_up: float
    lowest_speed_up: float
    highest_speed_up: float
    printed_speed_up: float


def estimated(measured: Measured, *, mode: Mode, server: Server, workers: int) -> Estimate:
    """Best, worst and mean case of training with so many workers (1 or more; ValueError otherwise)."""
    span = _span(measured, mode, server, workers)
    printed = replace(measured, is_whole=False, tensors=())
    printed_s = _span(printed, mode, server, workers, is_printed=True).mean_s
    return Estimate(
        mode=mode,
        server=server,
        workers=workers,
        span=span,
        speed_up=_speed_up(measured, span.mean_s),
        lowest_speed_up=_speed_up(measured, max(span.worst_s, span.best_s)),
        highest_speed_up=_speed_up(measured, min(span.worst_s, span.best_s)),
        printed_speed_up=_speed_up(measured, printed_s),
    )


def estimates(measured: Measured, *, mode: Mode, server: Server, most_workers: int) -> Iterator[Estimate]:
    """The estimates for 1, 2 and so on up to `most_workers`."""
    for workers in range(1, most_workers + 1):
        yield estimated(measured, mode=mode, server=server, workers=workers)


def _speed_up(measured: Measured, train_s: float) -> float:
    parallel_s = computing_s(train_s=train_s)
    return predicted_speed_up(measured.gradient_s, batches=measured.batches, parallel_s=parallel_s)


def _span(measured: Measured, mode: Mode, server: Server, workers: int, *, is_printed: bool = False) -> Span:
    if mode == "async":
        training = Asynchronous(
            gradient_s=measured.gradient_s,
            transfer_s=measured.transfer_s,
            workers=workers,
            slowest=measured.slowest,
            batches=measured.batches,
            is_whole_corrected=measured.is_whole,
        )
        return _with_server(training, measured, server)
    gradient_s, iterations = measured.gradient_s, float(measured.batches)
    if mode == "sync-join":
        iterations = rounds_of(measured.batches, workers=workers, is_whole_corrected=measured.is_whole)
    elif not is_printed:
        gradient_s = split_corrected_s(gradient_s, workers=workers)
    one = _with_server(
        Iteration(gradient_s=gradient_s, transfer_s=measured.transfer_s, workers=workers, slowest=measured.slowest),
        measured,
        server,
    )
    return Span(
        synchronous_training_s(iterations=iterations, iteration_s=one.best_s),
        synchronous_training_s(iterations=iterations, iteration_s=one.worst_s),
    )


def _with_server(training: Iteration | Asynchronous, measured: Measured, server: Server) -> Span:
    if server == "central":
        return training.central_span
    if measured.tensors:
        shares = placed_whole(measured.tensors, servers=training.workers).shares
        time_s = training.distributed_corrected_s(shares)
    else:
        time_s = training.distributed_s
    return Span(time_s, time_s)
