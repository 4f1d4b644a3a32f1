"""Control a training on a cluster: start parameter servers and workers, and receive the state after each epoch.

This module runs in the driver, the process that started the training. Dask starts the workers. Weights are sent over
separate channels (`channel`). If the process of a worker dies, another process continues from the current state of the
servers. If a server dies, its weights are lost, and the session ends. The training then resumes from the checkpoint of
the last epoch.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from distributed import Client, Future

from fieldray.errors import EnvironmentProblem, UsageProblem
from fieldray.reasons import reason
from fieldray_cluster.connection import (
    ConnectionSettings,
    allow_pickled_classes,
    client_tls_context,
    host_of,
    is_connected,
    open_client,
)
from fieldray_cluster.training.channel import Channel, open_channels
from fieldray_cluster.training.formulas import ElementRanges
from fieldray_cluster.training.server import DRIVER_ROLE, ParameterServerSettings
from fieldray_cluster.training.shard import ShardState, WeightLayout, scatter
from fieldray_cluster.training.tasks import DividedTask, TrainingPlan
from fieldray_cluster.training.worker import (
    WorkerResult,
    WorkerSpec,
    run_training_worker,
    start_parameter_server,
    stop_parameter_servers,
)
from fieldray_cluster.worker_registry import WorkerLost, WorkerRegistry, converting_connection_errors, wait_for_result

allow_pickled_classes(WorkerResult)
log = logging.getLogger(__name__)

LineHandler = Callable[[str], None]
"""A function that is called with a line of text for the user."""

_TICK_S: Final = 0.2
_PATIENCE_S: Final = 60.0
_LIVES: Final = 3
"""How many times a worker may be lost in an epoch before the training ends with an error."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class TrainedEpoch:
    """The result of one epoch of a training on a cluster.

    Attributes
    ----------
    number
        Number of the epoch. The first epoch of the training is 1, even if the training was resumed.
    loss
        Mean loss of the batches.
    gradient_counts_by_staleness
        Number of gradients of all servers, by staleness (number of updates by which a gradient was late).
    began_s, ended_s
        Time of the first update of a server, and time of the last update of a server, in seconds since 1970.
    """

    number: int
    state: ShardState
    loss: float
    gradient_counts_by_staleness: Counter[int]
    began_s: float
    ended_s: float


def open_plan_client(plan: TrainingPlan) -> AbstractContextManager[Client]:
    """Open a Dask client for a training plan: of the cluster at the plan's address, or of local processes.

    Local processes end with the block.

    Raises UsageProblem, EnvironmentProblem.
    """
    return open_client(
        ConnectionSettings(
            address=plan.address, workers=plan.workers + plan.server_count, certificates=plan.certificates
        )
    )


def train_epochs_on_cluster(
    client: Client,
    *,
    plan: TrainingPlan,
    task: DividedTask,
    layout: WeightLayout,
    state: ShardState,
    first_epoch: int = 0,
    say: LineHandler = lambda _line: None,
) -> Generator[TrainedEpoch, None, None]:
    """Train a task on a cluster, and yield the result of each finished epoch. The training goes on during the `yield`.

    Parameters
    ----------
    plan
        The division of the training among workers.
    layout
        The order of the network's weights in one vector.
    state
        All weights and the state of the optimiser, with which the training starts.
    first_epoch
        Number of epochs of the task that were trained before.
    say
        A function that is called with a line of text for the user.

    Raises UsageProblem (training_diverged, training_diverged_weights, training_few_workers, training_node_folder,
    training_node_other), EnvironmentProblem (training_server_lost, training_server_unreached, training_worker_lost),
    ConnectionLost, IncompatibleNodes.
    """
    plan.require_enough_batches(batches=task.batch_count, images_per_batch=task.images_per_batch)
    with ExitStack() as ends:
        session = _Session(client, plan, task, layout, say)
        ends.callback(session.close)
        session.start(state, first_epoch)
        for number in range(first_epoch + 1, task.epochs + 1):
            yield session.epoch(number)


def open_registry(client: Client, say: LineHandler = lambda _line: None) -> WorkerRegistry:
    """Check the workers of a cluster, and return a registry of the usable workers.

    `say` is called with a line of text about each unusable worker. Raises IncompatibleNodes, ConnectionLost.
    """
    return WorkerRegistry(client, on_message=lambda node, why: say(f"{node}: {why.text}"))


