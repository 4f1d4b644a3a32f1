"""One run folder, one run: the second is told who holds it, and a killed holder leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fieldray.errors import StorageProblem, UsageProblem
from fieldray_adapt.run import LOCK_NAME, locked

HOLD = """
import sys, time
from pathlib import Path
from fieldray_adapt.run import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.readline()
"""


def _hold(folder: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def test_a_second_run_is_told_who_holds_the_folder_until_that_one_dies(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with _hold(folder) as holder:
        with pytest.raises(UsageProblem, match=rf"using .*run: process {holder.pid} of "), locked(folder):
            pass
        holder.kill()
        holder.wait(timeout=20)
        # The file is still there, with the dead process in it; the lock is not.
        assert str(holder.pid) in (folder / LOCK_NAME).read_text()
        with locked(folder):
            assert f"process {os.getpid()} of " in (folder / LOCK_NAME).read_text()


def test_the_folder_is_free_again_after_a_failure(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), locked(tmp_path):
        raise ZeroDivisionError
    with locked(tmp_path), pytest.raises(UsageProblem, match=str(os.getpid())), locked(tmp_path):
        pass


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageProblem, match="file"), locked(tmp_path / "file" / "run"):
        pass
