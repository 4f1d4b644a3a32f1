"""How much a running process matters to the system against others."""

from __future__ import annotations

import os
from typing import Final, Literal

import psutil

Priority = Literal["lowered", "normal", "raised"]

# Linux shares a core by niceness, about a quarter more for each step: ten steps are a share of nine in ten
_STEPS: Final = {"lowered": 5, "normal": 0, "raised": -10}
_LOWEST, _HIGHEST = -20, 19


def give_priority(pid: int | None, priority: Priority) -> bool:
    """Change a process and every thread it has; whether that was permitted. None is no process: nothing to do."""
    if pid is None or priority == "normal":
        return True
    try:
        if psutil.WINDOWS:
            _set_class(pid, priority)
        else:
            _set_niceness(pid, _STEPS[priority])
    except (psutil.AccessDenied, PermissionError):
        return False
    return True


def niceness(now: int, steps: int) -> int:
    """`now` changed by `steps`, within what there is (-20..19)."""
    return min(max(now + steps, _LOWEST), _HIGHEST)


def _set_class(pid: int, priority: Priority) -> None:
    name = "ABOVE_NORMAL_PRIORITY_CLASS" if priority == "raised" else "BELOW_NORMAL_PRIORITY_CLASS"
    psutil.Process(pid).nice(getattr(psutil, name))


def _set_niceness(pid: int, steps: int) -> None:
    """On Linux niceness belongs to each thread; threads started later take that of the thread that starts them."""
    process = psutil.Process(pid)
    wanted = niceness(int(process.nice()), steps)
    if psutil.LINUX:
        for thread in process.threads():
            os.setpriority(os.PRIO_PROCESS, thread.id, wanted)
    else:
        process.nice(wanted)
