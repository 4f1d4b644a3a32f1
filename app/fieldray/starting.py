"""How the window is started: in this process, or by the installed program that has Qt."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from fieldray.paths import installed_program

_SCREENS: Final = ("DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM")


def has_screen(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether there is something to show a window on, or Qt was told to do without."""
    return sys.platform in ("win32", "darwin") or any(map(environment.get, _SCREENS))


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
