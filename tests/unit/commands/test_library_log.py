"""What libraries of the toolchain write to the descriptor of standard error is in their log, and not on the screen."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os, sys
from fieldray.commands.console import system_console
from fieldray_adapt.adapt_command import toolchain
console = system_console()
console.print_error("before")
try:
    with toolchain(console):
        os.write(2, b"I0000 cpu_feature_guard.cc\\n")
        print("a warning of a library", file=sys.stderr)
        console.print_error("within")
        raise RuntimeError("ours")
finally:
    console.print_error("after")
"""


def run(home: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "FIELDRAY_HOME": str(home)}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=100, check=False
    )


def test_libraries_are_heard_in_their_log_alone(tmp_path: Path) -> None:
    said = run(tmp_path).stderr
    assert said.splitlines()[:3] == ["fieldray: before", "fieldray: within", "fieldray: after"]
    assert "RuntimeError: ours" in said and "cpu_feature_guard" not in said
    log = tmp_path / "tensorflow.log"
    assert log.read_text() == "I0000 cpu_feature_guard.cc\na warning of a library\n"
    assert log.stat().st_mode & 0o777 == 0o600
    run(tmp_path)
    assert log.read_text().count("cpu_feature_guard") == 2
    log.write_text("x" * 2_000_000)
    run(tmp_path)
    assert log.stat().st_size < 100


def test_where_no_log_can_be_written_all_goes_on(tmp_path: Path) -> None:
    (tmp_path / "tensorflow.log").mkdir()
    assert run(tmp_path).stderr.splitlines()[:3] == ["fieldray: before", "fieldray: within", "fieldray: after"]
