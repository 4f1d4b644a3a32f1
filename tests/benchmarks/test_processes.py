"""Where processes of the benchmarks begin: isolated, guarded, and only for services of their own."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.processes import CHECKOUT, child_command
from fieldray.processes.child import Child, ChildDied
from fieldray.processes.wire import Message

# Says what is imported when the guard is called, and goes no further.
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


def test_nothing_is_imported_before_the_guard() -> None:
    command = [sys.executable, "-c", WHEN_GUARDED, "benchmarks", "screening", "--help"]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=True)
    assert ast.literal_eval(done.stdout.splitlines()[0]) == ["benchmarks", "fieldray", "fieldray.offline"]


def test_a_child_is_isolated_and_takes_both_packages_from_here(tmp_path: Path) -> None:
    for name in ("benchmarks", "fieldray", "numpy"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('taken from a strange folder')")
    command = child_command("benchmarks.scripts:handle")
    assert command[:2] == [sys.executable, "-I"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert b"ready" in done.stdout


@pytest.mark.parametrize("service", ["fieldray.bench.machine:handle", "os:getcwd", "benchmarksx:handle"])
def test_a_child_serves_the_benchmarks_only(service: str) -> None:
    child = Child(service, command=child_command)
    child.start()
    try:
        with pytest.raises(ChildDied) as died:
            child.call(Message({}), timeout_s=60)
        assert died.value.exit_code == 2 and not died.value.was_ready
    finally:
        child.close()


def test_a_child_opens_no_socket(tmp_path: Path) -> None:
    begin, *rest = child_command("benchmarks.scripts:handle")[-6:]
    assert rest[-2:] == ["benchmarks.child_main", "benchmarks.scripts:handle"]
    attempt = begin.replace("sys.exit(", "import_module(module).main(); import socket; socket.socket() #")
    command = [sys.executable, "-I", "-c", attempt, *rest]
    done = subprocess.run(command, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert "InternetRefused" in done.stderr


@pytest.mark.parametrize(("command", "may"), [("networks", True), ("pipeline", False)])
def test_what_trains_a_network_may_import_what_tensorflow_insists_on(command: str, may: bool) -> None:
    script = "import sys; sys.argv[1:] = sys.argv[1:2] + ['--help']; import benchmarks.__main__ as of\n"
    script += "try:\n    of.main()\nexcept SystemExit:\n    pass\nimport requests"
    line = [sys.executable, "-c", script, command]
    done = subprocess.run(line, cwd=CHECKOUT, capture_output=True, timeout=60, check=False)
    assert (done.returncode == 0) is may, done.stderr
