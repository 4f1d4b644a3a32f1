"""Runs cases, each in its own world, and provides the command line of every long run (`make attack`, `make fuzz`...).

A long run prints a line for each finished case and writes all figures as JSON. Its exit code is 1 if any case failed.
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
    """Print a line without buffering."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


# ---- cases


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of a case. `why` is the reason of a failure or a skip; `counts` are numbers that the case counted."""

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
        """The line that a long run prints for the case."""
        counts = ", ".join(f"{name} {number}" for name, number in self.counts.items())
        below = "".join(f"\n    {text}" for text in (counts, self.why) if text)
        return f"{self.verdict:<8}{self.seconds:6.1f} s  {self.name:<38} {self.tried}{below}"


def program_command(program: Path | None = None) -> tuple[str, ...]:
    """Return the command of the given program, else of this checkout, without the current directory in its sys.path."""
    if program is not None:
        return (str(program.absolute()),)
    installed = Path(sys.executable).with_name("fieldray")
    return (str(installed),) if installed.exists() else (sys.executable, "-P", "-m", "fieldray")


def try_case(case: Case, program: Sequence[str]) -> Result:
    """Run one case in its own world."""
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
    """Run cases, those with the longest limit first, and `say` the result of each as soon as it has ended.

    With `at_once` 1 all cases run in this thread, so that a case may fork.
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
class RunResult:
    """The result of a long run: `facts` for its JSON file, and `holds` for success.

    sentence   the last line to print; `{seconds}` stands for the duration
    """

    facts: Mapping[str, Any]
    sentence: str
    holds: bool


def add_case_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that select cases."""
    text = "only cases with this in their name; can be given more than once"
    parser.add_argument("--only", action="append", metavar="PART", help=text)
    parser.add_argument("--list", action="store_true", help="only list the cases")


def add_program_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for the program to test and for the number of cases at a time."""
    parser.add_argument("--program", type=Path, help="the installed or frozen program (default: this checkout's)")
    parser.add_argument("--jobs", type=int, default=2, help="how many cases run at a time (default: 2)")


def run_selected(cases: Iterable[Case], options: argparse.Namespace) -> RunResult:
    """Run the cases that the options select, or only list them."""
    chosen = [case for case in cases if not options.only or any(part in case.name for part in options.only)]
    if options.list:
        for case in chosen:
            say(f"{case.name:<38} {case.tried}")
        raise SystemExit(0)
    program, at_once = program_command(getattr(options, "program", None)), getattr(options, "jobs", 1)
    return result_of(try_all(chosen, program, say=say, at_once=at_once), program)


def result_of(results: Sequence[Result], program: Sequence[str]) -> RunResult:
    """Count the results. A run without any case fails."""
    verdicts = Counter(result.verdict.lower() for result in results)
    counts = {name: verdicts[name] for name in ("ok", "failed", "skipped")}
    tally = "  ".join(f"{name} {number}" for name, number in counts.items())
    return RunResult(
        facts={
            "program": shutil.which(program[0]) or program[0],
            "counts": counts,
            "cases": [asdict(result) for result in results],
        },
        sentence=f"{len(results)} cases in {{seconds}}: {tally}",
        holds=bool(results) and not counts["failed"],
    )


def long_run(
    run: Callable[[argparse.Namespace], RunResult],
    options: Callable[[argparse.ArgumentParser], None],
    *,
    usage: str | None,
    figures: str,
    needs: Sequence[Need] = ("Linux",),
) -> int:
    """Perform a long run from its command line, and return the exit code.

    run       performs it; the seed and the duration are added to its facts
    options   adds options to `--out` and `--seed`
    usage     the text for `--help`
    figures   the default of `--out`, the file for the figures
    needs     requirements without which the run does not start
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
