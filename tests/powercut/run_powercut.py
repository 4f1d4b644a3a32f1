"""The power goes, disks are full or fail, clocks jump, two programs are at work, at every moment: `make powercut`, or

    python tests/powercut/run_powercut.py [--seed N] [--only PART] [--states N] [--refused N] [--rounds N] [--page]

A line for each act and what happened to it; figures in build/powercut.json and, with --page, as a page in
build/benchmarks; ends with 1 if anything was lost, doubled or wrong. The same seed chooses the same moments. See
decision 48 for what is promised.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ["OPENBLAS_NUM_THREADS"] = "1"  # a process with threads of a library is not to be forked

from attack.runner import program_command, try_case
from benchmarks.reports import write_page
from long_run import add_page_option, planned_page, say, write_figures
from powercut import clocks, drives, memory
from powercut.acts import ACTS
from powercut.cuts import cut
from powercut.figures import MEASURED, lost_in, report
from powercut.native import compiler
from powercut.refusals import KINDS, refuse
from powercut.rivals import RIVALRIES, rival
from powercut.stage import Fault, Stage

_LUCKS: Final = 3
_AFTER_FAULTS: Final = 40  # of so many disks, one is of an act to which something was refused besides
_PROGRAM_SHARE: Final = 25  # the whole program takes so much longer than an act
Row = dict[str, Any]


def main() -> int:
    """Run as the arguments say."""
    options = _options()
    if compiler() is None:
        say("The power-cut run needs Linux and a C compiler.")
        return 2
    planned = planned_page(options.page, "tests/powercut/run_powercut.py", measured=MEASURED)
    logging.disable(logging.CRITICAL)  # what is refused is logged; here it is thousands of lines
    began_s = time.monotonic()
    found: dict[str, list[Row]] = {
        part: list(run(options)) for part, run in _PARTS.items() if _is_wanted(options, part)
    }
    facts = {"seed": options.seed, "seconds": round(time.monotonic() - began_s, 1), **found}
    write_figures(options.out, facts)
    lost = lost_in(facts)
    say(f"{facts['seconds']:.0f} s, lost, doubled or wrong: {lost}")
    if planned:
        write_page(report(facts), planned)
    return 1 if lost or not found else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", choices=_PARTS, help="only this part; can be given more than once")
    parser.add_argument("--act", action="append", choices=ACTS, help="only this act; can be given more than once")
    parser.add_argument(
        "--states", type=int, default=4000, help="disks after a power cut, for each act (default: 4000)"
    )
    parser.add_argument("--refused", type=int, default=1000, help="refusals, for each act and kind (default: 1000)")
    parser.add_argument("--rounds", type=int, default=200, help="rounds of two programs at once (default: 200)")
    parser.add_argument("--work", type=Path, help="a folder to work in, on a fast disk (default: the system's)")
    parser.add_argument("--out", type=Path, default=Path("build/powercut.json"))
    add_page_option(parser, "faults-at-every-moment")
    return parser.parse_args()


def _is_wanted(options: argparse.Namespace, part: str) -> bool:
    return not options.only or part in options.only


def _cuts(options: argparse.Namespace) -> Iterator[Row]:
    """Every act on its own, and again while something is refused."""
    for name in options.act or ACTS:
        most = options.states // (_PROGRAM_SHARE if ACTS[name].command else 1)
        with _stage(options) as stage:
            figures = cut(stage, name, seed=options.seed, lucks=_LUCKS, most=most)
            yield _said(figures.facts())
            if ACTS[name].command is None:
                yield _said(_after_faults(stage, name, options, changes=figures.changes))


def _after_faults(stage: Stage, name: str, options: argparse.Namespace, *, changes: int) -> Row:
    """The power goes some time after the disk refused something."""
    chance, together = random.Random(f"{options.seed} {name} faults"), None
    for number in range(max(1, options.states // _AFTER_FAULTS**2)):
        kind = chance.choice(KINDS)
        fault = Fault(first=chance.randint(1, changes), how=kind.how, error=kind.error, room=chance.randrange(8192))
        figures = cut(stage, name, seed=options.seed + number, lucks=1, most=_AFTER_FAULTS, fault=fault)
        together = figures if together is None else together.joined(figures)
    assert together
    return {**together.facts(), "act": f"{name}, refused"}


def _refusals(options: argparse.Namespace) -> Iterator[Row]:
    for name in options.act or ACTS:
        most = options.refused // (_PROGRAM_SHARE if ACTS[name].command else 1)
        for kind in KINDS:
            with _stage(options) as stage:
                yield _said(refuse(stage, name, kind, seed=options.seed, most=most).facts())


def _rivals(options: argparse.Namespace) -> Iterator[Row]:
    for name in RIVALRIES:
        with _stage(options) as stage:
            yield _said(rival(stage.place, name, rounds=options.rounds, seed=options.seed).facts())


def _cases(options: argparse.Namespace) -> Iterator[Row]:
    for case in (*drives.CASES, *clocks.CASES, *memory.CASES):
        result = try_case(case, program_command())
        say(result.line)
        lost = {result.why: 1} if result.verdict == "FAILED" else {}
        yield {"case": case.name, "tried": case.tried, "verdict": result.verdict, "lost": lost}


_PARTS: Final[dict[str, Callable[[argparse.Namespace], Iterator[Row]]]] = {
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


def _said(row: Row) -> Row:
    what = "  ".join(f"{value}" for key, value in row.items() if key not in ("examples", "lost"))
    say("\n    ".join([f"{'ok' if not row['lost'] else 'LOST':<6}{what}", *row.get("examples", row["lost"])]))
    return row


if __name__ == "__main__":
    sys.exit(main())
