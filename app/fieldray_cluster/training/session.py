"""The driver's side of a training on a cluster: it starts servers and workers, and receives the state after each epoch.

Dask places and replaces workers. Weights travel by separate channels (`channel`). When a worker's process dies, another
process continues from the servers' current state. When a server dies, its weights are lost and the session ends. The
training then resumes from the checkpoint of the last epoch.
"""

from __future__ import annotations

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
from fieldray_cluster.training.server import DRIVER_ROLE, ServerSettings
from fieldray_cluster.training.shard import ShardState, WeightLayout, scatter
from fieldray_cluster.training.tasks import DividedTask, TrainingPlan
from fieldray_cluster.training.worker import (
    WorkerResult,
    WorkerSpec,
    run_training_worker,
    start_server,
    stop_server,
)
from fieldray_cluster.worker_registry import WorkerLost, WorkerRegistry, converting_connection_errors, wait_for_result

allow_pickled_classes(WorkerResult)

LineHandler = Callable[[str], None]
"""Receives a line of text for the user."""

_TICK_S: Final = 0.2
_PATIENCE_S: Final = 60.0
_LIVES: Final = 3
"""Number of times that a worker may be lost within an epoch before the training ends."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class TrainedEpoch:
    """The result of one epoch of a training on a cluster.

    Attributes
    ----------
    number
        Number of the epoch from 1, over all sessions of the task.
    loss
        Mean loss of the batches.
    staleness
        Number of gradients by staleness, over all servers.
    began_s, ended_s
        Time of the first update, and of the last server's last update, in seconds since 1970.
    """

    number: int
    state: ShardState
    loss: float
    staleness: Counter[int]
    began_s: float
    ended_s: float


def open_plan_client(plan: TrainingPlan) -> AbstractContextManager[Client]:
    """Open a client of a plan's cluster: the one at its address, or local processes that end with the block.

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
    """Train a task on a cluster, and yield each epoch when it has ended. Training goes on while the caller evaluates
    it.

    Parameters
    ----------
    plan
        How the training is divided among workers.
    layout
        The order of the weights in a vector.
    state
        All weights and the state of the optimiser, from which the training goes on.
    first_epoch
        Number of epochs of the task that are done already.

    Raises UsageProblem (training_diverged, training_diverged_weights, training_few_workers, training_node_folder,
    training_node_other), EnvironmentProblem (training_server_lost, training_server_unreached, training_worker_lost),
    ConnectionLost, IncompatibleNodes.
    """
    plan.require_work_for_all(batches=task.batches, sizes=task.sizes)
    with ExitStack() as ends:
        session = _Session(client, plan, task, layout, say)
        ends.callback(session.close)
        session.start(state, first_epoch)
        for number in range(first_epoch + 1, task.epochs + 1):
            yield session.epoch(number)


def open_registry(client: Client, say: LineHandler = lambda _line: None) -> WorkerRegistry:
    """Return the registry of the cluster's workers. Raises IncompatibleNodes, ConnectionLost."""
    return WorkerRegistry(client, on_message=lambda node, why: say(f"{node}: {why.text}"))


def choose_processes(registry: WorkerRegistry, plan: TrainingPlan) -> list[str]:
    """Return the addresses of the cluster's processes to use: first one for each worker, then one for each server.

    Waits a while if there are fewer. If there are still too few, servers share processes with workers. Raises
    UsageProblem (training_few_workers) if there is not one for each worker, ConnectionLost.
    """
    until_s, wanted = time.monotonic() + _PATIENCE_S, plan.workers + plan.server_count
    while len(registry.workers) < wanted and time.monotonic() < until_s:
        if plan.address and len(registry.workers) >= plan.workers:
            break
        time.sleep(_TICK_S)
        registry.refresh(at_once=True)
    found = registry.idle_first()
    if len(found) < plan.workers:
        raise UsageProblem(reason("training_few_workers", workers=plan.workers, there=len(found)))
    hosts = found[plan.workers : wanted]
    return found[: plan.workers] + hosts + found[: plan.server_count - len(hosts)]


