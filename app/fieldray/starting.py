"""How the window is started: in this process, or by the installed program that has Qt."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from fieldray.paths import installed_program

_SCREENS: Final = {"xcb": "DISPLAY", "wayland": "WAYLAND_DISPLAY"}  # by Qt's names of what draws on them


def has_screen(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether there is something to show a window on, or Qt was told to do without.

    Qt ends the whole process where it cannot connect, so the connection is tried first.
    """
    if sys.platform in ("win32", "darwin"):
        return True
    wanted = environment.get("QT_QPA_PLATFORM", "").partition(";")[0].partition(":")[0].partition("-")[0]
    if wanted and wanted not in _SCREENS:
        return True
    x, wayland = (environment.get(variable, "") if wanted in ("", kind) else "" for kind, variable in _SCREENS.items())
    return _x_answers(x) or _wayland_answers(wayland, environment.get("XDG_RUNTIME_DIR", ""))


def _x_answers(name: str) -> bool:
    """Whether a server of X11 lets a client in, asked of the library that Qt asks."""
    try:
        library = ctypes.CDLL("libxcb.so.1") if name else None
    except OSError:
        return False
    if library is None:
        return False
    library.xcb_connect.restype = ctypes.c_void_p
    connection = ctypes.c_void_p(library.xcb_connect(os.fsencode(name), None))  # one in error where there is none
    is_open = not library.xcb_connection_has_error(connection)
    library.xcb_disconnect(connection)
    return is_open


def _wayland_answers(name: str, folder: str) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(Path(folder, name)))
        except OSError:
            return False
    return bool(name)


def has_window() -> bool:
    """Whether a window can be opened: there are a screen and either the window's program or Qt."""
    return has_screen() and (
        installed_program("fieldray-window") is not None or importlib.util.find_spec("PySide6") is not None
    )


def run_window_program(program: Path, paths: Sequence[Path]) -> int:
    """Start the installed window with files and folders to screen. Raises OSError.

    On Windows it returns at once, so that the console is free again; elsewhere this process becomes the window.
    """
    command = [str(program), *map(str, paths)]
    if sys.platform != "win32":
        os.execv(command[0], command)
    subprocess.Popen(command)
    return 0
