"""This program opens no internet socket, whatever is installed beside it.

`stay_offline` is the first thing every process of the program does, before anything large is imported. From then on

- what Python code asks of a socket is refused by an audit hook (PEP 578), which nothing can take out again: sockets
  of any family but the one inside this computer (AF_UNIX), looking up names, clients of the standard library, opening
  a browser, and finding these functions by ctypes;
- on Linux the kernel refuses such a socket to native code too, and to every program started (`offline_linux`);
- modules that exist to reach the network cannot be imported.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Final, cast

# pydicom imports requests, where it is installed, to be able to download test files, and importing it opens a socket
# (urllib3 asks whether the machine knows IPv6). The window has no use for Qt's network modules.
_ABSENT: Final = ("requests", "PySide6.QtNetwork", "PySide6.QtHttpServer", "PySide6.QtWebSockets")
_UNIX: Final = 1  # AF_UNIX on every system; socket is not imported for it
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

_is_installed = False


class InternetRefused(PermissionError):
    """Something in this process asked for the network."""


def stay_offline(*, is_toolchain: bool = False, shows_window: bool = False) -> None:
    """Refuse the network to this process from now on; a second call changes nothing.

    is_toolchain    the adaptation half: TensorFlow insists on `requests`, and a compiler that is called may be the
                    user's own script that reaches another machine. Only this process's Python is held offline.
    shows_window    the window itself reaches a screen that the user put on another machine (`ssh -X`)
    """
    global _is_installed
    if _is_installed:
        return
    _is_installed = True
    sys.addaudithook(_refuse_internet)
    if is_toolchain:
        return
    for name in _ABSENT:
        sys.modules[name] = cast("ModuleType", None)
    is_screen_remote = shows_window and _is_remote(os.environ.get("DISPLAY", ""))
    if sys.platform == "linux" and not is_screen_remote:
        from fieldray.offline_linux import forbid_internet_sockets

        forbid_internet_sockets()


def _is_remote(display: str) -> bool:
    """Whether the X display is reached through a connection: localhost:10.0 is, :0 and unix:0 are not."""
    return display.partition(":")[0] not in ("", "unix")


def _refuse_internet(event: str, arguments: tuple[object, ...]) -> None:
    if event in _WATCHED and _is_internet(event, arguments):
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


def _file_name(library: object) -> str:
    name = os.fsdecode(library) if isinstance(library, str | bytes) else ""
    return name.replace("\\", "/").rpartition("/")[2].lower()
