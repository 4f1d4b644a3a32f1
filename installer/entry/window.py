"""The program `fieldray-window`: the window; what it is given are files and folders to open."""

import os
import sys

from fieldray.__main__ import window

if sys.platform == "linux":
    # Only the part of Qt for X11 is on board: under Wayland too the window comes by X11, where that is there.
    os.environ.pop("WAYLAND_DISPLAY", None)
    if os.environ.get("DISPLAY"):
        os.environ.setdefault("QT_QPA_PLATFORM", "xcb")

sys.exit(window(sys.argv[1:]))
