"""How much a running process matters to the system against others."""

from __future__ import annotations

import os
from typing import Literal

import psutil

Priority = Literal["lowered", "normal", "raised"]

_NICE = {"lowered": 5, "normal": 0, "raised": -5}


def give_priority(pid: int | None, priority: Priority) -> bool:
    """Change a process and every thread it has; whether that was permitted. None is no process: nothing to do."""
    if pid is None or priority == "normal":
        return True
    try:
        if psutil.WINDOWS:
            _set_class(pid, priority)
        else:
            _set_nice(pid, _NICE[priority])
    except (psutil.AccessDenied, PermissionError):
        return False
    return True


def _set_class(pid: int, priority: Priority) -> None:
    name = "ABOVE_NORMAL_PRIORITY_CLASS" if priority == "raised" else "BELOW_NORMAL_PRIORITY_CLASS"
    psutil.Process(pid).nice(getattr(psutil, name))


def _set_nice(pid: int, nice: int) -> None:
    """On Linux niceness belongs to each thread; threads started later take that of the thread that starts them."""
    if psutil.LINUX:
        for thread in psutil.Process(pid).threads():
            os.setpriority(os.PRIO_PROCESS, thread.id, nice)
    else:
        psutil.Process(pid).nice(nice)
