"""The command line: parses arguments, runs a command, and converts the result to an exit code.

Only the requested command is imported in full, after the arguments are parsed.

exit code  meaning
0          every image has an outcome, and no image failed
1          some images failed, or results could not be stored (has precedence over 4)
2          wrong usage
3          no usable pack
4          a given path contains no image, for example an empty mount point
130        cancelled
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

from fieldray.command_names import (
    BUILTIN_COMMANDS,
    MODULE_OF_COMMAND,
    OPTIONAL_PACKAGES,
    command_line_modules,
    is_command,
)
from fieldray.commands.console import Console, add_command, refuse_shell_expanded_names, system_console
from fieldray.errors import (
    BackendProblem,
    FieldrayError,
    PackNotChosen,
    PackNotTrusted,
    PackProblem,
    StorageProblem,
    UsageProblem,
    reason_of_unexpected_error,
)
from fieldray.paths import DATA_FOLDER_VARIABLE, VERSION, data_folder
from fieldray.plain_text import escape_invisible_characters
from fieldray.process_environment import shutdown_signals
from fieldray.reasons import Reason, reason

log = logging.getLogger(__name__)

OpenWindow = Callable[[Sequence[Path]], int]
CANCELLED_EXIT_CODE: Final = 130


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` that prints each error on one line. Control characters are shown as escapes."""

    def error(self, message: str) -> NoReturn:
        super().error(escape_invisible_characters(message))


def run(
    arguments: Sequence[str],
    *,
    open_window: OpenWindow | None = None,
    console: Console | None = None,
    parser: argparse.ArgumentParser | None = None,
) -> int:
    """Run one command. Returns the exit code.

    Parameters
    ----------
    arguments
        The command line without the program's name.
    open_window
        Opens the window on paths to screen; None if the program has no window.
    console
        The console of the command; by default the system's streams.
    parser
        The parser of all commands; by default that of `fieldray`. The benchmarks have a separate parser.
    """
    console = console or system_console()
    if parser is None and (slip := _without_command(arguments)):
        console.print_error(slip.text)
        return 2
    with _cancelled_by_signals() as signals:
        try:
            refuse_shell_expanded_names(arguments)
            return _perform(
                (parser or command_parser(open_window, only_command=arguments[0])).parse_args(arguments),
                console,
                signals,
            )
        except SystemExit as stop:  # help was printed, or a usage error
            return int(stop.code or 0)
        except KeyboardInterrupt:
            console.print_error("cancelled")
            return CANCELLED_EXIT_CODE
        except FieldrayError as error:
            return _explain(error, console)


def _without_command(arguments: Sequence[str]) -> Reason | None:
    """Return the reason why paths without a command cannot be opened, or None.

    Examples are a missing path, and an option that belongs to a command.
    """
    first = arguments[0] if arguments else ""
    is_path = os.sep in first or (os.altsep or os.sep) in first or os.path.lexists(first)
    if is_command(first) or first.startswith("-"):
        return None
    if not is_path:
        return (
            None if len(command_line_modules()) == len(OPTIONAL_PACKAGES) else reason("command_missing", command=first)
        )
    missing = next((path for path in arguments if not os.path.lexists(path)), None)
    if missing is not None and missing.startswith("-"):
        return reason("option_without_command", option=missing.partition("=")[0])
    return reason("path_missing", path=missing) if missing is not None else None


