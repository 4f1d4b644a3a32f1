"""What a worker does with a task: its command under a guard, once, with all that is known of it in the task's folder.

A task that was done is not done again: a worker that is told to perform it answers with what is written there. So is a
performance whose answer was lost with its worker, however it ended: Dask has it repeated by itself. Two that are told
at once (the driver was killed and began again) wait for each other.

A worker believes that it sees the run's folder only if the journal and its driver's own file are there, and makes
nothing above the task's folder: on a share that is not mounted it would write where nobody looks.
"""

from __future__ import annotations

import contextlib
import errno
import json
import platform
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from distributed import Status, get_worker

from fieldray.errors import FieldrayError
from fieldray.paths import program_command, python_command
from fieldray.persistence import FileLock, HeldError
from fieldray.reasons import Reason, reason
from fieldray.typed_json import decoded
from fieldray_adapt.files import write_atomically
from fieldray_cluster.node import all_versions
from fieldray_cluster.workflow.recipe import PROGRAM
from fieldray_cluster.workflow.state import JOURNAL, Outcome

OUTCOME: Final = "outcome.json"
STOP: Final = "stop"
_LOCK: Final = "task.lock"
_TICK_S: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A task as a worker is told of it.

    Attributes
    ----------
    key
        What decides its result; an outcome with the same key stands for it.
    number
        Of this performance.
    command
        The words; `fieldray` in front is the program of the node.
    module
        A module of this program that gets the words instead.
    here
        Where the command is run.
    run
        The run's folder, with its journal.
    stop
        A file: when it appears, the command is ended. Its name is the driver's own.
    """

    task: str
    key: str
    number: int
    command: tuple[str, ...]
    folder: Path
    here: Path
    run: Path
    stop: Path
    module: str = ""

    @property
    def output(self) -> Path:
        """The file of all that the command writes to its two streams."""
        return self.folder / f"output-{self.number}.txt"

    @property
    def mark(self) -> Path:
        """The file that says that a worker has begun, and which."""
        return self.folder / f"begun-{self.number}.json"


@dataclass(frozen=True, slots=True)
class Begun:
    """What the mark of an order says: who began, and when, in seconds since 1970 by that node's clock."""

    node: str = ""
    began: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a worker sends back: how a performance ended, and which one it was.

    Attributes
    ----------
    order
        The order that was performed.
    is_of_node
        Whether the node could not work at all; that says nothing of the task.
    """

    order: Order
    outcome: Outcome
    is_of_node: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A worker as it is before it gets any work."""

    version: str
    sees_folder: bool
    clock: float


def look(folder: Path) -> Node:
    """What a worker has to say of itself; `folder` is the run's, with its journal: a lost share is an empty folder."""
    return Node(version=all_versions(), sees_folder=(folder / JOURNAL).is_file(), clock=time.time())


def driver_of(stop: Path) -> Path:
    """The file that a driver keeps beside its `stop`, which is not there yet: by it a worker knows the run's folder."""
    return stop.with_name(f"{stop.name}.driver")


def perform(order: Order) -> Answer:
    """Run the order's command on this worker, unless it is done; how it ended. Never raises for what a disk does."""
    node, began = _node(), time.time()
    try:
        if not _sees_run(order):
            return _unable(order, node, began, reason("workflow_node_folder", node=node, path=order.run))
        order.folder.mkdir(exist_ok=True)
        return Answer(order=order, outcome=_performed(order, node, began))
    except HeldError:
        outcome = Outcome(node=node, began=began, problem=reason("workflow_stopped").text, was_stopped=True)
        return Answer(order=order, outcome=outcome)
    except (OSError, FieldrayError) as error:
        detail = error.strerror or type(error).__name__ if isinstance(error, OSError) else error
        return _unable(order, node, began, reason("workflow_node_failed", node=node, detail=detail))


def _sees_run(order: Order) -> bool:
    return (order.run / JOURNAL).is_file() and driver_of(order.stop).is_file()


