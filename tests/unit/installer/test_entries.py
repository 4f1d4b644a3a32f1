"""The script that starts the three installed programs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import contents
from program import python

ENTRIES = contents.ROOT / "installer" / "entry"
_BEGIN = f"import sys; sys.path.insert(0, {str(ENTRIES)!r}); import program; sys.exit(program.main(sys.argv.pop(1)))"


def run(program: str, *arguments: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    kept = {
        name: os.environ[name] for name in ("PATH", "PYTHONPATH", "FIELDRAY_HOME", "SYSTEMROOT") if name in os.environ
    }
    return python(_BEGIN, program, *arguments, environment={**kept, **environment})


def test_one_script_starts_all_programs_after_the_offline_guard() -> None:
    assert {path.name for path in ENTRIES.iterdir() if path.suffix == ".py"} == {"guard.py", "program.py"}
    spec = (contents.ROOT / "installer" / "fieldray.spec").read_text(encoding="utf-8")
    assert 'runtime_hooks=[str(HERE / "entry" / "guard.py")]' in spec


@pytest.mark.skipif(sys.platform != "linux", reason="X11 and Wayland")
def test_the_installed_window_needs_x11_and_says_so_under_wayland() -> None:
    """Only Qt's X11 plugin ships, so a message must come before Qt aborts."""
    done = run("fieldray-window", environment={"WAYLAND_DISPLAY": "wayland-0"})
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("fieldray: No display is available for the window.")


def test_the_command_line_and_the_worker_answer() -> None:
    done = run("fieldray", "screen", "--help", environment={})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: fieldray screen")
    assert run("fieldray-worker", "elsewhere:handle", environment={}).returncode == 2


def test_the_offline_guard_holds_in_a_program_of_another_name(tmp_path: Path) -> None:
    code = f"import runpy; runpy.run_path({str(ENTRIES / 'guard.py')!r}); import socket; socket.socket()"
    assert "Fieldray connects to nothing" in python(code, cwd=tmp_path).stderr
