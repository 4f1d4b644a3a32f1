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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fieldray.bench.benchmark_case import Points, Report
from fuzz.structures.reading import LONGEST_S, Finding, Tally
from fuzz.structures.running import run_target
from fuzz.structures.target import ACCEPTED
from fuzz.structures.targets import TARGETS, shares
from harness.runner import Found, Page, long_run, say, table

MEASURED = (
    *(f"app/fieldray{room}" for room in ("/imaging", "/inference", "/packs", "/processes", "/store", "_cluster")),
    "tests/fuzz",
)
_MOST_REASONS = 4


def said(name: str, tally: Tally, findings: Sequence[Finding], reached: tuple[int, ...] = ()) -> dict[str, Any]:
    """What came of the inputs of a target, in a line for a person and as the file of figures has it.

    reached  where inputs were led by the code that they reach: places of it, by how many inputs, how many are kept
    """
    others = [(why, count) for why, count in tally.outcomes.most_common() if why not in (ACCEPTED, "FOUND")]
    reasons = ", ".join(f"{why} {count:,}" for why, count in others[:_MOST_REASONS])
    if len(others) > _MOST_REASONS:
        reasons += f", {len(others) - _MOST_REASONS} more"
    rate = tally.inputs / max(tally.seconds, 1e-9)
    verdict, accepted = "FOUND" if findings else "ok", tally.outcomes[ACCEPTED]
    lines = [
        f"{verdict:<6}{name:<13}{tally.inputs:>9,} inputs  accepted {accepted:,}  findings {len(findings)}  "
        f"{rate:,.0f}/s  peak +{tally.peak_mb:.0f} MB  longest {1000 * tally.longest_s[0]:.0f} ms  ({reasons})",
        *(f"    {each.kind}, input {each.number}" for each in findings),
    ]
    if reached:
        lines.append("      reached {:,} places by {:,} inputs, {} kept".format(*reached))
    say("\n".join(lines))
    return {
        "target": name,
        "inputs": tally.inputs,
        "outcomes": dict(tally.outcomes.most_common()),
        "per_second": round(rate, 1),
        "reasons": reasons,
        "peak_mb": round(tally.peak_mb, 1),
        "longest_ms": round(1000 * tally.longest_s[0], 1),
        "longest_input": tally.longest_s[1],
        "findings": [{"kind": each.kind, "number": each.number, "detail": each.detail} for each in findings],
        **dict(zip(("reached", "inputs_that_reach", "kept"), reached, strict=False)),
    }


def add_options(parser: argparse.ArgumentParser) -> None:
    """How many inputs, of which targets."""
    parser.add_argument("--inputs", type=int, default=1_000_000, help="over all targets (default: 1,000,000)")
    text = "only this target; can be given more than once"
    parser.add_argument("--only", action="append", choices=list(TARGETS), help=text)


def run(options: argparse.Namespace) -> Found:
    """Every target, a line each."""
    targets = []
    for name, inputs in shares(tuple(options.only or TARGETS), options.inputs).items():
        tally, findings = run_target(name, inputs=inputs, seed=options.seed)
        targets.append(said(name, tally, findings))
        keep(findings, options.out.parent / options.out.stem)
    return found(targets, seed=options.seed)


def found(targets: Sequence[dict[str, Any]], *, seed: int) -> Found:
    """All that was read, counted."""
    inputs, findings = sum(each["inputs"] for each in targets), sum(len(each["findings"]) for each in targets)
    sentence = f"{inputs:,} inputs in {{seconds}}, findings: {findings}"
    return Found(facts={"seed": seed, "targets": targets}, sentence=sentence, holds=not findings)


def keep(findings: Sequence[Finding], folder: Path) -> None:
    """Write what was found, a file each, to be looked at and to become a case of the corpus."""
    for finding in findings:
        folder.mkdir(parents=True, exist_ok=True)
        name = re.sub(r"[^a-z0-9]+", "-", finding.kind.lower())[:80].strip("-")
        (folder / f"{finding.target}-{finding.number}-{name}.bin").write_bytes(finding.data)


# What the pages say of a target, by the name of the column.
COLUMNS: Final[Mapping[str, Callable[[Any], object]]] = {
    "target": lambda each: each["target"],
    "inputs": lambda each: f"{each['inputs']:,}",
    "accepted": lambda each: f"{each['outcomes'].get(ACCEPTED, 0):,}",
    "places reached": lambda each: f"{each['reached']:,}",
    "by inputs": lambda each: f"{each['inputs_that_reach']:,}",
    "kept": lambda each: each["kept"],
    "most frequent reasons": lambda each: each["reasons"],
    "findings": lambda each: "; ".join(f"{one['kind']} (input {one['number']})" for one in each["findings"]) or "none",
    "inputs/s": lambda each: f"{each['per_second']:,.0f}",
    "peak, MB": lambda each: f"{each['peak_mb']:.0f} of {TARGETS[each['target']].most_mb:.0f}",
    "most, ms": lambda each: f"{each['longest_ms']:.0f}",
}


def report(facts: Mapping[str, Any]) -> Report:
    """The figures as tables, and what their columns mean."""
    targets = facts["targets"]
    run_facts = (
        f"Read in {facts['seconds']:.0f} s: {sum(each['inputs'] for each in targets):,} structures for "
        f"{len(targets)} parts of the program, each whole at first and then broken at up to five places in meaning "
        f"(seed {facts['seed']}).",
        "A finding is anything but a value or a reason that somebody thought of: another error, one that is caught but "
        f"logged as unforeseen, a value that breaks a promise, more than {LONGEST_S:.0f} s of CPU time, "
        "more memory than its cap, the end of the process.",
        "Peak: how far the highest memory of the process rose above its start, of its cap. Most: the longest that one "
        "input took, in CPU time. Inputs/s: made and read, by one process.",
    )
    reads = {"target": COLUMNS["target"], "what it reads": lambda each: TARGETS[each["target"]].reads}
    came = ("target", "inputs", "accepted", "most frequent reasons", "findings", "inputs/s", "peak, MB", "most, ms")
    blocks = (
        Points("What was run", run_facts),
        table("What is read", targets, reads),
        table("What came of it", targets, {name: COLUMNS[name] for name in came}),
    )
    return Report(kind="fuzz-structures", title="Fieldray: broken structures", blocks=blocks, data=facts)


if __name__ == "__main__":
    page = Page(subject="broken-structures", measured=MEASURED, report=report)
    sys.exit(long_run(run, add_options, usage=__doc__, figures="build/fuzz-structures.json", page=page))
