"""What happened to the tasks of a run: a journal of one JSON line per event, on the disk before anything goes on.

A run that was killed at any moment is taken up from here. A last line that was cut short is no event.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, Literal, Self

from fieldray.errors import UsageProblem
from fieldray.persistence import storage_problem
from fieldray.reasons import reason
from fieldray.typed_json import decoded

JOURNAL: Final = "journal.jsonl"
Status = Literal["waiting", "running", "done", "failed", "blocked", "stopped", "pruned"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How one performance of a task ended.

    Attributes
    ----------
    exit_code
        Of the command; a negative one is the signal that ended it. None where it did not run to its end.
    node
        The worker that performed it.
    began
        When, in seconds since 1970 by the node's clock.
    seconds, cpu_seconds, memory_mb
        Time by the clock, time of CPUs, and the largest memory of one of its processes; None where not known.
    problem
        Why it ended, for a person; empty where it ended well.
    was_stopped
        Whether somebody asked for its end.
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
        """Whether the command ended well."""
        return self.exit_code == 0 and not self.was_stopped


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A line of the journal: what a task came to.

    Attributes
    ----------
    number
        Of the performance, from 1 through all runs; its output is named after it. 0 where none began.
    lost
        How many workers were lost under the task in this run.
    """

    task: str
    key: str
    status: Status
    number: int = 0
    lost: int = 0
    outcome: Outcome = field(default_factory=Outcome)


class Journal:
    """The journal of a run's folder, open for one driver, which holds the folder's lock.

    Raises UsageProblem (workflow_journal), StorageProblem.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / JOURNAL
        self.latest: dict[str, Event] = {}
        self.numbers: dict[str, int] = {}
        for event in read_events(folder):
            self._note(event)
        try:
            _cut_unfinished(self._path)
            self._stream: BinaryIO = self._path.open("ab")
        except OSError as error:
            raise storage_problem(error, self._path) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()

    def add(self, event: Event) -> None:
        """Write an event down; it is on the disk when this returns. Raises StorageProblem."""
        try:
            self._stream.write(json.dumps(asdict(event), ensure_ascii=False).encode() + b"\n")
            self._stream.flush()
            os.fsync(self._stream.fileno())
        except OSError as error:
            raise storage_problem(error, self._path) from error
        self._note(event)

    def is_done(self, task: str, key: str) -> bool:
        """Whether the task was done with this very key."""
        known = self.latest.get(task)
        return known is not None and known.status in ("done", "pruned") and known.key == key

    def next_number(self, task: str) -> int:
        """The number of the task's next performance."""
        return self.numbers.get(task, 0) + 1

    def _note(self, event: Event) -> None:
        self.latest[event.task] = event
        self.numbers[event.task] = max(self.numbers.get(event.task, 0), event.number)


def read_events(folder: Path) -> Iterator[Event]:
    """The events of a run's folder, oldest first. Raises UsageProblem (workflow_journal), StorageProblem."""
    path = folder / JOURNAL
    try:
        lines = path.read_bytes().split(b"\n") if path.is_file() else [b""]
    except OSError as error:
        raise storage_problem(error, path) from error
    for number, line in enumerate(lines[:-1], start=1):  # what follows the last line's end was cut short
        try:
            yield decoded(line, Event)
        except ValueError as error:
            raise UsageProblem(reason("workflow_journal", path=path, line=number)) from error


def _cut_unfinished(path: Path) -> None:
    """Take away what a power cut left of a last line, or the next event would be written behind it."""
    if path.is_file() and (data := path.read_bytes()) and not data.endswith(b"\n"):
        with path.open("r+b") as stream:
            stream.truncate(data.rfind(b"\n") + 1)
