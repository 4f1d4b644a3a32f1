"""Screens thousands of damaged files and holds the program to what it promises of any file: `make fuzz`, or

    python tests/fuzz/run_fuzz.py [--files N] [--seed N] [--only KIND] [--data FOLDER] [--page [SUBJECT]]

One line per kind of damage; figures in build/fuzz.json and, with --page, as a page in build/benchmarks; ends with
1 if anything did not hold. The same seed damages the same files in the same way.

One outcome for each, no traceback, no process left behind, the end within the time, and memory within the bounds of
the attack run. What a decoder does to itself on such a file (a crash, a time-out) is contained, and counted.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fieldray.bench.benchmark_case import Points, Report
from fuzz.mutations import MUTATIONS, mutated
from harness.record import CHILD_MB, PARENT_MB, tail
from harness.runner import Found, Page, long_run, program_command, say, table
from harness.world import World
from phantoms import write_collection

KINDS: Final = tuple(MUTATIONS)
LARGEST: Final = 4 * 2**20
_PER_RUN: Final = 250
_PER_SUFFIX: Final = 100
_START_S, _PER_FILE_S = 120.0, 2.0
_CONTAINED: Final = ("decoder_crashed", "decoder_timeout", "memory")


@dataclass(kw_only=True)
class Figures:
    """What became of the files of one kind. `why` says what did not hold, and is empty otherwise."""

    kind: str
    files: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    parent_mb: float = 0.0
    child_mb: float = 0.0
    why: list[str] = field(default_factory=list)

    @property
    def contained(self) -> int:
        """How many decoders ended on a file, and another one read on."""
        return sum(self.reasons[code] for code in _CONTAINED)

    @property
    def line(self) -> str:
        """For a person."""
        counts = "  ".join(f"{name} {self.outcomes[name]}" for name in ("screened", "refused", "failed"))
        verdict = "FAILED" if self.why else "ok"
        why = "".join(f"\n    {each}" for each in self.why)
        return (
            f"{verdict:<8}{self.kind:<10}{self.files:>6} files  {counts}  contained {self.contained}  "
            f"peak {self.parent_mb:.0f} + {self.child_mb:.0f} MB{why}"
        )

    def facts(self) -> dict[str, Any]:
        """For the file of figures."""
        return {**vars(self), "contained": self.contained}


def sources(folder: Path, data: Path | None, *, seed: int) -> list[Path]:
    """The files to damage: every kind of phantom, and of `data` up to 100 per kind of name, none above 4 MB."""
    chosen = write_collection(folder)
    by_suffix: dict[str, list[Path]] = defaultdict(list)
    for path in sorted(data.rglob("*")) if data else ():
        if path.is_file() and path.suffix.lower() in ("", ".dcm", ".png", ".jpg", ".jpeg"):
            by_suffix[path.suffix.lower()].append(path)
    for suffix, found in sorted(by_suffix.items()):
        paths = [path for path in found if 0 < path.stat().st_size <= LARGEST and "DICOMDIR" not in path.name]
        chosen += random.Random(f"{seed} {suffix}").sample(paths, min(_PER_SUFFIX, len(paths)))
    return chosen


def fuzz(
    kinds: Sequence[str], originals: Sequence[Path], program: Sequence[str], *, files: int, seed: int
) -> Iterator[Figures]:
    """Damage and screen about `files` files, as many of each kind; the figures of a kind as soon as it is done."""
    for place, kind in enumerate(kinds):
        share = files // len(kinds) + (place < files % len(kinds))
        figures = Figures(kind=kind)
        for start in range(0, share, _PER_RUN):
            _screen(figures, range(start, min(start + _PER_RUN, share)), originals, program, seed=seed)
        yield figures


def _screen(
    figures: Figures, numbers: Iterable[int], originals: Sequence[Path], program: Sequence[str], *, seed: int
) -> None:
    """One run of the program over the damaged files with these numbers."""
    numbers = list(numbers)
    with World(program, limit_s=_START_S + _PER_FILE_S * len(numbers)) as world:
        names = [_write(world.images, figures.kind, number, originals, seed=seed) for number in numbers]
        figures.files += len(names)
        try:
            lines = world.screen(dict.fromkeys(names, "any")).lines
        except AssertionError as error:
            figures.why.append(f"files {numbers[0]} to {numbers[-1]}: {tail(str(error), longest=600)}")
        else:
            figures.outcomes.update(line["status"] for line in lines)
            figures.reasons.update(line["reason_code"] for line in lines if line["reason_code"])
        figures.parent_mb = max(figures.parent_mb, world.peak_mb["parent"])
        figures.child_mb = max(figures.child_mb, world.peak_mb["child"])


def _write(folder: Path, kind: str, number: int, originals: Sequence[Path], *, seed: int) -> str:
    original = random.Random(f"{seed} {kind} {number} original").choice(originals)
    path = folder / f"{number:05}-{original.name}"
    path.write_bytes(mutated(original.read_bytes(), kind, seed=seed, number=number))
    return path.name


# ---- the run


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
