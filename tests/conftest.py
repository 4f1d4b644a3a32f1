"""Fixtures of all tests: a home for each test, no display, and a check for processes and threads left behind."""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from fieldray.process_environment import usable_cores
from program import Fieldray, runner
from tiny_packs import fingerprint, write_tiny_pack
from waiting import left_behind, running

# Keep compiled Python files: hundreds of processes import the same libraries, and TensorFlow compiles for 10 s.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ["QT_QPA_PLATFORM"] = "offscreen"
if "PYTEST_XDIST_WORKER" in os.environ:
    # One thread for each worker: there are as many workers as cores, and waiting threads of a library would use CPU.
    os.environ["TF_NUM_INTRAOP_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

# Equal examples each time and on every machine, without time limits, and without a file of examples.
hypothesis.settings.register_profile("house", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("house")

_HAS_TOOLCHAIN = importlib.util.find_spec("tensorflow") is not None


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out the toolchain's tests without TensorFlow, as with a Python for which it has no wheels."""
    return True if not _HAS_TOOLCHAIN and collection_path.name == "adapt" else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report that the toolchain's tests were left out."""
    if not _HAS_TOOLCHAIN:
        terminalreporter.write_line("Without TensorFlow, tests/adapt and all tests marked adapt were left out.")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return the number of cores plus one, because tests wait for processes a third of the time."""
    return usable_cores() + 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests that need TensorFlow, if it is missing."""
    for item in items:
        if not _HAS_TOOLCHAIN and item.get_closest_marker("adapt"):
            item.add_marker(pytest.mark.skip(reason="needs TensorFlow"))


def pytest_collection_finish() -> None:
    """Exempt all objects that exist before the first test from garbage collection."""
    gc.freeze()


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return this test's user data folder. The real one is neither read nor written."""
    folder = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("FIELDRAY_HOME", str(folder))
    return folder


@pytest.fixture(scope="session")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a signed pack with the tiny network."""
    return write_tiny_pack(tmp_path_factory.mktemp("packs"))


@pytest.fixture
def pack_options(pack: Path) -> list[str]:
    """Return the command-line options that select the pack."""
    return ["--pack", str(pack), "--trust", fingerprint(pack)]


@pytest.fixture
def fieldray(home: Path) -> Fieldray:
    """Return a function that runs `fieldray` to its end."""
    return runner(home)


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fail a test that leaves a thread or a child process running."""
    before = running()
    yield
    left = left_behind(before)
    assert not left, f"left behind: {left}"
