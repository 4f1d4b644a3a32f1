"""What several machines would bring: times and speed-ups by mode, server and number of workers.

`formulas` has each formula by itself; here they are put together for a question that somebody asks. Nothing but the
standard library is needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal, get_args

from fieldray_adapt.speedup.formulas import (
    Asynchronous,
    Iteration,
    Span,
    computing_s,
    predicted_speed_up,
    rounds_of,
    split_corrected_s,
    synchronous_training_s,
)
from fieldray_adapt.speedup.placement import placed_whole

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
