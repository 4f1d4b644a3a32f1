"""Run the tasks of a workflow or sweep on a cluster. Each task is a Dask task, whose result is the task's outcome.

Failed attempts and lost workers are counted separately. If machines may be taken away, a lost worker is not the fault
of the task. A task that loses many workers is probably the cause, and fails. If a node (computer) cannot work at all,
the task waits for another node, and the broken node gets no more work.

The keys of Dask tasks are visible to all clients of a scheduler. So the keys are random, and a result is accepted only
if it names exactly the task that was sent.
"""

from __future__ import annotations

import contextlib
import functools
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol

from distributed import Client, Future

from fieldray.reasons import Reason, reason
from fieldray_cluster.connection import allow_pickled_classes, node_name
from fieldray_cluster.worker_registry import (
    ConnectionLost,
    IncompatibleNodes,
    WorkerLost,
    WorkerRegistry,
    wait_for_any,
    wait_for_result,
)
from fieldray_cluster.workflow.recipe import RetryPolicy
from fieldray_cluster.workflow.tasks import (
    STOP_FILE_NAME,
    Event,
    Journal,
    Outcome,
    Status,
    TaskResult,
    TaskSpec,
    check_node,
    perform_task,
    running_outcome,
)

_STOPPING_S: Final = 15.0
_TICK_S: Final = 0.2
_WAIT_S: Final = 0.5

allow_pickled_classes(TaskResult, TaskSpec, Outcome, Reason, type(Path()))


class TaskSource(Protocol):
    """The interface of an object that provides tasks and takes their results.

    Implementations are the experiments of a workflow, and the trials of a sweep.
    """

    def requeue_running_tasks(self) -> None:
        """Queue all tasks again that were running when the connection to the cluster was lost.

        Also called once at the start.
        """

    def next_task(self) -> tuple[TaskSpec, RetryPolicy] | None:
        """Return the next task that may start, with its retry policy; None if no task may start now.

        If no task is running, None means that no tasks are left.
        """

    def record_task_end(self, task: str, event: Event) -> None:
        """Store that the task with the name `task` has ended. `event` has the result."""

    def check_progress(self) -> None:
        """Check the progress of running tasks, and for example stop a poor trial. Called repeatedly."""


@dataclass(slots=True, kw_only=True)
class _Work:
    """A task that was sent to the cluster.

    Attributes
    ----------
    future
        The future of the task's result; None while no worker may perform the task.
    workers
        Addresses of the workers that may perform the task.
    """

    spec: TaskSpec
    policy: RetryPolicy
    future: Future[Any] | None = None
    workers: frozenset[str] = frozenset()
    attempts: int = 0
    lost_workers: int = 0


