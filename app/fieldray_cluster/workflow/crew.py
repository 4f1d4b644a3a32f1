"""The workers of a cluster at a run's tasks: orders go out as Dask tasks, and each comes back with its last outcome.

Attempts are counted here, and lost workers apart from them: where machines may be taken away, a lost worker is no fault
of the task. One under which worker after worker is lost is believed to be the reason, and fails. A node that cannot
work at all says nothing of the task either: the task waits for another one, and the node is given nothing any more.

Keys of Dask tasks belong to the scheduler, not to the client: they are made of random numbers, and an answer is
believed only if it is that of this very order.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from distributed import Client, Future, KilledWorker, wait

from fieldray.reasons import reason
from fieldray.typed_json import decoded
from fieldray_cluster.connection import is_connected, receives
from fieldray_cluster.workflow.perform import STOP, Answer, Begun, Order, perform
from fieldray_cluster.workflow.recipe import Effort
from fieldray_cluster.workflow.roster import ConnectionLost, Roster
from fieldray_cluster.workflow.state import Event, Journal, Outcome, Status

_STOPPING_S: Final = 15.0
_TICK_S: Final = 0.2

receives(Answer, Order, Outcome, type(Path()))


@dataclass(slots=True, kw_only=True)
class _Work:
    """An order that is out, and what it has been through.

    future    None while no worker is there that could be given it
    workers   the addresses of those that may perform it
    """

    order: Order
    effort: Effort
    future: Future[Any] | None = None
    workers: frozenset[str] = frozenset()
    attempts: int = 0
    lost: int = 0


class Crew:
    """The workers of one client, at work for one driver, which holds the run folder's lock.

    work   is what workers run for an order

    Raises UsageProblem (see `Roster`), ConnectionLost.
    """

    def __init__(
        self,
        client: Client,
        journal: Journal,
        *,
        run: Path,
        preemptible: bool,
        say: Callable[[str], None],
        work: Callable[[Order], Answer] = perform,
    ) -> None:
        self._client, self._journal, self._preemptible, self._perform = client, journal, preemptible, work
        self._roster = Roster(client, run=run, say=say)
        self._out: dict[str, _Work] = {}
        self._is_stopping = False

    @property
    def busy(self) -> tuple[str, ...]:
        """The tasks that are out."""
        return tuple(self._out)

    def room(self, resources: Mapping[str, float]) -> int:
        """How many more orders with such a wish could begin now; one at least while nothing else is out."""
        workers = list(self._roster.workers.values())
        wanted = dict(resources)
        alike = sum(1 for work in self._out.values() if dict(work.effort.resources) == wanted)
        if wanted:
            slots = sum(_slots(worker["resources"], wanted) for worker in workers)
            return max(slots, 1) - alike
        return max(sum(int(worker["nthreads"]) for worker in workers), 1) - alike

    def start(self, order: Order, effort: Effort) -> None:
        """Send an order to the cluster. Raises StorageProblem."""
        (order.folder / STOP).unlink(missing_ok=True)
        self._out[order.task] = work = _Work(order=order, effort=effort)
        self._submit(work)

    def ended(self, wait_s: float) -> list[tuple[Order, Event]]:
        """The orders that came to their end meanwhile; waits for the first one so long.

        Those that are tried again are sent out again. Raises ConnectionLost, NodesUnfit, StorageProblem.
        """
        found, until_s = list[tuple[Order, Event]](), time.monotonic() + wait_s
        while self._out and not found:
            self._place()
            self._wait(until_s - time.monotonic())
            for work in [work for work in self._out.values() if work.future and work.future.done()]:
                if event := self._judged(work):
                    del self._out[work.order.task]
                    self._journal.add(event)
                    found.append((work.order, event))
            if time.monotonic() >= until_s:
                break
        return found

    def _wait(self, wait_s: float) -> None:
        """Until one order is back, or that time is over. Raises ConnectionLost."""
        futures = [work.future for work in self._out.values() if work.future]
        if not futures:
            time.sleep(min(max(wait_s, 0.0), _TICK_S))
            return
        try:
            with self._client.as_current():
                wait(
                    futures,
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
        self._is_stopping = True
        stop.touch()
        found = list[tuple[Order, Event]]()
        with contextlib.suppress(ConnectionLost):
            waiting = [work.future for work in self._out.values() if work.future and not work.order.mark.exists()]
            until_s = time.monotonic() + _STOPPING_S
            while any(work.future for work in self._out.values()) and time.monotonic() < until_s:
                found += self.ended(_TICK_S)
            self._client.cancel(waiting)
        for work in self._out.values():
            problem = Outcome(problem=reason("workflow_stopped").text, was_stopped=True)
            event = Event(task=work.order.task, key=work.order.key, status="stopped", outcome=problem)
            self._journal.add(event)
            found.append((work.order, event))
        self._out.clear()
        return found

    def _submit(self, work: _Work) -> None:
        order = work.order
        self._journal.add(Event(task=order.task, key=order.key, status="running", number=order.number))
        work.future = None
        self._send(work)

    def _send(self, work: _Work) -> None:
        """Give it to the workers that fit, where there are any: an empty list would mean all of them to Dask."""
        wanted = work.effort.resources
        work.workers = frozenset(
            address
            for address, worker in self._roster.workers.items()
            if not wanted or _slots(worker["resources"], wanted) > 0
        )
        if work.workers:
            work.future = self._client.submit(
                self._perform,
                work.order,
                key=f"{work.order.task}-{work.order.number}-{uuid.uuid4().hex}",
                pure=False,
                resources=dict(work.effort.resources) or None,
                workers=list(work.workers),
            )

    def _place(self) -> None:
        """See which workers there are, and send again what none of them would begin: those it was for are gone."""
        if self._is_stopping:
            return
        self._roster.look()
        for work in self._out.values():
            is_stranded = not work.workers & set(self._roster.workers) and not work.order.mark.exists()
            if work.future is None:
                self._send(work)
            elif is_stranded and not work.future.done():
                work.future.cancel()
                work.future = None
                self._send(work)

    def _judged(self, work: _Work) -> Event | None:
        """What the end of a future means: the task's end, or None after it was sent out again. Raises NodesUnfit."""
        answer = self._answer(work)
        outcome = answer.outcome if answer else None
        if answer and answer.is_of_node and not work.order.stop.exists():
            self._out[work.order.task].future = None  # it waits for another node, whatever becomes of this one
            self._roster.set_aside(answer.outcome.node, answer.outcome.problem)
            self._again(work)
            return None
        if answer and answer.is_of_node:
            outcome = replace(answer.outcome, was_stopped=True)
        if outcome and outcome.was_stopped and not self._is_stopped(work.order):
            outcome = None  # its worker was ending: nobody asked for the task's end
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
        self._again(work)
        return True

    def _again(self, work: _Work) -> None:
        work.order = replace(work.order, number=work.order.number + 1)
        self._submit(work)

    @staticmethod
    def _is_stopped(order: Order) -> bool:
        """Whether this driver asked for the end of the run, or of this task."""
        return order.stop.exists() or (order.folder / STOP).exists()

    def _answer(self, work: _Work) -> Answer | None:
        """None where the worker was lost. Raises ConnectionLost."""
        assert work.future is not None
        try:
            answer = work.future.result()
        except KilledWorker:
            return None
        except (CancelledError, TimeoutError, OSError) as error:
            raise ConnectionLost from error
        except Exception as error:  # what reached the worker could not be performed at all
            why = reason("workflow_node_failed", node="?", detail=type(error).__name__)
            return Answer(order=work.order, outcome=Outcome(problem=why.text))
        if not isinstance(answer, Answer) or answer.order != work.order:
            return Answer(order=work.order, outcome=Outcome(problem=reason("workflow_other_answer").text))
        return answer

    def _lost(self, work: _Work) -> Outcome:
        """The outcome of a task under which workers were lost, with the last one's name."""
        begun = Begun()
        with contextlib.suppress(OSError, ValueError):
            begun = decoded(work.order.mark.read_bytes(), Begun)
        return Outcome(
            node=begun.node,
            began=begun.began,
            problem=reason("workflow_worker_lost", count=work.lost).text,
        )


def _slots(offered: Mapping[str, float], wanted: Mapping[str, float]) -> int:
    return int(min(offered.get(name, 0.0) // amount for name, amount in wanted.items()))
