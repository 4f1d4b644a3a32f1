"""A task of a run: its execution by a worker, and the journal of its events.

A worker runs the task's command under a guard, and keeps all records in the task's folder. A finished task is not
repeated: a worker that gets it again answers with the recorded outcome. Dask repeats an attempt whose answer was lost
with its worker; that is answered from the record, too. If two workers have one task, after a driver was killed and
restarted, one waits for the other.

A worker trusts the run's folder only if the journal and the driver's file are there, and creates nothing above the
task's folder. On a share that is not mounted it would otherwise write to the wrong disk.

The journal has one JSON line for each event, flushed to the disk before anything continues. A killed run resumes from
the journal. An incomplete last line is ignored.
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
from fieldray_cluster.workflow.recipe import PROGRAM

# ---- the journal


JOURNAL_NAME: Final = "journal.jsonl"
"""The file name of the journal."""
Status = Literal["waiting", "running", "done", "failed", "blocked", "stopped", "pruned"]
"""The status of a task.

"waiting": not begun. "running". "done": its command succeeded. "failed": it did not succeed, and is not tried again.
"blocked": a task that it waits for did not succeed. "stopped": by the user. "pruned": a trial of a sweep that was ended
early.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The end of one attempt at a task.

    Attributes
    ----------
    exit_code
        The command's exit code; a negative one is the signal that ended it. None if it did not run to its end.
    node
        The worker that performed the attempt.
    began
        Start time by the node's clock, in seconds since 1970.
    seconds, cpu_seconds, memory_mb
        Elapsed time, CPU time, and the largest memory of one process; None if unknown.
    problem
        Why the attempt failed, for a person; "" after success.
    was_stopped
        Whether somebody stopped the task.
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
    """A line of the journal: a task's new status.

    Attributes
    ----------
    number
        The number of the attempt from 1, through all runs; the output file is named after it. 0 without an attempt.
    lost
        The number of workers lost during the task in this run.
    """

    task: str
    key: str
    status: Status
    number: int = 0
    lost: int = 0
    outcome: Outcome = field(default_factory=Outcome)


class Journal:
    """The journal of a run's folder, open for the driver that holds the folder's lock.

    Raises UsageProblem (workflow_journal), StorageProblem.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / JOURNAL_NAME
        self.latest: dict[str, Event] = {}
        self.numbers: dict[str, int] = {}
        self.ended = 0  # events with an end since the journal was opened
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
        """Write an event and flush it to the disk. Raises StorageProblem."""
        try:
            self._stream.write(json.dumps(asdict(event), ensure_ascii=False).encode() + b"\n")
            self._stream.flush()
            os.fsync(self._stream.fileno())
        except OSError as error:
            raise storage_problem(error, self._path) from error
        self._note(event)
        self.ended += event.status != "running"

    def is_done(self, task: str, key: str) -> bool:
        """Return whether the task `task` was completed, or ended early as a poor trial, with the same result to expect.

        `key` is the digest of all that decides the result (see `run.Task.key`).
        """
        known = self.latest.get(task)
        return known is not None and known.status in ("done", "pruned") and known.key == key

    def next_attempt(self, task: str) -> int:
        """Return the number of the task's next attempt."""
        return self.numbers.get(task, 0) + 1

    def _note(self, event: Event) -> None:
        self.latest[event.task] = event
        self.numbers[event.task] = max(self.numbers.get(event.task, 0), event.number)


def read_events(folder: Path) -> Iterator[Event]:
    """Yield the events of a run's folder, oldest first. Raises UsageProblem (workflow_journal), StorageProblem."""
    path = folder / JOURNAL_NAME
    try:
        lines = path.read_bytes().split(b"\n") if path.is_file() else [b""]
    except OSError as error:
        raise storage_problem(error, path) from error
    for number, line in enumerate(lines[:-1], start=1):  # text after the last line end is an incomplete line
        try:
            yield parse_json(line, Event)
        except ValueError as error:
            raise UsageProblem(reason("workflow_journal", path=path, line=number)) from error


