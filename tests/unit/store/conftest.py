"""The empty store that most tests of the store begin with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fieldray.store.results import ResultStore


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path of the store."""
    return tmp_path / "results.sqlite"


@pytest.fixture
def store(path: Path) -> Iterator[ResultStore]:
    """The store at `path`, open."""
    with ResultStore(path) as opened:
        yield opened
