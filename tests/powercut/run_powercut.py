"""Checks that nothing is lost by power cuts, disk failures and simultaneous programs: `make powercut`, or

    python tests/powercut/run_powercut.py [--seed N] [--only PART] [--states N] [--refused N] [--rounds N]

Prints one line for each act and kind of interruption, and writes figures to build/powercut.json. The exit code is 1 if
anything was lost, doubled or wrong. The same seed chooses the same moments. Decision 48 lists the guarantees. A run is
quick if the folder for temporary files (TMPDIR) is on a fast disk.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ["OPENBLAS_NUM_THREADS"] = "1"  # a process must not be forked while a library has threads

from harness.case import Case
from harness.runner import RunResult, add_case_options, long_run, run_selected
from harness.table import POWERCUTS
from harness.world import World
from powercut.acts import ACTS
from powercut.cuts import cut
from powercut.figures import Figures
from powercut.refusals import KINDS, refuse
from powercut.rivals import RIVALRIES, rival
from powercut.stage import Fault, Stage

_LUCKS: Final = 3
_AFTER_FAULTS: Final = 40  # one of this many disks comes from an act with a disk failure before the power cut
_PROGRAM_SHARE: Final = 25  # the act of the whole program takes this many times longer than another


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this run."""
    add_case_options(parser)
    for name, often, what in (
        ("--states", 4000, "disks after a power cut, for each act"),
        ("--refused", 1000, "refusals, for each act and kind"),
        ("--rounds", 200, "rounds of two programs at once"),
    ):
        parser.add_argument(name, type=int, default=often, help=f"{what} (default: {often})")


def run(options: argparse.Namespace) -> RunResult:
    """Run the selected cases."""
    logging.disable(logging.CRITICAL)  # failures are logged, which would be thousands of lines here
    return run_selected(cases(options), options)


def cases(options: argparse.Namespace) -> Iterator[Case]:
    """Yield the cases: power cuts, disk failures, two programs at once, and failing drives."""
    seed = options.seed
    for name, act in ACTS.items():
        share = _PROGRAM_SHARE if act.command else 1
        attempt = partial(cut, name=name, seed=seed, lucks=_LUCKS, most=options.states // share)
        yield _on_stage(f"cuts/{name}", "the power fails at each change of the disk", attempt)
        if not act.command:
            attempt = partial(_after_faults, name=name, seed=seed, states=options.states)
            yield _on_stage(f"cuts/{name}-refused", "the power fails some time after a write failed", attempt)
    for name, act in ACTS.items():
        share = _PROGRAM_SHARE if act.command else 1
        for kind in KINDS:
            attempt = partial(refuse, name=name, kind=kind, seed=seed, most=options.refused // share)
            yield _on_stage(
                f"refusals/{name}-{kind.name}", "a disk fault of this kind at each change of the disk", attempt
            )
    for name in RIVALRIES:
        attempt = partial(rival, name=name, rounds=options.rounds, seed=seed)
        yield _on_stage(f"rivals/{name}", "two programs work on the same files, and some are killed", attempt)
    yield from POWERCUTS


def _on_stage(name: str, what: str, attempt: Callable[[Stage], Figures]) -> Case:
    """Return a case with its own stage. The home of the stage is also that of this process."""

    def on_stage(world: World) -> None:
        folder = world.folder / "stage"
        folder.mkdir()
        with Stage(folder) as stage:
            os.environ["FIELDRAY_HOME"] = str(stage.place.home)
            figures = attempt(stage)
        world.counts.update(figures.counts)
        figures.require_none_lost()

    return Case(name=name, tried=what, attempt=on_stage)


def _after_faults(stage: Stage, *, name: str, seed: int, states: int) -> Figures:
    """Cut the power some time after a disk failure."""
    ACTS[name].prepare(stage.place)
    stage.perform(name)
    changes, chance, together = len(stage.changes), random.Random(f"{seed} {name} faults"), Figures()
    for number in range(max(1, states // _AFTER_FAULTS**2)):
        kind = chance.choice(KINDS)
        fault = Fault(first=chance.randint(1, changes), how=kind.how, error=kind.error, room=chance.randrange(8192))
        cut(stage, name, seed=seed + number, lucks=1, most=_AFTER_FAULTS, fault=fault, figures=together)
    return together


if __name__ == "__main__":
    needs = ("Linux", "a C compiler")
    sys.exit(long_run(run, add_options, usage=__doc__, figures="build/powercut.json", needs=needs))
