"""Two images beside each other: any two of the list, with linked window and zoom."""

from __future__ import annotations

from pathlib import Path

import pytest
from desk import Desk
from PySide6.QtCore import Qt

from fieldray.desktop.image_area import ImageArea
from fieldray.desktop.image_painting import like_window
from fieldray.desktop.view_state import Size, ViewState
from fieldray.domain.events import RunChanged
from fieldray.domain.image import Window

CONTROL = Qt.KeyboardModifier.ControlModifier


@pytest.fixture
def area(desk: Desk) -> ImageArea:
    """The first image kept, the second one open."""
    desk.screen()
    desk.open_row(1)
    desk.window.viewer.setFocus()
    desk.qtbot.keyClick(desk.window.viewer, Qt.Key.Key_C)
    desk.open_row(2)
    desk.until(lambda: not desk.application.controller.beside.is_loading)
    return desk.window.area


def test_the_kept_image_stays_while_the_list_goes_on(desk: Desk, area: ImageArea) -> None:
    bench = desk.application.controller
    assert (bench.beside.row.row_id, bench.image.row.row_id) == (1, 2)
    assert area.beside.isVisible()
    assert area.beside.pyramid is bench.beside.pyramid is not bench.image.pyramid
    desk.open_row(3)
    assert bench.beside.row.row_id == 1
    names = [head.name.text() for head in area._heads]
    assert names == ["Open: DOE PERSON 003, 2026-03-04", "Kept: DOE PERSON 001, 2026-03-02"]
    desk.window.hide_patient(True)
    assert [head.name.text() for head in area._heads] == ["Open: 2026-03-04", "Kept: 2026-03-02"]


def test_zoom_place_and_preset_go_along_and_turns_and_lines_do_not(desk: Desk, area: ImageArea) -> None:
    area.viewer.setFocus()
    for key in (Qt.Key.Key_Plus, Qt.Key.Key_Plus, Qt.Key.Key_3, Qt.Key.Key_I, Qt.Key.Key_R):
        desk.qtbot.keyClick(area.viewer, key)
    desk.qtbot.keyClick(area.viewer, Qt.Key.Key_Right, Qt.KeyboardModifier.ShiftModifier)
    open_state, kept_state = area.viewer.state, area.beside.state
    assert kept_state.zoom == open_state.zoom == pytest.approx(1.25**2)
    assert kept_state.center == pytest.approx(open_state.center)  # both are of 600 x 512
    assert kept_state.window == area.beside.pyramid.presets[2]
    assert (kept_state.inverted, kept_state.turns) == (True, 0)


def test_what_is_done_to_the_kept_one_the_open_one_follows_and_can_be_undone_there(desk: Desk, area: ImageArea) -> None:
    area.beside.setFocus()
    desk.qtbot.keyClick(area.beside, Qt.Key.Key_Plus)
    assert area.viewer.state.zoom == pytest.approx(1.25)
    desk.qtbot.keyClick(area.beside, Qt.Key.Key_Z, CONTROL)
    assert area.viewer.state.zoom == area.beside.state.zoom == 1.0


def test_the_next_image_of_the_list_is_shown_at_the_same_place(desk: Desk, area: ImageArea) -> None:
    area.beside.setFocus()
    desk.qtbot.keyClick(area.beside, Qt.Key.Key_Plus)
    desk.open_row(3)
    assert area.viewer.state.zoom == pytest.approx(1.25)


def test_unlinked_each_goes_its_own_way(desk: Desk, area: ImageArea) -> None:
    area.viewer.setFocus()
    desk.qtbot.keyClick(area.viewer, Qt.Key.Key_K)
    desk.qtbot.keyClick(area.viewer, Qt.Key.Key_Plus)
    assert (area.viewer.state.zoom, area.beside.state.zoom) == (1.25, 1.0)
    assert not desk.window.tools.buttons["link"].isChecked()
    desk.qtbot.keyClick(area.viewer, Qt.Key.Key_K)
    assert area.beside.state.zoom == 1.25


def test_heat_map_and_outline_are_switched_in_both(desk: Desk, area: ImageArea) -> None:
    desk.qtbot.keyClick(area.viewer, Qt.Key.Key_H)
    desk.qtbot.keyClick(area.viewer, Qt.Key.Key_O)
    assert [view.shows_heat_map for view in area.viewers] == [False, False]
    assert [view.shows_outline for view in area.viewers] == [True, True]


def test_the_same_key_closes_it_and_so_does_another_run(desk: Desk, area: ImageArea) -> None:
    desk.qtbot.keyClick(area.viewer, Qt.Key.Key_C)
    assert desk.application.controller.beside.row is None
    assert not area.beside.isVisible()
    desk.qtbot.keyClick(area.viewer, Qt.Key.Key_C)
    assert area.beside.isVisible()
    desk.rooms.publish(RunChanged(run_id=1, state="finished"))
    desk.until(lambda: not desk.application.controller.screening.is_busy)
    desk.screen(str(Path("/other")))
    desk.until(lambda: desk.application.controller.beside.row is None)
    assert not area.beside.isVisible()


def test_a_window_of_another_image_is_as_far_from_its_own(area: ImageArea) -> None:
    shown, other = area.viewer.pyramid, area.beside.pyramid
    assert like_window(None, shown, other) is None
    for own, its in zip(shown.presets, other.presets, strict=True):
        assert like_window(own, shown, other) == its
    start = shown.start_window
    wide = Window(start.center + start.width / 2, start.width * 2, "LINEAR_EXACT")
    like = like_window(wide, shown, other)
    assert like.width == pytest.approx(other.start_window.width * 2)
    assert like.center == pytest.approx(other.start_window.center + other.start_window.width / 2)
    assert like_window(like, other, shown).center == pytest.approx(wide.center)


def test_a_place_is_a_share_of_the_image() -> None:
    leader = ViewState(zoom=2.0, center=(50.0, 25.0), turns=1, inverted=True)
    state = ViewState(turns=3).following(leader, None, image=Size(1000, 400), other_image=Size(100, 100))
    assert state == ViewState(zoom=2.0, center=(500.0, 100.0), turns=3, inverted=True)
