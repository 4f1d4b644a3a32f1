"""The entry point of the program. Without arguments, or with files and folders, the window opens. Else a command runs.

Other modules are imported inside functions, so that a Ctrl-C during an import ends the program quietly, too.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # importing typing takes half of the time in which nobody could catch a Ctrl-C yet
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

CANCELLED_EXIT_CODE = 130
COMMAND_WITHOUT_WINDOW = "fieldray screen FOLDER"
CODE_PATH_VARIABLES = (
    "PYTHONPATH", "PYTHONPYCACHEPREFIX", "PYTHONUSERBASE", "PYTHONHOME", "PYTHONPLATLIBDIR", "PYTHONWARNINGS",
)  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Run Fieldray with these arguments; by default, with those of the process. Returns the exit code."""
    return _quietly(lambda: _main(arguments))


def _leave_current_directory() -> None:
    """Remove the current folder from `sys.path`, because a folder of images may also contain Python files.

    `python -m` and an empty entry of PYTHONPATH add the current folder. If environment variables add further folders of
    code, a Python process that ignores these variables replaces this process.
    """
    from os import environ, execv, getcwd, name, pathsep
    from os.path import dirname, isabs

    own = dirname(dirname(__file__))  # noqa: PTH120
    try:
        here = getcwd()  # noqa: PTH109
    except OSError:  # the current folder was deleted
        here = ""
    sys.path[:] = [entry for entry in sys.path if isabs(entry) and (entry == own or entry != here)]  # noqa: PTH117
    if not isabs(sys.pycache_prefix or ""):  # noqa: PTH117
        sys.pycache_prefix = None
    if name == "posix" and not sys.flags.ignore_environment and any(map(environ.get, CODE_PATH_VARIABLES)):
        named = environ.get("PYTHONPATH", "").split(pathsep)
        sys.path.sort(key=lambda entry: entry == own or entry in named)  # imports now come from other folders first
        from fieldray.paths import program_command

        command = program_command(*sys.argv[1:])
        execv(command[0], command)


def open_in_window(arguments: Sequence[str]) -> int:
    """Open files and folders in the installed window program, which screens them. Returns the exit code."""
    return _quietly(lambda: _window(arguments))


def _quietly(body: Callable[[], int]) -> int:
    """Call `body` and return its exit code; 130 if a Ctrl-C comes before a command or the window can handle it."""
    try:
        return body()
    except KeyboardInterrupt:
        return CANCELLED_EXIT_CODE


def _main(arguments: list[str] | None) -> int:
    if arguments is None:
        _leave_current_directory()
        arguments = sys.argv[1:]
    from fieldray.command_names import command_line_module_of, has_only_image_paths, opens_window
    from fieldray.offline import stay_offline

    package = command_line_module_of(arguments[0]) if arguments else None
    stay_offline(
        is_toolchain=package is not None and package.IS_TOOLCHAIN,
        shows_window=opens_window(arguments),
        joins_cluster=package is not None and package.joins_cluster(arguments),
    )
    _prepare()
    if not has_only_image_paths(arguments):
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
    """Protect this process: keep foreign code out, disable core dumps, and open the standard streams that are closed.

    The console module is imported only after foreign code is kept out.
    """
    from fieldray.process_environment import disable_core_dumps, restrict_environment

    restrict_environment()
    disable_core_dumps()
    from fieldray.commands.console import replace_closed_streams

    replace_closed_streams()


def _open_window(paths: Sequence[Path]) -> int:
    """Open the window for some paths: in the installed window program if there is one, else in this process."""
    from fieldray.paths import installed_program_path
    from fieldray.process_environment import run_window_program

    program = installed_program_path("fieldray-window")
    return run_window_program(program, paths) if program else _show(paths)


def _show(paths: Sequence[Path]) -> int:
    import os

    # NumPy reads this variable when it is imported. The window's matrix products are small, so that waiting for more
    # threads on a busy CPU would take longer.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from fieldray.commands.console import system_console
    from fieldray.errors import FieldrayError
    from fieldray.process_environment import has_display

    if not has_display():
        from fieldray.reasons import reason

        system_console().print_error(reason("no_screen", command=COMMAND_WITHOUT_WINDOW).text)
        return 1
    from fieldray.desktop.application import run_application

    try:
        return run_application(paths)
    except FieldrayError as problem:  # no window is open yet that could show the problem
        system_console().print_error(str(problem))
        return 1


if __name__ == "__main__":
    sys.exit(main())
