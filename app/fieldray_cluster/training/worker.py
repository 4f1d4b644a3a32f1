"""A worker of a divided training: it fetches weights, takes a gradient of its part, and gives it to the servers."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from distributed import get_worker

from fieldray_adapt.lungs.train import use_threads
from fieldray_cluster.node import cores_of_worker
from fieldray_cluster.speedup.placement import Runs
from fieldray_cluster.training.channel import PLAIN, Channel, Encryption, Vector, open_channels
from fieldray_cluster.training.lesson import Lesson, OtherArrays, Pupil
from fieldray_cluster.training.plan import Plan
from fieldray_cluster.training.server import ServedShare, Service
from fieldray_cluster.training.share import Layout, ShareState, clipped, gathered, scatter

_SERVED: Final[dict[str, ServedShare]] = {}
"""The servers of this process, by their session, until they end."""


class _ServerLost(Exception):
    """A server does not answer, or ends the session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What one worker of a session is told.

    Attributes
    ----------
    servers
        Address and runs of each.
    first_epoch
        Epochs of the lesson that were trained before.
    """

    lesson: Lesson
    plan: Plan
    layout: Layout
    worker: int
    token: str
    servers: tuple[tuple[tuple[str, int], Runs], ...]
    first_epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a worker ended: with all its work, or for one of the reasons below.

    Attributes
    ----------
    was_lost
        A server was gone, or another process has taken this one's place.
    diverged
        Epoch and step, from 1, of a loss that is no number.
    unread
        The code of the reason why the arrays of the lesson could not be read here; empty where they could.
    """

    was_lost: bool = False
    diverged: tuple[int, int] | None = None
    unread: str = ""


def encryption_here() -> Encryption:
    """The contexts of this process of the cluster."""
    security = get_worker().security
    return Encryption(
        connecting=security.get_connection_args("worker").get("ssl_context"),
        listening=security.get_listen_args("worker").get("ssl_context"),
    )


def start_server(service: Service, state: ShareState, *, token: str) -> tuple[str, int]:
    """A task: begin to serve a share in this process; where. It ends with the driver's connection."""
    host = get_worker().address.partition("://")[2].rpartition(":")[0].strip("[]")
    served = ServedShare(
        service,
        state,
        host=host,
        token=token,
        encryption=encryption_here(),
        ended=lambda: _forget(token),
    )
    _SERVED[token] = served
    return served.address


def _forget(token: str) -> None:
    _SERVED.pop(token, None)


def stop_server(token: str) -> None:
    """A task: end the share of a session in this process."""
    if served := _SERVED.get(token):
        served.close()


def work(order: Order) -> Outcome:
    """A task: all gradients of a worker that are not done yet."""
    use_threads(cores_of_worker())
    return perform(order, encryption=encryption_here())


def perform(order: Order, *, encryption: Encryption = PLAIN) -> Outcome:
    """The same in any process of the cluster."""
    try:
        pupil = order.lesson.open()
    except OtherArrays:
        return Outcome(unread="training_node_other")
    except OSError:
        return Outcome(unread="training_node_folder")
    try:
        with contextlib.ExitStack() as ends:
            # Before the channels: their end ends what its threads wait for.
            threads = ends.enter_context(ThreadPoolExecutor(len(order.servers), thread_name_prefix="exchange"))
            with _noticing_loss():
                channels = ends.enter_context(
                    open_channels(
                        [address for address, _ in order.servers],
                        token=order.token,
                        role=str(order.worker),
                        largest=[order.layout.size] * len(order.servers),
                        encryption=encryption,
                    )
                )
            return _Work(order, channels, threads).finish(pupil)
    except _ServerLost:
        return Outcome(was_lost=True)


@contextlib.contextmanager
def _noticing_loss() -> Iterator[None]:
    """Around the work of channels alone: other files and devices have problems of their own. Raises _ServerLost."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise _ServerLost from error


class _Work:
    def __init__(self, order: Order, channels: Sequence[Channel], threads: ThreadPoolExecutor) -> None:
        self._order, self._channels, self._threads = order, channels, threads
        self._runs = [runs for _, runs in order.servers]
        self._values: Vector = np.empty(order.layout.size, np.float32)
        self._versions = [0] * len(channels)
        # Each worker begins with another server: all at the first one would wait for its link.
        first = order.worker % len(channels)
        self._places = [*range(first, len(channels)), *range(first)]

    def finish(self, pupil: Pupil) -> Outcome:
        order = self._order
        batches, plan = order.lesson.batches, order.plan
        with _noticing_loss():
            number = self._fetch()
        per_epoch = plan.numbers(batches, order.worker)
        last = per_epoch * (order.lesson.epochs - order.first_epoch)
        while number < last:
            epoch, own = order.first_epoch + number // per_epoch, number % per_epoch
            pupil.set_weights(order.layout.weights(self._values))
            batch = plan.batch(batches, order.worker, own)
            header: dict[str, Any] = {
                "number": number, "weight": 0.0, "rate": order.lesson.rate(epoch, own / per_epoch), "note": {},
            }  # fmt: skip
            gradient = np.zeros(order.layout.size, np.float32)
            if batch is not None:
                taken = pupil.take(epoch, batch, plan, order.worker)
                if not math.isfinite(taken.loss):
                    return Outcome(diverged=(epoch + 1, batch + 1))
                gradient = order.layout.vector(taken.gradient)
                header |= {"weight": taken.weight, "note": self._note(pupil, epoch, batch, taken.loss)}
            number += 1
            with _noticing_loss():
                self._exchange(header, gradient, is_last=number == last)
        return Outcome()

    def _note(self, pupil: Pupil, epoch: int, batch: int, loss: float) -> dict[str, Any]:
        every = self._order.plan.notes_every
        note = {"epoch": epoch + 1, "batch": batch, "loss": loss}
        return note | (pupil.look(epoch, batch) if every and self._order.worker == 0 and batch % every == 0 else {})

    def _fetch(self) -> int:
        """Fetch the weights; the number of the gradient to begin with."""
        for place in self._places:
            self._channels[place].send({})
        done = [self._receive(place, self._channels[place]) for place in self._places]
        if not self._order.plan.waits:
            return min(done)
        least = min(self._versions)
        for place, channel in enumerate(self._channels):
            if self._versions[place] > least:
                channel.send({"version": least})
                self._receive(place, channel)
        return least

    def _receive(self, place: int, channel: Channel) -> int:
        message = channel.receive()
        if "version" not in message.header:
            raise ConnectionError("the session is over")
        self._versions[place] = int(message.header["version"])
        if len(message.values):
            scatter(message.values, self._runs[place], into=self._values)
        return int(message.header.get("done", 0))

    def _exchange(self, header: dict[str, Any], gradient: Vector, *, is_last: bool) -> None:
        """Give the gradient to every server, then wait for the weights of each; after the last one for a word."""
        order = self._order
        if len(self._channels) > 1 or not order.plan.waits:
            gradient = clipped(gradient, order.layout, order.lesson.rule.clip)

        def exchange(place: int) -> None:
            told = {**header, "worker": order.worker, "version": self._versions[place]}
            told["note"] = header["note"] if place == 0 else {}
            own = gathered(gradient, self._runs[place])
            self._channels[place].send({"gradient": told, "wants_weights": not is_last}, own)
            self._receive(place, self._channels[place])

        # All at once: one after another, a server that is slow to take would hold up what others wait for.
        for _ in self._threads.map(exchange, self._places):
            pass
