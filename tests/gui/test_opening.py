"""What cannot be opened is explained and can be tried again; without a pack nothing starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from desk import Desk, texts
from fake_rooms import FakeRooms, candidate, screened
from PySide6.QtWidgets import QPushButton
from test_flows import listed

from fieldray.domain.events import Drive, DrivesChanged
from fieldray.errors import StorageProblem
from fieldray.reasons import reason


class TestDamagedRooms:
    @pytest.fixture
    def rooms(self) -> FakeRooms:
        made = FakeRooms()
        made.outcomes = [screened(1, 0.9)]
        made.open_problem = StorageProblem(reason("database_other_version", path="results.sqlite"))
        return made

    def test_the_reason_is_shown_and_a_button_tries_again(self, desk: Desk, rooms: FakeRooms) -> None:
        desk.until_told("another version")
        rooms.open_problem = None
        desk.window.banners.findChild(QPushButton).click()
        desk.until(lambda: desk.bench.packs.model is not None)
        desk.screen()
        assert listed(desk) == [1]


class TestNoPack:
    @pytest.fixture
    def rooms(self) -> FakeRooms:
        made = FakeRooms()
        made.outcomes = [screened(1, 0.9)]
        made.library.always = []
        return made

    def test_the_window_asks_for_a_drive_and_starts_when_it_comes(self, desk: Desk, rooms: FakeRooms) -> None:
        desk.until_told("Plug in a model drive")
        desk.until(lambda: "No pack is here. Plug in a model drive." in texts(desk.window.welcome))
        desk.bench.screening.choose([Path("/images")])
        assert desk.window.toolbar.progress_text.text() == "Waiting until a pack is chosen"
        assert rooms.session.started_with == []
        rooms.library.on_drives[Path("/media/stick")] = [
            candidate("/media/stick/fieldray/made-up-1.2.0", origin="drive")
        ]
        rooms.publish(DrivesChanged(drives=(Drive(mount_point="/media/stick", name="STICK"),)))
        desk.until(lambda: rooms.session.started_with == [((Path("/images"),), None, False)])
        assert not desk.window.banners.isVisible()
