"""What one part of the program reads, made whole first and then broken in meaning; and what may come of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fieldray.errors import FieldrayError

ACCEPTED: Final = "accepted"
Make = Callable[[random.Random], bytes]
Read = Callable[[bytes, Path], str | None]
# Reasons that say no more than that nobody thought of this.
_UNFORESEEN: Final = frozenset({"internal"})


class Unforeseen(AssertionError):
    """Something came of an input that must not: an error nobody thought of, or a value that breaks a promise."""


@dataclass(frozen=True, slots=True)
class Target:
    """One part of the program that reads what others wrote.

    reads    what it reads, in words for the page of figures
    make     an input: a whole structure, broken at a few places or none, the same for the same source of chance
    read     given an input and a folder of its own, reads it, and may give an outcome other than `ACCEPTED`
    refuses  what reading may raise beside a reason
    share    of all inputs of a run, against the shares of the others
    most_mb  how far reading may raise the peak memory of the process
    """

    name: str
    reads: str
    make: Make
    read: Read
    share: int
    refuses: tuple[type[Exception], ...] = ()
    most_mb: float = 200.0

    def outcome(self, data: bytes, folder: Path) -> str:
        """What comes of an input: `ACCEPTED`, what reading gave, or why it was refused. Raises everything else."""
        came = None
        with refusals(*self.refuses) as why:
            came = self.read(data, folder)
        return why[0] if why else came or ACCEPTED


@contextmanager
def refusals(*others: type[Exception]) -> Iterator[list[str]]:
    """What may be raised inside: a reason that somebody thought of, or one of `others`; the list holds its name."""
    why: list[str] = []
    try:
        yield why
    except FieldrayError as error:
        if error.reason.code in _UNFORESEEN:
            raise Unforeseen(error.reason.text) from error
        why.append(error.reason.code)
    except others as error:
        why.append(type(error).__name__)


def holds(is_so: object, otherwise: str) -> None:
    """Raise Unforeseen if something that was accepted breaks a promise."""
    if not is_so:
        raise Unforeseen(otherwise)
