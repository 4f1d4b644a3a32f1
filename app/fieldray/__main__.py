"""The place where all parts meet: files and folders, or nothing, open the window; all else is a command.

Everything else is imported inside: a Ctrl-C that comes while the program is still being read ends it quietly, too.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # importing typing takes half of the time in which nobody could catch a Ctrl-C yet
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

CANCELLED = 130
WITHOUT_SCREEN = "fieldray screen FOLDER"
PLACES_OF_CODE = (
    "PYTHONPATH", "PYTHONPYCACHEPREFIX", "PYTHONUSERBASE", "PYTHONHOME", "PYTHONPLATLIBDIR", "PYTHONWARNINGS",
)  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Run Fieldray; returns the exit code."""
    return _quietly(lambda: _main(arguments))


def _leave_current_directory() -> None:
    """Where images lie is no place of code: `-m` and an empty entry of PYTHONPATH make it one, before all others.

    Where variables name places of code to Python, the program begins again in a Python that does not listen to them.
    """
    from os import environ, execv, getcwd, name, pathsep
    from os.path import dirname, isabs

    own = dirname(dirname(__file__))  # noqa: PTH120
    try:
        here = getcwd()  # noqa: PTH109
    except OSError:  # it was removed
        here = ""
    sys.path[:] = [entry for entry in sys.path if isabs(entry) and (entry == own or entry != here)]  # noqa: PTH117
    if not isabs(sys.pycache_prefix or ""):  # noqa: PTH117
        sys.pycache_prefix = None
    if name == "posix" and not sys.flags.ignore_environment and any(map(environ.get, PLACES_OF_CODE)):
        named = environ.get("PYTHONPATH", "").split(pathsep)
        sys.path.sort(key=lambda entry: entry == own or entry in named)  # what is asked next comes from elsewhere
        from fieldray.paths import program_command

        command = program_command(*sys.argv[1:])
        execv(command[0], command)


def window(arguments: Sequence[str]) -> int:
    """Run the installed window: `arguments` are files and folders to screen; returns the exit code."""
    return _quietly(lambda: _window(arguments))


def _quietly(body: Callable[[], int]) -> int:
    """What a person is to see of an end that came before a command or the window could take care of it."""
    try:
        return body()
    except KeyboardInterrupt:
        return CANCELLED


def _main(arguments: list[str] | None) -> int:
    if arguments is None:
        _leave_current_directory()
        arguments = sys.argv[1:]
    from fieldray.command_names import command_line_of, names_images, opens_window
    from fieldray.offline import stay_offline

    package = command_line_of(arguments[0]) if arguments else None
    stay_offline(
        is_toolchain=package is not None and package.IS_TOOLCHAIN,
        shows_window=opens_window(arguments),
        joins_cluster=package is not None and package.joins_cluster(arguments),
    )
    _prepare()
    if not names_images(arguments):
        from fieldray.cli import run

        return run(arguments, open_window=_open_window)
    from pathlib import Path

    return _open_window(tuple(map(Path, arguments)))


def _window(arguments: Sequence[str]) -> int:
    from pathlib import Path

    from fieldray.offline import stay_offline

    stay_offline(shows_window=True)
    _prepare()
    return _show(tuple(map(Path, arguments)))


def _prepare() -> None:
    """What is around this process as the program needs it; console is imported where nothing foreign is left."""
    from fieldray.surroundings import disable_core_dumps, keep_foreign_code_out

    keep_foreign_code_out()
    disable_core_dumps()
    from fieldray.commands.console import open_closed_streams

    open_closed_streams()


def _open_window(paths: Sequence[Path]) -> int:
    """Open the window here or, where the program is installed, by the one beside this that has Qt."""
    from fieldray.paths import installed_program
    from fieldray.surroundings import run_window_program

    program = installed_program("fieldray-window")
    return run_window_program(program, paths) if program else _show(paths)


def _show(paths: Sequence[Path]) -> int:
    import os

    # Read when numpy loads: the window's products are small, and it would wait for threads that others keep from a core
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from fieldray.commands.console import system_console
    from fieldray.errors import FieldrayError
    from fieldray.surroundings import has_screen

    if not has_screen():
        from fieldray.reasons import reason

        system_console().print_error(reason("no_screen", command=WITHOUT_SCREEN).text)
        return 1
    from fieldray.desktop.application import run_application

    try:
        return run_application(paths)
    except FieldrayError as problem:  # there is no window yet to show it in
        system_console().print_error(str(problem))
        return 1


if __name__ == "__main__":
    sys.exit(main())
