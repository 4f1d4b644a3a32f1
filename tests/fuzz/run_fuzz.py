"""Screens thousands of damaged files: `make fuzz`, or

    python tests/fuzz/run_fuzz.py [--files N] [--seed N] [--only KIND] [--data FOLDER] [--page [SUBJECT]]

One line per kind of damage; figures in build/fuzz.json and, with --page, as a page in build/benchmarks; ends with
1 if anything did not hold. The same seed damages the same files in the same way.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fieldray.bench.benchmark_case import Points, Report
from fuzz.screening import KINDS, fuzz, sources
from harness.record import CHILD_MB, PARENT_MB
from harness.runner import Found, Page, long_run, program_command, say, table


def add_options(parser: argparse.ArgumentParser) -> None:
    """How many files, damaged how, of which program."""
    parser.add_argument("--files", type=int, default=10_000, help="how many files, over all kinds (default: 10,000)")
    text = "only this kind of damage; can be given more than once"
    parser.add_argument("--only", action="append", choices=KINDS, help=text)
    parser.add_argument("--data", type=Path, help="a folder of further images to damage (ignored if there is none)")
    parser.add_argument("--program", type=Path, help="the installed or frozen program (default: this checkout's)")


def run(options: argparse.Namespace) -> Found:
    """Every kind, a line each."""
    results, program, seed = [], program_command(options.program), options.seed
    data = options.data if options.data and options.data.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="fieldray-fuzz-") as folder:
        originals = sources(Path(folder), data, seed=seed)
        say(f"{options.files} files made of {len(originals)}, seed {seed}")
        for figures in fuzz(options.only or KINDS, originals, program, files=options.files, seed=seed):
            say(figures.line)
            results.append(figures)
    failed, files = sum(bool(each.why) for each in results), sum(each.files for each in results)
    return Found(
        facts={"seed": seed, "originals": len(originals), "kinds": [each.facts() for each in results]},
        sentence=f"{files} files in {{seconds}}, kinds that did not hold: {failed}",
        holds=bool(results) and not failed,
    )


def report(facts: Mapping[str, Any]) -> Report:
    """The figures as a table, and what its columns mean."""
    kinds = facts["kinds"]
    columns = {
        "kind": lambda each: each["kind"],
        "files": lambda each: each["files"],
        "screened": lambda each: each["outcomes"]["screened"],
        "refused": lambda each: each["outcomes"]["refused"],
        "failed": lambda each: each["outcomes"]["failed"],
        "contained": lambda each: each["contained"],
        "program, MB": lambda each: f"{each['parent_mb']:.0f}",
        "child, MB": lambda each: f"{each['child_mb']:.0f}",
        "holds": lambda each: "; ".join(each["why"]) or "yes",
    }
    run_facts = (
        f"Screened in {facts['seconds']:.0f} s: {sum(each['files'] for each in kinds):,} files, made of "
        f"{facts['originals']} by damage of {len(kinds)} kinds (seed {facts['seed']}).",
        "Holds: one outcome for each file, no unexpected error, no process left behind, the end within its time, the "
        f"program below {PARENT_MB:.0f} MB and each child process below {CHILD_MB:.0f} MB. Memory is the peak.",
        "Contained: files on which a decoder crashed, ran out of time or out of memory while the run went on.",
    )
    blocks = (Points("What was run", run_facts), table("Outcomes by kind of damage", kinds, columns))
    return Report(kind="fuzz", title="Fieldray: damaged files", blocks=blocks, data=facts)


if __name__ == "__main__":
    measured = ("app/fieldray/imaging", "app/fieldray/pipeline", "app/fieldray/processes", "tests/fuzz")
    page = Page(subject="damaged-files", measured=measured, report=report)
    sys.exit(long_run(run, add_options, usage=__doc__, figures="build/fuzz.json", page=page))
