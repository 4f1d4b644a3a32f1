"""Run a training in the processes of a cluster: parameter servers serve weights, workers compute gradients.

A worker fetches weights from the parameter servers, computes a gradient, and sends the gradient to the servers.
"""

from __future__ import annotations

import contextlib
import math
import ssl
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from distributed import get_worker

from fieldray_adapt.lungs.engine import set_thread_count
from fieldray_cluster.connection import client_tls_context, host_of
from fieldray_cluster.node import worker_core_count
from fieldray_cluster.training.channel import Channel, Listener, Vector, open_channels, serve_echo
from fieldray_cluster.training.formulas import ElementRanges
from fieldray_cluster.training.server import ParameterServerSettings, ShardServer
from fieldray_cluster.training.shard import ShardState, WeightLayout, clip_gradient, gather, scatter
from fieldray_cluster.training.tasks import DividedTask, Replica, TrainingImagesChanged, TrainingPlan

_SERVED: Final[dict[str, ShardServer | Listener]] = {}
"""The open servers and listeners of this process, by the token (secret) of their session."""


class _ServerLost(Exception):
    """The error if a parameter server does not answer, or has ended the session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """The settings of one worker of a training on a cluster.

    Attributes
    ----------
    layout
        The order of the network's weights in one vector.
    worker_index
        The number of the worker, from 0.
    token
        The secret of the session, which the parameter servers require.
    servers
        For each parameter server: (host, port), and the element ranges of the server's shard.
    first_epoch
        Number of epochs of the task that were trained before.
    """

    task: DividedTask
    plan: TrainingPlan
    layout: WeightLayout
    worker_index: int
    token: str
    servers: tuple[tuple[tuple[str, int], ElementRanges], ...]
    first_epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerResult:
    """The end of a worker's task in a training: complete if no field is set, or ended for one of three reasons.

    Attributes
    ----------
    was_lost
        Whether a parameter server was lost, or another process has replaced the worker's process.
    diverged_at
        Epoch and step (both from 1) whose loss was not finite; None if all losses were finite.
    arrays_problem_code
        The code of the reason why the worker could not read the training images; "" if it could.
    """

    was_lost: bool = False
    diverged_at: tuple[int, int] | None = None
    arrays_problem_code: str = ""


def server_tls_context() -> ssl.SSLContext | None:
    """Return the TLS context for connections to this process; None for unencrypted connections."""
    context: ssl.SSLContext | None = get_worker().security.get_listen_args("worker").get("ssl_context")
    return context


def own_ip_address() -> str:
    """Return the numeric IP address at which other processes of the cluster reach this process."""
    return host_of(get_worker().address)


def start_parameter_server(service: ParameterServerSettings, state: ShardState, *, token: str) -> tuple[str, int]:
    """Start a parameter server in this process. Returns host and port of the server.

    The function runs in a process of the cluster. The server ends when the process that started the training
    disconnects. `service` has the server's settings, `state` is the initial state of the server's shard, `token` the
    session's secret.
    """
    served = ShardServer(
        service,
        state,
        host=own_ip_address(),
        token=token,
        encryption=server_tls_context(),
        ended=lambda: _SERVED.pop(token, None),
    )
    _SERVED[token] = served
    return served.address


def start_echo_server(elements: int, token: str) -> tuple[str, int]:
    """Start a server in this process that sends back all numbers that it gets. Returns host and port of the server.

    `channel.time_round_trips` measures transfers with this server. `elements` is the largest count of numbers in a
    message, `token` the session's secret. The function runs in a process of the cluster.
    """
    _SERVED[token] = echoing = Listener(
        own_ip_address(), token=token, largest=elements, serve=serve_echo, encryption=server_tls_context()
    )
    return echoing.address


def stop_parameter_servers(token: str) -> None:
    """End all servers of a session in this process, a process of the cluster. `token` is the session's secret."""
    if served := _SERVED.pop(token, None):
        served.close()


def run_training_worker(spec: WorkerSpec) -> WorkerResult:
    """Compute and send the gradients of a worker until the session ends (see `compute_gradients`).

    The function runs in a process of the cluster.
    """
    set_thread_count(worker_core_count())
    return compute_gradients(spec, encryption=client_tls_context(get_worker()))


def compute_gradients(spec: WorkerSpec, *, encryption: ssl.SSLContext | None = None) -> WorkerResult:
    """Compute all gradients of a worker that are still missing, and send them to the parameter servers.

    The worker continues after the last gradient that the servers have applied, up to the last epoch.
    `encryption` is the cluster's TLS context; None for unencrypted connections.
    """
    try:
        replica = spec.task.open_replica()
    except TrainingImagesChanged:
        return WorkerResult(arrays_problem_code="training_node_other")
    except OSError:
        return WorkerResult(arrays_problem_code="training_node_folder")
    try:
        with contextlib.ExitStack() as ends:
            # Entered before the channels. So the channels are closed first, and the pool's threads stop waiting.
            threads = ends.enter_context(ThreadPoolExecutor(len(spec.servers), thread_name_prefix="exchange"))
            with _raising_if_lost():
                channels = ends.enter_context(
                    open_channels(
                        [address for address, _ in spec.servers],
                        token=spec.token,
                        role=str(spec.worker_index),
                        max_values=[spec.layout.element_count] * len(spec.servers),
                        encryption=encryption,
                    )
                )
            return _Work(spec, channels, threads).finish(replica)
    except _ServerLost:
        return WorkerResult(was_lost=True)


