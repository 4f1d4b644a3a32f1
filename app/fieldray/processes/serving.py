"""The child process's side of messages: receive one message of the parent process at a time and answer it.

`child` contains the code of the parent process.
"""

from __future__ import annotations

import ctypes
import importlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, BinaryIO, Final

from fieldray.errors import FieldrayError, Unreadable
from fieldray.process_environment import shutdown_signals
from fieldray.processes.wire import Message, read_message, write_message
from fieldray.reasons import reason

log = logging.getLogger(__name__)

Handler = Callable[[Message], Message]
MEMORY_LIMIT_VARIABLE: Final = "FIELDRAY_CHILD_MEMORY_MB"
PARENT_PID_VARIABLE: Final = "FIELDRAY_CHILD_PARENT"
READY_MESSAGE: Final = Message({"ready": True})
STAGE_KEY: Final = "stage"
QUESTION_KEY: Final = "question"
_PR_SET_PDEATHSIG: Final = 1
_requests: BinaryIO | None = None
_answers: BinaryIO | None = None


def serve(service: str, *, package: str = "fieldray") -> int:
    """Answer the messages of the parent process by calling a function, until standard input closes.

    Returns the exit code.

    service  the function as `module:function`
    package  name of the package that must contain the function

    Raises SystemExit for a function of another package.
    """
    module_name, _, function_name = service.partition(":")
    if not module_name.startswith(f"{package}."):
        raise SystemExit(2)
    _end_with_parent()
    global _requests, _answers
    _requests, _answers = requests, answers = _private_streams()
    _limit_memory()
    for number in shutdown_signals():  # a terminal also signals children; these are ended by the parent instead
        if number != signal.SIGTERM:
            signal.signal(number, signal.SIG_IGN)
    handle: Handler = getattr(importlib.import_module(module_name), function_name)
    write_message(answers, READY_MESSAGE)
    while (message := read_message(requests)) is not None:
        write_message(answers, _answer(handle, message))
    return 0


def announce_stage(stage: str) -> None:
    """Report to the parent process that a stage of the work begins.

    The time limit starts again, and an error message about a lost child process names the stage. Without a parent
    process this function does nothing.
    """
    if _answers is not None:
        write_message(_answers, Message({STAGE_KEY: stage}))


def ask_parent(question: Message) -> Message:
    """Send a question to the parent process during a call, and return the answer.

    The time limit of the call is suspended until the answer arrives.

    Raises ValueError in a process without a parent process, and EOFError if the parent process has ended.
    """
    if _requests is None or _answers is None:
        raise ValueError("no parent is served")
    write_message(_answers, Message({QUESTION_KEY: question.body}, question.arrays))
    answer = read_message(_requests)
    if answer is None:
        raise EOFError("the parent is gone")
    return answer


def _answer(handle: Handler, message: Message) -> Message:
    try:
        return handle(message)
    except FieldrayError as error:
        return encode_error(error)
    except MemoryError:
        return encode_error(Unreadable(reason("memory", limit_mb=memory_limit_mb())))
    except Exception as error:
        logging.basicConfig(level=logging.INFO)
        log.exception("child service failed")
        return encode_error(FieldrayError(reason("internal", detail=f"{type(error).__name__}: {error}")))


def _private_streams() -> tuple[BinaryIO, BinaryIO]:
    """Return private input and output streams for messages.

    Afterwards, standard output is redirected to standard error, so that text printed by native code does not break
    messages.
    """
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    return requests, answers


