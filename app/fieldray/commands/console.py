"""The console output of a command, and checks of the command line.

Results go to standard output, all other messages to standard error.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, TextIO

from fieldray.command_names import BUILTIN_COMMANDS, is_command
from fieldray.errors import UsageProblem
from fieldray.plain_text import escape_invisible_characters
from fieldray.reasons import reason

_BAR: Final = 20
_LOGGED_EVERY_S: Final = 10.0


class Console:
    """The output of a command: one stream for results, one for errors and progress.

    is_output_for_program  whether a program reads standard output. Texts for a person then go to standard error
    logs_progress          whether progress is written as a line every ten seconds if standard error is no terminal
    has_failed_stream      whether a stream stopped accepting output (`| head`, a full disk), without an exception
    has_failed_output      whether a part of the results was lost because a stream stopped accepting output

    Every text for a person is one line, even if a name in the text has line breaks. Some characters are replaced by
    backslash escapes: characters that would end the line, reorder the text or control the terminal, and characters that
    the stream's encoding lacks.

    On a terminal, each progress bar replaces the previous bar.
    """

    def __init__(self, out: TextIO, error: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = out
        self._error = error
        self._clock, self._logged_s = clock, clock()
        self.is_output_for_program = False
        self.logs_progress = False
        self.has_failed_stream = False
        self.has_failed_output = False
        self._bar_width = 0

    def print_line(self, text: str = "") -> None:
        """Print one line for a person on standard output, or on standard error if a program reads standard output."""
        self.clear_progress_bar()
        self._write(self._error if self.is_output_for_program else self._out, escape_invisible_characters(text) + "\n")

    def print_lines(self, texts: Iterable[str]) -> None:
        """Print lines for a person on standard output, or on standard error if a program reads standard output."""
        for text in texts:
            self.print_line(text)

    def print_error(self, text: str) -> None:
        """Print one line on standard error. The line begins with the name of the program."""
        self.clear_progress_bar()
        self._write(self._error, f"fieldray: {escape_invisible_characters(text)}\n")

    @property
    def prints_errors_to_stderr(self) -> bool:
        """Whether errors go to the standard error of this process, rather than to a file or another stream."""
        with contextlib.suppress(OSError, ValueError):
            return self._error.fileno() == 2
        return False

    def redirect_errors(self, stream: TextIO) -> TextIO:
        """Send all further errors and progress bars to another stream. Returns the previous stream."""
        before, self._error = self._error, stream
        return before

    def write_machine_readable_line(self, line: str) -> None:
        """Write one line for a program to standard output, and flush the stream."""
        self._write(self._out, line + "\n")

    def show_progress_bar(self, text: str) -> None:
        """Show a text as the progress bar on standard error. Nothing is written if nobody can see the bar."""
        shown = escape_invisible_characters(text)
        if self._error.isatty():
            self._write(self._error, "\r" + shown.ljust(self._bar_width))
            self._bar_width = len(shown)
        elif self.logs_progress and self._clock() - self._logged_s >= _LOGGED_EVERY_S:
            self._logged_s = self._clock()
            self._write(self._error, shown + "\n")

    def clear_progress_bar(self) -> None:
        """Erase the progress bar before a line is printed."""
        if self._bar_width:
            self._write(self._error, "\r" + " " * self._bar_width + "\r")
            self._bar_width = 0

    def _write(self, stream: TextIO, text: str) -> None:
        encoding = stream.encoding or "utf-8"
        try:
            stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
            stream.flush()
        except OSError as error:
            self.has_failed_stream = True
            self.has_failed_output |= stream is self._out
            _silence(stream)
            if stream is self._out and not isinstance(error, BrokenPipeError):
                self.print_error(reason("not_writable", path="standard output", detail=error.strerror).text)


def add_command(
    commands: argparse._SubParsersAction[Any],
    name: str,
    text: str = "",
    *,
    run: Callable[[argparse.Namespace, Console], int] | None = None,
    description: str = "",
    epilog: str | None = None,
) -> argparse.ArgumentParser:
    """Add a command to the command line, and return the command's parser.

    text                 the command's line in the list of commands; by default from `command_names.BUILTIN_COMMANDS`
    run                  runs the command and returns the exit code; None for a command that only has subcommands
    description, epilog  first and last text of the command's help; by default the description is `text` as a sentence
    """
    text = text or BUILTIN_COMMANDS[name]
    description = description or f"{text[0].upper()}{text[1:]}."
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=text, description=description, epilog=epilog, allow_abbrev=False
    )
    if run is not None:
        parser.set_defaults(command=run)
    return parser


def add_command_group(
    commands: argparse._SubParsersAction[Any], name: str, text: str = ""
) -> argparse._SubParsersAction[Any]:
    """Add a command with subcommands (see `add_command`). Returns the object to which the subcommands are added."""
    return add_command(commands, name, text).add_subparsers(title="commands", required=True, metavar="COMMAND")


def parse_text_option(text: str) -> str:
    """Return the value of a command-line option; used as an argparse type.

    Raises argparse.ArgumentTypeError for an empty value, which usually comes from an unset variable of a script.
    """
    if not text:
        raise argparse.ArgumentTypeError("the value is empty; write . for the current folder")
    return text


def parse_path_option(text: str) -> Path:
    """Convert the text of a command-line option to a path. This function is an argparse type.

    Raises argparse.ArgumentTypeError for an empty text, and for a web address, which `Path` would read as folders.
    """
    if "://" in text:
        raise argparse.ArgumentTypeError(reason("path_is_address", address=text).text)
    return Path(parse_text_option(text))


def system_console() -> Console:
    """Return a console that writes to the standard streams of this process."""
    return Console(sys.stdout, sys.stderr)


def replace_closed_streams() -> None:
    """Open the null device for each standard stream that the caller closed (`>&-`), also for child processes.

    Call this function before any file is opened. Otherwise the next opened file gets the descriptor of the closed
    stream. Any text that a library prints would then go into that file. A Windows program without a console has no
    standard streams.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # opens with the lowest free number, which is `number`
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w", encoding="utf-8", closefd=False))


