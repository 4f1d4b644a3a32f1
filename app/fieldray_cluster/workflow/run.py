"""A run of a workflow: it starts ready experiments, sends their tasks to the cluster, and records the results.

The driver holds the run folder's lock, writes the journal, and resolves the dependencies. Dask would recompute a
parent's result if its worker was lost, and would fail all descendants of a failed task without a message.

Dependencies connect experiments: every task of a child waits for all tasks of its parents. A task is identified by a
key of the program's version, command, values, inputs, and the keys of the tasks before it. A task whose key was
completed before is not run again.
"""

from __future__ import annotations

import contextlib
import graphlib
import secrets
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from distributed import Client

from fieldray.errors import UsageProblem
from fieldray.persistence import storage_problem
from fieldray.reasons import reason
from fieldray_adapt.files import digest, write_atomically
from fieldray_adapt.recipes.tables import RecipeDocument
from fieldray_adapt.run import lock_run_folder
from fieldray_cluster.connection import ConnectionSettings
from fieldray_cluster.worker_registry import path_state, result_key, run_with_reconnects
from fieldray_cluster.workflow.recipe import (
    PLACEHOLDER,
    Experiment,
    RetryPolicy,
    Value,
    Workflow,
    draw_samples,
    read_workflow,
)
from fieldray_cluster.workflow.runner import TaskRunner, TaskSource
from fieldray_cluster.workflow.tasks import (
    Event,
    Journal,
    Outcome,
    Status,
    TaskSpec,
    driver_file,
    read_events,
    running_outcome,
)

# ---- tasks and their dependencies


TASKS_FOLDER: Final = "tasks"
"""The folder in the run folder that has a subfolder for each task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A command of an experiment with its values.

    Attributes
    ----------
    name
        The experiment's name and the number of the sample, from 1.
    command
        The words, with the values filled in.
    values
        The sampled values, by parameter.
    folder
        The folder with the task's records.
    inputs
        Files and folders that the task reads.
    """

    name: str
    command: tuple[str, ...]
    values: Mapping[str, Value]
    folder: Path
    inputs: tuple[Path, ...] = ()

    def key(self, before: str) -> str:
        """Return the digest of all that decides the task's result, after reading its inputs.

        `before` is the digest of the tasks that this one waits for. Raises FileNotFoundError for a missing input,
        OSError.
        """
        return result_key(self.command, dict(self.values), [path_state(path) for path in self.inputs], before)


Graph = Mapping[str, tuple[Task, ...]]
"""All tasks by experiment. An experiment comes after those that it depends on."""


def build_graph(workflow: Workflow, *, recipe_folder: Path) -> Graph:
    """Return the graph of a workflow. `recipe_folder` is the folder of its recipe."""
    order = graphlib.TopologicalSorter({name: own.depends_on for name, own in workflow.experiments.items()})
    return {name: _tasks(name, workflow.experiments[name], workflow, recipe_folder) for name in order.static_order()}


def fill_command(command: str, values: Mapping[str, Value]) -> tuple[str, ...]:
    """Fill values into the placeholders of a command. Returns its words.

    The command is split into words before it is filled. So a value stays within its word, whatever spaces, quotes or
    semicolons it has. No shell is used.
    """
    return tuple(_fill(word, values) for word in shlex.split(command))


def _tasks(name: str, experiment: Experiment, workflow: Workflow, here: Path) -> tuple[Task, ...]:
    # The seed differs between experiments, so that equal ranges give different numbers.
    rows = draw_samples(experiment.parameters, count=experiment.task_count, seed=f"{workflow.seed}/{name}")
    found = []
    for index, values in enumerate(rows, start=1):
        own = f"{name}-{index:04d}"
        folder = workflow.run / TASKS_FOLDER / own
        known = {**values, "index": index, "run": str(workflow.run), "folder": str(folder), "here": str(here)}
        found.append(
            Task(
                name=own,
                command=fill_command(experiment.command, known),
                values=values,
                folder=folder,
                inputs=tuple(here / _fill(text, known) for text in experiment.inputs),
            )
        )
    return tuple(found)


