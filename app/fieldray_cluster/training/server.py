"""A parameter server: stores a shard of the weights, updates it by the gradients of workers, and sends it to workers.

Synchronous training: after all workers have sent a gradient, the server makes one update. The mean of the gradients is
weighted by the numbers of samples. A process that replaces a lost worker asks for the version of the weights on which
the lost worker was working: the newest version, or (if another server is behind) the version before. So the server
keeps both. Asynchronous training: each gradient is an update (Downpour SGD, Dean 2012). The staleness of a gradient is
the number of updates between fetching the weights and applying the gradient.

If the staleness has a bound, workers that are ahead wait. A worker may update if all other gradients could still be
applied afterwards, oldest first, within the bound. Let p(1) <= p(2) ... be the versions on which the other workers are
working. Then (version + 1) + (j - 1) - p(j) <= bound must hold for each j. The bound must be at least the number of
workers minus one. So the oldest worker may always update, and no worker waits forever.

If transfers take turns (the semaphore of Šlampa 2017, section 7), one worker at a time sends to the server, and one
worker at a time receives, in the order of asking. So the first worker has the whole link, and computes while the next
worker transfers. A worker sends its gradient after the server's signal, and confirms received weights.

A worker has one valid connection, the newest. Messages on older connections are ignored. A waiting thread checks
whether the other side of its connection still exists.
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
"""The role in the first message of the driver (the process that started the training) to a parameter server."""
_DEATH: Final = "ended"
_TICK_S: Final = 0.2
_DRIVERLESS_S: Final = 600.0
"""Seconds that a parameter server waits for a connection of the driver, the process that started the training."""


class ParameterServerEnded(Exception):
    """The error for a request to a parameter server whose session has ended."""


class ConnectionReplaced(ConnectionError):
    """The error for a connection whose other side is gone, or whose worker has opened a newer connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterServerSettings:
    """The settings of a parameter server.

    Attributes
    ----------
    layout
        The order of all weights of the network in one vector.
    shard_ranges
        The ranges of this vector that are the server's shard.
    rule
        The rule by which weights are updated and averaged.
    updates_per_epoch
        The number of updates in an epoch. After an epoch, the server keeps a copy of its state for `snapshot`.
    """

    layout: WeightLayout
    shard_ranges: ElementRanges
    rule: UpdateRule
    plan: TrainingPlan
    updates_per_epoch: int


class GradientUpdate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The header of a worker's message with a gradient.

    Attributes
    ----------
    worker_index
        The number of the worker, from 0.
    version
        The version of the weights for which the gradient was computed.
    gradient_index
        The number of gradients that the worker has sent before this gradient.
    averaging_weight
        The weight of the gradient in the mean of all workers' gradients.
    learning_rate
        The learning rate of the update.
    loss
        The loss of the batch; None if no batch was left for the worker.
    """

    worker_index: int
    version: Annotated[int, msgspec.Meta(ge=0)]
    gradient_index: Annotated[int, msgspec.Meta(ge=0)]
    averaging_weight: Annotated[float, msgspec.Meta(ge=0)]
    learning_rate: float
    loss: float | None = None


class _WorkerRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's request to a parameter server: fetch weights (of a version, or the newest), or send a gradient."""

    version: int | None = None
    gradient: GradientUpdate | None = None
    wants_weights: bool = True


class _DriverRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The driver's request to a parameter server for the state at the end of an epoch."""

    epoch: Annotated[int, msgspec.Meta(ge=1)]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class WorkerConnection:
    """The connection of a worker to a parameter server.

    `has_ended` is a function that returns whether the worker has ended the connection. The function `end` closes the
    connection.
    """

    worker_index: int
    has_ended: Callable[[], bool] = lambda: False
    end: Callable[[], None] = lambda: None


