"""Screens thousands of damaged files: `make fuzz`, or

    python tests/fuzz/run_fuzz.py [--files N] [--seed N] [--only KIND] [--data FOLDER] [--page [SUBJECT]]

One line per kind of damage; figures in build/fuzz.json and, with --page, as a page in build/benchmarks; ends with
1 if anything did not hold. The same seed damages the same files in the same way.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from attack.runner import program_command
from attack.world import CHILD_MB, PARENT_MB
from benchmarks.reports import write_page
from fieldray.bench.report import Points, Report, Table
from fuzz.screening import KINDS, Figures, fuzz, sources
from long_run import add_page_option, planned_page, say, write_figures

MEASURED = ("app/fieldray/imaging", "app/fieldray/pipeline", "app/fieldray/processes", "tests/fuzz")


def main() -> int:
    """Run as the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=10_000, help="how many files, over all kinds (default: 10,000)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--only", action="append", choices=KINDS, help="only this kind of damage; can be given more than once"
    )
    parser.add_argument("--data", type=Path, help="a folder of further images to damage (ignored if there is none)")
    parser.add_argument("--program", type=Path, help="the installed or frozen program (default: this checkout's)")
    parser.add_argument("--out", type=Path, default=Path("build/fuzz.json"))
    add_page_option(parser, "damaged-files")
    options = parser.parse_args()
    if sys.platform != "linux":
        say("The fuzz run needs Linux.")
        return 2
    planned = planned_page(options.page, "tests/fuzz/run_fuzz.py", measured=MEASURED)
    began_s, results = time.monotonic(), []
    data = options.data if options.data and options.data.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="fieldray-fuzz-") as folder:
        originals = sources(Path(folder), data, seed=options.seed)
        say(f"{options.files} files made of {len(originals)}, seed {options.seed}")
        kinds = options.only or KINDS
        for figures in fuzz(kinds, originals, program_command(options.program), files=options.files, seed=options.seed):
            say(figures.line)
            results.append(figures)
    seconds = time.monotonic() - began_s
    failed = sum(bool(figures.why) for figures in results)
    say(f"{sum(figures.files for figures in results)} files in {seconds:.0f} s, kinds that did not hold: {failed}")
    facts = {"seed": options.seed, "originals": len(originals), "seconds": round(seconds, 1)}
    write_figures(options.out, {**facts, "kinds": [figures.facts() for figures in results]})
    if planned:
        write_page(report(results, facts), planned)
    return 1 if failed or not results else 0


def report(results: Sequence[Figures], facts: dict[str, float]) -> Report:
    """The figures as a table, and what its columns mean."""
    columns = ("kind", "files", "screened", "refused", "failed", "contained", "program, MB", "child, MB", "holds")
    rows = tuple(
        (
            each.kind,
            str(each.files),
            *(str(each.outcomes[outcome]) for outcome in ("screened", "refused", "failed")),
            str(each.contained),
            f"{each.parent_mb:.0f}",
            f"{each.child_mb:.0f}",
            "; ".join(each.why) or "yes",
        )
        for each in results
    )
    told = (
        f"Screened in {facts['seconds']:.0f} s: {sum(each.files for each in results):,} files, made of "
        f"{facts['originals']:.0f} by damage of {len(results)} kinds (seed {facts['seed']:.0f}).",
        "Holds: one outcome for each file, no unexpected error, no process left behind, the end within its time, the "
        f"program below {PARENT_MB:.0f} MB and each child process below {CHILD_MB:.0f} MB. Memory is the peak.",
        "Contained: files on which a decoder crashed, ran out of time or out of memory while the run went on.",
    )
    blocks = (Points("What was run", told), Table("Outcomes by kind of damage", columns, rows))
    return Report(kind="fuzz", title="Fieldray: damaged files", blocks=blocks, data=facts)


if __name__ == "__main__":
    sys.exit(main())
