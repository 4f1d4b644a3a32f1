"""Lets the program read a million generated structures with wrong values: `make fuzz-structures`, or

    python tests/fuzz/run_structures.py [--inputs N] [--seed N] [--only TARGET]

Prints one line for each target and writes figures to build/fuzz-structures.json. The exit code is 1 if there was a
finding. Its input is reduced and written next to the figures. The same seed makes the same structures.

Reading must give a valid value or a foreseen reason. Findings are: another error, an error that is caught but logged
as unexpected, an invalid value, too much CPU time, memory above the target's limit, and the end of the process.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fuzz.structures.reading import Finding, Tally
from fuzz.structures.running import run_target
from fuzz.structures.targets import TARGETS, shares
from harness.case import Case
from harness.runner import add_case_options, long_run, run_selected
from harness.world import World


def judge(world: World, tally: Tally, findings: Sequence[Finding], *, out: Path) -> None:
    """Count the outcomes, and write each finding to a file, to become a case of the corpus.

    Raises AssertionError if there is a finding.
    """
    world.peak_mb["child"] = tally.peak_mb
    world.counts.update({"inputs": tally.inputs, **dict(tally.outcomes.most_common())})
    world.counts["ms for the longest"] = round(1000 * tally.longest_s[0])
    folder = out.parent / out.stem
    for finding in findings:
        folder.mkdir(parents=True, exist_ok=True)
        name = re.sub(r"[^a-z0-9]+", "-", finding.kind.lower())[:80].strip("-")
        (folder / f"{finding.target}-{finding.number}-{name}.bin").write_bytes(finding.data)
    assert not findings, "\n".join(f"{each.kind}, input {each.number}: {each.detail}" for each in findings)


def asked_for(options: argparse.Namespace, names: Sequence[str]) -> tuple[str, ...]:
    """Return the targets that the options select."""
    return tuple(name for name in names if not options.only or any(part in name for part in options.only))


def cases(options: argparse.Namespace) -> Iterator[Case]:
    """Yield a case for each selected target. They share the inputs."""

    def read(world: World, name: str, inputs: int) -> None:
        judge(world, *run_target(name, inputs=inputs, seed=options.seed), out=options.out)

    for name, inputs in shares(asked_for(options, tuple(TARGETS)), options.inputs).items():
        attempt = partial(read, name=name, inputs=inputs)
        yield Case(name=name, tried=f"{inputs:,} of {TARGETS[name].reads}", attempt=attempt)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this run."""
    add_case_options(parser)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="over all targets (default: 1,000,000)")


if __name__ == "__main__":
    figures = "build/fuzz-structures.json"
    sys.exit(long_run(lambda asked: run_selected(cases(asked), asked), add_options, usage=__doc__, figures=figures))
