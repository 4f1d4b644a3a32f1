"""Runs what is tried: cases in worlds of their own, and every long run from its arguments to its figures.

A long run says a line for each thing as soon as it is over, writes all figures as JSON and, where that is asked for, a
page in build/benchmarks, and ends with 1 if anything did not hold.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from benchmarks.reports import Page, PageRefused, plan_page, write_page
from fieldray.bench.benchmark_case import Report, Table
from harness.case import Case, NotPossible
from harness.machine import compiler
from harness.record import tail
from harness.world import World

Verdict = Literal["ok", "FAILED", "skipped"]
Need = Literal["Linux", "a C compiler", "Atheris (the extra robustness)"]


def say(text: str) -> None:
    """A line, at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


# ---- cases


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How a case went; `why` is empty for one that held."""

    name: str
    tried: str
    verdict: Verdict
    seconds: float
    why: str = ""
    parent_mb: float = 0.0
    child_mb: float = 0.0

    @property
    def line(self) -> str:
        """For a person."""
        why = f"\n    {self.why}" if self.why else ""
        return f"{self.verdict:<8}{self.seconds:6.1f} s  {self.name:<38} {self.tried}{why}"


def program_command(program: Path | None = None) -> tuple[str, ...]:
    """The program given, else this checkout's own, without the current directory among its modules."""
    if program is not None:
        return (str(program.absolute()),)
    beside = Path(sys.executable).with_name("fieldray")
    return (str(beside),) if beside.exists() else (sys.executable, "-P", "-m", "fieldray")


def try_case(case: Case, program: Sequence[str]) -> Result:
    """Run one case in a world of its own."""
    began_s = time.monotonic()
    world = World(program, limit_s=case.limit_s)

    def result(verdict: Verdict, why: str = "") -> Result:
        seconds = round(time.monotonic() - began_s, 2)
        peaks = {f"{name}_mb": round(value, 1) for name, value in world.peak_mb.items()}
        return Result(name=case.name, tried=case.tried, verdict=verdict, seconds=seconds, why=why, **peaks)

    try:
        with world:
            case.attempt(world)
    except NotPossible as why:
        return result("skipped", str(why))
    except Exception as error:
        return result("FAILED", f"{type(error).__name__}: {tail(str(error), longest=600)}")
    return result("ok")


def try_all(
    cases: Iterable[Case], program: Sequence[str], *, say: Callable[[str], None], at_once: int = 2
) -> list[Result]:
    """Run cases, those that may take longest first, and say how each went as soon as it is over."""
    ordered = sorted(cases, key=lambda case: -case.limit_s)
    results = []
    with ThreadPoolExecutor(at_once, thread_name_prefix="cases") as pool:
        for future in as_completed([pool.submit(try_case, case, program) for case in ordered]):
            results.append(future.result())
            say(results[-1].line)
    return sorted(results, key=lambda result: result.name)


# ---- long runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a long run found: `facts` for the file of figures, and whether all of it held.

    sentence   for its end; `{seconds}` stands for how long it took
    """

    facts: Mapping[str, Any]
    sentence: str
    holds: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LongRun:
    """A run by hand.

    script    relative to the checkout's root
    usage     its text, for `--help`
    needs     what it cannot do without
    options   adds its own to `--out`, `--seed` and, where there is a page, `--page`
    run       does it, as the options say; the seconds that it took are added to the facts
    figures   the file of figures, if no other is named
    subject   of the page, empty where there is none; `report` makes it of the facts, `measured` is the code it is of
    """

    script: str
    usage: str | None
    options: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], Found]
    figures: str
    needs: Sequence[Need] = ("Linux",)
    subject: str = ""
    measured: Sequence[str] = ()
    report: Callable[[Mapping[str, Any]], Report] | None = None

    def main(self) -> int:
        """Run as the arguments say; the exit code."""
        parser = argparse.ArgumentParser(description=self.usage, formatter_class=argparse.RawDescriptionHelpFormatter)
        self.options(parser)
        parser.add_argument("--seed", type=int, default=1, help="the same seed makes the same run (default: 1)")
        parser.add_argument("--out", type=Path, default=Path(self.figures), help=f"(default: {self.figures})")
        if self.subject:
            add_page_option(parser, self.subject)
        options = parser.parse_args()
        if lacking := [need for need in self.needs if not _is_here(need)]:
            say(f"This run needs {' and '.join(lacking)}.")
            return 2
        page = planned_page(options.page, self.script, measured=self.measured) if self.subject else None
        began_s = time.monotonic()
        found = self.run(options)
        facts = {**found.facts, "seconds": round(time.monotonic() - began_s, 1)}
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        say(found.sentence.format(seconds=f"{facts['seconds']:.0f} s"))
        if page and self.report:
            write_page(self.report(facts), page)
        return 0 if found.holds else 1


def add_page_option(parser: argparse.ArgumentParser, subject: str) -> None:
    """Add `--page [SUBJECT]`, by default of this subject."""
    text = f"also write a page to build/benchmarks (default: {subject})"
    parser.add_argument("--page", nargs="?", const=subject, metavar="SUBJECT", help=text)


def planned_page(subject: str | None, script: str, *, measured: Sequence[str]) -> Page | None:
    """The page that the run will write; None where none is wanted.

    Parameters
    ----------
    subject
        Of the page, None for no page.
    script
        The script that runs, relative to the checkout's root; the page names it with the arguments it was given.
    measured
        The code that is measured.

    Raises
    ------
    SystemExit
        With 2, once it is said why there can be no page.
    """
    if not subject:
        return None
    try:
        return plan_page(subject, command=shlex.join(["python", script, *sys.argv[1:]]), paths=measured)
    except PageRefused as problem:
        say(str(problem))
        raise SystemExit(2) from problem


def table(title: str, rows: Iterable[Any], columns: Mapping[str, Callable[[Any], object]]) -> Table:
    """A table of the page: what each column is called, and what it says of a row."""
    cells = tuple(tuple(str(of_row(row)) for of_row in columns.values()) for row in rows)
    return Table(title, tuple(columns), cells)


def _is_here(need: Need) -> bool:
    if need == "Linux":
        return sys.platform == "linux"
    return compiler() is not None if need == "a C compiler" else find_spec("atheris") is not None
