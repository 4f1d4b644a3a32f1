"""Run a workflow: start experiments whose dependencies are done, send tasks to the cluster, and store the results.

This process, the driver, locks the run folder, writes the journal (a file of events), and resolves the dependencies.
Dask is not used for dependencies: it would repeat finished tasks whose worker was lost, and would fail dependent tasks
without a message.

If an experiment depends on other experiments, its tasks wait for all tasks of the other experiments. A task has a key:
a digest of the program's version, command, values, inputs, and keys of the tasks before. A task is not run again if a
task with an equal key was completed.
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
from fieldray_cluster.worker_registry import path_fingerprint, result_key, run_with_reconnects
from fieldray_cluster.workflow.recipe import (
    PLACEHOLDER_PATTERN,
    Experiment,
    ParameterValue,
    RetryPolicy,
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
    path_of_folder_check_file,
    read_events,
    running_outcome,
)

# ---- tasks and their dependencies


TASKS_FOLDER_NAME: Final = "tasks"
"""The name of the folder in the run folder that has a subfolder for each task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A task of an experiment: the command with one sample of parameter values.

    Attributes
    ----------
    name
        The experiment's name, and the number of the sample, from 1.
    command
        The words of the command, with the values in place of placeholders.
    parameter_values
        The values, by name of the parameter.
    folder
        The folder for the task's output and outcome.
    inputs
        Files and folders that the command reads.
    """

    name: str
    command: tuple[str, ...]
    parameter_values: Mapping[str, ParameterValue]
    folder: Path
    inputs: tuple[Path, ...] = ()

    def key(self, earlier_digest: str) -> str:
        """Return a digest of all inputs of the task: command, program version, files, and earlier tasks.

        `earlier_digest` is the digest of the tasks for which this task waits. Raises FileNotFoundError for a missing
        input, and OSError.
        """
        inputs = [path_fingerprint(path) for path in self.inputs]
        return result_key(self.command, dict(self.parameter_values), inputs, earlier_digest)


TaskGraph = Mapping[str, tuple[Task, ...]]
"""All tasks of a workflow, by name of the experiment. An experiment comes after the experiments it depends on."""


def build_graph(workflow: Workflow, *, recipe_folder: Path) -> TaskGraph:
    """Return all tasks of a workflow, by experiment. `recipe_folder` is the folder of the workflow's recipe."""
    order = graphlib.TopologicalSorter({name: own.depends_on for name, own in workflow.experiments.items()})
    return {name: _tasks(name, workflow.experiments[name], workflow, recipe_folder) for name in order.static_order()}


def fill_command(command: str, values: Mapping[str, ParameterValue]) -> tuple[str, ...]:
    """Replace the placeholders of a command by values. Returns the words of the command.

    The command is split into words first. So a value with spaces, quotes or semicolons is always part of one word. No
    shell is used.
    """
    return tuple(_fill(word, values) for word in shlex.split(command))


def _tasks(name: str, experiment: Experiment, workflow: Workflow, here: Path) -> tuple[Task, ...]:
    # The seed differs between experiments, so that equal ranges give different numbers.
    rows = draw_samples(experiment.parameters, count=experiment.task_count, seed=f"{workflow.seed}/{name}")
    found = []
    for index, values in enumerate(rows, start=1):
        own = f"{name}-{index:04d}"
        folder = workflow.run / TASKS_FOLDER_NAME / own
        known = {**values, "index": index, "run": str(workflow.run), "folder": str(folder), "here": str(here)}
        found.append(
            Task(
                name=own,
                command=fill_command(experiment.command, known),
                parameter_values=values,
                folder=folder,
                inputs=tuple(here / _fill(text, known) for text in experiment.inputs),
            )
        )
    return tuple(found)


def _fill(word: str, values: Mapping[str, ParameterValue]) -> str:
    def text(value: ParameterValue) -> str:
        return str(value).lower() if isinstance(value, bool) else str(value)

    return PLACEHOLDER_PATTERN.sub(lambda match: text(values[match[1]]), word)


# ---- the run


LineHandler = Callable[[str], None]
"""A function that is called with a line of text for the user."""
StatusCounts = Counter[Status]
"""The number of tasks with each status."""

RECIPE_COPY_FILE_NAME: Final = "recipe.toml"
_STOPS: Final = "stops"


