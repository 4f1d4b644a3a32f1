"""What a process gets of the CPU: the cores it may use, and its priority against others."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

Priority = Literal["lowered", "normal", "raised"]

# Linux shares a core by niceness, about a quarter more for each step: beside a busy program at the usual 0, five
# steps down leave about a quarter of a core, and ten steps up are a share of nine in ten
_STEPS: Final = {"lowered": 5, "normal": 0, "raised": -10}
_LOWEST, _HIGHEST = -20, 19


def usable_cores() -> int:
    """Cores this process may use, 1 or more."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def give_priority(pid: int | None, priority: Priority) -> bool:
    """Change the priority of a process and all its threads; whether that was permitted. None is no process.

    On Windows users may change their own processes; Linux and macOS let only an administrator raise one. Nothing is
    raised where a person has lowered this program itself (`nice fieldray ...`).
    """
    if pid is None or priority == "normal" or (priority == "raised" and _is_lowered()):
        return True
    try:
        if sys.platform == "win32":
            _set_class(pid, priority)
        else:
            _set_niceness(pid, _STEPS[priority])
    except PermissionError:
        return False
    except (ProcessLookupError, FileNotFoundError):
        return True  # it has just ended, which its user will notice
    return True


@functools.cache
def step_back() -> None:
    """From now on leave the CPU to what somebody is waiting for; at most once, for it cannot be taken back."""
    give_priority(os.getpid(), "lowered")


def niceness(now: int, steps: int) -> int:
    """`now` changed by `steps`, within what there is (-20..19)."""
    return min(max(now + steps, _LOWEST), _HIGHEST)


def _is_lowered() -> bool:
    return sys.platform != "win32" and os.getpriority(os.PRIO_PROCESS, 0) > 0


def _set_class(pid: int, priority: Priority) -> None:
    import psutil  # not before it is needed: decoders, which step back, start faster without it

    name = "ABOVE_NORMAL_PRIORITY_CLASS" if priority == "raised" else "BELOW_NORMAL_PRIORITY_CLASS"
    try:
        psutil.Process(pid).nice(getattr(psutil, name))
    except psutil.AccessDenied as error:
        raise PermissionError from error
    except psutil.NoSuchProcess as error:
        raise ProcessLookupError from error


def _set_niceness(pid: int, steps: int) -> None:
    wanted = niceness(os.getpriority(os.PRIO_PROCESS, pid), steps)
    for thread in _threads(pid):
        os.setpriority(os.PRIO_PROCESS, thread, wanted)


def _threads(pid: int) -> Iterator[int]:
    """On Linux niceness belongs to each thread; threads started later take that of the thread that starts them."""
    if sys.platform == "linux":
        yield from (int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir())
    else:
        yield pid