def _perform(options: argparse.Namespace, console: Console, signals: Sequence[int]) -> int:
    """Run the command. Returns the exit code. Raises FieldrayError.

    Any other error is reported as a fault of the program. After one of `signals` such an error counts as a Ctrl-C
    instead, because an interrupted import of a native library may raise any error.
    """
    from fieldray.log_file import configure_logging

    with _usable_home(options), configure_logging() as journal:
        try:
            try:
                _check_outputs(options)
            except StorageProblem as problem:
                console.print_error(str(problem))
                return 2  # nothing was done yet; the user has to name another output
            return int(options.command(options, console))
        except (FieldrayError, SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # a panic of a Rust library is a BaseException
            if signals:
                raise KeyboardInterrupt from error
            if not isinstance(error, Exception):
                raise
            log.exception("command failed")
            console.print_error(f"{reason_of_unexpected_error(error).text} {journal}")
            return 1


@contextlib.contextmanager
def _usable_home(options: argparse.Namespace) -> Iterator[None]:
    """Replace an unusable home folder by a temporary folder, for a command that has the option `home_problem`.

    The reason is stored in `options.home_problem`. Raises StorageProblem for a command without this option.
    """
    try:
        data_folder()
    except StorageProblem as problem:
        if not hasattr(options, "home_problem"):
            raise
        options.home_problem, before = problem.reason, os.environ.get(DATA_FOLDER_VARIABLE)
        with tempfile.TemporaryDirectory(prefix="fieldray-") as folder:
            os.environ[DATA_FOLDER_VARIABLE] = folder
            try:
                yield
            finally:
                os.environ.pop(DATA_FOLDER_VARIABLE)
                os.environ.update({DATA_FOLDER_VARIABLE: before} if before else {})
    else:
        yield


def _check_outputs(options: argparse.Namespace) -> None:
    """Check, before hours of work, that the outputs of a command may be written.

    The options may have `out` and `maps` (folders), `json` (a file), `json_kind` (the kind of this file, by default
    "lines") and `paths` (the inputs). Raises UsageProblem, StorageProblem.
    """
    folders, lines = [getattr(options, name, None) for name in ("out", "maps")], getattr(options, "json", None)
    if any(folders) or lines not in (None, "-"):
        from fieldray.reports.outputs import is_stream, require_writable_folder, require_writable_output

        for folder in filter(None, folders):
            require_writable_folder(folder)
        if lines not in (None, "-") and not is_stream(Path(lines)):
            require_writable_output(
                Path(lines), getattr(options, "json_kind", "lines"), inputs=getattr(options, "paths", ())
            )
            require_writable_folder(Path(lines).parent, create_missing=False)


def command_parser(
    open_window: OpenWindow | None = None, *, only_command: str | None = None
) -> argparse.ArgumentParser:
    """Return the parser of all commands.

    only_command  the only command whose options are added; all other commands are listed by name. None adds all options
    """
    parser = Parser(
        prog="fieldray",
        description="Screen chest X-rays offline. Research use only. Not for diagnostic use.",
        epilog="Without a command the window opens; fieldray FOLDER opens it on that folder.",
        allow_abbrev=False,
    )
    parser.set_defaults(open_window=open_window)
    parser.add_argument("--version", action="version", version=f"fieldray {VERSION}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    wanted = only_command and MODULE_OF_COMMAND.get(only_command, only_command)
    for name in BUILTIN_COMMANDS:
        if wanted not in (None, MODULE_OF_COMMAND.get(name, name)):
            add_command(commands, name)
        elif name not in MODULE_OF_COMMAND:
            import_module(f"fieldray.commands.{name}").register_commands(commands)
    for package in command_line_modules():
        if only_command is None or only_command in package.COMMANDS:
            package.register_commands(commands)
        else:
            for name, text in package.COMMANDS.items():
                add_command(commands, name, text)
    return parser


def _explain(error: FieldrayError, console: Console) -> int:
    console.print_error(str(error))
    for choice in error.choices if isinstance(error, PackNotChosen) else ():
        console.print_error(f"  {choice}")
    if isinstance(error, PackNotTrusted):
        console.print_error(f"If you trust this key, add: --trust {error.fingerprint}")
    if option := dict(error.reason.parameters).get("command_option"):  # the window has buttons instead
        console.print_error(f"To confirm, add the option: {option}")
    if isinstance(error, UsageProblem):
        return 2
    return 3 if isinstance(error, PackProblem | BackendProblem) else 1


@contextlib.contextmanager
def _cancelled_by_signals() -> Iterator[Sequence[int]]:
    """Handle SIGTERM (shutdown) and SIGHUP (closed terminal) like Ctrl-C during the block.

    Yields a list to which each signal is added when it arrives.
    """
    come: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield come
        return

    def cancel(number: int, _frame: FrameType | None) -> None:
        come.append(number)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, cancel) for number in shutdown_signals()}
    try:
        yield come
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
