"""Runs cases, two at a time, and says of each in one line how it went."""

from __future__ import annotations

import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from attack.case import Case, NotPossible
from attack.world import World, tail

Verdict = Literal["ok", "FAILED", "skipped"]


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
    with ThreadPoolExecutor(at_once, thread_name_prefix="attack") as pool:
        for future in as_completed([pool.submit(try_case, case, program) for case in ordered]):
            results.append(future.result())
            say(results[-1].line)
    return sorted(results, key=lambda result: result.name)


def figures(results: Sequence[Result], *, seconds: float, program: Sequence[str]) -> dict[str, Any]:
    """All that was found, for build/attack.json."""
    counts = Counter(result.verdict for result in results)
    return {
        "program": shutil.which(program[0]) or program[0],
        "seconds": round(seconds, 1),
        "counts": {"ok": counts["ok"], "failed": counts["FAILED"], "skipped": counts["skipped"]},
        "cases": [asdict(result) for result in results],
    }


def exit_code(results: Sequence[Result]) -> int:
    """1 if any case failed, or none was run."""
    return 1 if not results or any(result.verdict == "FAILED" for result in results) else 0
