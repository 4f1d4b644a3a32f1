"""The offline guard: this program opens no internet socket, whatever other packages are installed.

Every process of the program calls `stay_offline` before any large module is imported. From this call on

- an audit hook (PEP 578), which no code can remove, refuses network operations of Python code: sockets of every family
  but the family inside this computer (AF_UNIX), looking up names, clients of the standard library, opening a browser,
  and finding these functions by ctypes;
- on Linux, the kernel refuses internet sockets to native code, too, and to every program that the process starts;
- modules that exist to reach the network cannot be imported.

The first exception is the window of a user who works on another machine (`ssh -X`): Qt's native code must connect to
that user's screen. If DISPLAY names a screen on another machine, the kernel's filter begins only when the screen is
connected (`block_further_connections`). Until then Python code and the child processes are refused sockets as usual.
Environment variables that would lead Qt to other servers (the desktop's bus, its session) are removed, unless the
address is inside this computer.

The second exception is a process of a cluster (`fieldray_cluster`, never part of the installed program). Its Python
code may connect only to the networks that a person named (`allow_networks`), and to an object storage server by its
name (`allow_server`). While several machines train one network, the process may also connect to the processes with the
network's weights (`networks_temporarily_allowed`). Child processes that read images or run models are offline as usual.

The guard does not prevent two things. An online program of the same user can pass an open connection to this process
over a socket inside this computer. The online program can also forward messages of this process to the network.
Fieldray connects only to the screen, the desktop and the list of devices, and accepts no connection. But code that a
malicious file runs in a codec could look for an online program. To rule this out, start Fieldray as a separate user.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import struct
import sys
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from types import ModuleType
from typing import Any, Final, cast

# If `requests` is installed, pydicom imports it to download test files. The import opens a socket, because urllib3
# tests whether the machine has IPv6. The window does not need Qt's network modules.
_ABSENT: Final = ("requests", "PySide6.QtNetwork", "PySide6.QtHttpServer", "PySide6.QtWebSockets")
_UNIX: Final = 1  # AF_UNIX on every system, without importing socket
_INTERNET: Final = (2, 10, 23, 30)  # AF_INET everywhere; AF_INET6 on Linux, Windows, macOS
_WITH_SOCKET: Final = frozenset({"socket.connect", "socket.bind", "socket.sendto", "socket.sendmsg"})
_ALWAYS: Final = frozenset(
    {
        "socket.getaddrinfo",
        "socket.gethostbyname",
        "socket.gethostbyaddr",
        "socket.getnameinfo",
        "http.client.connect",
        "ftplib.connect",
        "imaplib.open",
        "nntplib.connect",
        "poplib.connect",
        "smtplib.connect",
        "telnetlib.Telnet.open",
        "webbrowser.open",
    }
)
_LIBRARIES: Final = ("ws2_32", "wsock32", "wininet", "winhttp", "libcurl")
_FUNCTIONS: Final = frozenset(
    {
        "socket",
        "connect",
        "getaddrinfo",
        "gethostbyname",
        "WSAStartup",
        "WSASocketA",
        "WSASocketW",
        "InternetOpenA",
        "InternetOpenW",
        "WinHttpOpen",
        "curl_easy_init",
    }
)
_WATCHED: Final = _ALWAYS | _WITH_SOCKET | {"socket.__new__", "urllib.Request", "ctypes.dlopen", "ctypes.dlsym"}

# X(7), DISPLAY NAMES: host:number[.screen], an IPv6 address in brackets or not; localhost:10.0 is that of ssh -X.
_REMOTE_SCREEN: Final = re.compile(
    r"(?:tcp/|inet6?/)?(?!unix:)(?:[a-z0-9_](?:[a-z0-9._-]{0,252}[a-z0-9])?|\[?[0-9a-f:.]*:[0-9a-f:.]*\]?)"
    r":[0-9]{1,5}(?:\.[0-9]{1,3})?",
    re.IGNORECASE,
)

# Variables with D-Bus addresses to which Qt, its input methods and its aids for the blind connect.
_BUSES: Final = (
    "DBUS_SESSION_BUS_ADDRESS",
    "DBUS_SYSTEM_BUS_ADDRESS",
    "DBUS_STARTER_ADDRESS",
    "AT_SPI_BUS_ADDRESS",
    "IBUS_ADDRESS",
)
_NOWHERE: Final = "unix:path=/dev/null"

_NAMED: Final = frozenset({"socket.getaddrinfo", "socket.getnameinfo"})

_is_installed = False
_awaits_screen = False
_joins_cluster = False
_reachable: tuple[tuple[int, int, int], ...] = ()  # (version of the protocol, first address, last address)
_names: frozenset[str] = frozenset()  # host names that may be looked up


class InternetRefused(PermissionError):
    """The offline guard refused a network operation of this process."""


def stay_offline(*, is_toolchain: bool = False, shows_window: bool = False, joins_cluster: bool = False) -> None:
    """Refuse the network to this process from now on; a second call changes nothing.

    is_toolchain   whether the process belongs to `fieldray_adapt`. Only Python code is then refused the network. The
                   modules for the network stay available, because TensorFlow imports `requests`. Other programs may
                   use the network, because the Edge TPU compiler may be a script that works on another machine
    shows_window   whether the process is the window, which may connect to a screen on another machine (`ssh -X`) and
                   then calls `block_further_connections`
    joins_cluster  whether the process may call `allow_networks`; before that call every network is refused. Only
                   Python code is limited to the allowed networks, and the process has no window
    """
    global _is_installed, _awaits_screen, _joins_cluster
    if _is_installed:
        return
    _is_installed = True
    _joins_cluster = joins_cluster
    sys.addaudithook(_refuse_internet)
    if is_toolchain or joins_cluster:
        return
    for name in _ABSENT:
        sys.modules[name] = cast("ModuleType", None)
    _awaits_screen = shows_window and is_display_remote(os.environ)
    if _awaits_screen:
        allow_only_display_connection(os.environ)
    else:
        _forbid_in_kernel()


def allow_networks(networks: Sequence[str]) -> None:
    """Allow this process to connect to these addresses or networks, and to accept connections from them.

    networks  numeric addresses (`10.0.0.5`) or networks (`10.0.0.0/24`)

    Raises InternetRefused in a process that was started without `joins_cluster`. Raises ValueError for host names.
    """
    global _reachable
    _reachable = tuple(dict.fromkeys((*_reachable, *_ranges(networks))))


@contextlib.contextmanager
def networks_temporarily_allowed(hosts: Sequence[str]) -> Iterator[None]:
    """Allow connections to further hosts during the block, in addition to the hosts that are allowed already.

    hosts  numeric addresses (`10.0.0.5`) or networks (`10.0.0.0/24`)

    Raises InternetRefused in a process that was started without `joins_cluster`. Raises ValueError for host names.
    """
    global _reachable
    own = set(_ranges(hosts)) - set(_reachable)
    _reachable = (*_reachable, *own)
    try:
        yield
    finally:
        _reachable = tuple(each for each in _reachable if each not in own)


def allow_server(host: str) -> None:
    """Allow connections to a server.

    host  numeric address or name; a name allows every address that the name is resolved to
    """
    global _names
    import socket

    try:
        return allow_networks((host,))
    except ValueError:
        look_up, is_first, _names = socket.getaddrinfo, not _names, _names | {host.lower()}

    def noted(*arguments: Any, **options: Any) -> Any:  # the audit hook sees the name, but not the addresses found
        found = look_up(*arguments, **options)
        allow_networks([str(each[4][0]).partition("%")[0] for each in found])
        return found

    if is_first:
        socket.getaddrinfo = noted
    return None


def _ranges(networks: Sequence[str]) -> list[tuple[int, int, int]]:
    """Return first and last address of each network. Raises InternetRefused, ValueError."""
    if _is_installed and not _joins_cluster:
        raise InternetRefused("this process of Fieldray connects to nothing")
    import ipaddress

    found = [ipaddress.ip_network(network) for network in networks]
    return [(each.version, int(each.network_address), int(each.broadcast_address)) for each in found]


def _is_reachable(host: object) -> bool:
    """Return whether `host` is a numeric address that this process may reach."""
    if not _reachable or not isinstance(host, str | bytes):
        return False
    import ipaddress

    try:
        address = ipaddress.ip_address(os.fsdecode(host))
    except ValueError:
        return False  # a host name, which is not looked up
    return any(version == address.version and first <= int(address) <= last for version, first, last in _reachable)


def allow_only_display_connection(environment: MutableMapping[str, str]) -> None:
    """Remove from environment variables every server outside this computer that Qt could contact, except the display.

    The address of the desktop's bus is always set. Without this address, Qt would start a program that asks the display
    for the address.
    """
    folder = environment.get("XDG_RUNTIME_DIR")
    environment.setdefault(_BUSES[0], f"unix:path={folder}/bus" if folder else _NOWHERE)
    for name in _BUSES:
        if not all(address.startswith("unix:") for address in environment.get(name, _NOWHERE).split(";")):
            environment[name] = _NOWHERE
    if not all(address.startswith("local/") for address in environment.get("SESSION_MANAGER", "local/").split(",")):
        del environment["SESSION_MANAGER"]


def block_further_connections() -> None:
    """Make the kernel refuse all further connections of this process.

    Call this after the window's screen is connected.
    """
    global _awaits_screen
    if _awaits_screen:
        _awaits_screen = False
        _forbid_in_kernel()


def is_display_remote(environment: Mapping[str, str]) -> bool:
    """Return whether Qt reaches its screen by a network connection: X11 with a DISPLAY that names a host.

    The screen `localhost:10.0` is reached by the network. `:0` and `unix:0` are inside this computer, and `x:` is
    invalid. Qt's other platforms, such as vnc, may not connect.
    """
    platform = environment.get("QT_QPA_PLATFORM", "").partition(":")[0]
    return platform in ("", "xcb") and _REMOTE_SCREEN.fullmatch(environment.get("DISPLAY", "")) is not None


def _refuse_internet(event: str, arguments: tuple[object, ...]) -> None:
    if (
        event in _WATCHED
        and _is_internet(event, arguments)
        and not ((_reachable or _names) and _is_permitted(event, arguments))
    ):
        raise InternetRefused(f"Fieldray connects to nothing: {event} was refused")


def _is_internet(event: str, arguments: tuple[object, ...]) -> bool:
    if event == "socket.__new__":
        return arguments[1] != _UNIX
    if event in _WITH_SOCKET:
        return getattr(arguments[0], "family", None) != _UNIX
    if event == "urllib.Request":
        return not str(arguments[0]).lower().startswith(("file:", "data:"))
    if event == "ctypes.dlopen":
        return _file_name(arguments[0]).startswith(_LIBRARIES)
    if event == "ctypes.dlsym":
        return arguments[1] in _FUNCTIONS
    return True


def _is_permitted(event: str, arguments: tuple[object, ...]) -> bool:
    """Return whether a network operation of a cluster process stays within the allowed networks.

    Opening a socket is always allowed, because a socket without a connection reaches nothing.
    """
    if event == "socket.__new__":
        return arguments[1] in _INTERNET
    if event in _WITH_SOCKET or event == "socket.getnameinfo":
        address = arguments[-1]
        return isinstance(address, tuple) and _is_reachable(address[0])
    if event == "socket.getaddrinfo" and str(arguments[0]).lower() in _names:
        return True
    return event in _NAMED and _is_reachable(arguments[0])


def _file_name(library: object) -> str:
    name = os.fsdecode(library) if isinstance(library, str | bytes) else ""
    return name.replace("\\", "/").rpartition("/")[2].lower()


# ---- the kernel of Linux
#
# A seccomp filter controls native code, which Python's audit hook cannot see (a codec, the runtime, Qt, the Edge TPU
# library). Unix sockets (the screen, D-Bus) and netlink (the list of devices) stay inside the computer and are allowed.
# This process must not take an open socket from another process of the same user, or change the other process.
#
# Source: Linux Documentation/userspace-api/seccomp_filter.rst; linux/filter.h, linux/seccomp.h, linux/audit.h.


_PR_SET_NO_NEW_PRIVS: Final = 38
_SET_MODE_FILTER: Final = 1
_FLAG_ALL_THREADS: Final = 1
_FLAG_SPEC_ALLOW: Final = 4  # without it, older kernels add protection that slows the process
_ALLOW: Final = 0x7FFF_0000
_ERRNO: Final = 0x0005_0000
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06  # BPF: load a word, jump if equal, jump if >=, return
_NUMBER_AT, _MACHINE_AT, _FIRST_ARGUMENT_AT = 0, 4, 16  # offsets in struct seccomp_data, little-endian
_FOREIGN_CALLS: Final = 0x4000_0000  # the first system call of x32 on x86-64
_IO_URING_SETUP: Final = 425  # io_uring could open sockets without the system call `socket`
_PIDFD_GETFD: Final = 438  # copies a file descriptor of another process
_AF_UNIX, _AF_NETLINK = 1, 16
# machine: (AUDIT_ARCH of the machine, numbers of the system calls socket, seccomp, ptrace and process_vm_writev)
_MACHINES: Final = {"x86_64": (0xC000_003E, 41, 317, 101, 311), "aarch64": (0xC000_00B7, 198, 277, 117, 271)}


def seccomp_filter(architecture: int, socket_call: int, calls_on_others: Sequence[int] = ()) -> bytes:
    """Return a seccomp filter for the Linux kernel as BPF instructions that refuse internet sockets.

    Each instruction has 8 bytes: code, jump if true, jump if false, operand.

    architecture     the kernel's number of the CPU architecture
    socket_call      number of the system call `socket`
    calls_on_others  numbers of system calls by which a process could take over another process's sockets
    """
    refused = (_PIDFD_GETFD, *calls_on_others)
    count = len(refused)
    steps = (
        (_LOAD, 0, 0, _MACHINE_AT),
        (_EQUAL, 0, 7 + count, architecture),  # system calls of another architecture are refused
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


def _forbid_in_kernel() -> None:
    """Install the filter for all threads of this process and for all child processes.

    Nothing happens if the kernel does not support filters.
    """
    machine = _MACHINES.get(os.uname().machine) if sys.platform == "linux" else None
    import ctypes

    if machine is None or ctypes.sizeof(ctypes.c_void_p) != 8:
        return

    class Program(ctypes.Structure):
        """The structure sock_fprog of linux/filter.h."""

        _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_char_p))

    architecture, socket_call, seccomp_call, *calls_on_others = machine
    code = seccomp_filter(architecture, socket_call, calls_on_others)
    program = Program(len(code) // 8, code)
    system = ctypes.CDLL(None)
    if system.prctl(_PR_SET_NO_NEW_PRIVS, *(ctypes.c_ulong(value) for value in (1, 0, 0, 0))):
        return
    call, mode = ctypes.c_long(seccomp_call), ctypes.c_ulong(_SET_MODE_FILTER)
    for flags in (_FLAG_ALL_THREADS | _FLAG_SPEC_ALLOW, _FLAG_ALL_THREADS, 0):
        if not system.syscall(call, mode, ctypes.c_ulong(flags), ctypes.byref(program)):
            return
