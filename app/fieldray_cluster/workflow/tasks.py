"""Run a task of a workflow in a worker process, and store the events of all tasks in a journal.

A worker runs the command of a task under a guard process, and stores output and outcome in the task's folder. A
finished task is not repeated. A worker that gets a finished task again returns the stored outcome. If two workers get
one task, because the driver (the process that runs the workflow) was killed and restarted, one waits for the other.

A worker uses a run folder only if it contains the journal and the driver's file, and makes no folder above the task's
folder. Otherwise, if a network share is not mounted, the worker would write to the wrong disk.

The journal has one JSON line for each event, which is written to the disk before the run continues. A killed run
resumes from the journal. An incomplete last line is ignored.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import platform
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, Self

from distributed import get_worker
from distributed.core import Status as WorkerStatus

from fieldray.errors import FieldrayError, UsageProblem
from fieldray.paths import program_command, python_command
from fieldray.persistence import FileLock, LockHeldError, storage_problem
from fieldray.reasons import Reason, reason
from fieldray.typed_json import parse_json
from fieldray_adapt.files import write_atomically
from fieldray_cluster.workflow.recipe import FIELDRAY_COMMAND_WORD

# ---- the journal


JOURNAL_FILE_NAME: Final = "journal.jsonl"
"""The name of the file, in the run folder, with the events of all tasks."""
Status = Literal["waiting", "running", "done", "failed", "blocked", "stopped", "pruned"]
"""The status of a task.

"waiting": not started. "running". "done": the command has succeeded. "failed": the command has failed and is not
repeated. "blocked": a task before has failed. "stopped": stopped by the user. "pruned": a trial of a sweep that was
stopped early.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The end of one attempt at a task.

    Attributes
    ----------
    exit_code
        The exit code of the command; negative for the number of the signal that ended the command. None if the command
        did not end.
    node
        The name of the worker that performed the attempt.
    began
        Start time by the node's clock, in seconds since 1970.
    seconds, cpu_seconds, memory_mb
        Elapsed time and CPU time in seconds, and the largest memory of one process in MB. None if unknown.
    problem
        The reason of the failure as a text for the user; "" after success.
    was_stopped
        Whether the user, or the program, stopped the task.
    """

    exit_code: int | None = None
    node: str = ""
    began: float = 0.0
    seconds: float = 0.0
    cpu_seconds: float | None = None
    memory_mb: float | None = None
    problem: str = ""
    was_stopped: bool = False

    @property
    def is_done(self) -> bool:
        """Whether the command of the attempt succeeded."""
        return self.exit_code == 0 and not self.was_stopped


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A line of the journal: the new status of a task.

    Attributes
    ----------
    key
        The digest of all inputs of the task.
    number
        The number of the attempt, from 1, counted over all runs. The output file has this number. 0 without an attempt.
    lost
        The number of workers that were lost while performing the task in this run.
    """

    task: str
    key: str
    status: Status
    number: int = 0
    lost: int = 0
    outcome: Outcome = field(default_factory=Outcome)