def run_workflow(path: Path, *, say: LineHandler) -> StatusCounts:
    """Run all unfinished tasks of a workflow. Returns the number of tasks with each status.

    `path` is the recipe. `say` is called with lines of text for the user. The run ends early after `cancel_run`. Ctrl-C
    stops running tasks, and KeyboardInterrupt is raised. Raises UsageProblem for an invalid recipe, a run in use
    (run_in_use), or unusable nodes, and EnvironmentProblem.
    """
    workflow = read_workflow(path)
    if workflow.sweep:
        raise UsageProblem(reason("workflow_is_sweep", path=path))
    graph = build_graph(workflow, recipe_folder=path.resolve().parent)
    with open_workflow_run(workflow, path, say=say) as run:
        progress = _Progress(run, graph)
        progress.check_progress()
        if progress.is_over:
            say("Everything was done before.")
        else:
            run.run_tasks(progress)
            progress.stop_remaining_tasks()
        return count_statuses(task_states(graph, run.journal.latest))


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class WorkflowRun:
    """A workflow or sweep that this process runs, with the locked run folder and the open journal.

    Attributes
    ----------
    recipe_folder
        The folder of the recipe.
    stop_file
        The path of a file that, if it exists, stops all tasks of the run.
    """

    workflow: Workflow
    recipe_folder: Path
    journal: Journal
    stop_file: Path
    say: LineHandler

    @property
    def is_stopped(self) -> bool:
        """Whether the user, or another process, has asked to stop the run."""
        return self.stop_file.exists()

    def make_spec(
        self, task: str, key: str, command: tuple[str, ...], *, working_folder: Path, module: str = ""
    ) -> TaskSpec:
        """Return the specification of the next attempt at a task, to be sent to a worker.

        Parameters
        ----------
        task
            The name of the task.
        key
            The digest of all inputs of the task.
        command
            The words of the command, or the arguments of `module`.
        working_folder
            The working directory of the command.
        module
            A module of this program to run in place of a command; "" for a command.
        """
        return TaskSpec(
            task_name=task,
            key=key,
            attempt_number=self.journal.next_attempt_number(task),
            command=command,
            module=module,
            folder=self.workflow.run / TASKS_FOLDER_NAME / task,
            working_folder=working_folder,
            run_folder=self.workflow.run,
            stop_file=self.stop_file,
        )

    def run_tasks(self, source: TaskSource) -> None:
        """Run all tasks of `source` on the workers of the cluster, and reconnect if the scheduler is lost.

        Raises as `TaskRunner.run`, and UsageProblem and EnvironmentProblem for problems with the cluster.
        """
        cluster, run, say = self.workflow.cluster, self.workflow.run, self.say

        def work(client: Client) -> None:
            runner = TaskRunner(client, self.journal, run=run, preemptible=cluster.preemptible, say=say)
            runner.run(source, self.stop_file)

        connection = ConnectionSettings(
            address=cluster.address, workers=cluster.workers, certificates=cluster.certificates
        )
        run_with_reconnects(
            connection, work, count_done=lambda: self.journal.ended, on_problem=lambda problem: say(str(problem))
        )


@contextlib.contextmanager
def open_workflow_run(workflow: Workflow, path: Path, *, say: LineHandler) -> Iterator[WorkflowRun]:
    """Lock the run folder of a workflow during the block, open the journal, and yield the run.

    `path` is the recipe. `say` is called with lines of text for the user. Raises UsageProblem (run_in_use,
    workflow_journal), StorageProblem.
    """
    with lock_run_folder(workflow.run), Journal(workflow.run) as journal:
        stop = workflow.run / _STOPS / secrets.token_hex(8)
        for folder in (workflow.run / _STOPS, workflow.run / TASKS_FOLDER_NAME):
            try:
                folder.mkdir(exist_ok=True)
            except OSError as error:
                raise storage_problem(error, folder) from error
        for left in _drivers(workflow.run):  # files that killed drivers left behind
            left.unlink(missing_ok=True)
        write_atomically(path_of_folder_check_file(stop), b"")
        write_atomically(workflow.run / RECIPE_COPY_FILE_NAME, path.read_bytes())
        try:
            yield WorkflowRun(
                workflow=workflow, recipe_folder=path.resolve().parent, journal=journal, stop_file=stop, say=say
            )
        finally:
            path_of_folder_check_file(stop).unlink(missing_ok=True)


