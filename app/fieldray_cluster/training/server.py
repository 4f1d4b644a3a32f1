"""A parameter server: it holds a shard of the weights, updates it by the workers' gradients, and sends it to them.

Synchronous: an update is made once it has the gradients of all workers. Their mean is weighted by the samples of each.
A worker that was replaced asks for the version that it works on. That is the newest one, or the one before if another
server is behind, so both are kept. Asynchronous: every gradient is an update at once (Downpour SGD, Dean 2012). Its
staleness is the number of updates since its weights were fetched.

With a bound of the staleness, workers that are ahead wait. A worker may update if all gradients still to come could be
applied afterwards, oldest first, within the bound. Let p(1) <= p(2) ... be the versions that the other workers work
on. Then (version + 1) + (j - 1) - p(j) <= bound must hold for each j. The oldest worker may always update, so nobody
waits for ever; this needs a bound of at least the number of workers less one.

If transfers take turns (the semaphore of Šlampa 2017, section 7), one worker at a time sends to the server, and one at
a time receives, in order of asking. The first one has the whole link, and computes while others transfer. A worker
sends its gradient once it is told to go, and confirms received weights.

A worker has one connection, its newest. A process that replaces another one attaches in its place, and messages of the
older one are ignored. A thread that waits checks whether the other side of its connection still exists.
"""

from __future__ import annotations

import contextlib
import ssl
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec
import numpy as np

from fieldray.typed_json import to_type
from fieldray_cluster.training.channel import Channel, Listener, Vector
from fieldray_cluster.training.formulas import ElementRanges
from fieldray_cluster.training.shard import Shard, ShardState, UpdateRule, WeightLayout
from fieldray_cluster.training.tasks import TrainingPlan

DRIVER_ROLE: Final = "driver"
"""The role that the driver states when it connects to a parameter server."""
_DEATH: Final = "ended"
_TICK_S: Final = 0.2
_DRIVERLESS_S: Final = 600.0
"""Seconds that a server waits for its driver."""


class ServerEnded(Exception):
    """The session of a parameter server is over, so that it updates no more weights."""


class ConnectionReplaced(ConnectionError):
    """The other side of a connection is gone, or its worker has opened a newer connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The settings of a parameter server.

    Attributes
    ----------
    layout
        The order of all weights in a vector.
    ranges
        The ranges of this vector that the server holds.
    rule
        How weights are updated and averaged.
    updates_per_epoch
        The number of updates after which the server keeps its state for the driver.
    """

    layout: WeightLayout
    ranges: ElementRanges
    rule: UpdateRule
    plan: TrainingPlan
    updates_per_epoch: int


class GradientUpdate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The header of the message in which a worker sends a gradient.

    Attributes
    ----------
    worker
        The number of the worker, from 0.
    version
        The version of the weights for which the gradient was computed.
    number
        How many gradients the worker has sent before this one.
    weight
        How much the gradient counts when the mean of all workers' gradients is formed.
    learning_rate
        The learning rate of the update.
    loss
        The loss of the batch; None if the worker had no batch.
    """

    worker: int
    version: Annotated[int, msgspec.Meta(ge=0)]
    number: Annotated[int, msgspec.Meta(ge=0)]
    weight: Annotated[float, msgspec.Meta(ge=0)]
    learning_rate: float
    loss: float | None = None


class _WorkerRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's request: fetch weights (of a version, or the newest), or send a gradient."""

    version: int | None = None
    gradient: GradientUpdate | None = None
    wants_weights: bool = True


class _DriverRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The driver's request for the snapshot of an epoch."""

    epoch: Annotated[int, msgspec.Meta(ge=1)]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class WorkerConnection:
    """The connection of a worker to a parameter server.

    `has_ended` returns whether the other side is gone; `end` closes the connection.
    """

    worker: int
    has_ended: Callable[[], bool] = lambda: False
    end: Callable[[], None] = lambda: None


class FifoLock:
    """A lock for one direction of transfer, given to workers in the order of asking."""

    def __init__(self) -> None:
        self._changed, self._waiting = threading.Condition(), deque[object]()

    @contextlib.contextmanager
    def acquire(self, has_ended: Callable[[], bool]) -> Iterator[None]:
        """Wait for the lock, and hold it during the block. Raises ConnectionReplaced if `has_ended` returns True while
        waiting.
        """
        own = object()
        with self._changed:
            self._waiting.append(own)
        try:
            with self._changed:
                while self._waiting[0] is not own:
                    if has_ended():
                        raise ConnectionReplaced("the other side has ended")
                    self._changed.wait(_TICK_S)
            yield
        finally:
            with self._changed:
                self._waiting.remove(own)
                self._changed.notify_all()


