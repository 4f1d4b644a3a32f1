"""A training by the workers of a cluster, as its driver sees it: servers and workers are started, epochs come back.

Dask places and replaces, the weights travel by channels of their own (`channel`). A worker whose process died is given
to another process, and takes up where the servers are. A server that dies ends the session: what it held is gone; the
training resumes from the checkpoint of the last epoch.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from distributed import Client, Future, KilledWorker

from fieldray.errors import EnvironmentProblem, UsageProblem
from fieldray.reasons import reason
from fieldray_cluster.connection import connecting_context, host_of, is_connected, receives, workers_of
from fieldray_cluster.speedup.placement import Runs
from fieldray_cluster.training.channel import PLAIN, Channel, Encryption, open_channels
from fieldray_cluster.training.lesson import Lesson
from fieldray_cluster.training.plan import Plan
from fieldray_cluster.training.server import DRIVER, Service
from fieldray_cluster.training.share import Layout, ShareState, scatter
from fieldray_cluster.training.worker import Order, Outcome, start_server, stop_server, work

receives(Outcome)

_TICK_S: Final = 0.2
_PATIENCE_S: Final = 60.0
_LIVES: Final = 3
"""So often a worker may be lost within an epoch before the training is given up."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Epoch:
    """What an epoch came to.

    Attributes
    ----------
    number
        Counted from 1, over all sessions of the lesson.
    notes
        A row for each gradient of the first server: version, worker, at (seconds since 1970), loss, and more where a
        worker looked closer.
    staleness
        How many gradients came so many updates late, over all servers.
    ended
        When the last server was done with it, in seconds since 1970.
    """

    number: int
    state: ShareState
    notes: Sequence[Mapping[str, Any]]
    staleness: Counter[int]
    ended: float

    @property
    def loss(self) -> float:
        """The mean of the batches' losses."""
        return float(np.mean([note["loss"] for note in self.notes])) if self.notes else float("nan")


def epochs(
    client: Client,
    *,
    plan: Plan,
    lesson: Lesson,
    layout: Layout,
    state: ShareState,
    first_epoch: int = 0,
    say: Callable[[str], None] = lambda _line: None,
    encryption: Encryption = PLAIN,
) -> Generator[Epoch, None, None]:
    """Train from a state on, an epoch after another. Training goes on while the caller looks at one.

    Raises UsageProblem (training_diverged, training_diverged_weights, training_few_workers, training_node_folder,
    training_node_other), EnvironmentProblem (training_server_lost, training_server_unreached, training_worker_lost,
    training_cluster_lost).
    """
    plan.require_room(batches=lesson.batches, sizes=lesson.sizes)
    with ExitStack() as ends:
        session = _Session(client, plan, lesson, layout, say)
        ends.callback(session.close)
        session.start(state, first_epoch, encryption)
        for number in range(first_epoch + 1, lesson.epochs + 1):
            yield session.epoch(number)


def places_of(client: Client, plan: Plan) -> list[str]:
    """Where the workers, then where the servers are; a server shares a process with a worker where it must.

    Raises UsageProblem (training_few_workers).
    """
    until_s, wanted = time.monotonic() + _PATIENCE_S, plan.workers + plan.servers
    while len(found := _processes(client)) < wanted and time.monotonic() < until_s:
        if plan.address and len(found) >= plan.workers:
            break
        time.sleep(_TICK_S)
    if len(found) < plan.workers:
        raise UsageProblem(reason("training_few_workers", workers=plan.workers, there=len(found)))
    hosts = found[plan.workers : wanted]
    return found[: plan.workers] + hosts + found[: plan.servers - len(hosts)]


def encryption_of(client: Client) -> Encryption:
    """With which the driver connects to the cluster's other processes: as its client to the scheduler."""
    return Encryption(connecting=connecting_context(client))


def members(client: Client) -> Mapping[str, Any]:
    """The processes of the cluster by their addresses, as they are now. Raises EnvironmentProblem."""
    try:
        return workers_of(client)
    except (OSError, TimeoutError, CancelledError) as error:
        raise EnvironmentProblem(reason("training_cluster_lost")) from error


