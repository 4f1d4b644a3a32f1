"""The `adapt` command: its progress bar, and the log that gets its libraries' messages."""

from __future__ import annotations

import io
from pathlib import Path

from fakes import Terminal
from fieldray.commands.console import Console
from fieldray_adapt.adapt_command import ProgressBar
from program import python


def test_each_kind_of_work_has_its_own_rate_and_time_left() -> None:
    terminal, now = Terminal(), [0.0]
    bar = ProgressBar(Console(io.StringIO(), terminal), clock=lambda: now[0])

    def shown(what: str, done: int, total: int, *, at: float) -> str:
        now[0] = at
        bar(what, done, total)
        return terminal.getvalue().rpartition("\r")[2].rstrip()

    assert shown("images", 1, 9, at=100).endswith("1/9  0.0/s")
    # four more in two seconds, so the four that are left take two more
    assert shown("images", 5, 9, at=102).endswith("5/9  2.0/s  0:02 left")
    assert shown("epochs", 1, 3, at=110).startswith("epochs [#######-------------] 1/3")
    # 20 s an epoch, one left
    assert shown("epochs", 2, 3, at=130).endswith("2/3  0.1/s  0:20 left")
    # the next iteration counts its epochs from one again, and its time too
    assert shown("epochs", 1, 3, at=200).endswith("1/3  0.0/s")
    assert shown("epochs", 2, 3, at=201).endswith("2/3  1.0/s  0:01 left")


PROGRAM = """
import os, sys
from fieldray.commands.console import system_console
from fieldray_adapt.adapt_command import report_missing_libraries
console = system_console()
console.print_error("before")
try:
    with report_missing_libraries(console):
        os.write(2, b"I0000 cpu_feature_guard.cc\\n")
        print("a warning of a library", file=sys.stderr)
        console.print_error("within")
        raise RuntimeError("ours")
finally:
    console.print_error("after")
"""


def test_messages_of_libraries_go_to_the_log_only(home: Path) -> None:
    said = python(PROGRAM).stderr
    assert said.splitlines()[:3] == ["fieldray: before", "fieldray: within", "fieldray: after"]
    assert "RuntimeError: ours" in said and "cpu_feature_guard" not in said
    log = home / "tensorflow.log"
    assert log.read_text() == "I0000 cpu_feature_guard.cc\na warning of a library\n"
    assert log.stat().st_mode & 0o777 == 0o600
    python(PROGRAM)
    assert log.read_text().count("cpu_feature_guard") == 2
    log.write_text("x" * 2_000_000)
    python(PROGRAM)
    assert log.stat().st_size < 100


def test_without_a_writable_log_the_command_runs_on(home: Path) -> None:
    (home / "tensorflow.log").mkdir()
    assert python(PROGRAM).stderr.splitlines()[:3] == ["fieldray: before", "fieldray: within", "fieldray: after"]
