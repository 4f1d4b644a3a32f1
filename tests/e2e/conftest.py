"""The program as the end-to-end tests start it: to an end that is good, and over images of the test with its pack."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from program import Fieldray


@pytest.fixture
def well(fieldray: Fieldray) -> Fieldray:
    """Run `fieldray` to its end, which must be a good one."""
    return lambda *arguments: fieldray(*arguments).ends_with(0)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A test run may have been started with Ctrl-C ignored, which its children inherit."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def screen(fieldray: Fieldray, tmp_path: Path, pack_options: list[str]) -> Fieldray:
    """Screen the folder `images` of the test with the tiny pack; a second reader would start too late to help."""
    return lambda *arguments: fieldray("screen", tmp_path / "images", *pack_options, "--jobs", 1, *arguments)
