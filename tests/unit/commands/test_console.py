from __future__ import annotations

import io
import os

import pytest

from fakes import Terminal
from fieldray.commands.console import Console, duration_text, progress_text
from hostile import ALL, forbidden_in


def ascii_stream() -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="strict", newline="\n")


def written(stream: io.TextIOWrapper) -> bytes:
    buffer = stream.buffer
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue()


def test_messages_go_to_standard_error_if_standard_output_is_read_by_a_program() -> None:
    out, error = io.StringIO(), io.StringIO()
    console = Console(out, error)
    console.print_line("to people")
    console.is_output_for_program = True
    console.print_line("beside")
    console.write_machine_readable_line("{}")
    console.print_error("wrong")
    assert out.getvalue() == "to people\n{}\n"
    assert error.getvalue() == "beside\nfieldray: wrong\n"


def test_a_console_that_cannot_show_a_name_shows_its_escapes() -> None:
    out = ascii_stream()
    Console(out, io.StringIO()).print_line("знімок \udcff")
    assert written(out) == b"\\u0437\\u043d\\u0456\\u043c\\u043e\\u043a \\udcff\n"


def test_a_progress_bar_is_cleared_before_a_line() -> None:
    out, error = io.StringIO(), Terminal()
    console = Console(out, error)
    console.show_progress_bar("12345")
    console.show_progress_bar("12")
    console.print_line("line")
    assert error.getvalue() == "\r12345\r12   \r  \r"
    assert out.getvalue() == "line\n"


def test_no_progress_bar_without_a_terminal() -> None:
    error = io.StringIO()
    Console(io.StringIO(), error).show_progress_bar("12345")
    assert error.getvalue() == ""


def test_without_a_terminal_progress_is_a_line_every_ten_seconds() -> None:
    error, now = io.StringIO(), [0.0]
    console = Console(io.StringIO(), error, clock=lambda: now[0])
    console.logs_progress = True
    for second in range(0, 31, 3):
        now[0] = second
        console.show_progress_bar(f"{second} of 30")
    assert error.getvalue() == "12 of 30\n24 of 30\n"


def test_a_closed_pipe_is_noted_and_breaks_nothing() -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w", encoding="utf-8") as out:
        console = Console(out, io.StringIO())
        console.write_machine_readable_line("{}")
        console.write_machine_readable_line("{}")
        assert console.has_failed_stream


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (92, "1:32"), (3600, "1:00:00"), (3725.2, "1:02:05")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


def test_progress() -> None:
    # 412 of 1000 is 8.24 of 20 places
    assert progress_text(412, 1000, 18.31, 32.1) == "[########------------] 412/1000  18.3/s  0:32 left"
    assert progress_text(0, 0, 0, None, is_final=False) == "[--------------------] 0/0+  0.0/s"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs the device that is always full")  # noqa: PTH110
def test_a_full_disk_behind_standard_output_is_reported_once() -> None:
    error = io.StringIO()
    with open("/dev/full", "w", encoding="utf-8") as out:  # noqa: PTH123
        console = Console(out, error)
        console.write_machine_readable_line("{}")
        console.write_machine_readable_line("{}")
        assert console.has_failed_stream
    assert error.getvalue() == "fieldray: Cannot write to standard output: No space left on device.\n"


@pytest.mark.parametrize("text", ALL)
def test_every_message_is_one_line_whatever_its_text(text: str) -> None:
    out, error = io.StringIO(), Terminal()
    console = Console(out, error)
    console.print_line(text)
    console.print_error(text)
    console.show_progress_bar(text)
    console.clear_progress_bar()
    said, errors = out.getvalue(), error.getvalue()
    assert said.count("\n") == 1 and said.endswith("\n")
    line, bar = errors.split("\n")
    assert line.startswith("fieldray: ")
    assert forbidden_in(said[:-1] + line + bar.replace("\r", "")) == set()
    # the bar is shown, then blanks as wide as it was shown
    shown = bar.split("\r")[1]
    assert bar == f"\r{shown}\r{' ' * len(shown)}\r"
