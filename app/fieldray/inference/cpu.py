"""The CPU as a backend: always there."""

from __future__ import annotations

from fieldray.backends import CPU
from fieldray.inference.backend import BackendKind, BackendOptions
from fieldray.inference.runtime import RUNTIMES, model_process
from fieldray.inference.worker import BUDGET_S, WorkerBackend
from fieldray.processes.child import Child
from fieldray.processes.priority import Priority


def cpu_kind(
    *,
    runtimes: tuple[str, ...] = RUNTIMES,
    cores: int | None = None,
    budget_s: float | None = BUDGET_S,
    priority: Priority = "normal",
    started: Child | None = None,
) -> BackendKind:
    """Runs the pack's CPU file in a child process; see `worker.WorkerBackend` for the parameters.

    Parameters
    ----------
    started
        A process of `runtime.SERVICE` that already runs, for the first backend.
    """
    waiting = [started] if started else []

    def open_one() -> WorkerBackend:
        return WorkerBackend(
            CPU,
            runtimes=runtimes,
            cores=cores,
            budget_s=budget_s,
            priority=priority,
            child=lambda: waiting.pop() if waiting else model_process(),
        )

    return BackendKind(entry=CPU, open=open_one)


def system_kind(options: BackendOptions) -> BackendKind:
    """As the program runs it."""
    return cpu_kind(
        cores=options.cores,
        budget_s=BUDGET_S if options.is_tuned else None,
        priority=options.priority,
        started=options.started,
    )