def _fill(word: str, values: Mapping[str, Value]) -> str:
    def text(value: Value) -> str:
        return str(value).lower() if isinstance(value, bool) else str(value)

    return PLACEHOLDER.sub(lambda match: text(values[match[1]]), word)


# ---- the run


LineHandler = Callable[[str], None]
"""Receives a line of text for the user."""
StatusCounts = Counter[Status]
"""The number of tasks with each status."""

RECIPE_TEXT_NAME: Final = "recipe.toml"
_STOPS: Final = "stops"


def run_workflow(path: Path, *, say: LineHandler) -> StatusCounts:
    """Run the unfinished tasks of a workflow. Returns the number of tasks by status.

    The run ends early if `cancel_run` asks for it. Ctrl-C stops running tasks and is raised again. Raises UsageProblem
    (all problems of the recipe; run_in_use; nodes), EnvironmentProblem.
    """
    workflow = read_workflow(path)
    if workflow.sweep:
        raise UsageProblem(reason("workflow_is_sweep", path=path))
    graph = build_graph(workflow, recipe_folder=path.resolve().parent)
    with open_workflow_run(workflow, path, say=say) as run:
        progress = _Progress(run, graph)
        progress.update()
        if progress.is_over:
            say("Everything was done before.")
        else:
            run.run_tasks(progress)
            progress.stop_the_rest()
        return count_statuses(task_states(graph, run.journal.latest))


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class WorkflowRun:
    """A running workflow or sweep: its folder, which this driver has locked, and its journal.

    Attributes
    ----------
    recipe_folder
        The folder of the recipe.
    stop
        A file whose existence stops all tasks of the run.
    """

    workflow: Workflow
    recipe_folder: Path
    journal: Journal
    stop: Path
    say: LineHandler

    @property
    def is_stopped(self) -> bool:
        """Whether somebody asked to stop the run."""
        return self.stop.exists()

    def make_spec(
        self, task: str, key: str, command: tuple[str, ...], *, working_folder: Path, module: str = ""
    ) -> TaskSpec:
        """Return the specification of the next attempt at a task, as it is sent to a worker.

        Parameters
        ----------
        task
            The name of the task.
        key
            The digest of all that decides the task's result.
        command
            The words of the command, or the arguments of `module`.
        module
            A module of this program to run in place of a command; "" for a command.
        """
        return TaskSpec(
            task=task,
            key=key,
            number=self.journal.next_attempt(task),
            command=command,
            module=module,
            folder=self.workflow.run / TASKS_FOLDER / task,
            working_folder=working_folder,
            run=self.workflow.run,
            stop=self.stop,
        )

    def run_tasks(self, source: TaskSource) -> None:
        """Run the tasks of a source on the cluster's workers, and reconnect if the scheduler is lost.

        Raises as `TaskRunner.run`, UsageProblem and EnvironmentProblem of the cluster.
        """
        cluster, run, say = self.workflow.cluster, self.workflow.run, self.say

        def work(client: Client) -> None:
            runner = TaskRunner(client, self.journal, run=run, preemptible=cluster.preemptible, say=say)
            runner.run(source, self.stop)

        connection = ConnectionSettings(
            address=cluster.address, workers=cluster.workers, certificates=cluster.certificates
        )
        run_with_reconnects(
            connection, work, count_done=lambda: self.journal.ended, on_problem=lambda problem: say(str(problem))
        )


@contextlib.contextmanager
def open_workflow_run(workflow: Workflow, path: Path, *, say: LineHandler) -> Iterator[WorkflowRun]:
    """Open the run's folder for this driver alone.

    Raises UsageProblem (run_in_use, workflow_journal), StorageProblem.
    """
    with lock_run_folder(workflow.run), Journal(workflow.run) as journal:
        stop = workflow.run / _STOPS / secrets.token_hex(8)
        for folder in (workflow.run / _STOPS, workflow.run / TASKS_FOLDER):
            try:
                folder.mkdir(exist_ok=True)
            except OSError as error:
                raise storage_problem(error, folder) from error
        for left in _drivers(workflow.run):  # files of drivers that were killed
            left.unlink(missing_ok=True)
        write_atomically(driver_file(stop), b"")
        write_atomically(workflow.run / RECIPE_TEXT_NAME, path.read_bytes())
        try:
            yield WorkflowRun(
                workflow=workflow, recipe_folder=path.resolve().parent, journal=journal, stop=stop, say=say
            )
        finally:
            driver_file(stop).unlink(missing_ok=True)


