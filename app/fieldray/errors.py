"""The exception classes of the program, as a tree.

FieldrayError            carries a `Reason`, whose text can be shown to a person
  EnvironmentProblem     a problem of the computer: disk, driver, missing library; the input may work elsewhere
    StorageProblem       results, settings or exports cannot be read or written
    BackendProblem       no backend can run the model now
    WorkerProblem        no image can be read now
  InputProblem           a problem of an input; trying again gives the same problem
    UnsuitableImage      the file was read, but it is not an image to assess (ends as *refused*)
    Unreadable           the file could not be read (ends as *failed*)
    PackProblem          a model pack cannot be loaded
      PackNotTrusted     a person has not confirmed the pack's signing key
      PackNotChosen      a person has not chosen the pack for the images
    UsageProblem         the command line or a recipe asks for something impossible

Any other exception that is not caught is a bug, and is reported as `internal`. Low-level code raises ValueError and
TypeError. Code at the boundary to files converts both once, by `raise ... from`.
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
    """The computer lacks a resource or refuses an operation."""


_SHORTAGES: Final = frozenset({errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EAGAIN})
_NOT_MAPPED: Final = ("failed to map segment", "cannot allocate memory", "out of memory")  # texts of the dynamic loader
_NO_THREAD: Final = "can't start new thread"  # message of Python's RuntimeError, which has no subclass


def resource_problem(error: BaseException) -> EnvironmentProblem | None:
    """Return the exception to raise if the system lacked memory, threads or open files; None for any other error."""
    cause: BaseException | None = error
    while cause is not None:  # a library may wrap a MemoryError in another error
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


def reason_of_unexpected_error(error: Exception) -> Reason:
    """Return the reason to show for an unexpected exception: a fault of the program, or a shortage of the system."""
    problem = resource_problem(error)
    return problem.reason if problem else reason("internal", detail=type(error).__name__)


class StorageProblem(EnvironmentProblem):
    """Results, settings or exports cannot be read or written."""


class BackendProblem(EnvironmentProblem):
    """A backend cannot be started, or has stopped."""


class WorkerProblem(EnvironmentProblem):
    """The processes that read images cannot be started."""


class InputProblem(FieldrayError):
    """An input of the program cannot be used: a file, a pack, or the values of a request."""


class UnsuitableImage(InputProblem):
    """A file was read, but is not a usable frontal chest X-ray."""


class Unreadable(InputProblem):
    """A file could not be read as an image."""


class PackProblem(InputProblem):
    """A model pack cannot be loaded."""


class PackNotTrusted(PackProblem):
    """A pack is complete, but a person does not trust its key yet. `fingerprint` identifies the key."""

    def __init__(self, fingerprint: str) -> None:
        super().__init__(reason("pack_unknown_key", fingerprint=fingerprint))
        self.fingerprint = fingerprint


class PackNotChosen(PackProblem):
    """A person has not chosen the pack for the images. `choices` has a line for each available pack."""

    def __init__(self, why: Reason, choices: Sequence[str]) -> None:
        super().__init__(why)
        self.choices = tuple(choices)


class UsageProblem(InputProblem):
    """A request is impossible: the command line, a recipe or an argument is wrong."""


class Cancelled(Exception):
    """A caller no longer wants the result. The operation stops without a result."""
