"""Fixtures of the power-cut tests: a stage, whose process is started once for all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from harness.machine import compiler
from powercut.stage import Stage


@pytest.fixture(scope="session")
def stage_of_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """The stage, made once for the whole session."""
    if not compiler():
        pytest.skip("the watched disk needs Linux and a C compiler")
    before = os.environ.get("FIELDRAY_HOME")
    with Stage(tmp_path_factory.mktemp("stage")) as stage:
        stage.start()
        yield stage
    assert os.environ.get("FIELDRAY_HOME") == before


@pytest.fixture
def stage(stage_of_all: Stage, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """The stage, with FIELDRAY_HOME set to its home for this test."""
    monkeypatch.setenv("FIELDRAY_HOME", str(stage_of_all.place.home))
    return stage_of_all
