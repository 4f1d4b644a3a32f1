"""Ctrl-C at moments in which Python, or a library that is being imported, makes something else of it."""

from __future__ import annotations

import argparse
import io
import signal
import threading
import weakref
from collections.abc import Callable

import pytest

from fieldray import cli
from fieldray.commands.console import Console


def perform(command: Callable[[], int]) -> tuple[int | str, str]:
    """What a command that is interrupted comes to, and what is said about it."""
    words = io.StringIO()
    console = Console(io.StringIO(), words)
    with cli._cancelled_by_signals() as signals:
        try:
            options = argparse.Namespace(command=lambda *_: command())
            return cli._perform(options, console, signals), words.getvalue()
        except KeyboardInterrupt:
            return "cancelled", words.getvalue()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_library_that_calls_an_interrupt_an_error_is_not_believed(number: signal.Signals) -> None:
    def command() -> int:
        try:
            signal.raise_signal(number)
        except KeyboardInterrupt:
            raise ImportError("a native module") from None
        return 0

    assert perform(command) == ("cancelled", "")


def test_an_interrupt_that_python_swallows_comes_again() -> None:
    class Held:
        pass

    def command() -> int:
        held = Held()
        watcher = weakref.ref(held, lambda _: signal.raise_signal(signal.SIGINT))  # nothing can be raised in there
        del held
        threading.Event().wait(30)  # until it comes again
        return 7 if watcher() is None else 8

    assert perform(command) == ("cancelled", "")


def test_an_error_without_an_interrupt_is_a_fault_of_the_program() -> None:
    def command() -> int:
        raise ImportError("a module that is missing")

    code, words = perform(command)
    assert code == 1 and "An unexpected error" in words