class TaskRunner:
    """Runs tasks on the workers of a cluster. The calling process must have locked the run folder.

    Parameters
    ----------
    run
        The run folder.
    preemptible
        Whether machines may be taken away. If True, a lost worker does not count as a failed attempt.
    say
        A function that is called with a line of text for the user.
    perform
        The function that a worker calls to perform a task.
    check
        A function that a worker calls before its first task. Returns the reason why the worker cannot work; None if it
        can.

    Raises IncompatibleNodes, ConnectionLost.
    """

    def __init__(
        self,
        client: Client,
        journal: Journal,
        *,
        run: Path,
        preemptible: bool,
        say: Callable[[str], None],
        perform: Callable[[TaskSpec], TaskResult] = perform_task,
        check: Callable[[Path], Reason | None] = check_node,
    ) -> None:
        self._client, self._journal, self._preemptible, self._perform = client, journal, preemptible, perform
        self._registry = WorkerRegistry(
            client, functools.partial(check, run), on_message=lambda node, why: say(f"{node}: {why.text}")
        )
        self._out: dict[str, _Work] = {}
        self._is_stopping = False

    def run(self, source: TaskSource, stop_file: Path) -> None:
        """Run the tasks of `source` until no task is left, or until the file `stop_file` exists.

        If the run is stopped, or no node is left, all running tasks are ended. Raises KeyboardInterrupt,
        IncompatibleNodes, ConnectionLost, StorageProblem, and the exceptions of `source`.
        """
        source.requeue_running_tasks()
        try:
            while not stop_file.exists():
                while self.free_slot_count > 0 and (found := source.next_task()):
                    self.submit(*found)
                if not self._out:
                    return
                for spec, event in self.wait_for_finished_tasks(_WAIT_S):
                    source.record_task_end(spec.task_name, event)
                source.check_progress()
        except (KeyboardInterrupt, IncompatibleNodes):
            self.stop(stop_file)
            raise
        for spec, event in self.stop(stop_file):
            source.record_task_end(spec.task_name, event)

    @property
    def free_slot_count(self) -> int:
        """The number of tasks that could start now; at least 1 if no task is running."""
        threads = sum(int(worker["nthreads"]) for worker in self._registry.workers.values())
        return max(threads, 1) - len(self._out)

    def submit(self, spec: TaskSpec, policy: RetryPolicy) -> None:
        """Send a task to the cluster, to be repeated after failures as `policy` says. Raises StorageProblem."""
        (spec.folder / STOP_FILE_NAME).unlink(missing_ok=True)
        self._out[spec.task_name] = work = _Work(spec=spec, policy=policy)
        self._submit(work)

    def wait_for_finished_tasks(self, wait_s: float) -> list[tuple[TaskSpec, Event]]:
        """Wait at most `wait_s` seconds until tasks have ended. Returns each ended task, with the event of its end.

        A failed task that may be repeated is sent again, and is not returned. Raises ConnectionLost, IncompatibleNodes,
        StorageProblem.
        """
        found, until_s = list[tuple[TaskSpec, Event]](), time.monotonic() + wait_s
        while self._out and not found:
            self._put_on_workers()
            futures = [work.future for work in self._out.values() if work.future]
            wait_for_any(self._client, futures, until_s - time.monotonic())
            for work in [work for work in self._out.values() if work.future and work.future.done()]:
                if event := self._event_of(work):
                    del self._out[work.spec.task_name]
                    self._journal.add(event)
                    found.append((work.spec, event))
            if time.monotonic() >= until_s:
                break
        return found

    def stop(self, stop_file: Path) -> list[tuple[TaskSpec, Event]]:
        """End all running tasks. Returns each task, with the event of its end.

        This method writes the file `stop_file`, which ends the tasks.
        """
        self._is_stopping = True
        stop_file.touch()
        found = list[tuple[TaskSpec, Event]]()
        with contextlib.suppress(ConnectionLost):
            waiting = [
                work.future for work in self._out.values() if work.future and not work.spec.attempt_start_file.exists()
            ]
            until_s = time.monotonic() + _STOPPING_S
            while any(work.future for work in self._out.values()) and time.monotonic() < until_s:
                found += self.wait_for_finished_tasks(_TICK_S)
            self._client.cancel(waiting)
        for work in self._out.values():
            problem = Outcome(problem=reason("workflow_stopped").text, was_stopped=True)
            event = Event(task=work.spec.task_name, key=work.spec.key, status="stopped", outcome=problem)
            self._journal.add(event)
            found.append((work.spec, event))
        self._out.clear()
        return found

    def _submit(self, work: _Work) -> None:
        spec = work.spec
        self._journal.add(Event(task=spec.task_name, key=spec.key, status="running", number=spec.attempt_number))
        self._send(work)

    def _send(self, work: _Work) -> None:
        """Submit a task to Dask for the workers that may get work. If there are none, submit nothing.

        Dask would interpret an empty list as all workers.
        """
        work.future, work.workers = None, frozenset(self._registry.workers)
        if work.workers:
            work.future = self._client.submit(
                self._perform,
                work.spec,
                key=f"{work.spec.task_name}-{work.spec.attempt_number}-{uuid.uuid4().hex}",
                pure=False,
                workers=list(work.workers),
            )

    def _put_on_workers(self) -> None:
        """Update the list of workers, and submit tasks again that have not started and whose workers are all lost."""
        if self._is_stopping:
            return
        self._registry.refresh()
        for work in self._out.values():
            is_stranded = not work.workers & set(self._registry.workers) and not work.spec.attempt_start_file.exists()
            if work.future and is_stranded and not work.future.done():
                work.future.cancel()
                work.future = None
            if work.future is None:
                self._send(work)

    def _event_of(self, work: _Work) -> Event | None:
        """Return the event for the end of a task whose future is done; None if the task was sent again.

        Raises IncompatibleNodes.
        """
        spec, result = work.spec, self._answer(work)
        outcome = result.outcome if result else None
        if result and result.node_problem and not spec.stop_file.exists():
            work.future = None  # the task waits for another node
            self._registry.exclude_node(node_name(result.outcome.node), result.node_problem)
            self._registry.refresh(at_once=True)
            self._submit_again(work)
            return None
        if result and result.node_problem:
            outcome = replace(result.outcome, was_stopped=True)
        if outcome and outcome.was_stopped and not (spec.stop_file.exists() or (spec.folder / STOP_FILE_NAME).exists()):
            outcome = None  # the worker ended, but the run and the task were not stopped
        if outcome is None or not (outcome.is_done or outcome.was_stopped):
            if self._tries_again(work, outcome):
                return None
            outcome = outcome or self._lost(work)
        status: Status = "stopped" if outcome.was_stopped else "done" if outcome.is_done else "failed"
        return Event(
            task=spec.task_name,
            key=spec.key,
            status=status,
            number=spec.attempt_number,
            lost=work.lost_workers,
            outcome=outcome,
        )

    def _tries_again(self, work: _Work, outcome: Outcome | None) -> bool:
        """Send a failed task again if the task's retry policy allows this. Returns whether the task was sent.

        `outcome` is the outcome of the failed attempt; None if the worker was lost.
        """
        policy, spec = work.policy, work.spec
        preemptible = self._preemptible if policy.preemptible is None else policy.preemptible
        if outcome is None:
            work.lost_workers += 1
        if outcome is not None or (
            not preemptible and spec.attempt_start_file.exists()
        ):  # only started tasks are attempts
            work.attempts += 1
        if work.attempts > policy.retries or work.lost_workers >= policy.lost_workers or spec.stop_file.exists():
            return False
        self._submit_again(work)
        return True

    def _submit_again(self, work: _Work) -> None:
        work.spec = replace(work.spec, attempt_number=work.spec.attempt_number + 1)
        self._submit(work)

    def _answer(self, work: _Work) -> TaskResult | None:
        """Return the result of a task whose future is done; None if the worker was lost. Raises ConnectionLost."""
        assert work.future is not None
        try:
            result = wait_for_result(work.future)
        except WorkerLost:
            return None
        except ConnectionLost:
            raise
        except Exception as error:  # the worker could not call the function
            why = reason("workflow_node_failed", node="?", detail=type(error).__name__)
            return TaskResult(spec=work.spec, outcome=Outcome(problem=why.text))
        if not isinstance(result, TaskResult) or result.spec != work.spec:
            return TaskResult(spec=work.spec, outcome=Outcome(problem=reason("workflow_other_answer").text))
        return result

    def _lost(self, work: _Work) -> Outcome:
        """Return the outcome of a task whose workers were lost, with the name of the last worker."""
        so_far = running_outcome(work.spec.folder, work.spec.attempt_number)
        return replace(so_far, problem=reason("workflow_worker_lost", count=work.lost_workers).text)
