"""The image under the mouse and the keys of the key sheet."""

from __future__ import annotations

import pytest
from desk import Desk
from fake_rooms import screened
from PySide6.QtCore import QEvent, QPoint, QPointF, Qt
from PySide6.QtGui import QColor, QFont, QImage, QMouseEvent, QPainter, QWheelEvent
from PySide6.QtWidgets import QMenu

from fieldray.desktop.overlay import Corners, draw_corners
from fieldray.desktop.view_state import ViewState
from fieldray.desktop.viewer import Viewer
from fieldray.plain_text import visible
from hostile import BREAKS, FORGED_LINE, REORDERS, STEERS


@pytest.fixture
def viewer(desk: Desk) -> Viewer:
    """The viewer with the first image open."""
    desk.screen()
    desk.open_row(1)
    viewer = desk.window.viewer
    viewer.setFocus()
    return viewer


def drag(viewer: Viewer, button: Qt.MouseButton, by: tuple[int, int]) -> None:
    start = QPointF(100, 100)
    kinds = (QEvent.Type.MouseButtonPress, QEvent.Type.MouseMove, QEvent.Type.MouseButtonRelease)
    handlers = (viewer.mousePressEvent, viewer.mouseMoveEvent, viewer.mouseReleaseEvent)
    for kind, handle in zip(kinds, handlers, strict=True):
        at = start if kind == kinds[0] else start + QPointF(*by)
        place = viewer.mapToGlobal(at)
        handle(QMouseEvent(kind, at, place, button, button, Qt.KeyboardModifier.NoModifier))


def wheel(viewer: Viewer, notches: int, *, control: bool = False) -> None:
    modifier = Qt.KeyboardModifier.ControlModifier if control else Qt.KeyboardModifier.NoModifier
    at = QPointF(100, 100)
    viewer.wheelEvent(
        QWheelEvent(
            at, viewer.mapToGlobal(at), QPoint(), QPoint(0, 120 * notches), Qt.MouseButton.NoButton, modifier,
            Qt.ScrollPhase.NoScrollPhase, False,
        )
    )  # fmt: skip


def test_left_drag_changes_window_and_level(viewer: Viewer) -> None:
    start = viewer.pyramid.start_window
    drag(viewer, Qt.MouseButton.LeftButton, (40, -20))
    # 400 points are one window width: 40 to the right a tenth wider, 20 up a twentieth lower level (brighter).
    assert viewer.state.window.width == pytest.approx(start.width * 1.1)
    assert viewer.state.window.center == pytest.approx(start.center - start.width * 0.05)


def test_middle_drag_moves_and_right_drag_zooms(viewer: Viewer) -> None:
    viewer.zoom(4)
    before = viewer.state
    drag(viewer, Qt.MouseButton.MiddleButton, (30, 0))
    assert viewer.state.center[0] < 256  # the image went right, so its middle now lies to the left
    assert viewer.state.zoom == before.zoom
    drag(viewer, Qt.MouseButton.RightButton, (0, -50))
    assert viewer.state.zoom == pytest.approx(before.zoom * 1.01**50)


def test_right_click_without_a_drag_opens_the_menu(desk: Desk, viewer: Viewer) -> None:
    drag(viewer, Qt.MouseButton.RightButton, (0, 0))
    menu = next(menu for menu in desk.window.findChildren(QMenu) if menu.isVisible())
    assert "Invert\tI" in [action.text() for action in menu.actions()]
    assert viewer.state == ViewState()
    menu.close()


def test_the_wheel_steps_through_images_and_zooms_with_control(desk: Desk, viewer: Viewer) -> None:
    wheel(viewer, 1, control=True)
    assert viewer.state.zoom == pytest.approx(1.25)
    wheel(viewer, -1)
    assert desk.application.controller.image.row.row_id == 4
    wheel(viewer, 1)
    assert desk.application.controller.image.row.row_id == 1


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (Qt.Key.Key_I, ViewState(inverted=True)),
        (Qt.Key.Key_R, ViewState(turns=1)),
        (Qt.Key.Key_L, ViewState(turns=3)),
        (Qt.Key.Key_F, ViewState(mirrored=True)),
        (Qt.Key.Key_V, ViewState(mirrored=True, turns=2)),
        (Qt.Key.Key_Plus, ViewState(zoom=1.25)),
        (Qt.Key.Key_Minus, ViewState(zoom=0.8)),
    ],
)
def test_keys_change_the_view_and_ctrl_z_takes_it_back(
    desk: Desk, viewer: Viewer, key: Qt.Key, expected: ViewState
) -> None:
    desk.qtbot.keyClick(viewer, key)
    assert viewer.state == expected
    desk.qtbot.keyClick(viewer, Qt.Key.Key_Z, Qt.KeyboardModifier.ControlModifier)
    assert viewer.state == ViewState()


def test_presets_and_reset(desk: Desk, viewer: Viewer) -> None:
    desk.qtbot.keyClick(viewer, Qt.Key.Key_3)
    assert viewer.state.window == viewer.pyramid.presets[2]
    desk.qtbot.keyClick(viewer, Qt.Key.Key_Space)
    assert viewer.state == ViewState()


