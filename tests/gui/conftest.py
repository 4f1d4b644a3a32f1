"""A window with rooms made for the test; it is closed in order afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from desk import Desk, opened
from fake_rooms import FakeRooms, screened
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from fieldray.settings import Settings


@pytest.fixture
def rooms() -> FakeRooms:
    """Rooms with four images: abnormal, normal, not sure, abnormal."""
    made = FakeRooms()
    made.outcomes = [screened(1, 0.9), screened(2, 0.1), screened(3, 0.42), screened(4, 0.7)]
    return made


@pytest.fixture
def settings() -> Settings:
    """English, light: what the assertions are written in. The pack in reach is the site's default."""
    return Settings({"language": "en", "theme": "light", "pack": "made-up"})


@pytest.fixture
def desk(qapp: QApplication, qtbot: QtBot, rooms: FakeRooms, settings: Settings, tmp_path: Path) -> Iterator[Desk]:
    """The window, shown, with a pack in use."""
    if rooms.database == Path():
        rooms.database = tmp_path / "rooms" / "results.sqlite"
    with opened(rooms, qapp, qtbot, settings) as made:
        made.window.showNormal()
        made.window.resize(1366, 768)
        if rooms.open_problem is None and rooms.library.always and settings["pack"]:
            made.until(lambda: made.bench.packs.model is not None)
        yield made