def cancel_run(path: Path) -> None:
    """Ask the run of a recipe, in another process, to stop. Raises UsageProblem (workflow_not_running)."""
    run = read_workflow(path).run
    drivers = _drivers(run) if is_running(run) else []
    if not drivers:
        raise UsageProblem(reason("workflow_not_running", path=run))
    for driver in drivers:
        write_atomically(driver.with_suffix(""), b"")


def _drivers(run: Path) -> list[Path]:
    return list((run / _STOPS).glob(driver_file(Path("*")).name))


def is_running(run: Path) -> bool:
    """Return whether a driver works in a run's folder."""
    if not run.is_dir():
        return False
    try:
        with lock_run_folder(run):
            return False
    except UsageProblem:
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskState:
    """The state of a task: the task, and its latest event in the journal."""

    task: Task
    event: Event | None = None

    @property
    def status(self) -> Status:
        """The status of the task, by its latest event."""
        return self.event.status if self.event else "waiting"

    @property
    def outcome(self) -> Outcome:
        """The outcome of the last attempt; empty without one."""
        return self.event.outcome if self.event else Outcome()

    @property
    def output(self) -> Path | None:
        """The file with the last attempt's output; None without one."""
        path = self.task.folder / f"output-{self.event.number}.txt" if self.event else None
        return path if path and path.is_file() else None


def task_states(graph: Graph, latest: Mapping[str, Event]) -> list[TaskState]:
    """Return the state of each task of a graph by the latest events, in the graph's order."""
    return [TaskState(task=task, event=latest.get(task.name)) for tasks in graph.values() for task in tasks]


def last_run_workflow(path: Path) -> Workflow:
    """Return the workflow of a recipe as it was last run, because the recipe may have changed since.

    Raises UsageProblem (the recipe; workflow_no_run).
    """
    run = read_workflow(path).run
    if not (run / RECIPE_TEXT_NAME).is_file():
        raise UsageProblem(reason("workflow_no_run", path=run))
    workflow = RecipeDocument.read(run / RECIPE_TEXT_NAME).parsed(Workflow).resolve_paths(path.resolve().parent)
    return replace(workflow, run=run)


def read_states(path: Path) -> list[TaskState]:
    """Return the states of the tasks of a recipe's last run, during or after the run.

    Raises UsageProblem (the recipe; workflow_no_run), StorageProblem.
    """
    workflow = last_run_workflow(path)
    latest = {event.task: event for event in read_events(workflow.run)}
    left = {name: event for name, event in latest.items() if event.status == "running"}
    if is_running(workflow.run):
        folder = workflow.run / TASKS_FOLDER
        latest |= {
            name: replace(event, outcome=running_outcome(folder / name, event.number)) for name, event in left.items()
        }
    else:  # a driver that was killed did not record the end of its tasks
        latest |= {name: replace(event, status="stopped") for name, event in left.items()}
    if not latest:
        raise UsageProblem(reason("workflow_no_run", path=workflow.run))
    if not workflow.sweep:
        return task_states(build_graph(workflow, recipe_folder=path.resolve().parent), latest)
    # The tasks of a sweep are not known in advance.
    tasks = (Task(name=name, command=(), values={}, folder=workflow.run / TASKS_FOLDER / name) for name in latest)
    return task_states({"sweep": tuple(tasks)}, latest)


def count_statuses(states: Iterable[TaskState]) -> StatusCounts:
    """Return the number of tasks by status."""
    return Counter(state.status for state in states)


@dataclass(slots=True)
class _Stage:
    """The progress of an experiment.

    Attributes
    ----------
    keys
        The keys of its tasks, by name.
    left
        The unfinished tasks, by name.
    out
        Names of tasks that are on workers.
    failed
        The name of the first failed task; "" for none.
    """

    keys: dict[str, str] = field(default_factory=dict)
    left: dict[str, Task] = field(default_factory=dict)
    out: set[str] = field(default_factory=set)
    is_begun: bool = False
    failed: str = ""

    @property
    def is_over(self) -> bool:
        return self.is_begun and not self.left