def test_the_tool_keys_choose_what_the_left_drag_does(desk: Desk, viewer: Viewer) -> None:
    desk.qtbot.keyClick(viewer, Qt.Key.Key_Z)
    drag(viewer, Qt.MouseButton.LeftButton, (0, -10))
    assert viewer.state.zoom == pytest.approx(1.01**10)
    assert desk.window.tools.buttons["tool_zoom"].isChecked()


def test_one_key_hides_the_heat_map(desk: Desk, viewer: Viewer) -> None:
    warm = _colourful(viewer)
    desk.qtbot.keyClick(viewer, Qt.Key.Key_H)
    assert not desk.window.result.heat_map_box.isChecked()
    assert _colourful(viewer) == 0 < warm


def test_the_heat_map_lies_where_the_evidence_is(viewer: Viewer) -> None:
    """The made-up evidence peaks at row 8, column 4 of 14 x 14: (4.5 / 14, 8.5 / 14) of the image."""
    viewer.set_opacity(100)
    shot = viewer.grab().toImage()
    scale = viewer.state.scale(viewer.image_size, viewer.view_size)
    left = (viewer.width() - 512 * scale) / 2
    top = (viewer.height() - 600 * scale) / 2
    peak = shot.pixelColor(round(left + 512 * scale * 4.5 / 14), round(top + 600 * scale * 8.5 / 14))
    far = shot.pixelColor(round(left + 512 * scale * 11.5 / 14), round(top + 600 * scale * 3.5 / 14))
    assert peak.red() > peak.green() + 80
    assert abs(far.red() - far.green()) < 3


def test_a_normal_images_heat_map_is_blank_and_says_so(desk: Desk, viewer: Viewer) -> None:
    desk.open_row(2)
    assert viewer._heat_map.is_blank
    assert _colourful(viewer) == 0


def test_what_the_model_saw_is_shown_on_request(desk: Desk, viewer: Viewer) -> None:
    desk.qtbot.keyClick(viewer, Qt.Key.Key_N)
    assert (viewer.pyramid.rows, viewer.pyramid.columns) == (224, 224)
    desk.qtbot.keyClick(viewer, Qt.Key.Key_N)
    assert (viewer.pyramid.rows, viewer.pyramid.columns) == (600, 512)


def test_hiding_patient_data_hides_it_everywhere(desk: Desk, viewer: Viewer) -> None:
    named = viewer.grab().toImage()
    desk.window.actions_by_name["hide_patient"].trigger()
    hidden = viewer.grab().toImage()
    assert named != hidden
    assert desk.window.work_list._delegate.hide_patient
    assert desk.application.settings["hide_patient"] is True


def test_the_newest_image_wins_and_none_is_shown_under_a_wrong_name(desk: Desk) -> None:
    desk.rooms.outcomes[:] = [screened(number, 1 - number / 100) for number in range(1, 9)]
    desk.screen()
    session, image = desk.rooms.session, desk.application.controller.image
    session.may_read.clear()
    for row_id in range(1, 9):
        desk.window.work_list.choose(row_id)
        assert image.pyramid is None
    session.may_read.set()
    desk.until(lambda: not image.is_loading)
    assert image.row.row_id == 8
    assert session.read[-1] == image.row.outcome.ref
    assert len(session.read) <= 3  # what was passed over is not read at all


def test_what_is_read_while_the_program_closes_is_not_taken(desk: Desk, viewer: Viewer) -> None:
    """The readers end with the session: their answer would be an error that nobody can help."""
    session, image = desk.rooms.session, desk.application.controller.image
    session.may_read.clear()
    desk.window.work_list.choose(2)
    desk.until(lambda: len(session.begun) == 2)
    desk.application.controller.close()
    session.may_read.set()
    desk.until(lambda: len(session.read) == 2)
    desk.until(lambda: session.is_closed)
    assert (image.pyramid, image.problem) == (None, None)


def test_a_image_is_shown_only_while_it_is_open(desk: Desk, viewer: Viewer) -> None:
    desk.application.controller.rows.open(None)
    assert desk.application.controller.image.row is None
    assert viewer.pyramid is None


def _colourful(viewer: Viewer) -> int:
    """How many of a grid of points in the upper three quarters are not grey."""
    shot = viewer.grab().toImage()
    points = ((x, y) for x in range(20, viewer.width() - 20, 8) for y in range(20, viewer.height() * 3 // 4, 8))
    colours = (QColor(shot.pixel(x, y)) for x, y in points)
    return sum(max(c.red(), c.green(), c.blue()) - min(c.red(), c.green(), c.blue()) > 12 for c in colours)


@pytest.mark.parametrize("text", [FORGED_LINE, STEERS, REORDERS, BREAKS])
def test_a_corner_has_no_line_that_a_file_began(qapp: object, text: str) -> None:
    def painted(said: str) -> QImage:
        sheet = QImage(1400, 300, QImage.Format.Format_RGB32)
        sheet.fill(0)
        painter = QPainter(sheet)
        draw_corners(painter, sheet.rect(), Corners(top_left=(said, "PX-1"), bottom_right=("DX", said)), QFont())
        painter.end()
        return sheet

    assert painted(text) == painted(visible(text))
