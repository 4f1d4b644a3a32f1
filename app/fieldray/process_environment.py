"""The environment of this process: environment variables, signals that end the process, the screen, and the CPU.

This program and its children keep only known environment variables. Any other variable may name code: libraries and
plugins (Qt, GTK, OpenSSL, the C library), graphics drivers, or configurations that name libraries or drivers (Dask,
matplotlib). A shell's start-up file or a desktop entry can set such a variable to a file anywhere, even next to the
images. The program needs none of these variables, because it brings its own parts of Qt and OpenSSL. An empty or
relative entry of a search path means the current directory. The program cannot prevent what the system's loader
(LD_PRELOAD) and Python (PYTHONPATH) do before the program's first line runs.
"""

from __future__ import annotations

import functools
import os
import re
import signal
import sys
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Final, Literal

# docs/privacy.md describes the purpose of each group.
_KEPT: Final = """
HOME USER LOGNAME SHELL PATH TMPDIR TEMP TMP LANG LANGUAGE TZ TERM COLORTERM COLUMNS LINES NO_COLOR
DISPLAY WAYLAND_DISPLAY WAYLAND_SOCKET XAUTHORITY ICEAUTHORITY SESSION_MANAGER
DESKTOP_SESSION DESKTOP_STARTUP_ID XCURSOR_THEME XCURSOR_SIZE
DBUS_SESSION_BUS_ADDRESS DBUS_SYSTEM_BUS_ADDRESS DBUS_STARTER_ADDRESS DBUS_STARTER_BUS_TYPE
AT_SPI_BUS_ADDRESS NO_AT_BRIDGE QT_ACCESSIBILITY QT_LINUX_ACCESSIBILITY_ALWAYS_ON
XMODIFIERS QT_IM_MODULE QT_IM_MODULES GTK_IM_MODULE IBUS_ADDRESS IBUS_USE_PORTAL
QT_QPA_PLATFORM QT_QPA_PLATFORMTHEME QT_STYLE_OVERRIDE QT_OPENGL QT_XCB_GL_INTEGRATION LIBGL_ALWAYS_SOFTWARE
QT_SCALE_FACTOR QT_SCALE_FACTOR_ROUNDING_POLICY QT_SCREEN_SCALE_FACTORS QT_AUTO_SCREEN_SCALE_FACTOR
QT_ENABLE_HIGHDPI_SCALING QT_USE_PHYSICAL_DPI QT_FONT_DPI QT_LOGGING_RULES QT_DEBUG_PLUGINS
QT_WAYLAND_DISABLE_WINDOWDECORATION GDK_SCALE GDK_DPI_SCALE GDK_BACKEND GTK_THEME GTK_USE_PORTAL
LD_PRELOAD LD_LIBRARY_PATH DYLD_LIBRARY_PATH DYLD_FALLBACK_LIBRARY_PATH
OMP_NUM_THREADS OMP_WAIT_POLICY OMP_PROC_BIND OMP_PLACES OPENBLAS_NUM_THREADS OPENBLAS_CORETYPE MKL_NUM_THREADS
MALLOC_ARENA_MAX CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER SSH_AUTH_SOCK DOCKER_HOST
AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN AWS_PROFILE AWS_REGION AWS_DEFAULT_REGION AWS_ENDPOINT_URL
AWS_ENDPOINT_URL_S3 AWS_MAX_ATTEMPTS AWS_CA_BUNDLE AWS_CONFIG_FILE AWS_SHARED_CREDENTIALS_FILE
SYSTEMROOT SYSTEMDRIVE WINDIR COMSPEC PATHEXT OS NUMBER_OF_PROCESSORS COMPUTERNAME SESSIONNAME USERNAME USERDOMAIN
USERPROFILE HOMEDRIVE HOMEPATH APPDATA LOCALAPPDATA ALLUSERSPROFILE PUBLIC __CF_USER_TEXT_ENCODING
"""
_KEPT_FAMILIES: Final = ("FIELDRAY_", "LC_", "XDG_", "KDE_", "GNOME_", "TF_", "PROGRAM", "COMMONPROGRAM", "PROCESSOR_")
_SEARCHED: Final = re.compile(
    r"XDG_.*_(DIRS?|HOME)|PATH|LD_PRELOAD|(LD|DYLD|DYLD_FALLBACK)_LIBRARY_PATH|AWS_.*_(FILE|BUNDLE)"
)


def restrict_environment(environment: MutableMapping[str, str] = os.environ) -> None:
    """Remove all unknown environment variables, and the current directory from search paths.

    Call this function before any library is loaded.
    """
    kept = frozenset(_KEPT.split())
    for name in list(environment):
        if name not in kept and not name.startswith(_KEPT_FAMILIES):
            del environment[name]
        elif _SEARCHED.fullmatch(name):
            entries = re.split("[ :]" if name == "LD_PRELOAD" else os.pathsep, environment[name])
            environment[name] = os.pathsep.join(filter(os.path.isabs, entries))
            if not environment[name]:
                del environment[name]  # an empty variable also means the current directory