def choose_process_addresses(registry: WorkerRegistry, plan: TrainingPlan) -> list[str]:
    """Return the addresses of the cluster processes to use: first for each worker, then for each parameter server.

    If the cluster has too few processes, the function waits a while. If there are still too few, servers share
    processes with workers. Raises UsageProblem (training_few_workers) if there are fewer processes than workers, and
    ConnectionLost.
    """
    until_s, wanted = time.monotonic() + _PATIENCE_S, plan.workers + plan.server_count
    while len(registry.workers) < wanted and time.monotonic() < until_s:
        if plan.address and len(registry.workers) >= plan.workers:
            break
        time.sleep(_TICK_S)
        registry.refresh(at_once=True)
    found = registry.workers_idle_first()
    if len(found) < plan.workers:
        raise UsageProblem(reason("training_few_workers", workers=plan.workers, there=len(found)))
    hosts = found[plan.workers : wanted]
    return found[: plan.workers] + hosts + found[: plan.server_count - len(hosts)]


class _Session:
    """The parameter servers and workers of one training, from `start` to `close`."""

    def __init__(
        self, client: Client, plan: TrainingPlan, task: DividedTask, layout: WeightLayout, say: LineHandler
    ) -> None:
        self._client, self._plan, self._task, self._layout, self._say = client, plan, task, layout, say
        self._registry = open_registry(client, say)
        self._token = secrets.token_hex(16)
        self._controls: list[Channel] = []
        self._hosts: list[str] = []
        self._runs: list[ElementRanges] = []
        self._specs: dict[int, WorkerSpec] = {}
        self._at: dict[int, str] = {}
        self._futures: dict[int, Future[Any]] = {}
        self._lost = Counter[int]()
        self._first_epoch = 0
        self._ends = ExitStack()

    def start(self, state: ShardState, first_epoch: int) -> None:
        """Start parameter servers with the weights of `state`, and start workers.

        `first_epoch` is the number of epochs that were trained before.
        """
        plan = self._plan
        worker_addresses, self._first_epoch = choose_process_addresses(self._registry, plan), first_epoch
        self._runs = list(self._layout.shard_ranges(plan.server_count, evenly=plan.splits_evenly))
        self._hosts = worker_addresses[plan.workers :]
        addresses = [self._served(host, runs, state) for host, runs in zip(self._hosts, self._runs, strict=True)]
        try:
            self._controls = self._ends.enter_context(
                open_channels(
                    addresses,
                    token=self._token,
                    role=DRIVER_ROLE,
                    max_values=[4 * max(1, sum(stop - start for start, stop in runs)) for runs in self._runs],
                    encryption=client_tls_context(self._client),
                )
            )
        except OSError as error:
            detail = error.strerror or str(error)
            raise EnvironmentProblem(
                reason("training_server_unreached", hosts=", ".join(host for host, _ in addresses), detail=detail)
            ) from error
        for worker, address in enumerate(worker_addresses[: plan.workers]):
            self._specs[worker] = WorkerSpec(
                task=self._task,
                plan=plan,
                layout=self._layout,
                worker_index=worker,
                token=self._token,
                servers=tuple(zip(addresses, self._runs, strict=True)),
                first_epoch=first_epoch,
            )
            self._send_out(worker, address)

    def _served(self, host: str, runs: ElementRanges, state: ShardState) -> tuple[str, int]:
        """Start a parameter server in the cluster process with the address `host`. Returns host and port of the server.

        The returned host is part of `host`, and is not taken from the process's answer. `runs` are the element ranges
        of the server's shard. `state` is the state of all weights.
        """
        plan = self._plan
        service = ParameterServerSettings(
            layout=self._layout,
            shard_ranges=runs,
            rule=self._task.update_rule,
            plan=plan,
            updates_per_epoch=plan.updates_per_epoch(self._task.batch_count),
        )
        task = self._client.submit(
            start_parameter_server, service, state.part(runs), token=self._token, workers=[host], pure=False
        )
        return host_of(host), int(self._result(task, host)[1])

    def epoch(self, number: int) -> TrainedEpoch:
        """Wait for the end of the epoch `number`, and replace workers that are lost during the wait.

        Returns the result of the epoch.
        """
        self._lost.clear()
        arrays = [np.empty(self._layout.element_count, np.float32) for _ in range(4)]
        found = list[Mapping[str, Any]]()
        try:
            for control in self._controls:
                control.send({"epoch": number - self._first_epoch})
            for control, runs in zip(self._controls, self._runs, strict=True):
                message = control.receive(meanwhile=self._replace_lost_workers)
                found.append(message.header)
                if "steps" not in message.header:
                    raise ConnectionError("the server has ended")
                for array, part in zip(arrays, np.split(message.values, 4), strict=True):
                    scatter(part, runs, into=array)
            state = ShardState(arrays[0], arrays[1], arrays[2], arrays[3], found[-1]["steps"])
            return make_trained_epoch(number, state, found)
        except (OSError, ValueError) as error:
            log.warning("connection to a parameter server lost: %s", error)
            raise EnvironmentProblem(reason("training_server_lost")) from error

    def close(self) -> None:
        """End parameter servers and workers. The processes of the cluster, in which they ran, are not ended."""
        self._ends.close()
        try:
            self._registry.refresh(at_once=True)
        except EnvironmentProblem:
            return
        there = self._registry.workers
        ended = [
            self._client.submit(stop_parameter_servers, self._token, workers=[host], pure=False)
            for host in self._hosts
            if host in there
        ]
        own = [future for worker, future in self._futures.items() if self._at[worker] in there]
        until_s = time.monotonic() + _PATIENCE_S
        while any(not one.done() for one in (*own, *ended)) and time.monotonic() < until_s:
            if not is_connected(self._client):
                return
            time.sleep(_TICK_S / 10)
        self._client.cancel([*self._futures.values(), *ended])  # tasks of processes that left never end

    def _send_out(self, worker: int, address: str) -> None:
        self._at[worker] = address
        self._futures[worker] = self._client.submit(
            run_training_worker, self._specs[worker], workers=[address], allow_other_workers=False, pure=False
        )

    def _result(self, task: Future[Any], host: str) -> Any:
        try:
            return wait_for_result(task, timeout_s=_PATIENCE_S)
        except WorkerLost as error:
            log.warning("parameter server on %s not started: %s", host, error)
            raise EnvironmentProblem(reason("training_server_lost")) from error
        except TimeoutError as error:
            self._client.cancel([task])
            self._registry.refresh(at_once=True)
            raise EnvironmentProblem(reason("training_host_busy", host=host_of(host))) from error

    def _replace_lost_workers(self) -> None:
        """Look once for lost workers, and replace them. Raises EnvironmentProblem, UsageProblem."""
        self._registry.refresh()
        there = self._registry.workers
        if lost := set(self._hosts) - there.keys():
            log.warning("processes of parameter servers have left the cluster: %s", ", ".join(sorted(lost)))
            raise EnvironmentProblem(reason("training_server_lost"))
        for worker, future in self._futures.items():
            # A task of a process that has left would never end.
            if self._has_failed(worker, future) if future.done() else self._at[worker] not in there:
                self._replace(worker)
                break

    def _has_failed(self, worker: int, future: Future[Any]) -> bool:
        """Return whether a worker, whose task has ended, must be replaced. `future` is the future of the task.

        Raises UsageProblem if the worker's loss was not finite, or if the worker cannot read the training images.
        """
        try:
            with converting_connection_errors():
                result: WorkerResult = wait_for_result(future, timeout_s=_PATIENCE_S)
        except WorkerLost:
            return True
        if result.diverged_at:
            epoch, step = result.diverged_at
            raise UsageProblem(reason("training_diverged", epoch=epoch, step=step))
        if result.arrays_problem_code:
            address = self._at[worker]
            node = str(self._registry.workers.get(address, {"name": address})["name"])
            raise UsageProblem(reason(result.arrays_problem_code, node=node, path=self._task.arrays_path.parent))
        return result.was_lost

    def _replace(self, worker: int) -> None:
        """Start the worker with the number `worker` again in another process."""
        self._lost[worker] += 1
        if self._lost[worker] > _LIVES:
            raise EnvironmentProblem(reason("training_worker_lost", worker=worker + 1, times=self._lost[worker]))
        self._say(reason("training_worker_again", worker=worker + 1).text)
        busy = {*self._hosts, *(address for other, address in self._at.items() if other != worker)}
        until_s = time.monotonic() + _PATIENCE_S
        self._registry.refresh(at_once=True)
        while not (free := [address for address in self._registry.workers_idle_first() if address not in busy]):
            if time.monotonic() > until_s:
                raise EnvironmentProblem(reason("training_worker_lost", worker=worker + 1, times=self._lost[worker]))
            time.sleep(_TICK_S)
            self._registry.refresh(at_once=True)
        self._send_out(worker, free[0])


def make_trained_epoch(number: int, state: ShardState, facts: Sequence[Mapping[str, Any]]) -> TrainedEpoch:
    """Combine the facts of all parameter servers about an epoch into the result of the epoch.

    `state` is the joined state of all shards. `facts` are results of `ParameterServer.snapshot`. Each server has the
    loss of each gradient, so the losses of the first server are used. Raises UsageProblem (training_diverged_weights)
    if weights are not finite.
    """
    if not all(one["is_finite"] for one in facts):
        raise UsageProblem(reason("training_diverged_weights", epoch=number))
    losses, staleness = facts[0]["losses"], Counter[int]()
    for one in facts:
        staleness.update({int(late): count for late, count in one["staleness"].items()})
    ended = max(one["ended"] for one in facts)
    return TrainedEpoch(
        number=number,
        state=state,
        loss=float(np.mean(losses)) if losses else float("nan"),
        gradient_counts_by_staleness=staleness,
        began_s=facts[0]["began"] or ended,
        ended_s=ended,
    )
