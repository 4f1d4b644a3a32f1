"""Reads a million structures broken in meaning: `make fuzz-structures`, or

    python tests/fuzz/run_structures.py [--inputs N] [--seed N] [--only TARGET] [--page [SUBJECT]]

One line per target; figures in build/fuzz-structures.json and, with --page, as a page in build/benchmarks; ends
with 1 if anything was found. What was found is kept beside the figures, as small as it could be made. The same seed
makes the same structures.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.reports import write_page
from fieldray.bench.report import Points, Report, Table
from fuzz.structures.reading import LONGEST_S, Finding, Tally
from fuzz.structures.running import run_target
from fuzz.structures.target import ACCEPTED
from fuzz.structures.targets import TARGETS, shares
from long_run import add_page_option, planned_page, say, write_figures

MEASURED = (
    *(f"app/fieldray{room}" for room in ("/imaging", "/inference", "/packs", "/processes", "/store", "_cluster")),
    "tests/fuzz",
)
_MOST_REASONS = 4


@dataclass(frozen=True, slots=True)
class Result:
    """What came of the inputs of a target."""

    name: str
    tally: Tally
    findings: Sequence[Finding]

    @property
    def reasons(self) -> str:
        """The most frequent outcomes but acceptance."""
        others = [(why, count) for why, count in self.tally.outcomes.most_common() if why not in (ACCEPTED, "FOUND")]
        shown = ", ".join(f"{why} {count:,}" for why, count in others[:_MOST_REASONS])
        return shown + (f", {len(others) - _MOST_REASONS} more" if len(others) > _MOST_REASONS else "")

    @property
    def rate(self) -> float:
        """Inputs made and read per second."""
        return self.tally.inputs / max(self.tally.seconds, 1e-9)

    @property
    def line(self) -> str:
        """For a person."""
        tally = self.tally
        found = "".join(f"\n    {each.kind}, input {each.number}" for each in self.findings)
        return (
            f"{'FOUND' if self.findings else 'ok':<6}{self.name:<13}{tally.inputs:>9,} inputs  "
            f"accepted {tally.outcomes[ACCEPTED]:,}  findings {len(self.findings)}  {self.rate:,.0f}/s  "
            f"peak +{tally.peak_mb:.0f} MB  longest {1000 * tally.longest_s[0]:.0f} ms  ({self.reasons}){found}"
        )

    def facts(self) -> dict[str, object]:
        """For the file of figures."""
        tally = self.tally
        found = [{"kind": each.kind, "number": each.number, "detail": each.detail} for each in self.findings]
        return {
            "target": self.name,
            "inputs": tally.inputs,
            "outcomes": dict(tally.outcomes.most_common()),
            "per_second": round(self.rate, 1),
            "peak_mb": round(tally.peak_mb, 1),
            "longest_ms": round(1000 * tally.longest_s[0], 1),
            "longest_input": tally.longest_s[1],
            "findings": found,
        }


def main() -> int:
    """Run as the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="over all targets (default: 1,000,000)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--only", action="append", choices=list(TARGETS), help="only this target; can be given more than once"
    )
    parser.add_argument("--out", type=Path, default=Path("build/fuzz-structures.json"))
    add_page_option(parser, "broken-structures")
    options = parser.parse_args()
    if sys.platform != "linux":
        say("The fuzz run needs Linux.")
        return 2
    planned = planned_page(options.page, "tests/fuzz/run_structures.py", measured=MEASURED)
    began_s, results = time.monotonic(), []
    for name, inputs in shares(tuple(options.only or TARGETS), options.inputs).items():
        tally, findings = run_target(name, inputs=inputs, seed=options.seed)
        results.append(Result(name, tally, findings))
        say(results[-1].line)
        keep(findings, options.out.parent / options.out.stem)
    inputs, found = sum(each.tally.inputs for each in results), sum(len(each.findings) for each in results)
    facts = {"seed": options.seed, "seconds": round(time.monotonic() - began_s, 1)}
    say(f"{inputs:,} inputs in {facts['seconds']:.0f} s, findings: {found}")
    write_figures(options.out, {**facts, "targets": [each.facts() for each in results]})
    if planned:
        write_page(report(results, facts), planned)
    return 1 if found else 0


def keep(findings: Sequence[Finding], folder: Path) -> None:
    """Write what was found, a file each, to be looked at and to become a case of the corpus."""
    for finding in findings:
        folder.mkdir(parents=True, exist_ok=True)
        name = re.sub(r"[^a-z0-9]+", "-", finding.kind.lower())[:80].strip("-")
        (folder / f"{finding.target}-{finding.number}-{name}.bin").write_bytes(finding.data)


def report(results: Sequence[Result], facts: dict[str, float]) -> Report:
    """The figures as tables, and what their columns mean."""
    columns = (
        "target",
        "inputs",
        "accepted",
        "most frequent reasons",
        "findings",
        "inputs/s",
        "peak, MB",
        "most, ms",
    )
    rows = tuple(
        (
            each.name,
            f"{each.tally.inputs:,}",
            f"{each.tally.outcomes[ACCEPTED]:,}",
            each.reasons,
            "; ".join(f"{found.kind} (input {found.number})" for found in each.findings) or "none",
            f"{each.rate:,.0f}",
            f"{each.tally.peak_mb:.0f} of {TARGETS[each.name].most_mb:.0f}",
            f"{1000 * each.tally.longest_s[0]:.0f}",
        )
        for each in results
    )
    told = (
        f"Read in {facts['seconds']:.0f} s: {sum(each.tally.inputs for each in results):,} structures for "
        f"{len(results)} parts of the program, each whole at first and then broken at up to five places in meaning "
        f"(seed {facts['seed']:.0f}).",
        "A finding is anything but a value or a reason that somebody thought of: another error, one that is caught but "
        f"logged as unforeseen, a value that breaks a promise, more than {LONGEST_S:.0f} s of CPU time, "
        "more memory than its cap, the end of the process.",
        "Peak: how far the highest memory of the process rose above its start, of its cap. Most: the longest that one "
        "input took, in CPU time. Inputs/s: made and read, by one process.",
    )
    reads = tuple((name, TARGETS[name].reads) for name in (each.name for each in results))
    blocks = (
        Points("What was run", told),
        Table("What is read", ("target", "what it reads"), reads),
        Table("What came of it", columns, rows),
    )
    return Report(kind="fuzz-structures", title="Fieldray: broken structures", blocks=blocks, data=facts)


if __name__ == "__main__":
    sys.exit(main())
