"""What the toolchain raises, as a command shows it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from fieldray.commands.console import Console
from fieldray.errors import UsageProblem
from fieldray.reasons import reason


@contextlib.contextmanager
def toolchain(console: Console) -> Iterator[None]:
    """What the toolchain raises as it is to be shown: a missing module by its name, all problems of a recipe.

    Raises UsageProblem.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise UsageProblem(reason("adapt_not_installed", name=error.name)) from error
    except UsageProblem as problem:
        print_all(problem, console)
        raise


def print_all(problem: UsageProblem, console: Console) -> None:
    """Print everything that is wrong with a recipe where it is more than the one thing that the error itself says."""
    lines = getattr(problem, "lines", ())
    if len(lines) > 1:
        for line in lines:
            console.print_line(line)