class Journal:
    """The open journal of a run folder. The calling process must have locked the folder.

    Raises UsageProblem (workflow_journal) for a damaged journal, and StorageProblem.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / JOURNAL_FILE_NAME
        self.latest: dict[str, Event] = {}
        self.numbers: dict[str, int] = {}
        self.ended = 0  # number of events that end a task, since the journal was opened
        for event in read_events(folder):
            self._note(event)
        try:
            _cut_unfinished(self._path)
            self._stream: BinaryIO = self._path.open("ab")
        except OSError as error:
            raise storage_problem(error, self._path) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def add(self, event: Event) -> None:
        """Write an event to the journal, and wait until the event is on the disk. Raises StorageProblem."""
        try:
            self._stream.write(json.dumps(asdict(event), ensure_ascii=False).encode() + b"\n")
            self._stream.flush()
            os.fsync(self._stream.fileno())
        except OSError as error:
            raise storage_problem(error, self._path) from error
        self._note(event)
        self.ended += event.status != "running"

    def is_done(self, task: str, key: str) -> bool:
        """Return whether the task `task` was completed, or stopped early as a poor trial, with the inputs of `key`.

        `key` is the digest of all inputs of the task (see `run.Task.key`).
        """
        known = self.latest.get(task)
        return known is not None and known.status in ("done", "pruned") and known.key == key

    def next_attempt_number(self, task: str) -> int:
        """Return the number of the next attempt at the task `task`, from 1."""
        return self.numbers.get(task, 0) + 1

    def _note(self, event: Event) -> None:
        self.latest[event.task] = event
        self.numbers[event.task] = max(self.numbers.get(event.task, 0), event.number)


def read_events(folder: Path) -> Iterator[Event]:
    """Yield the events in the journal of a run folder, oldest first.

    Raises UsageProblem (workflow_journal) for a damaged journal, and StorageProblem.
    """
    path = folder / JOURNAL_FILE_NAME
    try:
        lines = path.read_bytes().split(b"\n") if path.is_file() else [b""]
    except OSError as error:
        raise storage_problem(error, path) from error
    for number, line in enumerate(lines[:-1], start=1):  # the text after the last line end is incomplete
        try:
            yield parse_json(line, Event)
        except ValueError as error:
            raise UsageProblem(reason("workflow_journal", path=path, line=number)) from error


def _cut_unfinished(path: Path) -> None:
    """Remove an incomplete last line of a file, so that the next event starts on a new line."""
    if path.is_file() and (data := path.read_bytes()) and not data.endswith(b"\n"):
        with path.open("r+b") as stream:
            stream.truncate(data.rfind(b"\n") + 1)


# ---- execution by a worker


OUTCOME_FILE_NAME: Final = "outcome.json"
"""The name of the file, in a task's folder, with the outcome of the task."""
STOP_FILE_NAME: Final = "stop"
"""The name of a file that, if it exists in a task's folder, stops the task."""
_LOCK: Final = "task.lock"
_TICK_S: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """The specification of one attempt at a task, which is sent to a worker.

    Attributes
    ----------
    key
        The digest of all inputs of the task. If an outcome with this key is stored, the command is not run.
    attempt_number
        The number of this attempt, from 1.
    command
        The words of the command. The first word `fieldray` stands for the program that is installed on the node.
    module
        A module of this program that is run, with the words of `command` as arguments; "" to run a command.
    folder
        The folder for output and outcome of the task.
    working_folder
        The working directory of the command.
    run_folder
        The run folder, which contains the journal.
    stop_file
        The path of a file that ends the command when it appears. Each start of the workflow has a file of its own.
    """

    task_name: str
    key: str
    attempt_number: int
    command: tuple[str, ...]
    folder: Path
    working_folder: Path
    run_folder: Path
    stop_file: Path
    module: str = ""

    @property
    def output_file(self) -> Path:
        """The path of the file for standard output and standard error of the command."""
        return self.folder / f"output-{self.attempt_number}.txt"

    @property
    def attempt_start_file(self) -> Path:
        """The path of the file that a worker writes at the start of the attempt: the worker's name and the time."""
        return _mark(self.folder, self.attempt_number)


def running_outcome(folder: Path, attempt_number: int) -> Outcome:
    """Return the outcome until now of a running attempt: worker, start time and elapsed seconds.

    `folder` is the task's folder, `attempt_number` the number of the attempt. Returns an empty outcome if the attempt
    has not started.
    """
    try:
        outcome = parse_json(_mark(folder, attempt_number).read_bytes(), Outcome)
    except (OSError, ValueError):
        return Outcome()
    return replace(outcome, seconds=max(0.0, round(time.time() - outcome.began, 3)))