class FifoLock:
    """A lock for transfers in one direction. Workers get the lock in the order in which they ask."""

    def __init__(self) -> None:
        self._changed, self._waiting = threading.Condition(), deque[object]()

    @contextlib.contextmanager
    def acquire(self, has_ended: Callable[[], bool]) -> Iterator[None]:
        """Wait for the lock, and keep it during the block.

        Raises ConnectionReplaced if `has_ended` returns True during the wait.
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
    """Stores a shard of the weights, and updates the shard by gradients of workers, synchronously or asynchronously."""

    def __init__(self, service: ParameterServerSettings, state: ShardState) -> None:
        self._service, self._plan = service, service.plan
        self._shard = Shard(state, layout=service.layout, ranges=service.shard_ranges, rule=service.rule)
        self._changed = threading.Condition()
        self._version, self._before = 0, state.weights
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
        """Register the connection of a worker, and end the worker's older connection.

        Raises ValueError for a worker number that the training does not have.
        """
        if not 0 <= connection.worker_index < self._plan.workers:
            raise ValueError(f"worker {connection.worker_index} of {self._plan.workers}")
        with self._changed:
            older, self._connections[connection.worker_index] = (
                self._connections.get(connection.worker_index),
                connection,
            )
            self._fetched.pop(connection.worker_index, None)
            self._changed.notify_all()
        if older:
            older.end()

    def pull_weights(self, connection: WorkerConnection, *, version: int | None = None) -> tuple[int, int, Vector]:
        """Return the weights of this server's shard for a worker.

        Returns the version of the weights, the number of the worker's gradients that were applied until now, and the
        weights (n,) float32. `version` is None for the newest version. In synchronous training, a process that replaces
        a lost worker may ask for the version before the newest. Raises ConnectionReplaced.
        """
        with self._changed:
            self._require_newest(connection)
            if version is not None and version == self._version - 1 and self._plan.is_synchronous:
                return version, self._done[connection.worker_index], self._before
            self._fetched[connection.worker_index] = self._version
            return self._version, self._done[connection.worker_index], self._shard.state.weights

    def push_gradient(
        self, connection: WorkerConnection, update: GradientUpdate, gradient: Vector
    ) -> tuple[int, Vector]:
        """Update the weights of this shard by a worker's gradient. Returns the new version and the new weights.

        In synchronous training, the call waits for the gradients of all workers, and makes one update by their mean. A
        gradient that was applied before is not applied again. Raises ParameterServerEnded, ConnectionReplaced, and
        ValueError if gradient and shard differ in length.
        """
        if gradient.shape != self._before.shape or update.worker_index != connection.worker_index:
            raise ValueError(f"a gradient of {gradient.shape} of worker {update.worker_index}")
        with self._changed:
            self._require_newest(connection)
            if update.gradient_index >= self._done[update.worker_index]:
                (self._wait_for_all if self._plan.is_synchronous else self._apply_push)(connection, update, gradient)
            self._fetched[update.worker_index] = self._version
            return self._version, self._shard.state.weights

    def detach(self, connection: WorkerConnection) -> None:
        """Remove a worker that is done or lost, so that other workers do not wait for the worker's gradients."""
        with self._changed:
            if self._connections.get(connection.worker_index) is connection:
                del self._connections[connection.worker_index]
                self._fetched.pop(connection.worker_index, None)
                self._changed.notify_all()

    def snapshot(
        self, epoch: int, *, has_ended: Callable[[], bool] = lambda: False
    ) -> tuple[dict[str, Any], ShardState]:
        """Wait until an epoch has ended. Returns facts about the epoch, and the state of the shard at the end.

        The facts are the losses, the number of gradients by staleness, the times of the first and the last update, and
        whether all weights are finite. Each epoch can be asked for once.

        Parameters
        ----------
        epoch
            The number of the epoch in this session, from 1.
        has_ended
            A function that returns whether the driver, which waits for the answer, has ended the connection.

        Raises ParameterServerEnded, ConnectionReplaced.
        """
        with self._changed:
            self._wait_until(lambda: epoch in self._snapshots, has_ended)
            return self._snapshots.pop(epoch)

    def end(self) -> None:
        """End the session. Threads that wait for this server raise ParameterServerEnded."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def _require_newest(self, connection: WorkerConnection) -> None:
        if self._connections.get(connection.worker_index) is not connection:
            raise ConnectionReplaced(f"worker {connection.worker_index} has a newer connection")

    def _wait_for_all(self, connection: WorkerConnection, push: GradientUpdate, gradient: Vector) -> None:
        if push.version < self._version:
            return  # the update was made by the gradients of a replaced process
        self._pushed[push.worker_index] = push, gradient
        if len(self._pushed) == self._plan.workers:
            self._update_by_mean()
        else:
            self._wait_in(connection, lambda: self._version > push.version)

    def _update_by_mean(self) -> None:
        pushes = [self._pushed[worker] for worker in sorted(self._pushed)]
        whole = sum(push.averaging_weight for push, _ in pushes)
        mean = np.zeros_like(self._shard.state.weights)
        for push, gradient in pushes:
            if push.averaging_weight:
                mean += gradient * np.float32(push.averaging_weight / whole)
            self._done[push.worker_index] += 1
        self._pushed.clear()
        self._update(mean, pushes[0][0].learning_rate, [push.loss for push, _ in pushes if push.averaging_weight])

    def _apply_push(self, connection: WorkerConnection, push: GradientUpdate, gradient: Vector) -> None:
        self._wait_in(connection, lambda: self._may_update(push.worker_index))
        self._staleness[self._version - push.version] += 1
        self._done[push.worker_index] += 1
        self._update(gradient, push.learning_rate, [push.loss])

    def _may_update(self, worker: int) -> bool:
        bound = self._plan.staleness
        if bound is None:
            return True
        others = sorted(version for other, version in self._fetched.items() if other != worker)
        return all(self._version + 1 + number - version <= bound for number, version in enumerate(others))

    def _update(self, gradient: Vector, rate: float, losses: Sequence[float | None]) -> None:
        self._before = self._shard.state.weights
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
        """Wait until `ready` returns True, as long as a connection is the newest connection of its worker."""

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
            raise ParameterServerEnded


class ShardServer:
    """Accepts connections of workers and driver, and serves one shard of the weights (`ParameterServer`).

    The driver is the process that started the training. The server ends when `close` is called, the driver
    disconnects, or no driver connects. After the end, the function `ended` is called.
    """

    def __init__(
        self,
        service: ParameterServerSettings,
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
            host, token=token, largest=len(state.weights), serve=self._serve, encryption=encryption
        )
        self.address = self._listener.address
        self._waiting = threading.Timer(patience_s, self.close)
        self._waiting.daemon = True
        self._waiting.start()

    def close(self) -> None:
        """End the server, and close all connections of the server."""
        self._waiting.cancel()
        if self._waiting is not threading.current_thread():
            self._waiting.join()
        self._server.end()
        self._listener.close()
        self._ended()

    def _serve(self, channel: Channel, role: str) -> None:
        """Serve one connection until it is lost (OSError) or an invalid message comes (ValueError)."""
        try:
            if role == DRIVER_ROLE:
                self._serve_driver(channel)
            else:
                self._serve_worker(
                    channel, WorkerConnection(worker_index=int(role), has_ended=channel.has_ended, end=channel.close)
                )
        except ParameterServerEnded:
            with contextlib.suppress(OSError):
                channel.send({_DEATH: True})

    def _serve_driver(self, channel: Channel) -> None:
        """Answer the driver's requests for the state after an epoch. The session ends when the driver disconnects."""
        self._waiting.cancel()
        try:
            while True:
                asked = to_type(channel.receive().header, _DriverRequest)
                facts, state = self._server.snapshot(asked.epoch, has_ended=channel.has_ended)
                channel.send({**facts, "steps": state.update_count}, state.to_vector())
        finally:
            self._server.end()
            threading.Thread(target=self.close, name="parameters", daemon=True).start()

    def _serve_worker(self, channel: Channel, connection: WorkerConnection) -> None:
        """Send weights to a worker, and apply the worker's gradients, until the worker's connection ends."""
        self._server.attach(connection)
        try:
            while True:
                message = channel.receive()
                asked = to_type(message.header, _WorkerRequest)
                if asked.gradient is None:
                    version, done, values = self._server.pull_weights(connection, version=asked.version)
                    self._give(channel, {"version": version, "done": done}, values)
                    continue
                gradient = self._taken(channel) if self._takes_turns else message.values
                version, values = self._server.push_gradient(connection, asked.gradient, gradient)
                self._give(channel, {"version": version}, values if asked.wants_weights else values[:0])
        finally:
            self._server.detach(connection)

    def _taken(self, channel: Channel) -> Vector:
        """Wait for the worker's turn to send, and receive the numbers of a gradient."""
        with self._inward.acquire(channel.has_ended):
            channel.send({"go": True})
            return channel.receive().values

    def _give(self, channel: Channel, header: Mapping[str, Any], values: Vector) -> None:
        """Wait for the worker's turn to receive, and send weights. The worker's confirmation ends the turn."""
        if not self._takes_turns or not len(values):
            channel.send(header, values)
            return
        with self._outward.acquire(channel.has_ended):
            channel.send(header, values)
            channel.receive()
