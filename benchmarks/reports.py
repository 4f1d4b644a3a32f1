"""Write the reports of benchmarks as JSON and as Markdown pages, with the goals and whether they are met."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from benchmarks.processes import CHECKOUT
from fieldray.bench import benchmark_case
from fieldray.bench.benchmark_case import BenchmarkReport, report_header
from fieldray.bench.machine import collect_machine_facts

PAGES: Final = CHECKOUT / "build" / "benchmarks"
TEMPLATES: Final = CHECKOUT / "benchmarks" / "templates"


class PageRefused(Exception):
    """The error if a page cannot be written. The message gives the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A goal of a benchmark: the figure `name` must be at least `goal`, or at most `goal` if `is_most`.

    `measured` is the measured figure; None if not measured.
    """

    name: str
    measured: float | None
    goal: float
    is_most: bool = False
    unit: str = "x"

    @property
    def is_met(self) -> bool | None:
        """Whether the goal is met; None if the figure was not measured."""
        if self.measured is None:
            return None
        return self.measured <= self.goal if self.is_most else self.measured >= self.goal

    @property
    def sentence(self) -> str:
        """The goal, the measured figure, and whether the goal is met, as a line of a list."""
        verdict = {None: "not measured", True: "met", False: "MISSED"}[self.is_met]
        unit = f" {self.unit}" if self.unit else ""
        found = "" if self.measured is None else f"{self.measured:.4g}{unit}, "
        return f"{self.name}: {found}{'at most' if self.is_most else 'at least'} {self.goal:g}{unit}: {verdict}"


def max_goal(name: str, measured: float | None, goal: float, *, unit: str) -> Goal:
    """Return the goal that the figure `name` is at most `goal`."""
    return Goal(name=name, measured=measured, goal=goal, is_most=True, unit=unit)


def write_report(report: BenchmarkReport, folder: Path) -> tuple[Path, ...]:
    """Write a report to the files KIND.json and KIND.md in a folder. Returns the paths.

    KIND is the kind of the report. Raises UsageProblem, StorageProblem, OSError.
    """
    path = benchmark_case.write_report(report, folder)
    return path, _written(path.with_suffix(".md"), report, report_header())


# ---- pages of docs/benchmarks in Markdown (format: docs/benchmarks/README.md)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkPage:
    """A page to write: its path, and the values of its front matter.

    `paths` are the measured source files, relative to the root of the checkout.
    """

    path: Path
    commit: str
    command: str
    paths: tuple[str, ...]


def plan_page(
    subject: str, *, command: str, paths: Sequence[str], folder: Path = PAGES, root: Path = CHECKOUT
) -> BenchmarkPage:
    """Check, before a measurement, that the page of the measurement can be written afterwards. Returns the page.

    Raises
    ------
    PageRefused
        If the measured source files have uncommitted changes, or if there is no Git repository.
    """
    if changed := _git(root, "status", "--porcelain", "--", *paths):
        raise PageRefused(f"commit these changes first, a page names the commit it measured:\n{changed}")
    commit = _git(root, "rev-parse", "--short=12", "HEAD")
    return BenchmarkPage(path=folder / f"{subject}.md", commit=commit, command=command, paths=tuple(paths))


def write_page(report: BenchmarkReport, page: BenchmarkPage) -> Path:
    """Write a report as a page, in place of the page of an earlier measurement. Returns the path. Raises OSError."""
    page.path.parent.mkdir(parents=True, exist_ok=True)
    facts = {
        "title": report.title.removeprefix("Fieldray: ").capitalize(),
        "date": datetime.now(UTC).date().isoformat(),
        "commit": f"'{page.commit}'",  # YAML would read digits without quotes as a number
        "machine": machine_line(),
        "command": page.command,
    }
    return _written(page.path, report, facts, page.paths)


def _written(path: Path, report: BenchmarkReport, facts: Mapping[str, Any], paths: Sequence[str] = ()) -> Path:
    """Write the blocks of a report as Markdown to `path`. Returns the path.

    If `paths` are given, `facts` become the front matter.
    """
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        autoescape=False, keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters["plain"] = lambda text: escape(str(text), quote=False)
    text = environment.get_template("page.md").render(report=report, facts=facts, paths=paths)
    path.write_text(text, encoding="utf-8")
    return path


def commit_of(root: Path = CHECKOUT) -> str:
    """Return the hash of the checked-out commit, with a + if files have uncommitted changes; "" without Git."""
    try:
        changed = _git(root, "status", "--porcelain", "--untracked-files=no")
        return _git(root, "rev-parse", "--short=12", "HEAD") + ("+" if changed else "")
    except PageRefused:
        return ""


def machine_line() -> str:
    """Return a line that describes this computer: processor, cores, memory and operating system."""
    machine = collect_machine_facts()
    name = machine.processor.replace(":", " ") or "an unknown processor"
    return f"{machine.usable_threads} threads of {name}, {round(machine.memory_mb / 1024)} GB, {machine.system}"


def _git(root: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise PageRefused(f"a page needs the Git repository of the checkout: {error}") from error
    return done.stdout.strip()
