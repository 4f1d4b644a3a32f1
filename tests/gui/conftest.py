"""A window over fake services, closed in order after the test; and a picture file that no text may make it open."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from desk import Begin, Desk, opened
from fake_rooms import FakeRooms, screened
from PIL import Image
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from fieldray.settings import Settings
from file_opens import FileOpens


@pytest.fixture
def rooms() -> FakeRooms:
    """Services with four images: abnormal, normal, uncertain, abnormal."""
    made = FakeRooms()
    made.outcomes = [screened(1, 0.9), screened(2, 0.1), screened(3, 0.42), screened(4, 0.7)]
    return made


@pytest.fixture
def settings() -> Settings:
    """English and the light theme, which the assertions expect. The pack of the fake services is the site's default."""
    return Settings({"language": "en", "theme": "light", "pack": "made-up"})


@pytest.fixture
def begin(qapp: QApplication, qtbot: QtBot, rooms: FakeRooms, settings: Settings, tmp_path: Path) -> Begin:
    """A function that opens the window on the fake services, with these settings unless others are given."""
    if rooms.database == Path():
        rooms.database = tmp_path / "rooms" / "results.sqlite"
    return lambda settings=settings, **options: opened(rooms, qapp, qtbot, settings, **options)


@pytest.fixture
def desk(begin: Begin, rooms: FakeRooms, settings: Settings) -> Iterator[Desk]:
    """The window, shown, with a pack in use."""
    with begin() as made:
        made.window.showNormal()
        made.window.resize(1366, 768)
        if rooms.open_problem is None and rooms.library.always and settings["pack"]:
            made.until(lambda: made.bench.packs.model is not None)
        yield made


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    """A picture file that markup in a text could refer to."""
    path = tmp_path / "drawn.png"
    Image.new("L", (200, 200), 255).save(path)
    return path


@pytest.fixture
def untouched(picture: Path) -> Iterator[Path]:
    """The picture file of `picture`; the test fails if anything opens it."""
    if sys.platform != "linux":
        pytest.skip("hears of opened files by inotify")
    opens = FileOpens(picture)
    try:
        yield picture
        assert not opens.any()
        picture.read_bytes()
        assert opens.any()  # proof that an opening would have been noticed
    finally:
        opens.close()