def _cut_unfinished(path: Path) -> None:
    """Remove an incomplete last line, so that the next event starts on a line of its own."""
    if path.is_file() and (data := path.read_bytes()) and not data.endswith(b"\n"):
        with path.open("r+b") as stream:
            stream.truncate(data.rfind(b"\n") + 1)


# ---- execution by a worker


OUTCOME_NAME: Final = "outcome.json"
"""The file name of a task's recorded outcome."""
STOP_NAME: Final = "stop"
"""The name of the file in a task's folder whose existence stops this task."""
_LOCK: Final = "task.lock"
_TICK_S: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """A task as it is sent to a worker.

    Attributes
    ----------
    key
        The digest of all that decides the result. If the task has a recorded outcome with this key, the command is not
        run.
    number
        The number of this attempt.
    command
        The words of the command. `fieldray` as the first word is the program that is installed on the node.
    module
        A module of this program that is run with the words as its arguments, in place of a command; "" for a command.
    folder
        The folder of the task's records.
    working_folder
        The working directory of the command.
    run
        The run's folder, with its journal.
    stop
        A file that ends the command when it appears. Each start of a driver has its own.
    """

    task: str
    key: str
    number: int
    command: tuple[str, ...]
    folder: Path
    working_folder: Path
    run: Path
    stop: Path
    module: str = ""

    @property
    def output(self) -> Path:
        """The file for the command's standard output and standard error."""
        return self.folder / f"output-{self.number}.txt"

    @property
    def start_file(self) -> Path:
        """The file that a worker writes at the start: an outcome with the worker's name and the time."""
        return _mark(self.folder, self.number)


def running_outcome(folder: Path, number: int) -> Outcome:
    """Return the outcome of an attempt that is still running, with the seconds that it has taken until now.

    `number` is the number of the attempt. If it was not started, an empty outcome is returned.
    """
    try:
        outcome = parse_json(_mark(folder, number).read_bytes(), Outcome)
    except (OSError, ValueError):
        return Outcome()
    return replace(outcome, seconds=max(0.0, round(time.time() - outcome.began, 3)))


