"""The limits that are checked at the start of a run, and its imports."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fieldray.settings import Settings
from fieldray.workers.pool import number_of_workers


def test_the_settings_decide_how_many_files_are_read_at_once() -> None:
    assert number_of_workers(Settings({"decoders": 11})) == 11
    assert 1 <= number_of_workers(Settings()) <= 8


@pytest.mark.parametrize(
    ("imported", "heavy"),
    [
        (
            "fieldray.cli, fieldray.workers.pool",
            "numpy PIL pydicom PySide6 tensorflow ai_edge_litert cryptography sqlite3 psutil",
        ),
        (
            "fieldray.commands.run_report, fieldray.pipeline.session, fieldray.pipeline.batch",
            "PySide6 tensorflow keras torch ai_edge_litert gdcm zipfile importlib.metadata",
        ),
        (
            "fieldray.processes.serving, fieldray.inference.service",
            "pydicom PIL PySide6 tensorflow keras torch cryptography psutil sqlite3",
        ),
    ],
    ids=["before the first process", "a run", "a process that runs a network"],
)
def test_heavy_libraries_are_imported_only_where_needed(imported: str, heavy: str) -> None:
    assert set(heavy.split()).isdisjoint(said_by(f"import sys, {imported}; print(*sys.modules)").split())


def said_by(script: str) -> str:
    """The output of a separate Python process."""
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX limits open files")
@pytest.mark.parametrize(
    ("limits", "says"),
    [
        # 32 and 6 for each of two
        (
            "(20, 20)",
            "The operating system lets the program open 20 files at the same time, but the program needs 44 open",
        ),
        ("(20, 44)", "(44, 44)"),
        ("(44, 44)", "(44, 44)"),
        ("(300, 300)", "(300, 300)"),
    ],
)
def test_a_too_low_limit_of_open_files_is_reported_before_any_image(limits: str, says: str) -> None:
    script = (
        "import resource\n"
        "from fieldray.errors import EnvironmentProblem\n"
        "from fieldray.workers.pool import open_workers\n"
        "from fieldray.settings import Settings\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, {limits})\n"
        "try: open_workers(Settings(), 2).close()\n"
        "except EnvironmentProblem as problem: print(problem)\n"
        "else: print(resource.getrlimit(resource.RLIMIT_NOFILE))\n"
    )
    assert said_by(script).startswith(says)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux holds a process to its address space")
@pytest.mark.parametrize("limit_mb", [100, 300, 600, 1000, 1343])
def test_a_too_low_memory_limit_is_reported_before_any_process_or_thread(limit_mb: int) -> None:
    script = (
        "import resource, threading\n"
        "from fieldray.errors import EnvironmentProblem\n"
        "from fieldray.workers.pool import open_workers\n"
        "from fieldray.settings import Settings\n"
        "settings = Settings({'decoders': 2})\n"
        f"resource.setrlimit(resource.RLIMIT_AS, ({limit_mb} * 2**20,) * 2)\n"
        "try: open_workers(settings, 2).close()\n"
        "except EnvironmentProblem as problem: print(problem, threading.active_count())\n"
    )
    said = said_by(script)
    # 1300 and 22 for each of two
    assert said.startswith(
        f"The operating system lets the program use {limit_mb} MB of memory, but the program needs 1344 MB. "
    )
    assert said.split()[-1] == "1"
