"""Who takes part, and the rounds they run.

Each contestant lives in a process of its own, so that nothing it imports reaches the others, and does the same kind
of file directly after the others. A ratio is taken within one round: whatever else the machine does then falls on all
of them alike.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.archive import USUAL, Archive
from benchmarks.processes import child_command, watched
from fieldray.bench.load import rotated
from fieldray.errors import FieldrayError
from fieldray.processes.child import Child, ChildDied, ChildTimeout
from fieldray.processes.wire import Message

_TIMEOUT_S: Final = 900.0


class ContestantFailed(Exception):
    """It could not be opened, or its process ended. The message says why."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Contestant:
    """Somebody who takes part.

    Attributes
    ----------
    service
        "module:function" of the child's side, which answers the messages that `scripts` describes.
    body
        What it needs to open.
    model
        The network's file, for those that take one.
    unavailable_reason
        Why it cannot take part here; empty if it can.
    is_batch
        Whether it takes a folder and works on many files at once, as the program does.
    """

    name: str
    service: str
    body: Mapping[str, Any] = field(default_factory=dict)
    model: bytes | None = None
    unavailable_reason: str = ""
    is_batch: bool = False

    @contextlib.contextmanager
    def opened(self, first: Sequence[Path]) -> Iterator[Opened]:
        """Its process, warmed up with the files `first`. Raises ContestantFailed."""
        child = Child(self.service, command=child_command)
        try:
            child.start()
            arrays = {"model": np.frombuffer(self.model, np.uint8)} if self.model is not None else {}
            body = {**self.body, "ask": "open", "first": [str(path) for path in first]}
            opened = Opened(contestant=self, child=child)
            opened.detail = str(opened.ask(Message(body, arrays)).body["detail"])
            yield opened
        except OSError as error:
            raise ContestantFailed(str(error)) from error
        finally:
            child.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run: `cpu_s` is None where it is not known; `detail` is what the contestant says about it."""

    seconds: float
    cpu_s: float | None
    files: int
    failed: int = 0
    detail: str = ""

    @property
    def images_per_s(self) -> float:
        """Images per second, of all that it was given."""
        return self.files / self.seconds


@dataclass(eq=False, slots=True, kw_only=True)
class Opened:
    """A contestant whose process is running."""

    contestant: Contestant
    child: Child
    detail: str = ""

    def run(self, paths: Sequence[Path], *, folder: Path) -> Run:
        """Process these files, or the whole folder if it is a batch. Raises ContestantFailed."""
        names = [] if self.contestant.is_batch else [str(path) for path in paths]
        answer = self.ask(Message({"ask": "read", "paths": names, "folder": str(folder)})).body
        return Run(
            seconds=answer["seconds"],
            cpu_s=answer["cpu_s"],
            files=answer["files"],
            failed=answer["failed"],
            detail=answer.get("detail", ""),
        )

    def peak_mb(self, paths: Sequence[Path], *, folder: Path) -> float:
        """Peak memory in megabytes of all its processes while it processes these files."""
        with watched(self.child.pid or 0) as watch:
            self.run(paths, folder=folder)
        return watch.pss_mb

    def ask(self, message: Message) -> Message:
        """Send one message to the child. Raises ContestantFailed."""
        try:
            return self.child.call(message, timeout_s=_TIMEOUT_S)
        except ChildDied as error:
            last = error.last_stderr.splitlines()[-1:] or [str(error)]
            raise ContestantFailed(last[0]) from error
        except (ChildTimeout, FieldrayError) as error:
            raise ContestantFailed(str(error)) from error


MIXED: Final = "mixed archive"

Notify = Callable[[str], None]


@dataclass(eq=False, slots=True, kw_only=True)
class Results:
    """Runs by contestant and kind (or MIXED), a round each; peak memory, details and failures by contestant."""

    archive: Archive
    runs: dict[tuple[str, str], list[Run]] = field(default_factory=dict)
    peak_mb: dict[str, float] = field(default_factory=dict)
    details: dict[str, str] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, kind: str, run: Run) -> None:
        """Keep one run."""
        self.runs.setdefault((name, kind), []).append(run)

    def has(self, name: str, kind: str = MIXED) -> bool:
        """Whether that contestant processed every one of those files."""
        runs = self.runs.get((name, kind), ())
        return name not in self.absent and bool(runs) and not any(run.failed for run in runs)

    def images_per_s(self, name: str, kind: str = MIXED) -> float:
        """Images per second, median over the rounds."""
        return statistics.median(run.images_per_s for run in self.runs[name, kind])

    def times_as_fast(self, name: str, other: str, kind: str = MIXED) -> float:
        """How many times as fast as the other, median of the ratios within a round."""
        pairs = zip(self.runs[name, kind], self.runs[other, kind], strict=True)
        return statistics.median(one.images_per_s / two.images_per_s for one, two in pairs)

    def cpu_s(self, name: str, kind: str = MIXED) -> float | None:
        """CPU seconds per image, median over the rounds; None where not known."""
        spent = [run.cpu_s / run.files for run in self.runs[name, kind] if run.cpu_s is not None]
        return statistics.median(spent) if spent else None


def compare_runs(
    contestants: Sequence[Contestant],
    archive: Archive,
    *,
    repeats: int,
    notify: Notify,
    most_s: float = math.inf,
) -> Results:
    """Run all contestants for some rounds, then measure their memory.

    Parameters
    ----------
    contestants
        In the order of the first round; the order rotates from round to round.
    archive
        The files that all of them process.
    repeats
        The number of rounds.
    notify
        Hears what is being done.
    most_s
        No further round begins when this many seconds are over.
    """
    began_s = time.monotonic()
    absent = {one.name: one.unavailable_reason for one in contestants if one.unavailable_reason}
    results = Results(archive=archive, absent=absent)
    first = sorted(archive.first_folder.iterdir())
    with contextlib.ExitStack() as ends:
        opened_ones = []
        for contestant in contestants:
            if contestant.name not in results.absent:
                notify(f"warming up: {contestant.name}")
                with _excluding(results, contestant):
                    opened_ones.append(ends.enter_context(contestant.opened(first)))
        results.details = {opened.contestant.name: opened.detail for opened in opened_ones}
        for number in range(repeats):
            if number and time.monotonic() - began_s > most_s:
                break
            for kind in archive.files:
                notify(f"round {number + 1} of {repeats}: {kind}")
                _one_kind(rotated(_remaining(opened_ones, results), number), archive, kind, results)
            _mixed(_remaining(opened_ones, results), archive, results)
        notify("measuring memory")
        _measure_memory(_remaining(opened_ones, results), archive, results)
    return results


def _measure_memory(opened_ones: Sequence[Opened], archive: Archive, results: Results) -> None:
    largest = _largest(archive)
    for opened in opened_ones:
        with _excluding(results, opened.contestant):
            results.peak_mb[opened.contestant.name] = opened.peak_mb(largest, folder=archive.mixed_folder)


def _remaining(opened_ones: Sequence[Opened], results: Results) -> list[Opened]:
    return [opened for opened in opened_ones if opened.contestant.name not in results.absent]


@contextlib.contextmanager
def _excluding(results: Results, contestant: Contestant) -> Iterator[None]:
    """A contestant that fails once is out."""
    try:
        yield
    except ContestantFailed as problem:
        results.absent[contestant.name] = str(problem)


def _one_kind(opened_ones: Sequence[Opened], archive: Archive, kind: str, results: Results) -> None:
    paths = [file.path for file in archive.files[kind]]
    for opened in opened_ones:
        with _excluding(results, opened.contestant):
            results.add(opened.contestant.name, kind, opened.run(paths, folder=archive.folder(kind)))


def _mixed(opened_ones: Sequence[Opened], archive: Archive, results: Results) -> None:
    kinds = [kind for kind in USUAL if kind in archive.files]
    for opened in opened_ones:
        name = opened.contestant.name
        with _excluding(results, opened.contestant):
            if opened.contestant.is_batch:
                results.add(name, MIXED, opened.run((), folder=archive.mixed_folder))
            elif all((name, kind) in results.runs for kind in kinds):
                results.add(name, MIXED, together([results.runs[name, kind][-1] for kind in kinds]))


def together(runs: Sequence[Run]) -> Run:
    """Several runs, one after another, as one."""
    spent_s = [run.cpu_s for run in runs if run.cpu_s is not None]
    return Run(
        seconds=sum(run.seconds for run in runs),
        cpu_s=sum(spent_s) if len(spent_s) == len(runs) else None,
        files=sum(run.files for run in runs),
        failed=sum(run.failed for run in runs),
    )


def _largest(archive: Archive) -> list[Path]:
    """The largest file of each kind: it decides how much memory a script needs."""
    return [max(files, key=lambda file: file.pixels).path for files in archive.files.values()]
