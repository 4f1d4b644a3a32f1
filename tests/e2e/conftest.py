"""The program as its user starts it: a process of its own, with a home of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from program import Fieldray, runner
from tiny_packs import fingerprint, write_tiny_pack


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
    """Run `fieldray` to its end."""
    return runner(home)
