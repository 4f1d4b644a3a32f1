"""The program `fieldray-window`: the window; what it is given are files and folders to open."""

import sys

from fieldray.__main__ import window

sys.exit(window(sys.argv[1:]))
