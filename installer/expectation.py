"""Compare the output of a command with expected lines: no line may be unknown, and no required line may be missing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from clean_root import CommandResult

# Lines that apt and dpkg print for any package. Any other line makes a test fail.
APT_OUTPUT: Final = (
    r"\?Reading (package lists|state information)\.\.\.",
    r"\?Building dependency tree\.\.\.",
    r"\?Note, selecting .*",
    r"\?(The following .*|Suggested packages:|Recommended packages:|  .*|After this operation, .*|Need to get .*)",
    r"\?\d+ (upgraded|newly installed), .*",
    r"\?Get:\d+ .*",
    r"\?Selecting previously unselected package .*",
    r"\?\(Reading database .*",
    r"\?(Preparing to unpack|Unpacking|Setting up|Removing|Purging configuration files for) .*",
    r"\?Processing triggers for .*",
    r"\?No schema files found: doing nothing\.",
    r"\?debconf: delaying package configuration, since apt-utils is not installed",
    r"\?Use 'apt autoremove' to remove (it|them)\.",
)


class UnexpectedResult(AssertionError):
    """The error for an output or a result that a test does not expect."""


def verify(done: CommandResult, *, code: int = 0, output: Sequence[str] = (), errors: Sequence[str] = ()) -> None:
    r"""Compare exit code and output of a command with the expected code and with patterns for whole lines.

    Raises UnexpectedResult for a line that fits no pattern of `output` or `errors`, and for a pattern that no line
    fits. A pattern that begins with `\?` may be without a line.
    """
    problems = [] if done.code == code else [f"ended with {done.code}, not {code}"]
    problems += _compare("output", done.output, output) + _compare("errors", done.errors, errors)
    if problems:
        raise UnexpectedResult("\n  ".join([done.command, *problems]))


def _compare(stream: str, lines: Sequence[str], patterns: Sequence[str]) -> list[str]:
    unknown = [line for line in lines if line and not any(_fits(line, pattern) for pattern in patterns)]
    wanted = [pattern for pattern in patterns if not pattern.startswith(r"\?")]
    missing = [pattern for pattern in wanted if not any(_fits(line, pattern) for line in lines)]
    return [f"{stream}, not expected: {line}" for line in unknown] + [f"{stream}, missing: {text}" for text in missing]


def _fits(line: str, pattern: str) -> bool:
    return re.fullmatch(pattern.removeprefix(r"\?"), line) is not None
