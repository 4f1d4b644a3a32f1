"""A deadline on one call after another, by one thread: a thread per call would cost more than a small network."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

_TICK_S: Final = 0.05
_IDLE_TICKS: Final = 40


class Deadline:
    """Calls `expire` once, from its thread, if `end` comes later than `begin` allowed; up to 0.05 s late.

    After `end` has returned, `expire` is not called for what `begin` began. The thread starts with the first `begin`
    and ends with `close`; while there is nothing to wait for, it sleeps.
    """

    def __init__(self, expire: Callable[[], None], *, name: str, idle_ticks: int = _IDLE_TICKS) -> None:
        self._expire = expire
        self._changed = threading.Condition()  # an RLock: `expire` may end things that call `close`
        self._idle_ticks = idle_ticks
        self._due_s: float | None = None
        self._is_asleep = False
        self._is_closed = False
        self._thread = threading.Thread(target=self._watch, name=name, daemon=True)

    def begin(self, timeout_s: float) -> None:
        """A call begins now."""
        with self._changed:
            self._due_s = time.monotonic() + timeout_s
            if self._is_asleep:
                self._changed.notify()
        if self._thread.ident is None:
            self._thread.start()

    def end(self) -> None:
        """It is over."""
        with self._changed:
            self._due_s = None

    def close(self) -> None:
        """End the thread; from the thread itself, only let it end."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _watch(self) -> None:
        idle_ticks = 0
        with self._changed:
            while not self._is_closed:
                self._is_asleep = idle_ticks >= self._idle_ticks
                self._changed.wait(None if self._is_asleep else _TICK_S)
                idle_ticks = idle_ticks + 1 if self._due_s is None and not self._is_asleep else 0
                if self._due_s is not None and time.monotonic() >= self._due_s:
                    self._due_s = None
                    self._expire()
