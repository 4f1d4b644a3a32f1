"""A parameter server: it holds its share of the weights, updates it by the workers' gradients, and gives it out.

Synchronous: an update is made once every worker's gradient of it is there, by their mean, weighted by what each was
taken over. A worker that was replaced asks for the version it has to work on, which is the newest one or, where another
server is behind, the one before: both are kept. Asynchronous: every gradient is an update as it comes (Downpour SGD,
Dean 2012); how many others were made since its weights were fetched is its staleness.

A bound of the staleness holds back who is ahead. A worker may update if those whose gradients are still to come could
all be taken in afterwards, oldest first, each within the bound: of them, ordered by the versions p(1) <= p(2) ... that
they work on, (version + 1) + (j - 1) - p(j) <= bound for each j. The oldest may then always go, so nobody waits for
ever; that needs a bound of the number of workers less one, or more.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from fieldray.cluster.training.channel import PLAIN, Channel, Encryption, Listener, Vector
from fieldray.cluster.training.share import Layout, Rule, Runs, Share, ShareState

DRIVER: Final = "driver"
_DEATH: Final = "ended"


class ServerEnded(Exception):
    """The session is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """What a server is told.

    Attributes
    ----------
    workers
        How many there are.
    waits
        Synchronous: an update waits for all of them.
    staleness
        The bound, None for none.
    updates_per_epoch
        After so many a snapshot is kept for the driver.
    """

    layout: Layout
    runs: Runs
    rule: Rule
    workers: int
    waits: bool
    updates_per_epoch: int
    staleness: int | None = None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Push:
    """A gradient as it arrives; `version` is that of the weights it was taken at, `weight` what it counts.

    `number` is the worker's own count of its gradients, `note` what the driver's log is to have of it.
    """

    worker: int
    version: int
    number: int
    weight: float
    rate: float
    gradient: Vector
    note: Mapping[str, Any]


