"""Compare the speed of three contestants: this program, the usual script, and the limit (fastest known decoders).

Each contestant is a separate process, so that its imports do not affect the others. The contestants process files of
one kind directly after each other. Ratios are taken within a round, because other load of the computer affects all
contestants of a round equally.

Each contestant answers two messages:

    open  body: first (files for the warm-up); for the program also pack, allow_older, allow_legacy
          arrays: model (the classifier's network, for script and limit), lungs (the lung network, for the limit)
          -> body: detail (name and versions)
    read  body: paths, and folder (the folder that has these files under many names)
          -> body: seconds, cpu_s (None if not known), files, failed, detail
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

from benchmarks.archive import USUAL_KINDS, Archive
from benchmarks.processes import child_command, watch_memory
from benchmarks.screening import ScreeningFailed
from fieldray.bench.benchmark_case import rotate_left
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
class ContestantRun:
    """The figures of one run of a contestant over files.

    `cpu_s` is the CPU time in seconds, None if unknown. `detail` is a remark of the contestant.
    """

    seconds: float
    cpu_s: float | None
    files: int
    failed: int = 0
    detail: str = ""

    @property
    def images_per_s(self) -> float:
        """Images per second, including images that failed."""
        return self.files / self.seconds


@dataclass(frozen=True, eq=False, slots=True)
class Contestant:
    """A contestant of the speed comparison, whose process is running."""

    name: str
    detail: str
    child: Child

    def run(self, paths: Sequence[Path], *, folder: Path) -> ContestantRun:
        """Let the contestant process files, and return the figures of this run. Raises ScreeningFailed.

        The contestants script and limit process the files `paths`. This program processes all files in `folder`.
        """
        body = {"ask": "read", "paths": [str(path) for path in paths], "folder": str(folder)}
        return ContestantRun(**_answered(self.child, Message(body)))

    def peak_mb(self, paths: Sequence[Path], *, folder: Path) -> float:
        """Return the peak memory of all processes of the contestant while it processes files, in megabytes."""
        with watch_memory(self.child.pid or 0) as watch:
            self.run(paths, folder=folder)
        return watch.pss_mb


@contextlib.contextmanager
def open_contestant(name: str, service: str, opening: Message) -> Iterator[Contestant]:
    """Start the process of a contestant, wait for the warm-up, and yield the contestant. Raises ScreeningFailed.

    `service` is the contestant's function as "module:function". `opening` is the first message to the process.
    """
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
class SpeedResults:
    """The results of a speed comparison.

    Attributes
    ----------
    runs
        The runs of all rounds, by (contestant, kind of file).
    peak_mb, details
        Peak memory in megabytes, and remarks, by contestant.
    whole_cpu_s
        CPU seconds per image of the mixed archive, including start and end of the process, by contestant.
    first_result_s
        Seconds from the start of this program to its first result, measured a few times.
    """

    archive: Archive
    runs: dict[tuple[str, str], list[ContestantRun]] = field(default_factory=dict)
    peak_mb: dict[str, float] = field(default_factory=dict)
    details: dict[str, str] = field(default_factory=dict)
    whole_cpu_s: dict[str, list[float]] = field(default_factory=dict)
    first_result_s: Sequence[float] = ()

    def add(self, name: str, kind: str, run: ContestantRun) -> None:
        """Add a run of the contestant `name` over files of the kind `kind`."""
        self.runs.setdefault((name, kind), []).append(run)

    def is_complete(self, name: str, kind: str = MIXED) -> bool:
        """Return whether a contestant has processed all files of a kind without a failure."""
        runs = self.runs.get((name, kind), ())
        return bool(runs) and not any(run.failed for run in runs)

    def images_per_s(self, name: str, kind: str = MIXED) -> float:
        """Return the images per second of a contestant for a kind of file: the median over the rounds."""
        return statistics.median(run.images_per_s for run in self.runs[name, kind])

    def speed_up_over_script(self, kind: str = MIXED) -> float | None:
        """Return this program's images per second divided by the script's: the median over the rounds.

        None if program or script could not process all files of the kind.
        """
        if not (self.is_complete(PROGRAM, kind) and self.is_complete(SCRIPT, kind)):
            return None
        pairs = zip(self.runs[PROGRAM, kind], self.runs[SCRIPT, kind], strict=True)
        return statistics.median(one.images_per_s / two.images_per_s for one, two in pairs)

    def cpu_s(self, name: str, kind: str = MIXED) -> float | None:
        """Return the CPU seconds per image of a contestant: the median over the rounds. None if unknown."""
        spent = [run.cpu_s / run.files for run in self.runs.get((name, kind), ()) if run.cpu_s is not None]
        return statistics.median(spent) if spent else None

    def cpu_ratio(self, contestant: str, divisor: str, kind: str = MIXED) -> float | None:
        """Return CPU seconds per image of `contestant` divided by those of the contestant `divisor`.

        The result is the median over the rounds; None if unknown.
        """
        rounds = zip(self.runs.get((contestant, kind), ()), self.runs.get((divisor, kind), ()), strict=False)
        found = [
            first.cpu_s / first.files / (second.cpu_s / second.files)
            for first, second in rounds
            if first.cpu_s and second.cpu_s
        ]
        return statistics.median(found) if found else None


def compare_runs(
    opening: Message, archive: Archive, *, repeats: int, notify: Notify, max_seconds: float = math.inf
) -> SpeedResults:
    """Run all contestants for several rounds, then measure the memory of program and script. Raises ScreeningFailed.

    The order of the contestants changes from round to round.

    Parameters
    ----------
    opening
        The first message to each contestant.
    archive
        The files to process. The contestant "limit" processes only files of the six usual kinds.
    repeats
        Number of rounds.
    notify
        A function that is called with messages about the progress.
    max_seconds
        Seconds after which no further round starts.
    """
    began_s, results = time.monotonic(), SpeedResults(archive=archive)
    with contextlib.ExitStack() as ends:
        all_open = []
        for name, service in SERVICES.items():
            notify(f"warming up: {name}")
            all_open.append(ends.enter_context(open_contestant(name, service, opening)))
        results.details = {one.name: one.detail for one in all_open}
        for number in range(repeats):
            if number and time.monotonic() - began_s > max_seconds:
                break
            for kind, files in archive.files.items():
                notify(f"round {number + 1} of {repeats}: {kind}")
                for one in rotate_left(all_open, number):
                    if one.name == LIMIT and kind not in USUAL_KINDS:
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


def _mixed(one: Contestant, archive: Archive, results: SpeedResults) -> ContestantRun:
    """Return a contestant's run for the mixed archive, which has files of the six usual kinds in turn.

    Only the program processes the mixed archive. For script and limit, the runs over the six kinds are summed up.
    """
    if one.name == PROGRAM:
        return one.run((), folder=archive.mixed_folder)
    return sum_runs([results.runs[one.name, kind][-1] for kind in USUAL_KINDS if kind in archive.files])


def sum_runs(runs: Sequence[ContestantRun]) -> ContestantRun:
    """Sum up several runs: seconds, CPU seconds, files and failures."""
    spent_s = [run.cpu_s for run in runs if run.cpu_s is not None]
    return ContestantRun(
        seconds=sum(run.seconds for run in runs),
        cpu_s=sum(spent_s) if len(spent_s) == len(runs) else None,
        files=sum(run.files for run in runs),
        failed=sum(run.failed for run in runs),
    )


def _largest(archive: Archive) -> list[Path]:
    """Return the path of the largest file of each kind, because this file decides how much memory a script needs."""
    return [max(files, key=lambda file: file.pixels).path for files in archive.files.values()]
