"""Start child processes of benchmarks, and measure CPU time and memory of a process with all its child processes."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from unittest.mock import patch

import psutil

import fieldray
from fieldray.paths import python_command

_POLL_S: Final = 0.05
_MEGABYTE: Final = 2**20
CHECKOUT: Final = Path(__file__).resolve().parent.parent
_PROGRAM: Final = Path(fieldray.__file__).resolve().parent.parent


@contextlib.contextmanager
def temporary_home() -> Iterator[Path]:
    """Use a new, temporary user data folder (`paths.data_folder`) during the block, and yield its path.

    The user's data folder is not changed.
    """
    with (
        tempfile.TemporaryDirectory(prefix="fieldray-bench-") as folder,
        patch.dict(os.environ, FIELDRAY_HOME=str(Path(folder) / "home")),
    ):
        yield Path(folder)


def child_command(service: str) -> list[str]:
    """Return the command that starts a child process which answers messages with a function of the benchmarks.

    `service` is the function as "module:function".
    """
    return python_command("benchmarks.child_main", service, folders=(CHECKOUT, _PROGRAM))


def toolchain_command(service: str) -> list[str]:
    """Return the command of `child_command` for a function that uses TensorFlow or other training libraries."""
    return python_command("benchmarks.child_main", service, "toolchain", folders=(CHECKOUT, _PROGRAM))


def cpu_s(pid: int) -> float | None:
    """Return the CPU seconds of a process and its child processes, including those that have ended.

    A child process that was killed and not waited for is not included. None if the operating system does not report
    times of ended child processes (only Linux does).
    """
    if sys.platform != "linux":
        return None
    total = 0.0
    for process in process_tree(pid):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def load_average() -> str:
    """Return the load average of the last minute as text: the mean number of running or waiting processes.

    "" if unknown.
    """
    return f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"


def process_tree(pid: int) -> list[psutil.Process]:
    """Return a process and all of its running child processes; empty if the process has ended."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


class MemoryWatch(threading.Thread):
    """Measures the memory of a process and its child processes repeatedly until `stop`. This slows the process down.

    Attributes
    ----------
    pss_mb
        Peak memory in megabytes, with shared pages counted once; equal to `rss_mb` if the system does not report this.
    rss_mb
        Peak memory in megabytes, with shared pages counted for each process.
    processes
        The largest number of processes at one time.
    """

    def __init__(self, pid: int) -> None:
        super().__init__(name="memory-watch", daemon=True)
        self._pid = pid
        self._over = threading.Event()
        self.pss_mb = self.rss_mb = 0.0
        self.processes = 0

    def run(self) -> None:
        """Measure the memory repeatedly until `stop` is called, and once more at the end."""
        while not self._over.wait(_POLL_S):
            self._sample()
        self._sample()

    def stop(self) -> None:
        """Stop measuring. Afterwards, the attributes do not change."""
        self._over.set()
        self.join()

    def _sample(self) -> None:
        pss = rss = number = 0
        for process in process_tree(self._pid):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                memory = process.memory_full_info()
                pss, rss, number = pss + getattr(memory, "pss", memory.rss), rss + memory.rss, number + 1
        self.pss_mb, self.rss_mb = max(self.pss_mb, pss / _MEGABYTE), max(self.rss_mb, rss / _MEGABYTE)
        self.processes = max(self.processes, number)


@contextlib.contextmanager
def watch_memory(pid: int) -> Iterator[MemoryWatch]:
    """Measure the memory of the process `pid` during the block, and yield the running measurement."""
    watch = MemoryWatch(pid)
    watch.start()
    try:
        yield watch
    finally:
        watch.stop()
