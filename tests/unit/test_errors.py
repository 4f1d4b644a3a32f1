"""Errors of the operating system and of libraries that mean a shortage of memory, threads or files."""

from __future__ import annotations

import errno

import pytest

from fieldray.errors import reason_of_unexpected_error, resource_problem


def chained(cause: Exception, *, is_explicit: bool) -> Exception:
    """An ImportError raised while `cause` was handled."""
    try:
        try:
            raise cause
        except type(cause):
            raise ImportError("Error importing numpy") from (cause if is_explicit else None)
    except ImportError as error:
        if not is_explicit:
            error.__context__ = cause
        return error


@pytest.mark.parametrize(
    ("error", "detail"),
    [
        (MemoryError(), "memory"),
        (ImportError("_rust.abi3.so: failed to map segment from shared object"), "memory"),
        (ImportError("libm.so: cannot allocate memory in static TLS block"), "memory"),
        (RuntimeError("can't start new thread"), "threads"),
        (OSError(errno.EMFILE, "Too many open files"), "Too many open files"),
        (chained(MemoryError(), is_explicit=True), "memory"),
        (chained(ImportError("x.so: failed to map segment from shared object"), is_explicit=False), "memory"),
    ],
)
def test_a_shortage_of_the_system_is_recognised(error: Exception, detail: str) -> None:
    found = resource_problem(error)
    assert found is not None and found.reason.parameters == (("detail", detail),)
    assert reason_of_unexpected_error(error).code == "system_short"


@pytest.mark.parametrize("error", [ValueError("memory"), ImportError("No module named 'x'"), OSError(errno.ENOENT, "")])
def test_other_errors_are_no_shortage(error: Exception) -> None:
    assert resource_problem(error) is None
    assert reason_of_unexpected_error(error).code == "internal"