def _mark(folder: Path, number: int) -> Path:
    return folder / f"begun-{number}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """A worker's answer about an attempt at a task.

    Attributes
    ----------
    spec
        The specification of the attempt.
    node_problem
        The reason why the node (computer) could not work, which is no failure of the task; None without a problem.
    """

    spec: TaskSpec
    outcome: Outcome
    node_problem: Reason | None = None


def check_node(run_folder: Path) -> Reason | None:
    """Return the reason why this worker cannot work on the run in the folder `run_folder`; None if it can.

    A folder without a journal is probably a network share that is not mounted.
    """
    return (
        None
        if (run_folder / JOURNAL_FILE_NAME).is_file()
        else reason("workflow_node_folder", node=_node(), path=run_folder)
    )


def path_of_folder_check_file(stop_file: Path) -> Path:
    """Return the path of a file by which a worker recognises the right run folder, next to the file `stop_file`.

    The process that runs the workflow writes this file. A worker that does not find the file sees a wrong folder, for
    example because a network share is not mounted.
    """
    return stop_file.with_name(f"{stop_file.name}.driver")


def perform_task(spec: TaskSpec) -> TaskResult:
    """Run the command of a task in this worker, or return the stored outcome if the task was completed before.

    Errors of the disk or of the node are not raised, but returned as `node_problem`.
    """
    node, began = _node(), time.time()
    try:
        if not _sees_run(spec):
            return _unable(spec, node, began, reason("workflow_node_folder", node=node, path=spec.run_folder))
        spec.folder.mkdir(exist_ok=True)
        return TaskResult(spec=spec, outcome=_performed(spec, node, began))
    except LockHeldError:
        outcome = Outcome(node=node, began=began, problem=reason("workflow_stopped").text, was_stopped=True)
        return TaskResult(spec=spec, outcome=outcome)
    except (OSError, FieldrayError) as error:
        detail = error.strerror or type(error).__name__ if isinstance(error, OSError) else error
        return _unable(spec, node, began, reason("workflow_node_failed", node=node, detail=detail))


def _sees_run(spec: TaskSpec) -> bool:
    return (spec.run_folder / JOURNAL_FILE_NAME).is_file() and path_of_folder_check_file(spec.stop_file).is_file()


def _unable(spec: TaskSpec, node: str, began: float, why: Reason) -> TaskResult:
    return TaskResult(spec=spec, outcome=Outcome(node=node, began=began, problem=why.text), node_problem=why)


def _performed(spec: TaskSpec, node: str, began: float) -> Outcome:
    """Run the command of a task, or return the stored outcome. `node` is the worker's name, `began` the start time.

    Raises HeldError if the task is no longer wanted, OSError, StorageProblem.
    """
    with _alone(spec):
        if known := _known(spec):
            return known
        (spec.folder / OUTCOME_FILE_NAME).unlink(missing_ok=True)  # deletes an outcome of other settings
        write_atomically(spec.attempt_start_file, json.dumps(asdict(Outcome(node=node, began=began))).encode())
        outcome = _run(spec, node, began)
        content = {"key": spec.key, "number": spec.attempt_number, "outcome": asdict(outcome)}
        if not _sees_run(spec):  # writing would create a folder that was deleted
            raise FileNotFoundError(errno.ENOENT, "the run's folder is no longer there")
        write_atomically(spec.folder / OUTCOME_FILE_NAME, json.dumps(content).encode())
        return outcome


def _alone(spec: TaskSpec) -> FileLock:
    """Wait for the lock of a task, so that only one worker performs the task, and return the lock.

    Raises HeldError if the task is no longer wanted.
    """
    while True:
        try:
            return FileLock(spec.folder / _LOCK, holder=_node(), wait_s=1.0)
        except LockHeldError:
            if _is_stopped(spec):
                raise


@dataclass(frozen=True, slots=True)
class _Known:
    """The stored outcome of an attempt, with the number of the attempt and the key of the task."""

    key: str
    number: int
    outcome: Outcome


def _known(spec: TaskSpec) -> Outcome | None:
    """Return the stored outcome of a task if it belongs to this specification; else None."""
    try:
        known = parse_json((spec.folder / OUTCOME_FILE_NAME).read_bytes(), _Known)
    except (OSError, ValueError):
        return None
    is_it = known.key == spec.key and (known.outcome.is_done or known.number == spec.attempt_number)
    return known.outcome if is_it else None


def _run(spec: TaskSpec, node: str, began: float) -> Outcome:
    """Run the command of a task under a guard process until the command ends or is stopped. Returns the outcome."""
    began_s, was_stopped = time.monotonic(), False
    guard = subprocess.Popen(
        python_command("fieldray_cluster.workflow.guard", json.dumps(_command_of(spec))),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    with guard:
        try:
            while True:
                try:
                    guard.wait(_TICK_S)
                    break
                except subprocess.TimeoutExpired:
                    if not was_stopped and _is_stopped(spec):
                        was_stopped = True
                        _close_input(guard)
        finally:
            _close_input(guard)
        said = guard.stdout.read() if guard.stdout else b""
    found: dict[str, Any] = json.loads(said) if said else {"exit_code": guard.returncode or -1}
    seconds, problem = round(time.monotonic() - began_s, 3), _problem(found, node, was_stopped=was_stopped)
    return Outcome(node=node, began=began, seconds=seconds, was_stopped=was_stopped, **{**found, "problem": problem})


def _problem(guard_report: Mapping[str, Any], node: str, *, was_stopped: bool) -> str:
    """Return the reason why a command failed, as a text; "" after success. `guard_report` is the guard's result."""
    code = guard_report.get("exit_code", 0)
    if detail := guard_report.get("problem"):
        return reason("workflow_not_started", node=node, detail=detail).text
    if was_stopped:
        return reason("workflow_stopped").text
    if code > 0:
        return reason("workflow_exit", exit_code=code).text
    return reason("workflow_signal", number=-code).text if code else ""


def _command_of(spec: TaskSpec) -> dict[str, Any]:
    """Return the order for the guard process: words of the command, working folder, output file."""
    words = list(spec.command)
    if spec.module:
        words = python_command(spec.module, *words)
    elif words[0] == FIELDRAY_COMMAND_WORD:
        words = program_command(*words[1:])
    return {"command": words, "folder": str(spec.working_folder), "output": str(spec.output_file)}


def _close_input(guard: subprocess.Popen[bytes]) -> None:
    if guard.stdin and not guard.stdin.closed:
        with contextlib.suppress(OSError):
            guard.stdin.close()


def _is_stopped(spec: TaskSpec) -> bool:
    """Return whether the command must stop: the run or the task was stopped, or this worker is ending."""
    return spec.stop_file.exists() or (spec.folder / STOP_FILE_NAME).exists() or _is_ending()


def _is_ending() -> bool:
    try:
        return get_worker().status in (WorkerStatus.closing, WorkerStatus.closed, WorkerStatus.failed)
    except ValueError:
        return False


def _node() -> str:
    """Return the name of the worker in which this function runs; outside a worker, the name of the computer."""
    try:
        return str(get_worker().name)
    except ValueError:
        return platform.node() or "?"