def _silence(stream: TextIO) -> None:
    """Discard the buffered output of a broken stream, so that Python does not report the broken pipe at exit."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def progress_text(
    done: int, total: int, images_per_s: float, remaining_s: float | None, *, is_final: bool = True
) -> str:
    """Format the progress, for example `[########------------] 412/1000  18.3/s  0:32 left`.

    remaining_s  remaining time in seconds; None leaves the time out
    is_final     whether `total` is final; if not, a `+` after the total means that more images are expected
    """
    filled = round(_BAR * done / total) if total else 0
    bar = "#" * filled + "-" * (_BAR - filled)
    text = f"[{bar}] {done}/{total}{'' if is_final else '+'}  {images_per_s:.1f}/s"
    return text if remaining_s is None else f"{text}  {duration_text(remaining_s)} left"


def duration_text(seconds: float) -> str:
    """Format a duration as `m:ss`, or as `h:mm:ss` from one hour on."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


# ---- whether a person typed the command line
#
# A shell replaces `*` by the names in the current folder, which may come from a hostile drive. A file named
# `--trust=...` would make `fieldray screen *` trust a key. So would files named `packs`, `trust` and a fingerprint with
# `fieldray *`.


_END_OF_OPTIONS: Final = "--"


def refuse_shell_expanded_names(arguments: Sequence[str]) -> None:
    """Raise UsageProblem for options and commands that a shell may have made from file names by `*`.

    An option is rejected if a file in the current folder has the option's name. A command line is rejected if every
    argument is the name of a file in the current folder. Arguments with a `/` are allowed, because a bare `*` cannot
    produce them.
    """
    for argument in arguments:
        if len(argument) > 1 and argument.startswith("-") and os.path.lexists(argument):
            raise UsageProblem(reason("option_is_file", name=argument))
        if argument == _END_OF_OPTIONS:
            break
    if len(arguments) > 1 and is_command(arguments[0]) and all(map(_is_name_here, arguments)):
        raise UsageProblem(reason("command_is_file", name=arguments[0]))


def _is_name_here(argument: str) -> bool:
    return os.path.basename(argument) == argument and os.path.lexists(argument)  # noqa: PTH119 - as the shell sees it
