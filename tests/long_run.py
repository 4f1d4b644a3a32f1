"""What runs by hand share: a page that is planned before they begin, a line at a time, and figures in a file."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.reports import Page, PageRefused, plan_page


def add_page_option(parser: argparse.ArgumentParser, subject: str) -> None:
    """Add `--page [SUBJECT]`, by default of this subject."""
    parser.add_argument(
        "--page",
        nargs="?",
        const=subject,
        metavar="SUBJECT",
        help=f"also write a page to build/benchmarks (default: {subject})",
    )


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


def write_figures(path: Path, figures: Mapping[str, object]) -> None:
    """Write figures as JSON. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def say(text: str) -> None:
    """A line, at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
