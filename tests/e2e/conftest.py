"""Fixtures of the end-to-end tests: ways to start the program."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from program import Fieldray


@pytest.fixture
def run_ok(fieldray: Fieldray) -> Fieldray:
    """A function that runs `fieldray` and requires exit code 0."""
    return lambda *arguments: fieldray(*arguments).ends_with(0)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ensure that Ctrl-C is not ignored, which child processes would inherit."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def screen(fieldray: Fieldray, tmp_path: Path, pack_options: list[str]) -> Fieldray:
    """A function that screens the test's folder `images` with the tiny pack and one worker, which starts soonest."""
    return lambda *arguments: fieldray("screen", tmp_path / "images", *pack_options, "--jobs", 1, *arguments)