def cancel_run(path: Path) -> None:
    """Ask the process that runs the workflow of the recipe `path` to stop.

    Raises UsageProblem (workflow_not_running).
    """
    run = read_workflow(path).run
    drivers = _drivers(run) if is_running(run) else []
    if not drivers:
        raise UsageProblem(reason("workflow_not_running", path=run))
    for driver in drivers:
        write_atomically(driver.with_suffix(""), b"")


def _drivers(run: Path) -> list[Path]:
    return list((run / _STOPS).glob(path_of_folder_check_file(Path("*")).name))


def is_running(run: Path) -> bool:
    """Return whether a process is now running a workflow in the run folder `run`."""
    if not run.is_dir():
        return False
    try:
        with lock_run_folder(run):
            return False
    except UsageProblem:
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskState:
    """The state of a task: the task, and the task's latest event in the journal (None before the first event)."""

    task: Task
    event: Event | None = None

    @property
    def status(self) -> Status:
        """The status of the task, such as "done"; "waiting" before the first event."""
        return self.event.status if self.event else "waiting"

    @property
    def outcome(self) -> Outcome:
        """The outcome of the last attempt at the task; an empty outcome before the first attempt."""
        return self.event.outcome if self.event else Outcome()

    @property
    def output_file(self) -> Path | None:
        """The path of the file with the output of the last attempt; None before the first attempt."""
        path = self.task.folder / f"output-{self.event.number}.txt" if self.event else None
        return path if path and path.is_file() else None


def task_states(graph: TaskGraph, latest: Mapping[str, Event]) -> list[TaskState]:
    """Return the state of each task in `graph`, in order. `latest` is the latest event of each task, by task name."""
    return [TaskState(task=task, event=latest.get(task.name)) for tasks in graph.values() for task in tasks]


def read_workflow_of_last_run(path: Path) -> Workflow:
    """Return the workflow of the recipe `path` as it was at the last run. The recipe may have changed since then.

    Raises UsageProblem for an invalid recipe, or if there is no run (workflow_no_run).
    """
    run = read_workflow(path).run
    if not (run / RECIPE_COPY_FILE_NAME).is_file():
        raise UsageProblem(reason("workflow_no_run", path=run))
    workflow = RecipeDocument.read(run / RECIPE_COPY_FILE_NAME).parse_as(Workflow).resolve_paths(path.resolve().parent)
    return replace(workflow, run=run)


def read_task_states(path: Path) -> list[TaskState]:
    """Return the state of each task of the last run of the recipe `path`. The run may still be running.

    Raises UsageProblem for an invalid recipe, or if there is no run (workflow_no_run), and StorageProblem.
    """
    workflow = read_workflow_of_last_run(path)
    latest = {event.task: event for event in read_events(workflow.run)}
    left = {name: event for name, event in latest.items() if event.status == "running"}
    if is_running(workflow.run):
        folder = workflow.run / TASKS_FOLDER_NAME
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
    tasks = (
        Task(name=name, command=(), parameter_values={}, folder=workflow.run / TASKS_FOLDER_NAME / name)
        for name in latest
    )
    return task_states({"sweep": tuple(tasks)}, latest)


def count_statuses(states: Iterable[TaskState]) -> StatusCounts:
    """Return the number of tasks with each status."""
    return Counter(state.status for state in states)


@dataclass(slots=True)
class _Stage:
    """The progress of one experiment of a workflow.

    Attributes
    ----------
    keys
        The key (digest of all inputs) of each task, by name of the task.
    unfinished_tasks
        The unfinished tasks, by name.
    running_tasks
        Names of the tasks that are running on workers.
    failed_task
        The name of the first failed task; "" if no task has failed.
    """

    keys: dict[str, str] = field(default_factory=dict)
    unfinished_tasks: dict[str, Task] = field(default_factory=dict)
    running_tasks: set[str] = field(default_factory=set)
    is_begun: bool = False
    failed_task: str = ""

    @property
    def is_over(self) -> bool:
        return self.is_begun and not self.unfinished_tasks


