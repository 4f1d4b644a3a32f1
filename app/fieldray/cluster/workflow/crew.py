"""The workers of a cluster at a run's tasks: orders go out as Dask tasks, and each comes back with its last outcome.

Attempts are counted here, and lost workers apart from them: where machines may be taken away, a lost worker is no fault
of the task. One under which worker after worker is lost is believed to be the reason, and fails.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from distributed import Client, Future, KilledWorker, wait

from fieldray.cluster.connection import is_connected
from fieldray.cluster.node import all_versions
from fieldray.cluster.workflow.perform import STOP, Node, Order, look, perform
from fieldray.cluster.workflow.recipe import Effort
from fieldray.cluster.workflow.state import Event, Journal, Outcome, Status
from fieldray.errors import EnvironmentProblem, UsageProblem
from fieldray.reasons import reason

_CLOCKS_S: Final = 60.0
_STOPPING_S: Final = 15.0
_TICK_S: Final = 0.2


class ConnectionLost(EnvironmentProblem):
    """The cluster's scheduler is gone; what was under way there is not known."""

    def __init__(self) -> None:
        super().__init__(reason("workflow_connection_lost"))


@dataclass(slots=True, kw_only=True)
class _Work:
    """An order that is out, and what it has been through."""

    order: Order
    effort: Effort
    future: Future[Any]
    attempts: int = 0
    lost: int = 0


class Crew:
    """The workers of one client, at work for one driver, which holds the run folder's lock."""

    def __init__(self, client: Client, journal: Journal, *, preemptible: bool) -> None:
        self._client, self._journal, self._preemptible = client, journal, preemptible
        self._out: dict[str, _Work] = {}

    @property
    def busy(self) -> tuple[str, ...]:
        """The tasks that are out."""
        return tuple(self._out)

    def room(self, resources: Mapping[str, float]) -> int:
        """How many more orders with such a wish could begin now; one at least while nothing else is out."""
        workers = list(self._client.scheduler_info(n_workers=-1)["workers"].values())
        wanted = dict(resources)
        alike = sum(1 for work in self._out.values() if dict(work.effort.resources) == wanted)
        if wanted:
            slots = sum(_slots(worker["resources"], wanted) for worker in workers)
            return max(slots, 1) - alike
        return max(sum(int(worker["nthreads"]) for worker in workers), 1) - alike

    def start(self, order: Order, effort: Effort) -> None:
        """Send an order to the cluster. Raises StorageProblem."""
        (order.folder / STOP).unlink(missing_ok=True)
        self._out[order.task] = _Work(order=order, effort=effort, future=self._submit(order, effort))

    def ended(self, wait_s: float) -> list[tuple[Order, Event]]:
        """The orders that came to their end meanwhile; waits for the first one so long.

        Those that are tried again are sent out again. Raises ConnectionLost, StorageProblem.
        """
        found, until_s = list[tuple[Order, Event]](), time.monotonic() + wait_s
        while self._out and not found:
            self._wait(until_s - time.monotonic())
            for work in [work for work in self._out.values() if work.future.done()]:
                if event := self._judged(work):
                    del self._out[work.order.task]
                    self._journal.add(event)
                    found.append((work.order, event))
            if time.monotonic() >= until_s:
                break
        return found

    def _wait(self, wait_s: float) -> None:
        """Until one order is back, or that time is over. Raises ConnectionLost."""
        try:
            with self._client.as_current():
                wait(
                    [work.future for work in self._out.values()],
                    timeout=max(wait_s, 0.0),
                    return_when="FIRST_COMPLETED",
                )
        except TimeoutError:
            if not is_connected(self._client):
                raise ConnectionLost from None
        except (CancelledError, OSError) as error:
            raise ConnectionLost from error

    def stop(self, stop: Path) -> list[tuple[Order, Event]]:
        """End everything that is out by the file that its orders name; what came of it."""
        stop.parent.mkdir(parents=True, exist_ok=True)
        stop.touch()
        found = list[tuple[Order, Event]]()
        with contextlib.suppress(ConnectionLost):
            waiting = [work.future for work in self._out.values() if not work.order.mark.exists()]
            until_s = time.monotonic() + _STOPPING_S
            while self._out and time.monotonic() < until_s:
                found += self.ended(_TICK_S)
            self._client.cancel(waiting)
        for work in self._out.values():
            problem = Outcome(problem=reason("workflow_stopped").text, was_stopped=True)
            event = Event(task=work.order.task, key=work.order.key, status="stopped", outcome=problem)
            self._journal.add(event)
            found.append((work.order, event))
        self._out.clear()
        return found

    def _submit(self, order: Order, effort: Effort) -> Future[Any]:
        event = Event(task=order.task, key=order.key, status="running", number=order.number)
        self._journal.add(event)
        return self._client.submit(
            perform,
            order,
            key=f"{order.task}-{order.number}",
            pure=False,
            resources=dict(effort.resources) or None,
        )

    def _judged(self, work: _Work) -> Event | None:
        """What the end of a future means: the task's end, or None after it was sent out again."""
        outcome = self._outcome(work)
        if outcome is None or not (outcome.is_done or outcome.was_stopped):
            if self._tries_again(work, outcome):
                return None
            outcome = outcome or self._lost(work)
        status: Status = "stopped" if outcome.was_stopped else "done" if outcome.is_done else "failed"
        order = work.order
        return Event(
            task=order.task, key=order.key, status=status, number=order.number, lost=work.lost, outcome=outcome
        )

    def _tries_again(self, work: _Work, outcome: Outcome | None) -> bool:
        """Send it out once more, if it may be tried again after an attempt that failed or a worker that was lost."""
        effort, order = work.effort, work.order
        preemptible = self._preemptible if effort.preemptible is None else effort.preemptible
        if outcome is None:
            work.lost += 1
        if outcome is not None or (not preemptible and order.mark.exists()):  # what nobody began is no attempt
            work.attempts += 1
        if work.attempts > effort.retries or work.lost >= effort.lost_workers or order.stop.exists():
            return False
        work.order = replace(order, number=order.number + 1)
        work.future = self._submit(work.order, effort)
        return True

    def _outcome(self, work: _Work) -> Outcome | None:
        """None where the worker was lost. Raises ConnectionLost."""
        try:
            result = work.future.result()
        except KilledWorker:
            return None
        except (CancelledError, TimeoutError, OSError) as error:
            raise ConnectionLost from error
        except Exception as error:  # what reached the worker could not be performed at all
            detail = f"{type(error).__name__}: {error}"
            return Outcome(problem=reason("workflow_node_failed", node="?", detail=detail).text)
        assert isinstance(result, Outcome)
        return result

    def _lost(self, work: _Work) -> Outcome:
        """The outcome of a task under which workers were lost, with the last one's name."""
        begun: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError):
            begun = json.loads(work.order.mark.read_text(encoding="utf-8"))
        return Outcome(
            node=str(begun.get("node", "")),
            began=float(begun.get("began", 0.0)),
            problem=reason("workflow_worker_lost", count=work.lost).text,
        )


