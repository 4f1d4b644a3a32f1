"""Who takes part, the program, the usual script and the limit, and the rounds that they run.

Each lives in a process of its own, so that nothing it imports reaches the other, and does the same kind of file
directly after the other. A ratio is taken within one round: whatever else the machine does then falls on both alike.

Each answers two messages:

open  body: first: files to warm up with; pack and what of it is allowed: the program's; arrays model, lungs: the
      networks of the script (the classifier alone) and of the limit
      -> body: detail (what it is, with versions)
read  body: paths, and the folder that they are in under many names
      -> body: seconds, cpu_s (None where not known), files, failed, detail
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

from benchmarks.archive import USUAL, Archive
from benchmarks.processes import child_command, watched
from benchmarks.screening import ScreeningFailed
from fieldray.bench.benchmark_case import rotated
from fieldray.errors import FieldrayError
from fieldray.processes.child import Child, ChildDied, ChildTimeout
from fieldray.processes.wire import Message

PROGRAM: Final = "fieldray"
SCRIPT: Final = "conventional script"
LIMIT: Final = "limit"
MIXED: Final = "mixed archive"
SERVICES: Final[Mapping[str, str]] = {
    PROGRAM: "benchmarks.program:handle",
    SCRIPT: "benchmarks.scripts:handle",
    LIMIT: "benchmarks.limit:handle",
}
_TIMEOUT_S: Final = 900.0

Notify = Callable[[str], None]


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


@dataclass(frozen=True, eq=False, slots=True)
class Contestant:
    """One who takes part, whose process is running."""

    name: str
    detail: str
    child: Child

    def run(self, paths: Sequence[Path], *, folder: Path) -> Run:
        """Process the files: script and limit these, the program the whole folder. Raises ScreeningFailed."""
        body = {"ask": "read", "paths": [str(path) for path in paths], "folder": str(folder)}
        return Run(**_answered(self.child, Message(body)))

    def peak_mb(self, paths: Sequence[Path], *, folder: Path) -> float:
        """Peak memory in megabytes of all its processes while it processes these files."""
        with watched(self.child.pid or 0) as watch:
            self.run(paths, folder=folder)
        return watch.pss_mb


@contextlib.contextmanager
def opened(name: str, service: str, opening: Message) -> Iterator[Contestant]:
    """Who answers by a service ("module:function"), warmed up. Raises ScreeningFailed."""
    child = Child(service, command=child_command)
    try:
        child.start()
        yield Contestant(name, str(_answered(child, opening)["detail"]), child)
    finally:
        child.close()


def _answered(child: Child, message: Message) -> Mapping[str, Any]:
    try:
        return child.call(message, timeout_s=_TIMEOUT_S).body
    except ChildDied as error:
        raise ScreeningFailed((error.last_stderr.splitlines()[-1:] or [str(error)])[0]) from error
    except (ChildTimeout, FieldrayError) as error:
        raise ScreeningFailed(str(error)) from error


@dataclass(eq=False, slots=True, kw_only=True)
class Results:
    """Runs by contestant and kind (or MIXED), a round each; peak memory and details by contestant.

    whole_cpu_s is what whole processes, from their start to their end, spent on an image of the mixed archive.
    first_result_s is from starting the program to its first result, a few times.
    """

    archive: Archive
    runs: dict[tuple[str, str], list[Run]] = field(default_factory=dict)
    peak_mb: dict[str, float] = field(default_factory=dict)
    details: dict[str, str] = field(default_factory=dict)
    whole_cpu_s: dict[str, list[float]] = field(default_factory=dict)
    first_result_s: Sequence[float] = ()

    def add(self, name: str, kind: str, run: Run) -> None:
        """Keep one run."""
        self.runs.setdefault((name, kind), []).append(run)

    def has(self, name: str, kind: str = MIXED) -> bool:
        """Whether that contestant processed every one of those files."""
        runs = self.runs.get((name, kind), ())
        return bool(runs) and not any(run.failed for run in runs)

    def images_per_s(self, name: str, kind: str = MIXED) -> float:
        """Images per second, median over the rounds."""
        return statistics.median(run.images_per_s for run in self.runs[name, kind])

    def times_as_fast(self, kind: str = MIXED) -> float | None:
        """How many times as fast as the script the program is: the median of the rounds; None where one has no rate."""
        if not (self.has(PROGRAM, kind) and self.has(SCRIPT, kind)):
            return None
        pairs = zip(self.runs[PROGRAM, kind], self.runs[SCRIPT, kind], strict=True)
        return statistics.median(one.images_per_s / two.images_per_s for one, two in pairs)

    def cpu_s(self, name: str, kind: str = MIXED) -> float | None:
        """CPU seconds per image, median over the rounds; None where not known."""
        spent = [run.cpu_s / run.files for run in self.runs.get((name, kind), ()) if run.cpu_s is not None]
        return statistics.median(spent) if spent else None

    def cpu_ratio(self, one: str, other: str, kind: str = MIXED) -> float | None:
        """CPU seconds an image of `one` in those of `other`: the median of the rounds; None where one is not known."""
        rounds = zip(self.runs.get((one, kind), ()), self.runs.get((other, kind), ()), strict=False)
        found = [
            first.cpu_s / first.files / (second.cpu_s / second.files)
            for first, second in rounds
            if first.cpu_s and second.cpu_s
        ]
        return statistics.median(found) if found else None


def compare_runs(
    opening: Message,
    archive: Archive,
    *,
    repeats: int,
    notify: Notify,
    most_s: float = math.inf,
) -> Results:
    """Run all for some rounds, then measure the memory of program and script. Raises ScreeningFailed.

    Parameters
    ----------
    opening
        With which all are opened. The order of the rounds rotates.
    archive
        The files that all process; the limit those of the usual kinds.
    repeats
        The number of rounds.
    notify
        Hears what is being done.
    most_s
        No further round begins when this many seconds are over.
    """
    began_s, results = time.monotonic(), Results(archive=archive)
    with contextlib.ExitStack() as ends:
        all_open = []
        for name, service in SERVICES.items():
            notify(f"warming up: {name}")
            all_open.append(ends.enter_context(opened(name, service, opening)))
        results.details = {one.name: one.detail for one in all_open}
        for number in range(repeats):
            if number and time.monotonic() - began_s > most_s:
                break
            for kind, files in archive.files.items():
                notify(f"round {number + 1} of {repeats}: {kind}")
                for one in rotated(all_open, number):
                    if one.name == LIMIT and kind not in USUAL:
                        continue
                    paths = [file.path for file in files]
                    results.add(one.name, kind, one.run(paths, folder=archive.folder(kind)))
            for one in all_open:
                results.add(one.name, MIXED, _mixed(one, archive, results))
        notify("measuring memory")
        for one in all_open:
            if one.name == LIMIT:
                continue
            results.peak_mb[one.name] = one.peak_mb(_largest(archive), folder=archive.mixed_folder)
    return results


def _mixed(one: Contestant, archive: Archive, results: Results) -> Run:
    """The program reads the mixed files as they lie; the others take as long as for one kind after another."""
    if one.name == PROGRAM:
        return one.run((), folder=archive.mixed_folder)
    return together([results.runs[one.name, kind][-1] for kind in USUAL if kind in archive.files])


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