class _Progress:
    """The progress of a graph: finished, ready and blocked tasks. The task source of a workflow."""

    def __init__(self, run: WorkflowRun, graph: Graph) -> None:
        self._run, self._graph, self._journal = run, graph, run.journal
        self._stages = {name: _Stage() for name in graph}

    @property
    def is_over(self) -> bool:
        """Whether no task is left that could be run."""
        return all(stage.is_over for stage in self._stages.values())

    def restart(self) -> None:
        """Queue tasks again whose connection was lost (see `TaskSource.restart`)."""
        for stage in self._stages.values():
            stage.out.clear()

    def next_task(self) -> tuple[TaskSpec, RetryPolicy] | None:
        """Return the next task that may begin (see `TaskSource.next_task`)."""
        for name, stage in self._stages.items():
            policy = self._run.workflow.experiments[name]
            waiting = next((task for own, task in stage.left.items() if own not in stage.out), None)
            if waiting and not (policy.workers and len(stage.out) >= policy.workers):
                stage.out.add(waiting.name)
                key = stage.keys[waiting.name]
                return self._run.make_spec(
                    waiting.name, key, waiting.command, working_folder=self._run.recipe_folder
                ), policy
        return None

    def record_end(self, task: str, event: Event) -> None:
        """Record how a task ended (see `TaskSource.record_end`)."""
        stage = next(stage for stage in self._stages.values() if task in stage.left)
        del stage.left[task]
        stage.out.discard(task)
        if event.status != "done":
            stage.failed = stage.failed or task
        outcome = event.outcome
        on = f" on {outcome.node} in {outcome.seconds:.1f} s" if outcome.node else ""
        self._run.say(f"{task}: {event.status}{on}. {outcome.problem}".strip().removesuffix("."))

    def update(self) -> None:
        """Start experiments that are ready, and block those that cannot be run (see `TaskSource.update`)."""
        if self._run.is_stopped:  # no further experiment is started
            return
        for name, stage in self._stages.items():
            parents = [self._stages[parent] for parent in self._run.workflow.experiments[name].depends_on]
            if stage.is_begun:
                continue
            if failed := next((parent.failed for parent in parents if parent.failed), ""):
                self._block(name, stage, failed)
            elif all(parent.is_over for parent in parents):
                self._begin(name, stage, digest([parent.keys for parent in parents]))

    def stop_the_rest(self) -> None:
        """If the run was stopped, record all remaining tasks as stopped."""
        text = reason("workflow_stopped").text
        for stage in self._stages.values() if self._run.is_stopped else ():
            for name in sorted(stage.left):
                self._enter(name, "stopped", text)
            stage.left.clear()

    def _begin(self, name: str, stage: _Stage, before: str) -> None:
        """Start an experiment: find the tasks that were completed before, and queue the others."""
        stage.is_begun = True
        for task in self._graph[name]:
            try:
                key = task.key(before)
            except OSError as error:
                path = error.filename or task.folder
                stage.failed = stage.failed or task.name
                self._enter(task.name, "failed", reason("workflow_input_missing", path=path).text)
                continue
            stage.keys[task.name] = key
            if not self._journal.is_done(task.name, key):
                stage.left[task.name] = task

    def _block(self, name: str, stage: _Stage, failed: str) -> None:
        stage.is_begun, stage.failed = True, failed
        text = reason("workflow_blocked", parent=failed).text
        for task in self._graph[name]:
            self._enter(task.name, "blocked", text)

    def _enter(self, task: str, status: Status, problem: str) -> None:
        """Record and report the status of a task that was not performed. Stopped tasks are not reported."""
        outcome = Outcome(problem=problem, was_stopped=status == "stopped")
        self._journal.add(Event(task=task, key="", status=status, outcome=outcome))
        if status != "stopped":
            self._run.say(f"{task}: {status}. {problem}")
