"""The kernel refuses internet sockets to this process, its native code and all it starts: a seccomp filter.

What Python's audit hook cannot see (a codec, the runtime, Qt, a library of the Edge TPU) is held by this. Unix sockets
(the screen, D-Bus) and netlink (which devices are plugged in) stay inside the computer and stay allowed. Nor may this
process take an open socket out of another one of the same user, or change what that one does.

Source: Linux Documentation/userspace-api/seccomp_filter.rst; linux/filter.h, linux/seccomp.h, linux/audit.h.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Sequence
from typing import Final

_PR_SET_NO_NEW_PRIVS: Final = 38
_SET_MODE_FILTER: Final = 1
_FLAG_ALL_THREADS: Final = 1
_FLAG_SPEC_ALLOW: Final = 4  # else older kernels slow the whole process down against a danger that is not ours
_ALLOW: Final = 0x7FFF_0000
_ERRNO: Final = 0x0005_0000
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06  # BPF: load a word, jump if equal, jump if >=, return
_NUMBER_AT, _MACHINE_AT, _FIRST_ARGUMENT_AT = 0, 4, 16  # offsets in struct seccomp_data, little-endian
_FOREIGN_CALLS: Final = 0x4000_0000  # x32 on x86-64 numbers its system calls from here
_IO_URING_SETUP: Final = 425  # could open sockets without a system call of its own
_PIDFD_GETFD: Final = 438  # a copy of a descriptor of another process
_AF_UNIX, _AF_NETLINK = 1, 16
# machine: (its AUDIT_ARCH, the numbers of the system calls socket, seccomp, ptrace and process_vm_writev)
_MACHINES: Final = {"x86_64": (0xC000_003E, 41, 317, 101, 311), "aarch64": (0xC000_00B7, 198, 277, 117, 271)}


class _Program(ctypes.Structure):
    """struct sock_fprog of linux/filter.h."""

    _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def filter_code(architecture: int, socket_call: int, calls_on_others: Sequence[int] = ()) -> bytes:
    """The filter as BPF instructions of 8 bytes (code, jump if true, jump if false, operand).

    calls_on_others    system calls by which a process gets at what another one has
    """
    refused = (_PIDFD_GETFD, *calls_on_others)
    count = len(refused)
    steps = (
        (_LOAD, 0, 0, _MACHINE_AT),
        (_EQUAL, 0, 7 + count, architecture),  # calls in another machine's numbering: refused
        (_LOAD, 0, 0, _NUMBER_AT),
        (_AT_LEAST, 5 + count, 0, _FOREIGN_CALLS),
        (_EQUAL, 5 + count, 0, _IO_URING_SETUP),
        *((_EQUAL, 3 + count - at, 0, call) for at, call in enumerate(refused)),
        (_EQUAL, 0, 5, socket_call),
        (_LOAD, 0, 0, _FIRST_ARGUMENT_AT),
        (_EQUAL, 3, 0, _AF_UNIX),
        (_EQUAL, 2, 0, _AF_NETLINK),
        (_RETURN, 0, 0, _ERRNO | errno.EACCES),
        (_RETURN, 0, 0, _ERRNO | errno.ENOSYS),
        (_RETURN, 0, 0, _ALLOW),
    )
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def forbid_internet_sockets() -> bool:
    """Install the filter for all threads of this process and all it starts; False where the kernel has none."""
    machine = _MACHINES.get(os.uname().machine)
    if machine is None or ctypes.sizeof(ctypes.c_void_p) != 8:
        return False
    architecture, socket_call, seccomp_call, *calls_on_others = machine
    code = filter_code(architecture, socket_call, calls_on_others)
    program = _Program(len(code) // 8, code)
    system = ctypes.CDLL(None)
    if system.prctl(_PR_SET_NO_NEW_PRIVS, *(ctypes.c_ulong(value) for value in (1, 0, 0, 0))):
        return False
    return any(
        system.syscall(
            ctypes.c_long(seccomp_call), ctypes.c_ulong(_SET_MODE_FILTER), ctypes.c_ulong(flags), ctypes.byref(program)
        )
        == 0
        for flags in (_FLAG_ALL_THREADS | _FLAG_SPEC_ALLOW, _FLAG_ALL_THREADS, 0)
    )