def _mark(folder: Path, number: int) -> Path:
    return folder / f"begun-{number}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """The answer of a worker: an attempt's spec and outcome.

    Attributes
    ----------
    spec
        The spec that was performed.
    node_problem
        Why the node could not work at all, which is no failure of the task.
    """

    spec: TaskSpec
    outcome: Outcome
    node_problem: Reason | None = None


def check_node(run: Path) -> Reason | None:
    """Return why this worker cannot work on a run; None if it can.

    A share that is not mounted is recognised by a folder without the journal.
    """
    return None if (run / JOURNAL_NAME).is_file() else reason("workflow_node_folder", node=_node(), path=run)


def driver_file(stop: Path) -> Path:
    """Return the path of the file by which a worker recognises the folder of a run.

    The driver writes it next to its `stop` file. A worker that does not find it works elsewhere, for example on a share
    that is not mounted. `stop` is the path of the `stop` file, which need not exist.
    """
    return stop.with_name(f"{stop.name}.driver")


def perform_task(spec: TaskSpec) -> TaskResult:
    """Run a task's command on this worker, or return the recorded outcome if it was completed before.

    Errors of disks and of the node are not raised. They are in the result as its `node_problem`.
    """
    node, began = _node(), time.time()
    try:
        if not _sees_run(spec):
            return _unable(spec, node, began, reason("workflow_node_folder", node=node, path=spec.run))
        spec.folder.mkdir(exist_ok=True)
        return TaskResult(spec=spec, outcome=_performed(spec, node, began))
    except LockHeldError:
        outcome = Outcome(node=node, began=began, problem=reason("workflow_stopped").text, was_stopped=True)
        return TaskResult(spec=spec, outcome=outcome)
    except (OSError, FieldrayError) as error:
        detail = error.strerror or type(error).__name__ if isinstance(error, OSError) else error
        return _unable(spec, node, began, reason("workflow_node_failed", node=node, detail=detail))


def _sees_run(spec: TaskSpec) -> bool:
    return (spec.run / JOURNAL_NAME).is_file() and driver_file(spec.stop).is_file()


def _unable(spec: TaskSpec, node: str, began: float, why: Reason) -> TaskResult:
    return TaskResult(spec=spec, outcome=Outcome(node=node, began=began, problem=why.text), node_problem=why)


def _performed(spec: TaskSpec, node: str, began: float) -> Outcome:
    """Run the command. Raises HeldError if the task is not wanted any more, OSError, StorageProblem."""
    with _alone(spec):
        if known := _known(spec):
            return known
        (spec.folder / OUTCOME_NAME).unlink(missing_ok=True)  # an outcome of other settings
        write_atomically(spec.start_file, json.dumps(asdict(Outcome(node=node, began=began))).encode())
        outcome = _run(spec, node, began)
        content = {"key": spec.key, "number": spec.number, "outcome": asdict(outcome)}
        if not _sees_run(spec):  # writing would create a folder that was deleted
            raise FileNotFoundError(errno.ENOENT, "the run's folder is no longer there")
        write_atomically(spec.folder / OUTCOME_NAME, json.dumps(content).encode())
        return outcome


def _alone(spec: TaskSpec) -> FileLock:
    """Acquire the lock by which only one worker performs the task. Raises HeldError if the task is no longer wanted."""
    while True:
        try:
            return FileLock(spec.folder / _LOCK, holder=_node(), wait_s=1.0)
        except LockHeldError:
            if _is_stopped(spec):
                raise


@dataclass(frozen=True, slots=True)
class _Known:
    """The recorded outcome of an attempt, with its number and key."""

    key: str
    number: int
    outcome: Outcome


def _known(spec: TaskSpec) -> Outcome | None:
    """Return the recorded outcome if it answers this spec; None if it does not."""
    try:
        known = parse_json((spec.folder / OUTCOME_NAME).read_bytes(), _Known)
    except (OSError, ValueError):
        return None
    is_it = known.key == spec.key and (known.outcome.is_done or known.number == spec.number)
    return known.outcome if is_it else None


def _run(spec: TaskSpec, node: str, began: float) -> Outcome:
    """Run the command under a guard until it ends or is stopped."""
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
    """Return why the command failed; "" after success. `guard_report` is the guard's report."""
    code = guard_report.get("exit_code", 0)
    if detail := guard_report.get("problem"):
        return reason("workflow_not_started", node=node, detail=detail).text
    if was_stopped:
        return reason("workflow_stopped").text
    if code > 0:
        return reason("workflow_exit", exit_code=code).text
    return reason("workflow_signal", number=-code).text if code else ""


def _command_of(spec: TaskSpec) -> dict[str, Any]:
    """Return the order for the guard: words, folder and output file."""
    words = list(spec.command)
    if spec.module:
        words = python_command(spec.module, *words)
    elif words[0] == PROGRAM:
        words = program_command(*words[1:])
    return {"command": words, "folder": str(spec.working_folder), "output": str(spec.output)}


def _close_input(guard: subprocess.Popen[bytes]) -> None:
    if guard.stdin and not guard.stdin.closed:
        with contextlib.suppress(OSError):
            guard.stdin.close()


def _is_stopped(spec: TaskSpec) -> bool:
    """Return whether the command must stop, because somebody asked for it or because this worker is ending.

    An ending worker would otherwise wait for the command.
    """
    return spec.stop.exists() or (spec.folder / STOP_NAME).exists() or _is_ending()


def _is_ending() -> bool:
    try:
        return get_worker().status in (WorkerStatus.closing, WorkerStatus.closed, WorkerStatus.failed)
    except ValueError:
        return False


def _node() -> str:
    """Return the worker's name; outside a worker the computer's."""
    try:
        return str(get_worker().name)
    except ValueError:
        return platform.node() or "?"