def require_connected(client: Client) -> None:
    """Require the client's scheduler. Raises EnvironmentProblem (training_cluster_lost)."""
    if not is_connected(client):
        raise EnvironmentProblem(reason("training_cluster_lost"))


def _processes(client: Client) -> list[str]:
    """All of them; first those that do nothing: what is given to another waits until that is done."""
    workers = members(client)
    try:
        busy = {address for address, tasks in client.processing().items() if tasks}
    except (OSError, TimeoutError, CancelledError) as error:
        raise EnvironmentProblem(reason("training_cluster_lost")) from error
    return sorted(workers, key=lambda address: (address in busy, str(workers[address]["name"]), address))


class _Session:
    def __init__(self, client: Client, plan: Plan, lesson: Lesson, layout: Layout, say: Callable[[str], None]) -> None:
        self._client, self._plan, self._lesson, self._layout, self._say = client, plan, lesson, layout, say
        self._token = secrets.token_hex(16)
        self._controls: list[Channel] = []
        self._hosts: list[str] = []
        self._runs: list[Runs] = []
        self._orders: dict[int, Order] = {}
        self._at: dict[int, str] = {}
        self._futures: dict[int, Future[Any]] = {}
        self._lost = Counter[int]()
        self._first_epoch = 0
        self._ends = ExitStack()

    def start(self, state: ShareState, first_epoch: int, encryption: Encryption) -> None:
        plan = self._plan
        places, self._first_epoch = places_of(self._client, plan), first_epoch
        self._runs = list(self._layout.place(plan.servers, evenly=plan.places_evenly))
        self._hosts = places[plan.workers :]
        addresses = [self._served(host, runs, state) for host, runs in zip(self._hosts, self._runs, strict=True)]
        try:
            self._controls = self._ends.enter_context(
                open_channels(
                    addresses,
                    token=self._token,
                    role=DRIVER,
                    largest=[4 * max(1, sum(stop - start for start, stop in runs)) for runs in self._runs],
                    encryption=encryption,
                )
            )
        except OSError as error:
            detail = error.strerror or str(error)
            raise EnvironmentProblem(
                reason("training_server_unreached", hosts=", ".join(host for host, _ in addresses), detail=detail)
            ) from error
        for worker, place in enumerate(places[: plan.workers]):
            self._orders[worker] = Order(
                lesson=self._lesson,
                plan=plan,
                layout=self._layout,
                worker=worker,
                token=self._token,
                servers=tuple(zip(addresses, self._runs, strict=True)),
                first_epoch=first_epoch,
            )
            self._send_out(worker, place)

    def _served(self, host: str, runs: Runs, state: ShareState) -> tuple[str, int]:
        """Begin to serve a share in a process; where. The host is the process's own, whatever it says of itself."""
        plan = self._plan
        service = Service(
            layout=self._layout,
            runs=runs,
            rule=self._lesson.rule,
            workers=plan.workers,
            waits=plan.waits,
            staleness=plan.staleness,
            updates_per_epoch=plan.updates(self._lesson.batches),
        )
        task = self._client.submit(
            start_server, service, state.part(runs), token=self._token, workers=[host], pure=False
        )
        return host_of(host), int(self._result(task, host)[1])

    def epoch(self, number: int) -> Epoch:
        """Wait for the end of an epoch, and replace workers meanwhile."""
        self._lost.clear()
        whole = ShareState.new(np.empty(self._layout.size, np.float32))
        arrays = [np.empty(self._layout.size, np.float32) for _ in range(4)]
        notes: Sequence[Mapping[str, Any]] = ()
        staleness, ended, steps = Counter[int](), 0.0, whole.steps
        try:
            for control in self._controls:
                control.send({"epoch": number - self._first_epoch})
            for place, control in enumerate(self._controls):
                message = control.receive(meanwhile=self._look)
                facts = message.header
                if "steps" not in facts:
                    raise ConnectionError("the server has ended")
                if not facts["is_finite"]:
                    raise UsageProblem(reason("training_diverged_weights", epoch=number))
                for array, part in zip(arrays, np.split(message.values, 4), strict=True):
                    scatter(part, self._runs[place], into=array)
                notes = facts["notes"] if place == 0 else notes
                staleness.update({int(late): count for late, count in facts["staleness"].items()})
                ended, steps = max(ended, facts["at"]), facts["steps"]
        except (OSError, ValueError) as error:
            raise EnvironmentProblem(reason("training_server_lost")) from error
        return Epoch(
            number=number,
            state=ShareState(arrays[0], arrays[1], arrays[2], arrays[3], steps),
            notes=notes,
            staleness=staleness,
            ended=ended,
        )

    def close(self) -> None:
        """End servers and workers; the cluster's processes stay."""
        self._ends.close()
        try:
            require_connected(self._client)
            there = members(self._client)
        except EnvironmentProblem:
            return
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
        self._client.cancel([*self._futures.values(), *ended])  # of processes that left: nobody will do them

    def _send_out(self, worker: int, place: str) -> None:
        self._at[worker] = place
        self._futures[worker] = self._client.submit(
            work, self._orders[worker], workers=[place], allow_other_workers=False, pure=False
        )

    def _result(self, task: Future[Any], host: str) -> Any:
        try:
            return task.result(timeout=_PATIENCE_S)
        except KilledWorker as error:
            raise EnvironmentProblem(reason("training_server_lost")) from error
        except TimeoutError as error:
            self._client.cancel([task])
            require_connected(self._client)
            raise EnvironmentProblem(reason("training_host_busy", host=host_of(host))) from error
        except (CancelledError, OSError) as error:
            raise EnvironmentProblem(reason("training_cluster_lost")) from error

    def _look(self) -> None:
        """While an epoch is awaited: replace workers. Raises EnvironmentProblem, UsageProblem."""
        require_connected(self._client)
        there = members(self._client)
        if not there.keys() >= set(self._hosts):
            raise EnvironmentProblem(reason("training_server_lost"))
        for worker, future in self._futures.items():
            # What was given to a process that has left would wait for ever.
            if self._has_failed(worker, future) if future.done() else self._at[worker] not in there:
                self._replace(worker)
                break

    def _has_failed(self, worker: int, future: Future[Any]) -> bool:
        """Whether a worker that has ended has to be replaced.

        Raises UsageProblem where its loss was no number, or it cannot read what it is to learn from.
        """
        try:
            outcome: Outcome = future.result(timeout=_PATIENCE_S)
        except KilledWorker:
            return True
        except (CancelledError, TimeoutError) as error:
            raise EnvironmentProblem(reason("training_cluster_lost")) from error
        if outcome.diverged:
            epoch, step = outcome.diverged
            raise UsageProblem(reason("training_diverged", epoch=epoch, step=step))
        if outcome.unread:
            place = self._at[worker]
            node = str(members(self._client).get(place, {"name": place})["name"])
            raise UsageProblem(reason(outcome.unread, node=node, path=self._lesson.arrays.parent))
        return outcome.was_lost

    def _replace(self, worker: int) -> None:
        self._lost[worker] += 1
        if self._lost[worker] > _LIVES:
            raise EnvironmentProblem(reason("training_worker_lost", worker=worker + 1, times=self._lost[worker]))
        self._say(reason("training_worker_again", worker=worker + 1).text)
        busy = {place for other, place in self._at.items() if other != worker}
        until_s = time.monotonic() + _PATIENCE_S
        while not (free := [place for place in _processes(self._client) if place not in busy | set(self._hosts)]):
            if time.monotonic() > until_s:
                raise EnvironmentProblem(reason("training_worker_lost", worker=worker + 1, times=self._lost[worker]))
            time.sleep(_TICK_S)
        self._send_out(worker, free[0])
