"""The exception tree.

FieldrayError                  carries a `Reason`; its text is fit to be shown
    EnvironmentProblem         the machine: disk, driver, missing library; the same input may work elsewhere
        StorageProblem         results, settings or exports cannot be read or written
        BackendProblem         no backend can run the model now
        ReaderProblem          no image can be read now
    InputProblem               what we were given; trying again gives the same
        Unusable               read well, but not something to assess (ends as *refused*)
        Unreadable             could not be read (ends as *failed*)
        PackProblem            a model pack is not loaded
            PackNotTrusted     its signing key waits for a person's yes
            PackNotChosen      nobody said whose images these are
        UsageProblem           the command line or a recipe asks for something that is not there

Anything else that reaches the top is our bug and is reported as `internal`.
Low-level code raises ValueError and TypeError; the file boundary wraps once, `from e`.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Final

from fieldray.reasons import Reason, reason


class FieldrayError(Exception):
    """Base of all errors with a reason that can be shown to a person."""

    def __init__(self, why: Reason) -> None:
        super().__init__(why.text)
        self.reason = why


class EnvironmentProblem(FieldrayError):
    """The machine lacks or refuses something."""


_SHORTAGES: Final = frozenset({errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EAGAIN})
_NOT_MAPPED: Final = ("failed to map segment", "cannot allocate memory", "out of memory")  # of the dynamic loader
_NO_THREAD: Final = "can't start new thread"  # Python says so in a RuntimeError of no class of its own


def shortage(error: BaseException) -> EnvironmentProblem | None:
    """The problem if the system refused this process memory, threads or open files: no input's fault; else None."""
    cause: BaseException | None = error
    while cause is not None:  # a library that is refused memory says so in an error of its own
        if detail := _what_is_short(cause):
            return EnvironmentProblem(reason("system_short", detail=detail))
        cause = cause.__cause__ or cause.__context__
    return None


def _what_is_short(error: BaseException) -> str | None:
    if isinstance(error, MemoryError):
        return "memory"
    if isinstance(error, ImportError) and any(part in str(error) for part in _NOT_MAPPED):
        return "memory"
    if isinstance(error, OSError) and error.errno in _SHORTAGES:
        return error.strerror or str(error)
    if isinstance(error, RuntimeError) and _NO_THREAD in str(error):
        return "threads"
    return None


def unexpected(error: Exception) -> Reason:
    """Return the reason to show for an unexpected exception: a fault of the program, or a refusal by the system."""
    problem = shortage(error)
    return problem.reason if problem else reason("internal", detail=type(error).__name__)


class StorageProblem(EnvironmentProblem):
    """Results, settings or exports cannot be read or written."""


class BackendProblem(EnvironmentProblem):
    """A backend cannot start or stopped."""


class ReaderProblem(EnvironmentProblem):
    """The processes that read images cannot be started."""


class InputProblem(FieldrayError):
    """An input cannot be used."""


class Unusable(InputProblem):
    """Read well, but not a usable frontal chest X-ray."""


class Unreadable(InputProblem):
    """Could not be read."""


class PackProblem(InputProblem):
    """A model pack is not loaded."""


class PackNotTrusted(PackProblem):
    """The pack is whole, but its key (`fingerprint`) is not trusted yet."""

    def __init__(self, fingerprint: str) -> None:
        super().__init__(reason("pack_unknown_key", fingerprint=fingerprint))
        self.fingerprint = fingerprint


class PackNotChosen(PackProblem):
    """The pack for the images was not chosen. `choices`: a line for each pack that could be named."""

    def __init__(self, why: Reason, choices: Sequence[str]) -> None:
        super().__init__(why)
        self.choices = tuple(choices)


class UsageProblem(InputProblem):
    """The request itself is wrong."""


class Cancelled(Exception):
    """The result is not wanted any more: the operation stops without a result."""
