"""The CPU as a backend: always there."""

from __future__ import annotations

from functools import partial

from fieldray.backends import CPU
from fieldray.inference.backend import BackendKind, BackendOptions
from fieldray.inference.worker import WorkerBackend
from fieldray.processes.priority import Priority


def cpu_kind(*, threads: int | None = None, priority: Priority = "normal") -> BackendKind:
    """Runs the pack's CPU file in a child process; see `worker.WorkerBackend` for the parameters."""
    return BackendKind(entry=CPU, open=partial(WorkerBackend, CPU, threads=threads, priority=priority))


def system_kind(options: BackendOptions) -> BackendKind:
    """As the program runs it: by what the options name, else in a process of its own."""
    return options.cpu or cpu_kind(threads=options.threads, priority=options.priority)
