"""Two checkouts side by side: whether the program has become faster or slower, and whether it decides the same.

Each round runs the program of both checkouts on the same files, in alternating order, each from its start to its end
with a fresh database. Ratios are taken within a round. CPU time is hardly changed by what else the machine does; the
clock's time is, so the spread over the rounds stands beside every median.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.archive import Wanted, make_archive
from benchmarks.reports import Mark
from benchmarks.screening import Screening, fill, screen_once
from fieldray.bench.load import rotated
from fieldray.bench.report import Points, Report, Table
from fieldray.processes.priority import usable_cores

MOST_RATIO: Final = 1.03
CALM: Final = 0.75  # load average per core
_MEASURES: Final[Mapping[str, Callable[[Screening], float | None]]] = {
    "start to first result, s": lambda run: run.first_s,
    "first result to last, s": lambda run: run.steady_s,
    "start to end, s": lambda run: run.total_s,
    "CPU time per image, s": lambda run: None if run.cpu_s is None else run.cpu_s / run.images,
}
_JUDGED: Final = ("first result to last, s", "CPU time per image, s")

Notify = Callable[[str], None]
Run = Callable[[Path], Screening]


@dataclass(eq=False, slots=True, kw_only=True)
class Comparison:
    """Runs of the old and the new program, one per round each; `loads` are load averages before each round."""

    old: list[Screening] = field(default_factory=list)
    new: list[Screening] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)

    def ratios(self, measure: str) -> list[float]:
        """New to old, one per round; empty where the system does not tell."""
        read = _MEASURES[measure]
        pairs = ((read(new), read(old)) for new, old in zip(self.new, self.old, strict=True))
        return [new / old for new, old in pairs if new is not None and old]

    @property
    def differing(self) -> dict[str, tuple[tuple[str, str] | None, tuple[str, str] | None]]:
        """(old, new) status and decision by file, where they differ in any round."""
        found = {}
        for old, new in zip(self.old, self.new, strict=True):
            for name in sorted(old.outcomes.keys() | new.outcomes.keys()):
                pair = (old.outcomes.get(name), new.outcomes.get(name))
                if pair[0] != pair[1]:
                    found[name] = pair
        return found


def compare_checkouts(old: Run, new: Run, folder: Path, *, repeats: int, notify: Notify) -> Comparison:
    """Screen `folder` with both programs for some rounds. Raises ScreeningFailed."""
    found = Comparison()
    sides = (("old", old, found.old), ("new", new, found.new))
    for _, run, _ in sides:  # once, so that files and byte code of both are in the system's cache
        notify("warming up")
        run(folder)
    for number in range(repeats):
        found.loads.append(psutil.getloadavg()[0])
        for name, run, runs in rotated(sides, number):
            notify(f"round {number + 1} of {repeats}: {name}")
            runs.append(run(folder))
    return found


def report(
    old: Path,
    new: Path,
    *,
    source: Path | None,
    images: int,
    repeats: int,
    options: Sequence[str],
    notify: Notify,
    **files: Any,
) -> Report:
    """Write an archive, run both programs on it and report.

    Parameters
    ----------
    old, new
        Roots of checkouts; each program uses its own default pack unless `options` name one.
    source
        Images to enlarge; without it they are drawn.
    images
        How many images a run has: the archive's files under as many names as needed.
    repeats
        The number of rounds.
    options
        More options of `fieldray screen`, for both.
    notify
        Hears what is being done.
    files
        The archive's (see `Wanted`).

    Raises
    ------
    ScreeningFailed, OSError
    """
    with tempfile.TemporaryDirectory(prefix="fieldray-bench-") as root:
        archive = make_archive(Path(root) / "archive", Wanted(**files), source=source, notify=notify)
        in_turn = itertools.zip_longest(*archive.files.values())  # as mixed as in an archive of many sources
        paths = [file.path for row in in_turn for file in row if file]
        folder = fill(Path(root) / "images", paths, max(images, len(paths)))
        found = compare_checkouts(
            lambda folder: screen_once(folder, options, checkout=old),
            lambda folder: screen_once(folder, options, checkout=new),
            folder,
            repeats=repeats,
            notify=notify,
        )
    shown = f"{len(paths)} files ({', '.join(archive.files)}) under {max(images, len(paths))} names"
    return checkouts_report(found, images=shown)


def checkouts_report(found: Comparison, *, images: str) -> Report:
    """The table of medians and ratios, the verdicts, and the files that are decided differently."""
    rows = []
    for name, measure in _MEASURES.items():
        ratios = found.ratios(name)
        if not ratios:
            continue
        sides = ([value for run in runs if (value := measure(run)) is not None] for runs in (found.old, found.new))
        old, new = map(statistics.median, sides)
        spread = f"{min(ratios):.3f} to {max(ratios):.3f}"
        rows.append((name, f"{old:.3f}", f"{new:.3f}", f"{statistics.median(ratios):.3f}", spread))
    marks = tuple(_marks(found))
    return Report(
        kind="compare-checkouts",
        title="Fieldray: two checkouts side by side",
        blocks=(
            Table("Medians over the rounds", ("", "old", "new", "new / old", "spread over the rounds"), tuple(rows)),
            Points("What had to be reached", tuple(mark.sentence for mark in marks)),
            Points("How it was measured", tuple(_notes(found, images))),
        ),
        data={
            "images": images,
            "old": [{**asdict(run), "outcomes": None} for run in found.old],
            "new": [{**asdict(run), "outcomes": None} for run in found.new],
            "loads": found.loads,
            "marks": [{**asdict(mark), "is_met": mark.is_met} for mark in marks],
            "differing": found.differing,
        },
    )


def _marks(found: Comparison) -> Iterator[Mark]:
    for name in _JUDGED:
        ratios = found.ratios(name)
        measured = statistics.median(ratios) if ratios else None
        yield Mark(name=f"{name}, new / old", measured=measured, goal=MOST_RATIO, is_most=True)
    yield Mark(name="Files decided differently", measured=len(found.differing), goal=0, is_most=True, unit="files")


def _notes(found: Comparison, images: str) -> Iterator[str]:
    yield f"Run on {images}; {len(found.new)} rounds; the order of the two alternates from round to round."
    yield f"Load average before each round: {', '.join(f'{load:.2f}' for load in found.loads)}."
    if max(found.loads) > CALM * usable_cores() and len(found.loads) > 1:
        yield "The load includes these runs themselves. If other programs were busy, trust the CPU time only."
    for name, (old, new) in list(found.differing.items())[:20]:
        yield f"{name}: {' '.join(old or ('no result',))} became {' '.join(new or ('no result',))}."
