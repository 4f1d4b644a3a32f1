"""Child processes of the benchmarks: the guard starts before other imports, and no socket can be opened."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

from benchmarks.processes import CHECKOUT, child_command

# Prints the modules that are imported when the guard is called, and ends.
WHEN_GUARDED = """
import runpy, sys
from fieldray import offline
def report(**_):
    print(sorted(name for name in sys.modules if name.partition(".")[0] in ("fieldray", "benchmarks")))
    sys.exit(0)
offline.stay_offline = report
sys.argv = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


def test_child_processes_import_nothing_before_the_guard() -> None:
    command = [sys.executable, "-c", WHEN_GUARDED, "benchmarks", "screening", "--help"]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=True)
    assert ast.literal_eval(done.stdout.splitlines()[0]) == ["benchmarks", "fieldray", "fieldray.offline"]


def test_a_child_opens_no_socket(tmp_path: Path) -> None:
    begin, *rest = child_command("benchmarks.scripts:handle")[-6:]
    assert rest[-2:] == ["benchmarks.child_main", "benchmarks.scripts:handle"]
    attempt = begin.replace("sys.exit(", "import_module(module).main(); import socket; socket.socket() #")
    command = [sys.executable, "-I", "-c", attempt, *rest]
    done = subprocess.run(command, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert "InternetRefused" in done.stderr
