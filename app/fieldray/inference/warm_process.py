"""A child process that has imported the runtime and waits for a device, so that a device plugged in runs sooner."""

from __future__ import annotations

import logging
import threading
from typing import Final

from fieldray.errors import FieldrayError
from fieldray.inference.messages import warm_message
from fieldray.inference.runtime import model_process
from fieldray.processes.child import Child, ChildDied, ChildTimeout

log = logging.getLogger(__name__)

_TIMEOUT_S: Final = 30.0


class WarmProcess:
    """At most one child in waiting. Thread-safe."""

    def __init__(self, runtimes: tuple[str, ...]) -> None:
        self._runtimes = runtimes
        self._lock = threading.Lock()
        self._child: Child | None = None
        self._starting: Child | None = None
        self._is_closed = False

    def prepare(self) -> None:
        """Have one in waiting; takes as long as a process takes to start."""
        with self._lock:
            if self._is_closed or (self._child and self._child.is_running):
                return
            child = self._starting = model_process()
            try:
                child.start()
                child.call(warm_message(self._runtimes), timeout_s=_TIMEOUT_S)
            except (OSError, ChildDied, ChildTimeout, FieldrayError) as error:
                log.info("no process in waiting: %s", error)
                child.close()
            else:
                self._child = child
            finally:
                self._starting = None

    def take(self) -> Child:
        """The one in waiting, or one that is still to be started."""
        with self._lock:
            child, self._child = self._child, None
        if child and not child.is_running:
            child.close()
            child = None
        return child or model_process()

    def close(self) -> None:
        """End the one in waiting, also one that is just starting; there will be no other."""
        self._is_closed = True
        starting = self._starting
        if starting:
            starting.kill()
        with self._lock:
            if self._child:
                self._child.close()
                self._child = None