def _slots(offered: Mapping[str, float], wanted: Mapping[str, float]) -> int:
    return int(min(offered.get(name, 0.0) // amount for name, amount in wanted.items()))


def require_nodes(
    client: Client,
    *,
    run: Path,
    efforts: Mapping[str, Effort],
    say: Callable[[str], None],
    ask: Callable[[Path], Node] = look,
) -> None:
    """Look at every worker before any work: its version, whether it sees the run's folder, what it has, its clock.

    say   gets a line for a clock that is wrong
    ask   is what workers are asked
    Raises UsageProblem with the node's name (workflow_node_version, workflow_node_folder, workflow_no_resource).
    """
    workers = client.scheduler_info(n_workers=-1)["workers"]
    began = time.time()
    nodes: Mapping[str, Node] = client.run(ask, run)
    late = time.time() - began
    for address, node in nodes.items():
        name = workers.get(address, {}).get("name", address)
        if node.version != all_versions():
            raise UsageProblem(reason("workflow_node_version", node=name, theirs=node.version, ours=all_versions()))
        if not node.sees_folder:
            raise UsageProblem(reason("workflow_node_folder", node=name, path=run))
        apart_s = max(began - node.clock, node.clock - began - late, 0.0)
        if apart_s > _CLOCKS_S:
            say(reason("workflow_node_clock", node=name, seconds=round(apart_s)).text)
    _require_resources(list(workers.values()), efforts)


def _require_resources(workers: Sequence[Mapping[str, Any]], efforts: Mapping[str, Effort]) -> None:
    for name, effort in efforts.items():
        for resource, amount in effort.resources.items():
            if not any(worker["resources"].get(resource, 0.0) >= amount for worker in workers):
                raise UsageProblem(
                    reason("workflow_no_resource", experiment=name, resource=resource, amount=f"{amount:g}")
                )
