"""Runs what is tried: cases in worlds of their own, and every long run from its arguments to its figures.

A long run says a line for each thing as soon as it is over, writes all figures as JSON, and ends with 1 if anything did
not hold.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

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
    """How a case went; `why` is empty for one that held, and `counts` are what it counted."""

    name: str
    tried: str
    verdict: Verdict
    seconds: float
    why: str = ""
    parent_mb: float = 0.0
    child_mb: float = 0.0
    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def line(self) -> str:
        """For a person."""
        counts = ", ".join(f"{name} {number}" for name, number in self.counts.items())
        below = "".join(f"\n    {text}" for text in (counts, self.why) if text)
        return f"{self.verdict:<8}{self.seconds:6.1f} s  {self.name:<38} {self.tried}{below}"


def program_command(program: Path | None = None) -> tuple[str, ...]:
    """The program given, else this checkout's own, without the current directory among its modules."""
    if program is not None:
        return (str(program.absolute()),)
    installed = Path(sys.executable).with_name("fieldray")
    return (str(installed),) if installed.exists() else (sys.executable, "-P", "-m", "fieldray")


def try_case(case: Case, program: Sequence[str]) -> Result:
    """Run one case in a world of its own."""
    began_s = time.monotonic()
    world = World(program, limit_s=case.limit_s)

    def result(verdict: Verdict, why: str = "") -> Result:
        seconds = round(time.monotonic() - began_s, 2)
        peaks = {f"{name}_mb": round(value, 1) for name, value in world.peak_mb.items()}
        said = {"verdict": verdict, "seconds": seconds, "why": why, "counts": dict(world.counts)}
        return Result(name=case.name, tried=case.tried, **said, **peaks)  # type: ignore[arg-type]

    try:
        with world:
            case.attempt(world)
    except NotPossible as why:
        return result("skipped", str(why))
    except Exception as error:
        return result("FAILED", f"{type(error).__name__}: {tail(str(error), longest=2_000)}")
    return result("ok")


def try_all(
    cases: Iterable[Case], program: Sequence[str], *, say: Callable[[str], None], at_once: int = 2
) -> list[Result]:
    """Run cases, those that may take longest first, and say how each went as soon as it is over.

    One at a time is run in this thread, so that a case may fork.
    """
    ordered = sorted(cases, key=lambda case: -case.limit_s)
    results = []

    def note(result: Result) -> None:
        results.append(result)
        say(result.line)

    if at_once == 1:
        for case in ordered:
            note(try_case(case, program))
        return results
    with ThreadPoolExecutor(at_once, thread_name_prefix="cases") as pool:
        for future in as_completed([pool.submit(try_case, case, program) for case in ordered]):
            note(future.result())
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


def add_case_options(parser: argparse.ArgumentParser) -> None:
    """Which cases."""
    text = "only cases with this in their name; can be given more than once"
    parser.add_argument("--only", action="append", metavar="PART", help=text)
    parser.add_argument("--list", action="store_true", help="only list the cases")


def add_program_options(parser: argparse.ArgumentParser) -> None:
    """Of which program, and how many at a time."""
    parser.add_argument("--program", type=Path, help="the installed or frozen program (default: this checkout's)")
    parser.add_argument("--jobs", type=int, default=2, help="how many cases run at a time (default: 2)")


def tried(cases: Iterable[Case], options: argparse.Namespace) -> Found:
    """Try those of the cases that the options ask for, or list them."""
    chosen = [case for case in cases if not options.only or any(part in case.name for part in options.only)]
    if options.list:
        for case in chosen:
            say(f"{case.name:<38} {case.tried}")
        raise SystemExit(0)
    program, at_once = program_command(getattr(options, "program", None)), getattr(options, "jobs", 1)
    return found(try_all(chosen, program, say=say, at_once=at_once), program)


def found(results: Sequence[Result], program: Sequence[str]) -> Found:
    """All of them, counted; nothing holds where none was tried."""
    verdicts = Counter(result.verdict.lower() for result in results)
    counts = {name: verdicts[name] for name in ("ok", "failed", "skipped")}
    tally = "  ".join(f"{name} {number}" for name, number in counts.items())
    return Found(
        facts={
            "program": shutil.which(program[0]) or program[0],
            "counts": counts,
            "cases": [asdict(result) for result in results],
        },
        sentence=f"{len(results)} cases in {{seconds}}: {tally}",
        holds=bool(results) and not counts["failed"],
    )


def long_run(
    run: Callable[[argparse.Namespace], Found],
    options: Callable[[argparse.ArgumentParser], None],
    *,
    usage: str | None,
    figures: str,
    needs: Sequence[Need] = ("Linux",),
) -> int:
    """A run by hand, as its arguments say; the exit code.

    run       does it; the seed and the seconds that it took are added to the facts
    options   adds its own to `--out` and `--seed`
    usage     its text, for `--help`
    figures   the file of figures, if no other is named
    needs     what it cannot do without
    """
    parser = argparse.ArgumentParser(description=usage, formatter_class=argparse.RawDescriptionHelpFormatter)
    options(parser)
    parser.add_argument("--seed", type=int, default=1, help="the same seed makes the same run (default: 1)")
    parser.add_argument("--out", type=Path, default=Path(figures), help=f"(default: {figures})")
    asked = parser.parse_args()
    if lacking := [need for need in needs if not _is_here(need)]:
        say(f"This run needs {' and '.join(lacking)}.")
        return 2
    began_s = time.monotonic()
    found = run(asked)
    facts = {"seed": asked.seed, **found.facts, "seconds": round(time.monotonic() - began_s, 1)}
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    say(found.sentence.format(seconds=f"{facts['seconds']:.0f} s"))
    return 0 if found.holds else 1


def _is_here(need: Need) -> bool:
    if need == "Linux":
        return sys.platform == "linux"
    return compiler() is not None if need == "a C compiler" else find_spec("atheris") is not None