class _Session:
    """The servers and workers of one training."""

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
        """Start servers with a state, and workers."""
        plan = self._plan
        worker_addresses, self._first_epoch = choose_processes(self._registry, plan), first_epoch
        self._runs = list(self._layout.ranges(plan.server_count, evenly=plan.splits_evenly))
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
                worker=worker,
                token=self._token,
                servers=tuple(zip(addresses, self._runs, strict=True)),
                first_epoch=first_epoch,
            )
            self._send_out(worker, address)

    def _served(self, host: str, runs: ElementRanges, state: ShardState) -> tuple[str, int]:
        """Start a parameter server in a process. Returns its host and port.

        The host is the process's host as the scheduler knows it, not an address that the process reports.
        """
        plan = self._plan
        service = ServerSettings(
            layout=self._layout,
            ranges=runs,
            rule=self._task.rule,
            plan=plan,
            updates_per_epoch=plan.updates_per_epoch(self._task.batches),
        )
        task = self._client.submit(
            start_server, service, state.part(runs), token=self._token, workers=[host], pure=False
        )
        return host_of(host), int(self._result(task, host)[1])

    def epoch(self, number: int) -> TrainedEpoch:
        """Wait for the end of an epoch, and replace lost workers during the wait."""
        self._lost.clear()
        arrays = [np.empty(self._layout.size, np.float32) for _ in range(4)]
        found = list[Mapping[str, Any]]()
        try:
            for control in self._controls:
                control.send({"epoch": number - self._first_epoch})
            for control, runs in zip(self._controls, self._runs, strict=True):
                message = control.receive(meanwhile=self._look)
                found.append(message.header)
                if "steps" not in message.header:
                    raise ConnectionError("the server has ended")
                for array, part in zip(arrays, np.split(message.values, 4), strict=True):
                    scatter(part, runs, into=array)
            state = ShardState(arrays[0], arrays[1], arrays[2], arrays[3], found[-1]["steps"])
            return make_epoch(number, state, found)
        except (OSError, ValueError) as error:
            raise EnvironmentProblem(reason("training_server_lost")) from error

    def close(self) -> None:
        """End servers and workers. The cluster's processes remain."""
        self._ends.close()
        try:
            self._registry.refresh(at_once=True)
        except EnvironmentProblem:
            return
        there = self._registry.workers
        ended = [
            self._client.submit(stop_server, self._token, workers=[host], pure=False)
            for host in self._hosts
            if host in there
        ]
        own = [future for worker, future in self._futures.items() if self._at[worker] in there]
        until_s = time.monotonic() + _PATIENCE_S
        while any(not one.done() for one in (*own, *ended)) and time.monotonic() < until_s:
            if not is_connected(self._client):
                return
            time.sleep(_TICK_S / 10)
        self._client.cancel([*self._futures.values(), *ended])  # tasks of processes that left are never done

    def _send_out(self, worker: int, address: str) -> None:
        self._at[worker] = address
        self._futures[worker] = self._client.submit(
            run_training_worker, self._specs[worker], workers=[address], allow_other_workers=False, pure=False
        )

    def _result(self, task: Future[Any], host: str) -> Any:
        try:
            return wait_for_result(task, timeout_s=_PATIENCE_S)
        except WorkerLost as error:
            raise EnvironmentProblem(reason("training_server_lost")) from error
        except TimeoutError as error:
            self._client.cancel([task])
            self._registry.refresh(at_once=True)
            raise EnvironmentProblem(reason("training_host_busy", host=host_of(host))) from error

    def _look(self) -> None:
        """Replace lost workers during an epoch. Raises EnvironmentProblem, UsageProblem."""
        self._registry.refresh()
        there = self._registry.workers
        if not there.keys() >= set(self._hosts):
            raise EnvironmentProblem(reason("training_server_lost"))
        for worker, future in self._futures.items():
            # A task of a process that has left would never end.
            if self._has_failed(worker, future) if future.done() else self._at[worker] not in there:
                self._replace(worker)
                break

    def _has_failed(self, worker: int, future: Future[Any]) -> bool:
        """Return whether a worker that has ended must be replaced.

        Raises UsageProblem if its loss was not finite, or if it cannot read the training arrays.
        """
        try:
            with converting_connection_errors():
                result: WorkerResult = wait_for_result(future, timeout_s=_PATIENCE_S)
        except WorkerLost:
            return True
        if result.diverged:
            epoch, step = result.diverged
            raise UsageProblem(reason("training_diverged", epoch=epoch, step=step))
        if result.arrays_problem_code:
            address = self._at[worker]
            node = str(self._registry.workers.get(address, {"name": address})["name"])
            raise UsageProblem(reason(result.arrays_problem_code, node=node, path=self._task.arrays.parent))
        return result.was_lost

    def _replace(self, worker: int) -> None:
        """Start a lost worker again in another process."""
        self._lost[worker] += 1
        if self._lost[worker] > _LIVES:
            raise EnvironmentProblem(reason("training_worker_lost", worker=worker + 1, times=self._lost[worker]))
        self._say(reason("training_worker_again", worker=worker + 1).text)
        busy = {*self._hosts, *(address for other, address in self._at.items() if other != worker)}
        until_s = time.monotonic() + _PATIENCE_S
        self._registry.refresh(at_once=True)
        while not (free := [address for address in self._registry.idle_first() if address not in busy]):
            if time.monotonic() > until_s:
                raise EnvironmentProblem(reason("training_worker_lost", worker=worker + 1, times=self._lost[worker]))
            time.sleep(_TICK_S)
            self._registry.refresh(at_once=True)
        self._send_out(worker, free[0])


def make_epoch(number: int, state: ShardState, facts: Sequence[Mapping[str, Any]]) -> TrainedEpoch:
    """Return the result of an epoch from the state of all shards and the facts of each server.

    `facts` are those of `ParameterServer.snapshot`. The mean loss is that of the first server, because every server
    gets the loss of each gradient. Raises UsageProblem (training_diverged_weights) if weights are not finite.
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
        staleness=staleness,
        began_s=facts[0]["began"] or ended,
        ended_s=ended,
    )
