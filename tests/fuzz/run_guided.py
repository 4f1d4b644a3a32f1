"""Reads inputs that are led by what code they reach: the second part of `make fuzz`, or

    python tests/fuzz/run_guided.py [--minutes N] [--seed N] [--only TARGET] [--keep] [--page [SUBJECT]]

One line per target; figures in build/fuzz-guided.json and, with --page, as a page in build/benchmarks; ends with 1
if anything was found. What was found is kept beside the figures, as small as it could be made, to become a case of
`corpus.py`. It begins with the kept inputs, and with what earlier runs left in build/fuzz-guided/corpus; --keep adds to
the kept ones what reached more.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.reports import write_page
from fieldray.bench.report import Points, Report, Table
from fuzz import kept_inputs
from fuzz.corpus import CASES
from fuzz.run_structures import MEASURED, Result
from fuzz.run_structures import keep as save
from fuzz.structures.running import run_guided
from fuzz.structures.target import ACCEPTED
from fuzz.structures.targets import TARGETS
from long_run import add_page_option, planned_page, say, write_figures

GUIDED: Final = ("dicom-header", "dicomdir", "zip", "manifest", "wire", "answers", "channel", "chunks")
"""What others wrote and anybody may hand over; any target can be asked for."""


@dataclass(frozen=True, slots=True)
class Guided:
    """What came of a target; how many places of the code were reached, by how many inputs, and how many are kept."""

    result: Result
    reached: int
    inputs: int
    kept: int

    @property
    def line(self) -> str:
        """For a person."""
        return f"{self.result.line}\n      reached {self.reached:,} places by {self.inputs:,} inputs, {self.kept} kept"


def main() -> int:
    """Run as the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0, help="over all targets (default: 5)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--only", action="append", choices=list(TARGETS), help="only this target; can be given more than once"
    )
    parser.add_argument("--keep", action="store_true", help="keep what reached more, in tests/fuzz/kept")
    parser.add_argument("--out", type=Path, default=Path("build/fuzz-guided.json"))
    add_page_option(parser, "guided-fuzzing")
    options = parser.parse_args()
    if sys.platform != "linux" or find_spec("atheris") is None:
        say("The guided fuzz run needs Linux and Atheris (the extra robustness).")
        return 2
    planned = planned_page(options.page, "tests/fuzz/run_guided.py", measured=MEASURED)
    names, began_s, results = tuple(options.only or GUIDED), time.monotonic(), []
    say(f"{options.minutes:g} minutes over {len(names)} targets, seed {options.seed}")
    for name in names:
        results.append(
            guided(
                name, seconds=60 * options.minutes / len(names), seed=options.seed, out=options.out, keep=options.keep
            )
        )
        say(results[-1].line)
    found = sum(len(each.result.findings) for each in results)
    facts = {"seed": options.seed, "seconds": round(time.monotonic() - began_s, 1)}
    say(f"{sum(each.result.tally.inputs for each in results):,} inputs in {facts['seconds']:.0f} s, findings: {found}")
    write_figures(options.out, {**facts, "targets": [_facts(each) for each in results]})
    if planned:
        write_page(report(results, facts), planned)
    return 1 if found else 0


def guided(name: str, *, seconds: float, seed: int, out: Path, keep: bool) -> Guided:
    """Read inputs of a target for so long."""
    corpus = out.parent / out.stem / "corpus" / name
    corpus.mkdir(parents=True, exist_ok=True)
    begin = [*kept_inputs.inputs_of(name), *(case.data() for case in CASES.values() if case.target == name)]
    for number, data in enumerate(begin):
        (corpus / f"begin-{number:03}").write_bytes(data)
    tally, findings, (reached, inputs) = run_guided(name, seconds=seconds, seed=seed, corpus=corpus.resolve())
    save(findings, out.parent / out.stem)
    if keep:
        kept_inputs.keep(TARGETS[name], [path.read_bytes() for path in corpus.iterdir()])
    return Guided(Result(name, tally, findings), reached, inputs, len(kept_inputs.inputs_of(name)))


def _facts(each: Guided) -> dict[str, object]:
    return {**each.result.facts(), "reached": each.reached, "inputs_that_reach": each.inputs, "kept": each.kept}


def report(results: Sequence[Guided], facts: dict[str, float]) -> Report:
    """The figures as a table, and what its columns mean."""
    columns = (
        "target",
        "inputs",
        "accepted",
        "places reached",
        "by inputs",
        "kept",
        "findings",
        "inputs/s",
        "most, ms",
    )
    rows = tuple(
        (
            each.result.name,
            f"{each.result.tally.inputs:,}",
            f"{each.result.tally.outcomes[ACCEPTED]:,}",
            f"{each.reached:,}",
            f"{each.inputs:,}",
            str(each.kept),
            "; ".join(f"{found.kind} (input {found.number})" for found in each.result.findings) or "none",
            f"{each.result.rate:,.0f}",
            f"{1000 * each.result.tally.longest_s[0]:.0f}",
        )
        for each in results
    )
    told = (
        f"Read in {facts['seconds']:.0f} s: {sum(each.result.tally.inputs for each in results):,} inputs of "
        f"{len(results)} parts of the program (seed {facts['seed']:.0f}), each a change of one that had reached code "
        "which no other had.",
        "A finding is what it is of `make fuzz-structures`, but for the time: 10 s of CPU time, since watched code is "
        "slower.",
        "Places: branches of the program, pydicom and zipfile, and comparisons, as libFuzzer counts them; those that "
        "are passed while modules are imported are not among them. Kept: the inputs in tests/fuzz/kept.",
    )
    blocks = (Points("What was run", told), Table("What came of it", columns, rows))
    return Report(kind="fuzz-guided", title="Fieldray: guided fuzzing", blocks=blocks, data=facts)


if __name__ == "__main__":
    sys.exit(main())
