"""The tests of the cluster: left out where its modules are not installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import psutil
import pytest

from program import Fieldray, runner
from tiny_packs import fingerprint, write_tiny_pack
from waiting import wait_for

HAS_CLUSTER = all(importlib.util.find_spec(name) for name in ("distributed", "pyarrow"))


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave everything here out without Dask."""
    return None if HAS_CLUSTER else True


@pytest.fixture(scope="session")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A signed pack with the tiny network."""
    return write_tiny_pack(tmp_path_factory.mktemp("packs"))


@pytest.fixture
def pack_options(pack: Path) -> list[str]:
    """How a command is told to use that pack."""
    return ["--pack", str(pack), "--trust", fingerprint(pack)]


@pytest.fixture
def fieldray(home: Path) -> Fieldray:
    """Run `fieldray` to its end; `home` is another one than this test's."""
    return runner(home)


def wait_for_end(processes: list[psutil.Process]) -> None:
    """The processes of a driver that was killed end by themselves."""
    wait_for(lambda: not any(process.is_running() for process in processes))
