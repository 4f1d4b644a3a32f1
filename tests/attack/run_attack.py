"""Everything that was once tried against the program, again: `make attack`, or

    python tests/attack/run_attack.py [--only PART] [--program PATH] [--list]

One line a case; figures in build/attack.json; ends with 1 if any case failed. See docs/attack.md.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the benchmarks write files of every kind

from harness.runner import Found, Result, long_run, program_command, say, try_all
from harness.table import ATTACKS


def add_options(parser: argparse.ArgumentParser) -> None:
    """Which cases, of which program."""
    text = "only cases with this in their name; can be given more than once"
    parser.add_argument("--only", action="append", metavar="PART", help=text)
    parser.add_argument("--program", type=Path, help="the installed or frozen program (default: this checkout's)")
    parser.add_argument("--jobs", type=int, default=2, help="how many cases run at a time (default: 2)")
    parser.add_argument("--list", action="store_true", help="only list the cases")


def attack(options: argparse.Namespace) -> Found:
    """Try the cases, or list them."""
    cases = [case for case in ATTACKS if not options.only or any(part in case.name for part in options.only)]
    if options.list:
        for case in cases:
            say(f"{case.name:<38} {case.tried}")
        raise SystemExit(0)
    program = program_command(options.program)
    return found(try_all(cases, program, say=say, at_once=options.jobs), program)


def found(results: Sequence[Result], program: Sequence[str]) -> Found:
    """All of them, counted; nothing holds where none was tried."""
    verdicts = Counter(result.verdict.lower() for result in results)
    counts = {name: verdicts[name] for name in ("ok", "failed", "skipped")}
    tally = "  ".join(f"{name} {number}" for name, number in counts.items())
    return Found(
        facts={
            "program": shutil.which(program[0]) or program[0],
            "counts": counts,
            "cases": [asdict(result) for result in results],
        },
        sentence=f"{len(results)} cases in {{seconds}}: {tally}",
        holds=bool(results) and not counts["failed"],
    )


if __name__ == "__main__":
    sys.exit(long_run(attack, add_options, usage=__doc__, figures="build/attack.json"))
