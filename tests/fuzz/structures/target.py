"""Fuzz targets: a part of the program that reads data, a generator of valid and broken inputs, permitted outcomes."""

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
# Codes of reasons for unexpected errors.
_UNFORESEEN: Final = frozenset({"internal"})


class Unforeseen(AssertionError):
    """A fault that an input revealed: an unexpected error, or an accepted value that is invalid."""


@dataclass(frozen=True, slots=True)
class Target:
    """A part of the program that reads data from outside its process.

    reads    the kind of data, in words for the page of figures
    make     makes an input: a valid structure, broken at a few places or none, reproducible by the random generator
    read     reads an input in its own folder, and may return an outcome other than `ACCEPTED`
    refuses  the exceptions other than FieldrayError that reading may raise
    share    the weight of this target among all inputs of a run
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
        """Return `ACCEPTED`, the outcome that `read` returned, or the code of a refusal. Raises all other errors."""
        came = None
        with refusals(*self.refuses) as why:
            came = self.read(data, folder)
        return why[0] if why else came or ACCEPTED


@contextmanager
def refusals(*others: type[Exception]) -> Iterator[list[str]]:
    """Permit a FieldrayError with a foreseen reason, or one of `others`. The list gets its code or type name."""
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
    """Raise Unforeseen with the text `otherwise` if an accepted value is invalid."""
    if not is_so:
        raise Unforeseen(otherwise)