@contextlib.contextmanager
def _raising_if_lost() -> Iterator[None]:
    """Run a block, and raise _ServerLost if a connection fails in the block.

    The block must not use files or devices, whose errors would be converted, too.
    """
    try:
        yield
    except (OSError, ValueError) as error:
        raise _ServerLost from error


class _Work:
    """The exchange of weights and gradients between one worker and all parameter servers."""

    def __init__(self, spec: WorkerSpec, channels: Sequence[Channel], threads: ThreadPoolExecutor) -> None:
        self._spec, self._channels, self._threads = spec, channels, threads
        self._runs = [runs for _, runs in spec.servers]
        self._values: Vector = np.empty(spec.layout.element_count, np.float32)
        self._versions = [0] * len(channels)
        # Each worker begins with another server, because all workers would wait for the link of the first server.
        first = spec.worker_index % len(channels)
        self._order = [*range(first, len(channels)), *range(first)]

    def finish(self, replica: Replica) -> WorkerResult:
        """Compute and send gradients until the end of the last epoch. Returns how the worker's task ended."""
        spec = self._spec
        batches, plan = spec.task.batch_count, spec.plan
        with _raising_if_lost():
            number = self._fetch()
        per_epoch = plan.gradients_per_epoch(batches, spec.worker_index)
        last = per_epoch * (spec.task.epochs - spec.first_epoch)
        while number < last:
            epoch, own = spec.first_epoch + number // per_epoch, number % per_epoch
            replica.set_weights(spec.layout.to_weights(self._values))
            batch = plan.batch_index(batches, spec.worker_index, own)
            header: dict[str, Any] = {
                "gradient_index": number,
                "averaging_weight": 0.0,
                "learning_rate": spec.task.learning_rate(epoch, own / per_epoch),
            }
            gradient = np.zeros(spec.layout.element_count, np.float32)
            if batch is not None:
                taken = replica.gradient(epoch, batch, plan, spec.worker_index)
                if not math.isfinite(taken.loss):
                    return WorkerResult(diverged_at=(epoch + 1, batch + 1))
                gradient = spec.layout.to_vector(taken.gradient)
                header |= {"averaging_weight": taken.averaging_weight, "loss": taken.loss}
            number += 1
            with _raising_if_lost():
                self._exchange(header, gradient, is_last=number == last)
        return WorkerResult()

    def _fetch(self) -> int:
        """Fetch the weights from all parameter servers. Returns the number of the worker's next gradient, from 0."""
        for index in self._order:
            self._channels[index].send({})
        # In parallel: if transfers take turns, two workers could otherwise wait for each other's server.
        done = list(self._threads.map(self._receive, self._order))
        if not self._spec.plan.is_synchronous:
            return min(done)
        least = min(self._versions)
        for index, channel in enumerate(self._channels):
            if self._versions[index] > least:
                channel.send({"version": least})
                self._receive(index)
        return least

    def _receive(self, index: int) -> int:
        """Receive weights from the server with the index `index`.

        Returns how many gradients of this worker the server has applied.
        """
        channel = self._channels[index]
        message = channel.receive()
        if "version" not in message.header:
            raise ConnectionError("the session is over")
        if self._spec.plan.takes_turns and len(message.values):
            channel.send({})
        self._versions[index] = int(message.header["version"])
        if len(message.values):
            scatter(message.values, self._runs[index], into=self._values)
        return int(message.header.get("done", 0))

    def _exchange(self, header: dict[str, Any], gradient: Vector, *, is_last: bool) -> None:
        """Send a gradient to every server, and receive new weights from every server.

        After the last gradient (`is_last`), servers send only a confirmation.
        """
        spec = self._spec
        if len(self._channels) > 1 or not spec.plan.is_synchronous:
            gradient = clip_gradient(gradient, spec.layout, spec.task.update_rule.clip_norm)

        def exchange(index: int) -> None:
            message = {**header, "worker_index": spec.worker_index, "version": self._versions[index]}
            own = gather(gradient, self._runs[index])
            request, channel = {"gradient": message, "wants_weights": not is_last}, self._channels[index]
            if spec.plan.takes_turns:
                channel.send(request)
                if "go" not in channel.receive().header:
                    raise ConnectionError("the session is over")
                request = {}
            channel.send(request, own)
            self._receive(index)

        # In parallel: a slow server would otherwise delay the gradients that other servers wait for.
        for _ in self._threads.map(exchange, self._order):
            pass
