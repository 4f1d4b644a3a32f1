"""Measuring on an image, and the magnifier."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from desk import Desk
from PySide6.QtCore import QPointF, Qt
from test_viewer import drag, viewer

from fieldray.desktop.overlay import length_words
from fieldray.desktop.view_state import Line, Size, ViewState
from fieldray.desktop.viewer import Viewer
from fieldray.domain.image import Image
from fieldray.translation import Translator

assert viewer  # the fixture

SHIFT = Qt.KeyboardModifier.ShiftModifier
# 30 columns and 40 rows: 50 pixels. With 0.2 mm a row and 0.1 mm a column, 3 and 8 mm: 8.54 mm.
LINE = Line((10, 20), (40, 60))


@pytest.mark.parametrize(
    ("spacing_mm", "plane", "english", "ukrainian"),
    [
        (None, "", "50.0 px", "50,0 пікс."),
        ((0.2, 0.1), "detector", "8.5 mm (in the detector plane)", "8,5 мм (у площині детектора)"),
        ((0.2, 0.1), "calibrated", "8.5 mm (calibrated)", "8,5 мм (калібровано)"),
        ((0.2, 0.1), "unstated", "8.5 mm (plane not stated)", "8,5 мм (площину не вказано)"),
    ],
)
def test_a_length_has_its_unit_and_says_what_it_is_measured_in(
    spacing_mm: tuple[float, float] | None, plane: str, english: str, ukrainian: str
) -> None:
    image = Image(pixels=np.zeros((100, 100), np.uint8), spacing_mm=spacing_mm, spacing_plane=plane)  # type: ignore[arg-type]
    assert length_words(Translator("en"), LINE, image) == english
    assert length_words(Translator("uk"), LINE, image) == ukrainian


def test_a_drag_measures_and_can_be_undone(desk: Desk, viewer: Viewer) -> None:
    desk.qtbot.keyClick(viewer, Qt.Key.Key_M)
    viewer.zoom(4)  # the image is under the whole view
    before = viewer.grab().toImage()
    drag(viewer, Qt.MouseButton.LeftButton, (60, 80))
    (line,) = viewer.state.lines
    scale = viewer.state.scale(viewer.image_size, viewer.view_size)
    assert line.end[0] - line.start[0] == pytest.approx(60 / scale)
    assert line.end[1] - line.start[1] == pytest.approx(80 / scale)
    assert viewer.grab().toImage() != before
    desk.qtbot.keyClick(viewer, Qt.Key.Key_Z, Qt.KeyboardModifier.ControlModifier)
    assert viewer.state.lines == ()


def test_a_click_measures_nothing(desk: Desk, viewer: Viewer) -> None:
    desk.qtbot.keyClick(viewer, Qt.Key.Key_M)
    drag(viewer, Qt.MouseButton.LeftButton, (1, 1))
    assert viewer.state.lines == ()


def test_keys_measure_from_the_middle_of_the_view_to_where_it_was_moved(desk: Desk, viewer: Viewer) -> None:
    desk.qtbot.keyClick(viewer, Qt.Key.Key_M)
    desk.qtbot.keyClick(viewer, Qt.Key.Key_Return)
    for _ in range(2):
        desk.qtbot.keyClick(viewer, Qt.Key.Key_Right, SHIFT)
    desk.qtbot.keyClick(viewer, Qt.Key.Key_Return)
    step = 0.1 * min(viewer.width(), viewer.height()) / viewer.state.scale(viewer.image_size, viewer.view_size)
    (line,) = viewer.state.lines
    assert line.start == pytest.approx((256, 300))
    assert line.end == pytest.approx((256 + 2 * step, 300))
    assert viewer.accessibleDescription().endswith(" mm (plane not stated)")


def test_a_line_that_was_begun_is_given_up_by_esc_and_by_another_image(desk: Desk, viewer: Viewer) -> None:
    desk.qtbot.keyClick(viewer, Qt.Key.Key_M)
    for give_up in (lambda: desk.qtbot.keyClick(viewer, Qt.Key.Key_Escape), lambda: desk.open_row(2)):
        desk.qtbot.keyClick(viewer, Qt.Key.Key_Return)
        give_up()
        viewer.setFocus()
        desk.qtbot.keyClick(viewer, Qt.Key.Key_Return)
        assert viewer.state.lines == ()
        desk.qtbot.keyClick(viewer, Qt.Key.Key_Escape)
        viewer.setFocus()


def test_nothing_is_measured_outside_the_image() -> None:
    state = ViewState().measured((-5, 10), (200, 90), Size(100, 80))
    assert state.lines == (Line((0, 10), (100, 80)),)


def test_enter_without_the_tool_measures_nothing(desk: Desk, viewer: Viewer) -> None:
    for _ in range(2):
        desk.qtbot.keyClick(viewer, Qt.Key.Key_Return)
    assert viewer.state == ViewState()


def test_window_and_level_by_keys(desk: Desk, viewer: Viewer) -> None:
    control, start = Qt.KeyboardModifier.ControlModifier, viewer.pyramid.start_window
    desk.qtbot.keyClick(viewer, Qt.Key.Key_Right, control)
    # 400 points of a drag are one window width: a key is 20 of them.
    assert viewer.state.window.width == pytest.approx(start.width * 1.05)
    desk.qtbot.keyClick(viewer, Qt.Key.Key_Left, control)
    assert viewer.state.window.width == pytest.approx(start.width)
    desk.qtbot.keyClick(viewer, Qt.Key.Key_Up, control)
    assert viewer.state.window.center == pytest.approx(start.center - start.width * 0.05)
    desk.qtbot.keyClick(viewer, Qt.Key.Key_Down, control)
    assert viewer.state.window.center == pytest.approx(start.center)


def test_the_magnifier_shows_the_middle_nearer_and_leaves_the_rest(desk: Desk, viewer: Viewer) -> None:
    plain = viewer.grab().toImage()
    desk.qtbot.keyClick(viewer, Qt.Key.Key_G)
    near = viewer.grab().toImage()
    middle = QPointF(viewer.width() / 2, viewer.height() / 2)
    changed = [
        (x, y)
        for x in range(0, viewer.width(), 6)
        for y in range(0, viewer.height(), 6)
        if plain.pixel(x, y) != near.pixel(x, y)
    ]
    assert changed
    assert all((x - middle.x()) ** 2 + (y - middle.y()) ** 2 <= 113**2 for x, y in changed)
    assert desk.window.tools.buttons["magnifier"].isChecked()
    desk.qtbot.keyClick(viewer, Qt.Key.Key_G)
    assert viewer.grab().toImage() == plain


def test_a_state_keeps_its_lines_when_it_is_zoomed() -> None:
    state = replace(ViewState(), lines=(LINE,))
    assert state.zoomed(2, Size(100, 100), Size(100, 100)).lines == (LINE,)
