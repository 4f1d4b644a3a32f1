"""A window with rooms made for the test; it is closed in order afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_rooms import FakeRooms, screened
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from fieldray.desktop.application import Application
from fieldray.desktop.main_window import MainWindow
from fieldray.settings import Settings

WAIT_MS = 5000


class Desk:
    """A program with a window, and the rooms behind it."""

    def __init__(self, application: Application, rooms: FakeRooms, qtbot: QtBot) -> None:
        self.application, self.rooms, self.qtbot = application, rooms, qtbot

    @property
    def window(self) -> MainWindow:
        assert self.application.window is not None
        return self.application.window

    def screen(self, *paths: str) -> None:
        """Open a folder and wait until the rooms' outcomes are listed."""
        self.application.workbench.screening.choose([Path(path) for path in paths or ("/images",)])
        wanted = len(self.rooms.outcomes)
        self.until(lambda: self.application.workbench.rows.total() == wanted)

    def until(self, is_so: object) -> None:
        """Let the window work until `is_so()` is true."""
        self.qtbot.waitUntil(is_so, timeout=WAIT_MS)

    def open_row(self, row_id: int) -> None:
        """Choose a row and wait for its image."""
        self.window.work_list.choose(row_id)
        self.until(lambda: not self.application.workbench.image.is_loading)


@pytest.fixture
def rooms() -> FakeRooms:
    """Rooms with four images: abnormal, normal, not sure, abnormal."""
    made = FakeRooms()
    made.outcomes = [screened(1, 0.9), screened(2, 0.1), screened(3, 0.42), screened(4, 0.7)]
    return made


@pytest.fixture
def settings() -> Settings:
    """English, light: what the assertions are written in."""
    return Settings({"language": "en", "theme": "light"})


@pytest.fixture
def desk(qapp: QApplication, qtbot: QtBot, rooms: FakeRooms, settings: Settings) -> Iterator[Desk]:
    """The window, shown, with a pack in use."""
    application = Application(qapp, settings, services=rooms.open)
    ended: list[bool] = []
    application.ended.connect(lambda: ended.append(True))
    application.show()
    assert application.window is not None
    application.window.showNormal()
    application.window.resize(1366, 768)
    made = Desk(application, rooms, qtbot)
    if rooms.open_problem is None and rooms.library.always:
        made.until(lambda: application.workbench.packs.model is not None)
    yield made
    application.workbench.close()
    made.until(lambda: bool(ended))
    made.window.deleteLater()
    qapp.processEvents()
