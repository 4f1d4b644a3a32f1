"""Screens thousands of damaged files: `make fuzz`, or

    python tests/fuzz/run_fuzz.py [--files N] [--seed N] [--only KIND] [--data FOLDER] [--page FILE]

One line a kind of damage; figures in build/fuzz.json and, with --page, as a page of docs/benchmarks; ends with 1 if
anything did not hold. The same seed damages the same files in the same way.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import psutil

from attack.runner import program_command
from attack.world import CHILD_MB, PARENT_MB
from fuzz.screening import KINDS, Figures, fuzz, sources

ROOT = Path(__file__).resolve().parents[2]


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
    parser.add_argument("--page", type=Path, help="also write the figures as a page")
    options = parser.parse_args()
    if sys.platform != "linux":
        say("The fuzz run needs Linux.")
        return 2
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
    options.out.parent.mkdir(parents=True, exist_ok=True)
    facts = {"seed": options.seed, "originals": len(originals), "seconds": round(seconds, 1)}
    found = {**facts, "kinds": [figures.facts() for figures in results]}
    options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if options.page:
        options.page.parent.mkdir(parents=True, exist_ok=True)
        options.page.write_text(page(results, facts), encoding="utf-8")
    return 1 if failed or not results else 0


def page(results: Sequence[Figures], facts: dict[str, float]) -> str:
    """The figures as a page in the form that docs/benchmarks/README.md describes."""
    rows = "".join(
        f"| {each.kind} | {each.files} | {each.outcomes['screened']} | {each.outcomes['refused']} "
        f"| {each.outcomes['failed']} | {each.contained} | {each.parent_mb:.0f} | {each.child_mb:.0f} "
        f"| {'; '.join(each.why).replace('|', '/') or 'yes'} |\n"
        for each in results
    )
    command = f"python tests/fuzz/run_fuzz.py {' '.join(sys.argv[1:])}".strip()
    return f"""---
title: Damaged files
date: {time.strftime("%Y-%m-%d", time.gmtime())}
commit: {commit()}
machine: {machine()}
command: {command}
paths:
  - app/fieldray/imaging
  - app/fieldray/pipeline
  - app/fieldray/processes
  - tests/fuzz
---

# Damaged files

Screened in {facts["seconds"]:.0f} s: {sum(each.files for each in results):,} files, made of {facts["originals"]:.0f}
by damage of {len(results)} kinds (seed {facts["seed"]:.0f}). *Holds* means: one outcome for each file, no unexpected
error, no process left behind, the end within its time, the program below {PARENT_MB:.0f} MB and each child process
below {CHILD_MB:.0f} MB. *Contained* counts the files on which a decoder crashed, ran out of time or out of memory
while the run went on.

| kind | files | screened | refused | failed | contained | peak of the program, MB | peak of a child, MB | holds |
|---|--:|--:|--:|--:|--:|--:|--:|---|
{rows}"""


def commit() -> str:
    """The commit that was measured, or `unknown` outside a repository."""
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()[:10] or "unknown"


def machine() -> str:
    """Processor, memory, system and Python in one line."""
    names = [line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    system = next((line.split("=")[1].strip('"') for line in _lines("/etc/os-release") if "PRETTY" in line), "Linux")
    memory = psutil.virtual_memory().total / 2**30
    return f"{os.cpu_count()} cores of {names[0]}, {memory:.0f} GB, {system}, Python {platform.python_version()}"


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def say(text: str) -> None:
    """A line, at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
