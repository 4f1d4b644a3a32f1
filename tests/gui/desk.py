"""What a test of the window holds: the program with its window, and how it waits for it."""

from __future__ import annotations

from pathlib import Path

from fake_rooms import FakeRooms
from pytestqt.qtbot import QtBot

from fieldray.desktop.application import Application
from fieldray.desktop.main_window import MainWindow

WAIT_MS = 20_000


class Desk:
    """A program with a window, and the rooms behind it."""

    def __init__(self, application: Application, rooms: FakeRooms, qtbot: QtBot) -> None:
        self.application, self.rooms, self.qtbot = application, rooms, qtbot

    @property
    def window(self) -> MainWindow:
        assert self.application.window is not None
        return self.application.window

    def screen(self, *paths: str, answer: str = "") -> None:
        """Open a folder and wait until the rooms' outcomes are listed; `answer`: the pack whose card is chosen."""
        self.application.controller.screening.choose([Path(path) for path in paths or ("/images",)])
        if answer:
            self.answer(answer)
        self.until_listed(len(self.rooms.outcomes))

    def until_listed(self, count: int) -> None:
        """Wait until so many images are in the run, and those in sight are read."""
        rows = self.application.controller.rows
        self.until(lambda: rows.is_whole and rows.total() == count)
        self.until(lambda: all(rows.row_at(rows.index(place, 0)) for place in range(min(rows.rowCount(), 40))))

    def answer(self, pack_name: str) -> None:
        """Wait until it is asked whose images these are, and choose the card of a pack."""
        bench = self.application.controller
        self.until(lambda: self.asks == "pack")
        packs = [entry for entry in bench.packs.candidates if entry.can_screen]
        place = [entry.pack_name for entry in packs].index(pack_name)
        self.window.welcome.cards[place].button.click()

    @property
    def asks(self) -> str:
        """The kind of the question about what is to be screened that is open, "" for none."""
        question = self.application.controller.screening.question
        return question.kind if question else ""

    def until(self, is_so: object) -> None:
        """Let the window work until `is_so()` is true."""
        self.qtbot.waitUntil(is_so, timeout=WAIT_MS)

    def open_row(self, row_id: int) -> None:
        """Choose a row and wait for its image."""
        image = self.application.controller.image
        self.window.work_list.choose(row_id)
        self.until(lambda: image.row is not None and image.row.row_id == row_id and not image.is_loading)