class _Progress:
    """The finished, ready and blocked tasks of a workflow, as the source of tasks to run (see `TaskSource`)."""

    def __init__(self, run: WorkflowRun, graph: TaskGraph) -> None:
        self._run, self._graph, self._journal = run, graph, run.journal
        self._stages = {name: _Stage() for name in graph}

    @property
    def is_over(self) -> bool:
        """Whether all tasks are finished or blocked, so that no task is left to run."""
        return all(stage.is_over for stage in self._stages.values())

    def requeue_running_tasks(self) -> None:
        """Queue all tasks again that were running (see `TaskSource.requeue_running_tasks`)."""
        for stage in self._stages.values():
            stage.running_tasks.clear()

    def next_task(self) -> tuple[TaskSpec, RetryPolicy] | None:
        """Return the next task that may start, with its retry policy; None if no task may start now.

        See `TaskSource.next_task`.
        """
        for name, stage in self._stages.items():
            policy = self._run.workflow.experiments[name]
            waiting = next(
                (task for own, task in stage.unfinished_tasks.items() if own not in stage.running_tasks), None
            )
            if waiting and not (policy.workers and len(stage.running_tasks) >= policy.workers):
                stage.running_tasks.add(waiting.name)
                key = stage.keys[waiting.name]
                return self._run.make_spec(
                    waiting.name, key, waiting.command, working_folder=self._run.recipe_folder
                ), policy
        return None

    def record_task_end(self, task: str, event: Event) -> None:
        """Store the end of a task, whose result is in `event`, and report the result to the user.

        See `TaskSource.record_task_end`.
        """
        stage = next(stage for stage in self._stages.values() if task in stage.unfinished_tasks)
        del stage.unfinished_tasks[task]
        stage.running_tasks.discard(task)
        if event.status != "done":
            stage.failed_task = stage.failed_task or task
        outcome = event.outcome
        on = f" on {outcome.node} in {outcome.seconds:.1f} s" if outcome.node else ""
        self._run.say(f"{task}: {event.status}{on}. {outcome.problem}".strip().removesuffix("."))

    def check_progress(self) -> None:
        """Start experiments whose dependencies are done, and block experiments whose dependencies have failed.

        See `TaskSource.check_progress`.
        """
        if self._run.is_stopped:  # no further experiment is started
            return
        for name, stage in self._stages.items():
            parents = [self._stages[parent] for parent in self._run.workflow.experiments[name].depends_on]
            if stage.is_begun:
                continue
            if failed := next((parent.failed_task for parent in parents if parent.failed_task), ""):
                self._block(name, stage, failed)
            elif all(parent.is_over for parent in parents):
                self._begin(name, stage, digest([parent.keys for parent in parents]))

    def stop_remaining_tasks(self) -> None:
        """If the run was stopped, store all remaining tasks as stopped."""
        text = reason("workflow_stopped").text
        for stage in self._stages.values() if self._run.is_stopped else ():
            for name in sorted(stage.unfinished_tasks):
                self._enter(name, "stopped", text)
            stage.unfinished_tasks.clear()

    def _begin(self, name: str, stage: _Stage, before: str) -> None:
        """Start an experiment: skip the tasks that were completed in an earlier run, and queue all other tasks.

        `before` is the digest of the tasks for which the experiment has waited.
        """
        stage.is_begun = True
        for task in self._graph[name]:
            try:
                key = task.key(before)
            except OSError as error:
                path = error.filename or task.folder
                stage.failed_task = stage.failed_task or task.name
                self._enter(task.name, "failed", reason("workflow_input_missing", path=path).text)
                continue
            stage.keys[task.name] = key
            if not self._journal.is_done(task.name, key):
                stage.unfinished_tasks[task.name] = task

    def _block(self, name: str, stage: _Stage, failed: str) -> None:
        stage.is_begun, stage.failed_task = True, failed
        text = reason("workflow_blocked", parent=failed).text
        for task in self._graph[name]:
            self._enter(task.name, "blocked", text)

    def _enter(self, task: str, status: Status, problem: str) -> None:
        """Store the status of a task that was not run. Unless the task was stopped, also tell the user the status."""
        outcome = Outcome(problem=problem, was_stopped=status == "stopped")
        self._journal.add(Event(task=task, key="", status=status, outcome=outcome))
        if status != "stopped":
            self._run.say(f"{task}: {status}. {problem}")
