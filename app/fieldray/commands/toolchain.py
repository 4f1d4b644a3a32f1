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
        for line in getattr(problem, "lines", ()):
            console.print_line(line)
        raise
