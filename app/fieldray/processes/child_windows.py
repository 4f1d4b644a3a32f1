"""A memory cap for this process on Windows, by a job object."""

from __future__ import annotations

import ctypes
import sys
from typing import Any, Final

_JOB_OBJECT_EXTENDED_LIMIT_INFORMATION: Final = 9
_LIMIT_PROCESS_MEMORY: Final = 0x100
_LIMIT_DIE_ON_UNHANDLED_EXCEPTION: Final = 0x400
_LIMIT_KILL_ON_JOB_CLOSE: Final = 0x2000


class _BasicLimits(ctypes.Structure):
    """JOBOBJECT_BASIC_LIMIT_INFORMATION of winnt.h."""

    _fields_ = (
        ("PerProcessUserTimeLimit", ctypes.c_int64),
        ("PerJobUserTimeLimit", ctypes.c_int64),
        ("LimitFlags", ctypes.c_uint32),
        ("MinimumWorkingSetSize", ctypes.c_size_t),
        ("MaximumWorkingSetSize", ctypes.c_size_t),
        ("ActiveProcessLimit", ctypes.c_uint32),
        ("Affinity", ctypes.c_size_t),
        ("PriorityClass", ctypes.c_uint32),
        ("SchedulingClass", ctypes.c_uint32),
    )


class _ExtendedLimits(ctypes.Structure):
    """JOBOBJECT_EXTENDED_LIMIT_INFORMATION of winnt.h."""

    _fields_ = (
        ("BasicLimitInformation", _BasicLimits),
        ("IoInfo", ctypes.c_uint64 * 6),
        ("ProcessMemoryLimit", ctypes.c_size_t),
        ("JobMemoryLimit", ctypes.c_size_t),
        ("PeakProcessMemoryUsed", ctypes.c_size_t),
        ("PeakJobMemoryUsed", ctypes.c_size_t),
    )


def limits(limit_mb: int) -> _ExtendedLimits:
    """The job limits for a cap of `limit_mb` megabytes; the process also ends with the job's last handle."""
    wanted = _ExtendedLimits()
    flags = _LIMIT_PROCESS_MEMORY | _LIMIT_DIE_ON_UNHANDLED_EXCEPTION | _LIMIT_KILL_ON_JOB_CLOSE
    wanted.BasicLimitInformation.LimitFlags = flags
    wanted.ProcessMemoryLimit = limit_mb * 2**20
    return wanted


def limit_memory(limit_mb: int) -> None:
    """Put this process into a job with a memory cap. Raises OSError where the system refuses."""
    if sys.platform != "win32":
        raise OSError("job objects exist on Windows only")
    _assign(limits(limit_mb))


def _assign(wanted: _ExtendedLimits) -> None:
    kernel: Any = ctypes.WinDLL("kernel32", use_last_error=True)  # type: ignore[attr-defined]
    kernel.CreateJobObjectW.restype = ctypes.c_void_p
    kernel.GetCurrentProcess.restype = ctypes.c_void_p
    job = ctypes.c_void_p(kernel.CreateJobObjectW(None, None))
    information = (job, _JOB_OBJECT_EXTENDED_LIMIT_INFORMATION, ctypes.byref(wanted), ctypes.sizeof(wanted))
    process = ctypes.c_void_p(kernel.GetCurrentProcess())
    if not (kernel.SetInformationJobObject(*information) and kernel.AssignProcessToJobObject(job, process)):
        raise ctypes.WinError(ctypes.get_last_error())  # type: ignore[attr-defined]