class ParameterServer:
    """Holds a shard of the weights, and updates it by the gradients of workers, synchronously or asynchronously."""

    def __init__(self, service: ServerSettings, state: ShardState) -> None:
        self._service, self._plan = service, service.plan
        self._shard = Shard(state, layout=service.layout, runs=service.ranges, rule=service.rule)
        self._changed = threading.Condition()
        self._version, self._before = 0, state.values
        self._pushed: dict[int, tuple[GradientUpdate, Vector]] = {}
        self._connections: dict[int, WorkerConnection] = {}
        self._fetched: dict[int, int] = {}
        self._done = Counter[int]()
        self._staleness = Counter[int]()
        self._losses: list[float] = []
        self._began_s: float | None = None  # time of the first update of the epoch
        self._snapshots: dict[int, tuple[dict[str, Any], ShardState]] = {}
        self._is_over = False

    def attach(self, connection: WorkerConnection) -> None:
        """Register a worker's connection, and end an older one. Raises ValueError for an unknown worker."""
        if not 0 <= connection.worker < self._plan.workers:
            raise ValueError(f"worker {connection.worker} of {self._plan.workers}")
        with self._changed:
            older, self._connections[connection.worker] = self._connections.get(connection.worker), connection
            self._fetched.pop(connection.worker, None)
            self._changed.notify_all()
        if older:
            older.end()

    def pull(self, connection: WorkerConnection, *, version: int | None = None) -> tuple[int, int, Vector]:
        """Return the weights of this server's shard for a worker.

        Returns the version of the weights, the number of this worker's gradients that were applied until now, and the
        weights (n,) float32.

        `version` asks for the version that a replaced worker was working on. It is given if it is the one before the
        newest and training is synchronous. Otherwise, and with None, the newest version is given. Raises
        ConnectionReplaced.
        """
        with self._changed:
            self._require_newest(connection)
            if version is not None and version == self._version - 1 and self._plan.is_synchronous:
                return version, self._done[connection.worker], self._before
            self._fetched[connection.worker] = self._version
            return self._version, self._done[connection.worker], self._shard.state.values

    def push(self, connection: WorkerConnection, update: GradientUpdate, gradient: Vector) -> tuple[int, Vector]:
        """Take a worker's gradient of this shard, and update the weights. Returns the new version and the new weights.

        A synchronous server waits for the gradients of all workers, and updates once by their mean. A gradient that was
        taken before is not applied again. Raises ServerEnded, ConnectionReplaced, ValueError for a gradient of another
        length than the shard's.
        """
        if gradient.shape != self._before.shape or update.worker != connection.worker:
            raise ValueError(f"a gradient of {gradient.shape} of worker {update.worker}")
        with self._changed:
            self._require_newest(connection)
            if update.number >= self._done[update.worker]:
                (self._wait_for_all if self._plan.is_synchronous else self._take)(connection, update, gradient)
            self._fetched[update.worker] = self._version
            return self._version, self._shard.state.values

    def detach(self, connection: WorkerConnection) -> None:
        """Remove a worker that is done or lost, so that no other worker waits for its gradients."""
        with self._changed:
            if self._connections.get(connection.worker) is connection:
                del self._connections[connection.worker]
                self._fetched.pop(connection.worker, None)
                self._changed.notify_all()

    def snapshot(
        self, epoch: int, *, has_ended: Callable[[], bool] = lambda: False
    ) -> tuple[dict[str, Any], ShardState]:
        """Wait until this server has ended an epoch. Returns facts of the epoch, and the shard's state at its end.

        The facts are the losses, the number of gradients by staleness, the times of the first and the last update, and
        whether all weights are finite. Each epoch can be taken once.

        Parameters
        ----------
        epoch
            The number of the epoch in this session, from 1.
        has_ended
            Returns whether the driver that waits for the answer is gone.

        Raises ServerEnded, ConnectionReplaced.
        """
        with self._changed:
            self._wait_until(lambda: epoch in self._snapshots, has_ended)
            return self._snapshots.pop(epoch)

    def end(self) -> None:
        """End the session. Every thread that waits for this server gets ServerEnded."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def _require_newest(self, connection: WorkerConnection) -> None:
        if self._connections.get(connection.worker) is not connection:
            raise ConnectionReplaced(f"worker {connection.worker} has a newer connection")

    def _wait_for_all(self, connection: WorkerConnection, push: GradientUpdate, gradient: Vector) -> None:
        if push.version < self._version:
            return  # the update was made by the gradients of a replaced process
        self._pushed[push.worker] = push, gradient
        if len(self._pushed) == self._plan.workers:
            self._update_by_mean()
        else:
            self._wait_in(connection, lambda: self._version > push.version)

    def _update_by_mean(self) -> None:
        pushes = [self._pushed[worker] for worker in sorted(self._pushed)]
        whole = sum(push.weight for push, _ in pushes)
        mean = np.zeros_like(self._shard.state.values)
        for push, gradient in pushes:
            if push.weight:
                mean += gradient * np.float32(push.weight / whole)
            self._done[push.worker] += 1
        self._pushed.clear()
        self._update(mean, pushes[0][0].learning_rate, [push.loss for push, _ in pushes if push.weight])

    def _take(self, connection: WorkerConnection, push: GradientUpdate, gradient: Vector) -> None:
        self._wait_in(connection, lambda: self._may_update(push.worker))
        self._staleness[self._version - push.version] += 1
        self._done[push.worker] += 1
        self._update(gradient, push.learning_rate, [push.loss])

    def _may_update(self, worker: int) -> bool:
        bound = self._plan.staleness
        if bound is None:
            return True
        others = sorted(version for other, version in self._fetched.items() if other != worker)
        return all(self._version + 1 + number - version <= bound for number, version in enumerate(others))

    def _update(self, gradient: Vector, rate: float, losses: Sequence[float | None]) -> None:
        self._before = self._shard.state.values
        self._shard.update(gradient, learning_rate=rate)
        self._version += 1
        at_s = time.time()
        self._began_s = at_s if self._began_s is None else self._began_s
        self._losses += [loss for loss in losses if loss is not None]
        if self._version % self._service.updates_per_epoch == 0:
            state = self._shard.state
            facts: dict[str, Any] = {
                "staleness": {str(late): count for late, count in sorted(self._staleness.items())},
                "losses": self._losses,
                "began": self._began_s,
                "ended": at_s,
                "is_finite": state.is_finite,
            }
            self._snapshots[self._version // self._service.updates_per_epoch] = (facts, state)
            self._losses, self._staleness, self._began_s = [], Counter(), None
        self._changed.notify_all()

    def _wait_in(self, connection: WorkerConnection, ready: Callable[[], bool]) -> None:
        """Wait for a worker's connection, as long as it is the worker's newest."""

        def check() -> bool:
            self._require_newest(connection)
            return ready()

        self._wait_until(check, connection.has_ended)

    def _wait_until(self, ready: Callable[[], bool], has_ended: Callable[[], bool]) -> None:
        while not self._is_over and not ready():
            if has_ended():
                raise ConnectionReplaced("the other side has ended")
            self._changed.wait(_TICK_S)
        if self._is_over:
            raise ServerEnded


class ShardServer:
    """Listens at an address and serves one shard of the weights (`ParameterServer`) to workers and driver.

    The server ends when it is closed, its driver disconnects, or no driver connects. `ended` is called after that.
    """

    def __init__(
        self,
        service: ServerSettings,
        state: ShardState,
        *,
        host: str,
        token: str,
        encryption: ssl.SSLContext | None = None,
        ended: Callable[[], object] = lambda: None,
        patience_s: float = _DRIVERLESS_S,
    ) -> None:
        self._server, self._ended = ParameterServer(service, state), ended
        self._takes_turns, self._inward, self._outward = service.plan.takes_turns, FifoLock(), FifoLock()
        self._listener = Listener(
            host, token=token, largest=len(state.values), serve=self._serve, encryption=encryption
        )
        self.address = self._listener.address
        self._waiting = threading.Timer(patience_s, self.close)
        self._waiting.daemon = True
        self._waiting.start()

    def close(self) -> None:
        """End the server, and close all of its connections."""
        self._waiting.cancel()
        if self._waiting is not threading.current_thread():
            self._waiting.join()
        self._server.end()
        self._listener.close()
        self._ended()

    def _serve(self, channel: Channel, role: str) -> None:
        """Serve one connection until it ends, by OSError or by ValueError for an invalid message."""
        try:
            if role == DRIVER_ROLE:
                self._serve_driver(channel)
            else:
                self._serve_worker(
                    channel, WorkerConnection(worker=int(role), has_ended=channel.has_ended, end=channel.close)
                )
        except ServerEnded:
            with contextlib.suppress(OSError):
                channel.send({_DEATH: True})

    def _serve_driver(self, channel: Channel) -> None:
        """Send snapshots on request. The session ends when the driver disconnects."""
        self._waiting.cancel()
        try:
            while True:
                asked = to_type(channel.receive().header, _DriverRequest)
                facts, state = self._server.snapshot(asked.epoch, has_ended=channel.has_ended)
                channel.send({**facts, "steps": state.steps}, state.join())
        finally:
            self._server.end()
            threading.Thread(target=self.close, name="parameters", daemon=True).start()

    def _serve_worker(self, channel: Channel, connection: WorkerConnection) -> None:
        """Send weights, and apply gradients, until the worker's connection ends."""
        self._server.attach(connection)
        try:
            while True:
                message = channel.receive()
                asked = to_type(message.header, _WorkerRequest)
                if asked.gradient is None:
                    version, done, values = self._server.pull(connection, version=asked.version)
                    self._give(channel, {"version": version, "done": done}, values)
                    continue
                gradient = self._taken(channel) if self._takes_turns else message.values
                version, values = self._server.push(connection, asked.gradient, gradient)
                self._give(channel, {"version": version}, values if asked.wants_weights else values[:0])
        finally:
            self._server.detach(connection)

    def _taken(self, channel: Channel) -> Vector:
        """Receive the numbers of a gradient when it is the worker's turn."""
        with self._inward.acquire(channel.has_ended):
            channel.send({"go": True})
            return channel.receive().values

    def _give(self, channel: Channel, header: Mapping[str, Any], values: Vector) -> None:
        """Send weights when it is the worker's turn, which lasts until the worker confirms them."""
        if not self._takes_turns or not len(values):
            channel.send(header, values)
            return
        with self._outward.acquire(channel.has_ended):
            channel.send(header, values)
            channel.receive()
