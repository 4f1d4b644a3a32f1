"""Waiting in tests: for a condition, for the end of processes, or for an event of an engine."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Set
from typing import Any

import psutil

from fieldray.domain.model import BackendName
from fieldray.domain.run import BackendChanged

WAIT_S = 20.0
_LOOK_S = 0.01
_GRACE_S = 5.0


def wait_for(is_so: Callable[[], object], *, limit_s: float = 30.0) -> None:
    """Wait until `is_so()` is true. Raises AssertionError after `limit_s` seconds."""
    deadline_s = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < deadline_s, f"not so after {limit_s} s"
        time.sleep(_LOOK_S)


def running() -> set[threading.Thread | psutil.Process]:
    """Return all threads and child processes. A child that ended and was not waited for is a leak, too."""
    children: list[psutil.Process] = []
    with contextlib.suppress(ChildProcessError):
        if sys.platform == "linux":  # psutil would read the data of every process of the computer
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        children = psutil.Process().children(recursive=True)
    return {*threading.enumerate(), *children}


def left_behind(before: Set[threading.Thread | psutil.Process]) -> list[str]:
    """Return the threads and processes that were not in `before`, after a short wait for their end."""
    deadline_s = time.monotonic() + _GRACE_S
    while (left := running() - before) and time.monotonic() < deadline_s:
        time.sleep(_LOOK_S)
    return [one.name if isinstance(one, threading.Thread) else str(one) for one in left]


class Events:
    """The events of an engine. A test can wait for the first of a kind from number `after` on."""

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self._changed = threading.Condition()

    def __call__(self, event: Any) -> None:
        with self._changed:
            self.heard.append(event)
            self._changed.notify_all()

    def wait_for(self, backend: BackendName, state: str, *, after: int = 0) -> BackendChanged:
        """Wait for the event that a backend is in a state, and return it."""
        return self._first(lambda event: (event.backend, event.state) == (backend, state), after)

    def serves(self, backend: BackendName, *, after: int = 0) -> BackendChanged:
        """Wait for the event that images now run on a backend, and return it."""
        return self._first(lambda event: event.backend == backend and event.is_in_use, after)

    def states(self, backend: BackendName) -> list[str]:
        """Return all states of a backend so far."""
        return [event.state for event in self.heard if event.backend == backend]

    def _first(self, wanted: Callable[[BackendChanged], bool], after: int) -> BackendChanged:
        def found() -> BackendChanged | None:
            changes = (event for event in self.heard[after:] if isinstance(event, BackendChanged))
            return next(filter(wanted, changes), None)

        with self._changed:
            event = self._changed.wait_for(found, WAIT_S)
        assert event, f"not heard: {self.heard}"
        return event
