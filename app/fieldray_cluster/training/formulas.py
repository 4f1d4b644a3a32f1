"""What several machines bring by the formulas 4.1 to 4.23 of Šlampa (BUT Brno, 2017), and what is best by them.

All times are in seconds. `gradient_s` is how long one machine computes the gradient of one batch (the source's t_grad),
`transfer_s` how long all weights, or all gradients, take once over a link that nobody else uses (t_comm). `workers` is
N, `batches` is D. Links are full duplex; updating weights, setting up and finishing are left out by the source.

Names follow the source; what is corrected or added here has `corrected` in its name and says so. Where a worker is
slower than the others by the factor `slowest`, which the source leaves out, the others are assumed to be served first.

The source has no closed form for the best number of workers: the speed-up is evaluated for each number, and training
on one machine, whose speed-up is 1, is among the answers. Nothing but the standard library is needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, get_args

from fieldray.reasons import Reason, reason
from fieldray_cluster.training.placement import shares_of

Mode = Literal["async", "sync-join", "sync-split"]
Server = Literal["central", "distributed"]
MODES: Final[tuple[Mode, ...]] = get_args(Mode)
SERVERS: Final[tuple[Server, ...]] = get_args(Server)

# Of the best speed-up: whoever buys machines wants to know with how few of them most of it is reached.
_MOST: Final = 0.9
# Speed-ups that differ by less are equal, but for rounding.
_NO_GAIN: Final = 1e-9


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

    def times(self, factor: float) -> Span:
        """4.2: so many iterations, all of which take the same time."""
        return Span(factor * self.best_s, factor * self.worst_s)


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

    @property
    def serial_s(self) -> float:
        """The time of one machine, which computes the gradients of all batches one after another."""
        return self.batches * self.gradient_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Asynchronous:
    """Asynchronous training: workers get weights and give gradients without waiting for others.

    Where there are as many batches as workers, this is one synchronous iteration: every worker gets the weights,
    computes a gradient, and gives it to the server. So 4.4 to 4.12 are 4.13 to 4.21 with D = N.

    Raises ValueError if there is no worker.
    """

    measured: Measured
    workers: int

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ValueError(f"one worker or more: {self.workers}")

    @property
    def rounds(self) -> float:
        """D/N, the batches of one worker: a real number as printed, rounded up to a whole one where corrected.

        The source does not say what it does where N does not divide D.
        """
        rounds = self.measured.batches / self.workers
        return float(math.ceil(rounds)) if self.measured.is_whole else rounds

    @property
    def slowest_gradient_s(self) -> float:
        """The gradient time of the slowest worker (corrected: the source has equal workers). Alone, it is not slow."""
        return self.measured.gradient_s * (self.measured.slowest if self.workers > 1 else 1.0)

    @property
    def best_worker_s(self) -> float:
        """4.4 and 4.13: the last worker waits once, then has the link to itself: (N-1)tc + (D/N)(2tc + tg)."""
        transfer_s = self.measured.transfer_s
        return (self.workers - 1) * transfer_s + self.rounds * (2 * transfer_s + self.slowest_gradient_s)

    @property
    def best_server_s(self) -> float:
        """4.5 and 4.14: the server gets all gradients one after another: (D+1)tc + tg."""
        return (self.measured.batches + 1) * self.measured.transfer_s + self.measured.gradient_s

    @property
    def worst_s(self) -> float:
        """4.7 to 4.9 and 4.16 to 4.18: the link is always shared by all, for workers and server: (D/N)(2N tc + tg)."""
        return self.rounds * (2 * self.workers * self.measured.transfer_s + self.slowest_gradient_s)

    @property
    def central(self) -> Span:
        """4.10 and 4.19, with a central server; the best case is 4.6 and 4.15, the longer of both sides."""
        return Span(max(self.best_server_s, self.best_worker_s), self.worst_s)

    @property
    def distributed_s(self) -> float:
        """4.12 and 4.21: a server on every machine, which hold equal shards: (D/N)(2tc(N-1)/N + tg).

        1/N of the weights go to each of the other N-1 machines; the source's own share stays at home.
        """
        return self._distributed_s((self.workers - 1) / self.workers)

    def distributed_corrected_s(self, shares: Sequence[float]) -> float:
        """The same where servers hold unequal `shares` (0 to 1, they sum to 1), as algorithm 3.7 places tensors.

        The machine whose link is busiest decides: it sends its own share to all others, and gets all other shares.
        An estimate: a machine that has its weights early gives its gradient while others still get theirs, so that
        with one very large share it takes up to half as long (decision 44). Raises ValueError unless
        each machine has a share.
        """
        if len(shares) != self.workers:
            raise ValueError(f"{len(shares)} shares for {self.workers} machines")
        return self._distributed_s(max(max((self.workers - 1) * share, 1 - share) for share in shares))

    def _distributed_s(self, transferred: float) -> float:
        return self.rounds * (2 * self.measured.transfer_s * transferred + self.slowest_gradient_s)

    def span(self, server: Server) -> Span:
        """Best and worst case; equal with distributed servers, for which the source has one formula."""
        if server == "central":
            return self.central
        tensors = self.measured.tensors
        time_s = (
            self.distributed_corrected_s(shares_of(tensors, servers=self.workers)) if tensors else self.distributed_s
        )
        return Span(time_s, time_s)


def split_corrected_s(gradient_s: float, *, workers: int) -> float:
    """tg/N, the gradient time of 1/N of a batch: what sync-split needs in place of tg, and what is never printed.

    It takes gradient time as linear in the batch size, which small parts of a batch do not reach.
    """
    return gradient_s / workers


def span_of(measured: Measured, *, mode: Mode, server: Server, workers: int, is_printed: bool = False) -> Span:
    """Best and worst case of training, 4.2 to 4.21; `is_printed` for a whole gradient time with sync-split."""
    whole = Asynchronous(measured=measured, workers=workers)
    if mode == "async":
        return whole.span(server)
    iteration, iterations = replace(measured, batches=workers), whole.rounds
    if mode == "sync-split":
        iterations = float(measured.batches)
        if not is_printed:
            iteration = replace(iteration, gradient_s=split_corrected_s(measured.gradient_s, workers=workers))
    return Asynchronous(measured=iteration, workers=workers).span(server).times(iterations)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """One way to train, and how long it would take.

    Attributes
    ----------
    span
        Best and worst case in seconds.
    speed_up
        Against one machine (4.22 and 4.23), from the mean of best and worst case.
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
    span = span_of(measured, mode=mode, server=server, workers=workers)
    plain = replace(measured, is_whole=False, tensors=())
    printed = span_of(plain, mode=mode, server=server, workers=workers, is_printed=True)
    return Estimate(
        mode=mode,
        server=server,
        workers=workers,
        span=span,
        speed_up=measured.serial_s / span.mean_s,
        lowest_speed_up=measured.serial_s / max(span.worst_s, span.best_s),
        highest_speed_up=measured.serial_s / min(span.worst_s, span.best_s),
        printed_speed_up=measured.serial_s / printed.mean_s,
    )