class ParameterServer:
    """The share, and who may update it when. A worker is known by the thread it calls from."""

    def __init__(self, service: Service, state: ShareState) -> None:
        self._service = service
        self._share = Share(state, layout=service.layout, runs=service.runs, rule=service.rule)
        self._changed = threading.Condition()
        self._version, self._before = 0, state.values
        self._pushed: dict[int, Push] = {}
        self._fetched: dict[int, int] = {}  # by thread: a worker that replaces another one has another thread
        self._done = Counter[int]()
        self._staleness = Counter[int]()
        self._notes: list[Mapping[str, Any]] = []
        self._snapshots: dict[int, tuple[dict[str, Any], ShareState]] = {}
        self._is_over = False

    def pull(self, worker: int, *, version: int | None = None) -> tuple[int, int, Vector]:
        """Version, how many of this worker's gradients are done, and the values; the version before on request."""
        with self._changed:
            if version is not None and version == self._version - 1 and self._service.waits:
                return version, self._done[worker], self._before
            self._fetched[threading.get_ident()] = self._version
            return self._version, self._done[worker], self._share.state.values

    def push(self, push: Push) -> tuple[int, Vector]:
        """Take in a gradient, at once or with the others'; the version after it and its values. Raises ServerEnded."""
        with self._changed:
            if push.number >= self._done[push.worker]:
                (self._wait_for_all if self._service.waits else self._take)(push)
            self._fetched[threading.get_ident()] = self._version
            return self._version, self._share.state.values

    def leave(self) -> None:
        """The worker of this thread is done, or gone: nobody waits for its weights to become too old."""
        with self._changed:
            self._fetched.pop(threading.get_ident(), None)
            self._changed.notify_all()

    def snapshot(self, epoch: int) -> tuple[dict[str, Any], ShareState]:
        """Facts and state after an epoch, counted from 1; waits for them. Raises ServerEnded."""
        with self._changed:
            self._wait_until(lambda: epoch in self._snapshots)
            return self._snapshots.pop(epoch)

    def end(self) -> None:
        """End the session: whoever waits here is told so."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def _wait_for_all(self, push: Push) -> None:
        if push.version < self._version:
            return  # of an update that was made meanwhile
        self._pushed[push.worker] = push
        if len(self._pushed) == self._service.workers:
            self._update_by_mean()
        else:
            self._wait_until(lambda: self._version > push.version)

    def _update_by_mean(self) -> None:
        pushes = [self._pushed[worker] for worker in sorted(self._pushed)]
        whole = sum(push.weight for push in pushes)
        mean = np.zeros_like(self._share.state.values)
        for push in pushes:
            if push.weight:
                mean += push.gradient * np.float32(push.weight / whole)
            self._done[push.worker] += 1
        self._pushed.clear()
        self._update(mean, pushes[0].rate, [push for push in pushes if push.weight])

    def _take(self, push: Push) -> None:
        self._wait_until(self._may_update)
        self._staleness[self._version - push.version] += 1
        self._done[push.worker] += 1
        self._update(push.gradient, push.rate, [push])

    def _may_update(self) -> bool:
        bound = self._service.staleness
        if bound is None:
            return True
        others = sorted(version for other, version in self._fetched.items() if other != threading.get_ident())
        return all(self._version + 1 + place - version <= bound for place, version in enumerate(others))

    def _update(self, gradient: Vector, rate: float, pushes: list[Push]) -> None:
        self._before = self._share.state.values
        self._share.update(gradient, rate=rate)
        self._version += 1
        at_s = time.time()
        self._notes += [
            {"version": self._version, "worker": push.worker, "at": at_s, **push.note} for push in pushes if push.note
        ]
        if self._version % self._service.updates_per_epoch == 0:
            facts: dict[str, Any] = {"staleness": {str(key): count for key, count in sorted(self._staleness.items())}}
            facts |= {"notes": self._notes, "at": at_s}
            self._snapshots[self._version // self._service.updates_per_epoch] = (facts, self._share.state)
            self._notes, self._staleness = [], Counter()
        self._changed.notify_all()

    def _wait_until(self, ready: Any) -> None:
        self._changed.wait_for(lambda: self._is_over or ready())
        if self._is_over:
            raise ServerEnded


class ServedShare:
    """A parameter server at an address, until it is closed or its driver's connection ends."""

    def __init__(
        self, service: Service, state: ShareState, *, host: str, token: str, encryption: Encryption = PLAIN
    ) -> None:
        self._server = ParameterServer(service, state)
        self._listener = Listener(
            host, token=token, largest=len(state.values), serve=self._serve, encryption=encryption
        )
        self.address = self._listener.address

    def close(self) -> None:
        """End it and every connection."""
        self._server.end()
        self._listener.close()

    def _serve(self, channel: Channel, role: str) -> None:
        try:
            if role == DRIVER:
                self._serve_driver(channel)
            else:
                self._serve_worker(channel, int(role))
        except ServerEnded:
            with contextlib.suppress(OSError):
                channel.send({_DEATH: True})

    def _serve_driver(self, channel: Channel) -> None:
        """Snapshots as they are asked for. With the driver the session ends."""
        try:
            while True:
                asked = channel.receive().header
                facts, state = self._server.snapshot(int(asked["epoch"]))
                channel.send({**facts, "steps": state.steps}, state.joined())
        finally:
            self._server.end()
            threading.Thread(target=self._listener.close, name="parameters", daemon=True).start()

    def _serve_worker(self, channel: Channel, worker: int) -> None:
        try:
            while True:
                message = channel.receive()
                asked = message.header
                if "gradient" not in asked:
                    version, done, values = self._server.pull(worker, version=asked.get("version"))
                    channel.send({"version": version, "done": done}, values)
                    continue
                push = Push(**{**asked["gradient"], "worker": worker, "gradient": message.values})
                version, values = self._server.push(push)
                channel.send({"version": version}, values if asked.get("wants_weights", True) else values[:0])
        finally:
            self._server.leave()
