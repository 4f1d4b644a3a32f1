"""The place where all parts meet: no arguments open the window, arguments run the command line."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from fieldray.offline import opens_window, stay_offline


def main(arguments: list[str] | None = None) -> int:
    """Run Fieldray; returns the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    stay_offline(is_toolchain=arguments[:1] == ["adapt"], shows_window=opens_window(arguments))
    if arguments:
        from fieldray.cli import run

        return run(arguments, open_window=_open_window)
    return _open_window(())


def window(arguments: Sequence[str]) -> int:
    """Run the installed window: `arguments` are files and folders to screen; returns the exit code."""
    stay_offline(shows_window=True)
    return _show(tuple(map(Path, arguments)))


def _open_window(paths: Sequence[Path]) -> int:
    """Open the window here or, where the program is installed, by the one beside this that has Qt."""
    from fieldray.paths import installed_program
    from fieldray.starting import run_window_program

    program = installed_program("fieldray-window")
    return run_window_program(program, paths) if program else _show(paths)


def _show(paths: Sequence[Path]) -> int:
    from fieldray.starting import has_screen

    if not has_screen():
        from fieldray.reasons import reason

        sys.stderr.write(f"fieldray: {reason('no_screen').text}\n")
        return 1
    from fieldray.desktop.main_window import run

    return run(paths)


if __name__ == "__main__":
    sys.exit(main())