def estimates(measured: Measured, *, mode: Mode, server: Server, most_workers: int) -> Iterator[Estimate]:
    """The estimates for 1, 2 and so on up to `most_workers`."""
    for workers in range(1, most_workers + 1):
        yield estimated(measured, mode=mode, server=server, workers=workers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What is best for one mode.

    Attributes
    ----------
    best
        The fastest, with the fewest workers where several are equal; None where one machine is as fast.
    fewest
        The one with the fewest workers that reaches nine tenths of the best speed-up; None as `best`.
    second
        The faster of the two servers with two workers; None where at most one worker was asked about.
    """

    mode: Mode
    most_workers: int
    best: Estimate | None
    fewest: Estimate | None
    second: Estimate | None

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """The answer in sentences."""
        found = [
            _sentence("estimate_best", self.best)
            if self.best
            else reason("estimate_one_machine", mode=self.mode, workers=self.most_workers)
        ]
        if self.best and self.fewest and self.fewest.workers < self.best.workers:
            found.append(_sentence("estimate_fewest", self.fewest))
        if self.second:
            pays = self.second.speed_up > 1 + _NO_GAIN
            found.append(_sentence("estimate_second" if pays else "estimate_second_not", self.second))
        return tuple(found)


def advise(measured: Measured, *, mode: Mode, most_workers: int, servers: Sequence[Server] = SERVERS) -> Advice:
    """Compare all servers and numbers of workers from 1 to `most_workers`, and training on one machine."""
    known = [
        one for server in servers for one in estimates(measured, mode=mode, server=server, most_workers=most_workers)
    ]
    best = _fastest(known)
    if best is None or best.speed_up <= 1 + _NO_GAIN:
        best = fewest = None
    else:
        enough = [one for one in known if one.speed_up >= _MOST * best.speed_up]
        least = min(one.workers for one in enough)
        fewest = _fastest([one for one in enough if one.workers == least])
    second = _fastest([one for one in known if one.workers == 2])
    return Advice(mode=mode, most_workers=most_workers, best=best, fewest=fewest, second=second)


def _fastest(known: Sequence[Estimate]) -> Estimate | None:
    """The largest speed-up; of equal ones that with the fewest workers."""
    return min(known, key=lambda one: (-round(one.speed_up, 9), one.workers), default=None)


def _sentence(code: str, one: Estimate) -> Reason:
    return reason(
        code,
        mode=one.mode,
        workers=one.workers,
        server="a central server" if one.server == "central" else "distributed servers",
        speed_up=f"{one.speed_up:.2f}",
    )
