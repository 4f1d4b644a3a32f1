"""How much a running process matters to the system against others."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

import psutil

Priority = Literal["lowered", "normal", "raised"]

# Linux shares a core by niceness, about a quarter more for each step: ten steps are a share of nine in ten
_STEPS: Final = {"lowered": 5, "normal": 0, "raised": -10}
_LOWEST, _HIGHEST = -20, 19


def give_priority(pid: int | None, priority: Priority) -> bool:
    """Change a process and every thread it has; whether that was permitted. None is no process: nothing to do.

    Windows lets anybody do this to his own processes; Linux and macOS let only an administrator raise one.
    """
    if pid is None or priority == "normal":
        return True
    try:
        if psutil.WINDOWS:
            _set_class(pid, priority)
        else:
            _set_niceness(pid, _STEPS[priority])
    except (psutil.AccessDenied, PermissionError):
        return False
    except (psutil.NoSuchProcess, ProcessLookupError, FileNotFoundError):
        return True  # it has just ended, which whoever uses it finds out by itself
    return True


def niceness(now: int, steps: int) -> int:
    """`now` changed by `steps`, within what there is (-20..19)."""
    return min(max(now + steps, _LOWEST), _HIGHEST)


def _set_class(pid: int, priority: Priority) -> None:
    name = "ABOVE_NORMAL_PRIORITY_CLASS" if priority == "raised" else "BELOW_NORMAL_PRIORITY_CLASS"
    psutil.Process(pid).nice(getattr(psutil, name))


def _set_niceness(pid: int, steps: int) -> None:
    wanted = niceness(os.getpriority(os.PRIO_PROCESS, pid), steps)
    for thread in _threads(pid):
        os.setpriority(os.PRIO_PROCESS, thread, wanted)


def _threads(pid: int) -> Iterator[int]:
    """On Linux niceness belongs to each thread; threads started later take that of the thread that starts them."""
    if psutil.LINUX:
        yield from (int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir())
    else:
        yield pid
