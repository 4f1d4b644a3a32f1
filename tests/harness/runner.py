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

from benchmarks.processes import CHECKOUT
from benchmarks.reports import PageRefused, plan_page, write_page
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
class Page:
    """A page of a long run: its subject, the code that is measured, and what makes it of the facts."""

    subject: str
    measured: Sequence[str]
    report: Callable[[Mapping[str, Any]], Report]


def long_run(
    run: Callable[[argparse.Namespace], Found],
    options: Callable[[argparse.ArgumentParser], None],
    *,
    usage: str | None,
    figures: str,
    needs: Sequence[Need] = ("Linux",),
    page: Page | None = None,
) -> int:
    """A run by hand, as its arguments say; the exit code.

    run       does it; the seconds that it took are added to the facts
    options   adds its own to `--out`, `--seed` and, where there is a page, `--page`
    usage     its text, for `--help`
    figures   the file of figures, if no other is named
    needs     what it cannot do without
    page      what may be written of it, where that is asked for
    """
    parser = argparse.ArgumentParser(description=usage, formatter_class=argparse.RawDescriptionHelpFormatter)
    options(parser)
    parser.add_argument("--seed", type=int, default=1, help="the same seed makes the same run (default: 1)")
    parser.add_argument("--out", type=Path, default=Path(figures), help=f"(default: {figures})")
    if page:
        text = f"also write a page to build/benchmarks (default: {page.subject})"
        parser.add_argument("--page", nargs="?", const=page.subject, metavar="SUBJECT", help=text)
    asked = parser.parse_args()
    if lacking := [need for need in needs if not _is_here(need)]:
        say(f"This run needs {' and '.join(lacking)}.")
        return 2
    planned = None
    if page and asked.page:
        command = ["python", Path(sys.argv[0]).resolve().relative_to(CHECKOUT).as_posix(), *sys.argv[1:]]
        try:
            planned = plan_page(asked.page, command=shlex.join(command), paths=page.measured)
        except PageRefused as problem:
            say(str(problem))
            return 2
    began_s = time.monotonic()
    found = run(asked)
    facts = {**found.facts, "seconds": round(time.monotonic() - began_s, 1)}
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    say(found.sentence.format(seconds=f"{facts['seconds']:.0f} s"))
    if page and planned:
        write_page(page.report(facts), planned)
    return 0 if found.holds else 1


def table(title: str, rows: Iterable[Any], columns: Mapping[str, Callable[[Any], object]]) -> Table:
    """A table of the page: what each column is called, and what it says of a row."""
    cells = tuple(tuple(str(of_row(row)) for of_row in columns.values()) for row in rows)
    return Table(title, tuple(columns), cells)


def _is_here(need: Need) -> bool:
    if need == "Linux":
        return sys.platform == "linux"
    return compiler() is not None if need == "a C compiler" else find_spec("atheris") is not None
