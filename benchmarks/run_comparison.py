"""The contest: everybody does the same files in the same rounds, kind by kind, so that a noisy machine hits all alike.

Within a round the contenders do one kind of file one after another, beginning with another one each round; ratios are
taken within a round and their median is what counts. Nobody's start-up is in these times: each has done one image of
every kind before. The batch does every kind under enough names to last a while, and then the mixed archive; of the
others, which do one file after another, the mixed archive is the sum of its kinds.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.archive import USUAL, Archive
from benchmarks.contender import Contestant, ContestantFailed, Opened, Run
from fieldray.bench.load import rotated

MIXED: Final = "mixed archive"

Notify = Callable[[str], None]


@dataclass(eq=False, slots=True, kw_only=True)
class Results:
    """Runs by contender and kind (or MIXED), a round each; peak memory, details and failures by contender."""

    archive: Archive
    runs: dict[tuple[str, str], list[Run]] = field(default_factory=dict)
    peak_mb: dict[str, float] = field(default_factory=dict)
    details: dict[str, str] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, kind: str, run: Run) -> None:
        """Keep a run."""
        self.runs.setdefault((name, kind), []).append(run)

    def has(self, name: str, kind: str = MIXED) -> bool:
        """Whether that contender did those files, all of them."""
        runs = self.runs.get((name, kind), ())
        return name not in self.absent and bool(runs) and not any(run.failed for run in runs)

    def images_per_s(self, name: str, kind: str = MIXED) -> float:
        """Median over the rounds."""
        return statistics.median(run.images_per_s for run in self.runs[name, kind])

    def times_as_fast(self, name: str, other: str, kind: str = MIXED) -> float:
        """Median of the ratios within a round."""
        pairs = zip(self.runs[name, kind], self.runs[other, kind], strict=True)
        return statistics.median(one.images_per_s / two.images_per_s for one, two in pairs)

    def cpu_s(self, name: str, kind: str = MIXED) -> float | None:
        """Processor seconds per image, median over the rounds; None where not known."""
        spent = [run.cpu_s / run.files for run in self.runs[name, kind] if run.cpu_s is not None]
        return statistics.median(spent) if spent else None


def compare_runs(
    contenders: Sequence[Contestant],
    archive: Archive,
    *,
    repeats: int,
    notify: Notify,
    between: Callable[[], None] = lambda: None,
    most_s: float = math.inf,
) -> Results:
    """Let all take part for so many rounds, then look at their memory; `between` is called once each round.

    most_s  no further round begins when this time is over
    """
    began_s = time.monotonic()
    results = Results(
        archive=archive, absent={one.name: one.unavailable_reason for one in contenders if one.unavailable_reason}
    )
    first = sorted(archive.first_folder.iterdir())
    with contextlib.ExitStack() as ends:
        there = []
        for contender in contenders:
            if contender.name not in results.absent:
                notify(f"getting ready: {contender.name}")
                with _noting(results, contender):
                    there.append(ends.enter_context(contender.opened(first)))
        results.details = {opened.contender.name: opened.detail for opened in there}
        for number in range(repeats):
            if number and time.monotonic() - began_s > most_s:
                break
            for kind in archive.files:
                notify(f"round {number + 1} of {repeats}: {kind}")
                _one_kind(rotated(_still(there, results), number), archive, kind, results)
            _mixed(_still(there, results), archive, results)
            between()
        notify("looking at memory")
        for opened in _still(there, results):
            with _noting(results, opened.contender):
                results.peak_mb[opened.contender.name] = opened.peak_mb(_largest(archive), folder=archive.mixed_folder)
    return results


def _still(there: Sequence[Opened], results: Results) -> list[Opened]:
    return [opened for opened in there if opened.contender.name not in results.absent]


@contextlib.contextmanager
def _noting(results: Results, contender: Contestant) -> Iterator[None]:
    """A contender that fails once is out."""
    try:
        yield
    except ContestantFailed as problem:
        results.absent[contender.name] = str(problem)


def _one_kind(there: Sequence[Opened], archive: Archive, kind: str, results: Results) -> None:
    paths = [file.path for file in archive.files[kind]]
    for opened in there:
        with _noting(results, opened.contender):
            results.add(opened.contender.name, kind, opened.run(paths, folder=archive.folder(kind)))


def _mixed(there: Sequence[Opened], archive: Archive, results: Results) -> None:
    kinds = [kind for kind in USUAL if kind in archive.files]
    for opened in there:
        name = opened.contender.name
        with _noting(results, opened.contender):
            if opened.contender.is_batch:
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
    """What decides how much memory a program needs that does one file after another."""
    return [max(files, key=lambda file: file.pixels).path for files in archive.files.values()]