def memory_limit_mb() -> int | None:
    """Return the limit of this process's address space in MB; None if unlimited.

    The limit is that of the parent process, or a smaller limit of the system.
    """
    own = int(os.environ.get(MEMORY_LIMIT_VARIABLE) or 0) or None
    if sys.platform == "win32":
        return own
    import resource

    limits = resource.getrlimit(resource.RLIMIT_AS)
    inherited = [limit // 2**20 for limit in limits if limit != resource.RLIM_INFINITY]
    return min([*inherited, own] if own else inherited, default=None)


def _limit_memory() -> None:
    """Apply the memory limit that the parent process set, if any.

    A smaller limit of the system or of the user's shell stays in force.
    """
    if not os.environ.get(MEMORY_LIMIT_VARIABLE):
        return
    limit_mb = memory_limit_mb()
    assert limit_mb is not None
    if sys.platform == "win32":
        _join_job(windows_job_limits(limit_mb))
    else:
        import resource

        limit = limit_mb * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _end_with_parent() -> None:
    """Arrange that this process ends when its parent process ends, even if the parent process is killed.

    The parent process passes its process id. So the system process that adopts orphans is not mistaken for the parent.
    """
    if sys.platform == "win32":  # on Windows, closing standard input ends the child
        return
    parent = int(os.environ.get(PARENT_PID_VARIABLE) or 0) or os.getppid()
    if sys.platform == "linux":
        # The kernel ends this process with its parent, even while it is stopped and no code of its own can run. The
        # signal comes when the thread that started this process ends, which is why `child.Child` starts it from a
        # thread that stays. Source: prctl(2), PR_SET_PDEATHSIG.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
    _exit_if_orphaned(parent)
    threading.Thread(target=_watch, args=(parent,), name="parent-watch", daemon=True).start()


def _watch(parent: int) -> None:
    while True:
        time.sleep(1.0)
        _exit_if_orphaned(parent)


def _exit_if_orphaned(parent: int) -> None:
    if os.getppid() != parent:
        os._exit(1)


def encode_error(error: FieldrayError) -> Message:
    """Encode an error as a message, which the receiving process turns into an exception."""
    kind, code, parameters = type(error).__name__, error.reason.code, [list(pair) for pair in error.reason.parameters]
    return Message({"raised": {"kind": kind, "code": code, "parameters": parameters}})


_JOB_OBJECT_EXTENDED_LIMIT_INFORMATION: Final = 9
_LIMIT_PROCESS_MEMORY: Final = 0x100
_LIMIT_DIE_ON_UNHANDLED_EXCEPTION: Final = 0x400
_LIMIT_KILL_ON_JOB_CLOSE: Final = 0x2000


class _BasicLimits(ctypes.Structure):
    """The structure JOBOBJECT_BASIC_LIMIT_INFORMATION of the Windows header winnt.h."""

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
    """The structure JOBOBJECT_EXTENDED_LIMIT_INFORMATION of the Windows header winnt.h."""

    _fields_ = (
        ("BasicLimitInformation", _BasicLimits),
        ("IoInfo", ctypes.c_uint64 * 6),
        ("ProcessMemoryLimit", ctypes.c_size_t),
        ("JobMemoryLimit", ctypes.c_size_t),
        ("PeakProcessMemoryUsed", ctypes.c_size_t),
        ("PeakJobMemoryUsed", ctypes.c_size_t),
    )


def windows_job_limits(limit_mb: int) -> _ExtendedLimits:
    """Return the Windows structure that limits each process of a job to `limit_mb` megabytes of memory.

    With this structure, the processes of the job also end when the last handle to the job is closed.
    """
    wanted = _ExtendedLimits()
    flags = _LIMIT_PROCESS_MEMORY | _LIMIT_DIE_ON_UNHANDLED_EXCEPTION | _LIMIT_KILL_ON_JOB_CLOSE
    wanted.BasicLimitInformation.LimitFlags = flags
    wanted.ProcessMemoryLimit = limit_mb * 2**20
    return wanted


def _join_job(wanted: _ExtendedLimits) -> None:
    """Put this process into a new Windows job with the limits `wanted`. Raises OSError if Windows refuses."""
    kernel: Any = ctypes.WinDLL("kernel32", use_last_error=True)  # type: ignore[attr-defined]
    kernel.CreateJobObjectW.restype = ctypes.c_void_p
    kernel.GetCurrentProcess.restype = ctypes.c_void_p
    job = ctypes.c_void_p(kernel.CreateJobObjectW(None, None))
    information = (job, _JOB_OBJECT_EXTENDED_LIMIT_INFORMATION, ctypes.byref(wanted), ctypes.sizeof(wanted))
    process = ctypes.c_void_p(kernel.GetCurrentProcess())
    if not (kernel.SetInformationJobObject(*information) and kernel.AssignProcessToJobObject(job, process)):
        raise ctypes.WinError(ctypes.get_last_error())  # type: ignore[attr-defined]
