"""Fixtures for the fake Edge TPU: its library, built once, and a fake device for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.double import DoubleEdgeTpu, build_library
from harness.machine import compiler


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """libedgetpu.so.1 of the test double."""
    if not compiler():
        pytest.skip("the test double of the Edge TPU needs Linux and a C compiler")
    return build_library(tmp_path_factory.mktemp("double"))


@pytest.fixture
def edgetpu(library: Path, tmp_path: Path) -> Iterator[DoubleEdgeTpu]:
    """An Edge TPU, not plugged in yet."""
    folder = tmp_path / "edgetpu"
    folder.mkdir()
    double = DoubleEdgeTpu(folder, library)
    yield double
    double.close()
