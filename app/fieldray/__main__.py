"""The place where all parts meet: no arguments open the window, arguments run the command line."""

from __future__ import annotations

import sys


def main(arguments: list[str] | None = None) -> int:
    """Run Fieldray; returns the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments:
        from fieldray.cli import run

        return run(arguments)
    from fieldray.desktop.main_window import run as run_window

    return run_window()


if __name__ == "__main__":
    sys.exit(main())