def disable_core_dumps() -> None:
    """Prevent core dumps of this process and its children, because the memory contains names of patients."""
    if os.name == "posix":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def shutdown_signals() -> tuple[int, ...]:
    """Return the signals that ask this process to end: Ctrl-C, a shutdown, and a closed terminal.

    The signal of a closed terminal is left out on Windows, and if the process already ignores the signal (`nohup`).
    """
    hang_up = getattr(signal, "SIGHUP", None)
    is_heard = hang_up is not None and signal.getsignal(hang_up) != signal.SIG_IGN
    return (signal.SIGINT, signal.SIGTERM, *((hang_up,) if is_heard else ()))


# ---- the window


_SCREENS: Final = {"xcb": "DISPLAY", "wayland": "WAYLAND_DISPLAY"}  # by name of the Qt platform


def has_display(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether a window can be shown: there is a display, or Qt is set to run without a display.

    environment  the environment variables that name the display

    The function tries to connect to the display, because Qt ends the whole process if it cannot connect.
    """
    if sys.platform in ("win32", "darwin"):
        return True
    wanted = environment.get("QT_QPA_PLATFORM", "").partition(";")[0].partition(":")[0].partition("-")[0]
    if wanted and wanted not in _SCREENS:
        return True
    x, wayland = (environment.get(variable, "") if wanted in ("", kind) else "" for kind, variable in _SCREENS.items())
    return _x_answers(x) or _wayland_answers(wayland, environment.get("XDG_RUNTIME_DIR", ""))


def _x_answers(name: str) -> bool:
    """Return whether an X11 server accepts a connection. The connection is tried with Qt's library for X11."""
    import ctypes

    try:
        library = ctypes.CDLL("libxcb.so.1") if name else None
    except OSError:
        return False
    if library is None:
        return False
    library.xcb_connect.restype = ctypes.c_void_p
    connection = ctypes.c_void_p(library.xcb_connect(os.fsencode(name), None))  # a failed connection, too
    is_open = not library.xcb_connection_has_error(connection)
    library.xcb_disconnect(connection)
    return is_open


def _wayland_answers(name: str, folder: str) -> bool:
    import socket

    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(Path(folder, name)))
        except OSError:
            return False
    return bool(name)


def can_open_window() -> bool:
    """Return whether a window can be opened: there is a screen, and the window program or Qt is installed."""
    import importlib.util

    from fieldray.paths import installed_program_path

    return has_display() and (
        installed_program_path("fieldray-window") is not None or importlib.util.find_spec("PySide6") is not None
    )


def run_window_program(program: Path, paths: Sequence[Path]) -> int:
    """Start the installed window program with files and folders to screen. Raises OSError.

    On Windows the function returns at once, so that the console is free. Elsewhere the window program replaces this
    process.
    """
    import subprocess

    command = [str(program), *map(str, paths)]
    if sys.platform != "win32":
        os.execv(command[0], command)
    subprocess.Popen(command)
    return 0


# ---- the CPU: the cores that this process may use, and the priority of processes


Priority = Literal["lowered", "normal", "raised"]

# Linux divides a core by niceness. Each step changes the share by about a quarter. Next to a busy program at niceness
# 0, a process with niceness 5 gets about a quarter of a core, and a process with niceness -10 gets nine tenths.
_STEPS: Final = {"lowered": 5, "normal": 0, "raised": -10}


def usable_cores() -> int:
    """Return the number of CPU cores that this process may use, 1 or more."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def set_priority(pid: int | None, priority: Priority) -> bool:
    """Change the priority of a process and all its threads. Returns False if the system did not permit the change.

    pid  id of the process; with None nothing happens

    On Windows, users may change their own processes. On Linux and macOS, only an administrator may raise a priority. No
    priority is raised if a person has lowered the priority of this program (`nice fieldray ...`).
    """
    is_lowered = sys.platform != "win32" and os.getpriority(os.PRIO_PROCESS, 0) > 0
    if pid is None or priority == "normal" or (priority == "raised" and is_lowered):
        return True
    try:
        if sys.platform == "win32":
            _set_class(pid, priority)
        else:
            wanted = os.getpriority(os.PRIO_PROCESS, pid) + _STEPS[priority]
            for thread in _threads(pid):  # the system limits the value to -20..19
                os.setpriority(os.PRIO_PROCESS, thread, wanted)
    except PermissionError:
        return False
    except (ProcessLookupError, FileNotFoundError):
        return True  # the process has just ended; the caller notices this
    return True


@functools.cache
def lower_priority() -> None:
    """Lower the priority of this process, so that programs that a person waits for run first. This cannot be undone."""
    set_priority(os.getpid(), "lowered")


def _set_class(pid: int, priority: Priority) -> None:
    import psutil  # imported only on Windows, so that processes start faster on other systems

    name = "ABOVE_NORMAL_PRIORITY_CLASS" if priority == "raised" else "BELOW_NORMAL_PRIORITY_CLASS"
    try:
        psutil.Process(pid).nice(getattr(psutil, name))
    except psutil.AccessDenied as error:
        raise PermissionError from error
    except psutil.NoSuchProcess as error:
        raise ProcessLookupError from error


def _threads(pid: int) -> Iterator[int]:
    """Yield the ids of a process's threads; on systems other than Linux, only the id of the process.

    On Linux each thread has a separate priority, which a new thread inherits from the thread that starts it.
    """
    if sys.platform == "linux":
        yield from (int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir())
    else:
        yield pid
