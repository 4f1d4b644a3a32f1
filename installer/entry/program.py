"""The main module of the three installed programs. The name of the executable file decides which program runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main(program: str) -> int:
    """Run the program with the name `program`. Returns the exit code.

    The programs are `fieldray` (command line), `fieldray-window`, and `fieldray-worker` (a child process of the other
    two). Only the window loads Qt.
    """
    if program == "fieldray-worker":
        from fieldray.processes.child_main import main as serve

        return serve()
    if program == "fieldray-window":
        return _show(sys.argv[1:])
    from fieldray.__main__ import main as run

    return run()


def _show(paths: list[str]) -> int:
    """Open the window with the files and folders `paths`. Returns the exit code."""
    if sys.platform == "linux":
        # The installed program has only Qt's plugin for X11. Under Wayland, the window uses XWayland if available.
        os.environ.pop("WAYLAND_DISPLAY", None)
        if os.environ.get("DISPLAY"):
            os.environ.setdefault("QT_QPA_PLATFORM", "xcb")
    from fieldray.__main__ import open_in_window

    return open_in_window(paths)


if __name__ == "__main__":
    sys.exit(main(Path(sys.executable).stem))
