"""What a process and all that it started cost: processor time and memory."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Final

import psutil

_POLL_S: Final = 0.05
_MEGABYTE: Final = 2**20


def cpu_s(pid: int) -> float | None:
    """Processor seconds of a process and its children, those that have ended too.

    Falls short of a child that was killed and not waited for. None where the system does not keep the times of ended
    children (all but Linux).
    """
    if sys.platform != "linux":
        return None
    total = 0.0
    for process in tree(pid):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def tree(pid: int) -> list[psutil.Process]:
    """The process and those below it that run; none if it has ended."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


class MemoryWatch(threading.Thread):
    """Looks at a process and its children until told to stop. Looking costs time: not for what is being timed.

    pss_mb  the most at any moment, what processes share counted once; where the system does not tell, as rss_mb
    rss_mb  the most at any moment, what processes share counted for each of them
    """

    def __init__(self, pid: int) -> None:
        super().__init__(name="memory-watch", daemon=True)
        self._pid = pid
        self._over = threading.Event()
        self.pss_mb = self.rss_mb = 0.0
        self.processes = 0

    def run(self) -> None:
        """Refresh and again, and once at the end."""
        while not self._over.wait(_POLL_S):
            self._look()
        self._look()

    def stop(self) -> None:
        """Look no more; the figures are final."""
        self._over.set()
        self.join()

    def _look(self) -> None:
        pss = rss = number = 0
        for process in tree(self._pid):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                memory = process.memory_full_info()
                pss, rss, number = pss + getattr(memory, "pss", memory.rss), rss + memory.rss, number + 1
        self.pss_mb, self.rss_mb = max(self.pss_mb, pss / _MEGABYTE), max(self.rss_mb, rss / _MEGABYTE)
        self.processes = max(self.processes, number)


@contextlib.contextmanager
def watched(pid: int) -> Iterator[MemoryWatch]:
    """Watch while the block runs."""
    watch = MemoryWatch(pid)
    watch.start()
    try:
        yield watch
    finally:
        watch.stop()
