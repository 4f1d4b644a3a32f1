"""The power goes, disks are full or fail, two programs are at work, at every moment: `make powercut`, or

    python tests/powercut/run_powercut.py [--seed N] [--only PART] [--states N] [--refused N] [--rounds N]

A line for each act and what happened to it; figures in build/powercut.json; ends with 1 if anything was
lost, doubled or wrong. The same seed chooses the same moments. See decision 48 for what is promised.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ["OPENBLAS_NUM_THREADS"] = "1"  # a process with threads of a library is not to be forked

from harness.runner import Found, long_run, program_command, say, try_case
from harness.table import POWERCUTS
from powercut.acts import ACTS
from powercut.cuts import cut
from powercut.figures import Figures, lost_in
from powercut.refusals import KINDS, refuse
from powercut.rivals import RIVALRIES, rival
from powercut.stage import Fault, Stage

_LUCKS: Final = 3
_AFTER_FAULTS: Final = 40  # of so many disks, one is of an act to which something was refused besides
_PROGRAM_SHARE: Final = 25  # the whole program takes so much longer than an act


def add_options(parser: argparse.ArgumentParser) -> None:
    """Which parts and acts, and how often."""
    parser.add_argument("--only", action="append", choices=_PARTS, help="only this part; can be given more than once")
    parser.add_argument("--act", action="append", choices=ACTS, help="only this act; can be given more than once")
    for name, often, what in (
        ("--states", 4000, "disks after a power cut, for each act"),
        ("--refused", 1000, "refusals, for each act and kind"),
        ("--rounds", 200, "rounds of two programs at once"),
    ):
        parser.add_argument(name, type=int, default=often, help=f"{what} (default: {often})")
    parser.add_argument("--work", type=Path, help="a folder to work in, on a fast disk (default: the system's)")


def run(options: argparse.Namespace) -> Found:
    """Every part, a line for each of its rows."""
    logging.disable(logging.CRITICAL)  # what is refused is logged; here it is thousands of lines
    found = {
        name: [_said(row) for row in part(options)]
        for name, part in _PARTS.items()
        if not options.only or name in options.only
    }
    lost = lost_in(found)
    return Found(
        facts={"seed": options.seed, **found},
        sentence=f"{{seconds}}, lost, doubled or wrong: {lost}",
        holds=bool(found) and not lost,
    )


def _cuts(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Every act on its own, and again while something is refused."""
    for name in options.act or ACTS:
        with _stage(options) as stage:
            figures = cut(stage, name, seed=options.seed, lucks=_LUCKS, most=_most(name, options.states))
            yield figures.facts()
            if ACTS[name].command is None:
                yield _after_faults(stage, name, options, changes=figures.counts["changes"]).facts()


def _most(act: str, number: int) -> int:
    return number // (_PROGRAM_SHARE if ACTS[act].command else 1)


def _after_faults(stage: Stage, name: str, options: argparse.Namespace, *, changes: int) -> Figures:
    """The power goes some time after the disk refused something."""
    chance, together = random.Random(f"{options.seed} {name} faults"), Figures({"act": f"{name}, refused"})
    for number in range(max(1, options.states // _AFTER_FAULTS**2)):
        kind = chance.choice(KINDS)
        fault = Fault(first=chance.randint(1, changes), how=kind.how, error=kind.error, room=chance.randrange(8192))
        together.add(cut(stage, name, seed=options.seed + number, lucks=1, most=_AFTER_FAULTS, fault=fault))
    return together


def _refusals(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for name in options.act or ACTS:
        for kind in KINDS:
            with _stage(options) as stage:
                yield refuse(stage, name, kind, seed=options.seed, most=_most(name, options.refused)).facts()


def _rivals(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for name in RIVALRIES:
        with _stage(options) as stage:
            yield rival(stage.place, name, rounds=options.rounds, seed=options.seed).facts()


def _cases(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for case in POWERCUTS:
        result = try_case(case, program_command())
        say(result.line)
        lost = {result.why: 1} if result.verdict == "FAILED" else {}
        yield {"case": case.name, "tried": case.tried, "verdict": result.verdict, "lost": lost}


_PARTS: Final[dict[str, Callable[[argparse.Namespace], Iterator[dict[str, Any]]]]] = {
    "cuts": _cuts,
    "refusals": _refusals,
    "rivals": _rivals,
    "cases": _cases,
}


@contextlib.contextmanager
def _stage(options: argparse.Namespace) -> Iterator[Stage]:
    """A stage in a folder of its own; its home is this process's as well."""
    with (
        tempfile.TemporaryDirectory(prefix="fieldray-powercut-", dir=options.work) as folder,
        Stage(Path(folder)) as stage,
    ):
        os.environ["FIELDRAY_HOME"] = str(stage.place.home)
        yield stage


def _said(row: dict[str, Any]) -> dict[str, Any]:
    what = "  ".join(f"{value}" for key, value in row.items() if value != {} and key not in ("examples", "lost"))
    say("\n    ".join([f"{'ok' if not row['lost'] else 'LOST':<6}{what}", *row.get("examples", row["lost"])]))
    return row


if __name__ == "__main__":
    needs = ("Linux", "a C compiler")
    sys.exit(long_run(run, add_options, usage=__doc__, figures="build/powercut.json", needs=needs))