def _unable(order: Order, node: str, began: float, why: Reason) -> Answer:
    return Answer(order=order, outcome=Outcome(node=node, began=began, problem=why.text), is_of_node=True)


def _performed(order: Order, node: str, began: float) -> Outcome:
    """Raises HeldError where nobody wants it any more, OSError, StorageProblem."""
    with _alone(order):
        if known := _known(order):
            return known
        (order.folder / OUTCOME).unlink(missing_ok=True)  # of other settings: their files are replaced from here on
        write_atomically(order.mark, json.dumps(asdict(Begun(node, began))).encode())
        outcome = _run(order, node, began)
        content = {"key": order.key, "number": order.number, "outcome": asdict(outcome)}
        if not _sees_run(order):  # writing would make the folder again
            raise FileNotFoundError(errno.ENOENT, "the run's folder is no longer there")
        write_atomically(order.folder / OUTCOME, json.dumps(content).encode())
        return outcome


@contextlib.contextmanager
def _alone(order: Order) -> Iterator[None]:
    """Nobody else performs the task meanwhile; waits until then, or until nobody wants it any more."""
    while True:
        try:
            lock = FileLock(order.folder / _LOCK, holder=_node(), wait_s=1.0)
            break
        except HeldError:
            if _is_stopped(order):
                raise
    try:
        yield
    finally:
        lock.release()


@dataclass(frozen=True, slots=True)
class _Known:
    """How a performance ended, as it is written down, and which one that was."""

    key: str
    number: int
    outcome: Outcome


def _known(order: Order) -> Outcome | None:
    try:
        known = decoded((order.folder / OUTCOME).read_bytes(), _Known)
    except (OSError, ValueError):
        return None
    is_it = known.key == order.key and (known.outcome.is_done or known.number == order.number)
    return known.outcome if is_it else None


def _run(order: Order, node: str, began: float) -> Outcome:
    began_s, was_stopped = time.monotonic(), False
    guard = subprocess.Popen(
        python_command("fieldray_cluster.workflow.guard", json.dumps(_told(order))),
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
                    if not was_stopped and _is_stopped(order):
                        was_stopped = True
                        _close_input(guard)
        finally:
            _close_input(guard)
        said = guard.stdout.read() if guard.stdout else b""
    found: dict[str, Any] = json.loads(said) if said else {"exit_code": guard.returncode or -1}
    seconds, problem = round(time.monotonic() - began_s, 3), _problem(found, node, was_stopped=was_stopped)
    return Outcome(node=node, began=began, seconds=seconds, was_stopped=was_stopped, **{**found, "problem": problem})


def _problem(found: Mapping[str, Any], node: str, *, was_stopped: bool) -> str:
    """Why the command did not end well, empty where it did; `found` is what its guard told."""
    code = found.get("exit_code", 0)
    if detail := found.get("problem"):
        return reason("workflow_not_started", node=node, detail=detail).text
    if was_stopped:
        return reason("workflow_stopped").text
    if code > 0:
        return reason("workflow_exit", exit_code=code).text
    return reason("workflow_signal", number=-code).text if code else ""


def _told(order: Order) -> dict[str, Any]:
    words = list(order.command)
    if order.module:
        words = python_command(order.module, *words)
    elif words[0] == PROGRAM:
        words = program_command(*words[1:])
    return {"command": words, "folder": str(order.here), "output": str(order.output)}


def _close_input(guard: subprocess.Popen[bytes]) -> None:
    if guard.stdin and not guard.stdin.closed:
        with contextlib.suppress(OSError):
            guard.stdin.close()


def _is_stopped(order: Order) -> bool:
    """Whether somebody asked for the end, or this worker is ending: it would wait for the command otherwise."""
    return order.stop.exists() or (order.folder / STOP).exists() or _is_ending()


def _is_ending() -> bool:
    try:
        return get_worker().status in (Status.closing, Status.closed, Status.failed)
    except ValueError:
        return False


def _node() -> str:
    """The worker's name, or the computer's where this is none."""
    try:
        return str(get_worker().name)
    except ValueError:
        return platform.node() or "?"
