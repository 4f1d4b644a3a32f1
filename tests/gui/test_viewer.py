"""The viewer: mouse and keys, measuring, pictures to copy and print, and two images side by side."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from desk import Desk, turn_wheel
from fake_rooms import image_ref, screened
from PySide6.QtCore import QEvent, QPointF, Qt
from PySide6.QtGui import QColor, QFont, QGuiApplication, QImage, QMouseEvent, QPainter
from PySide6.QtPrintSupport import QPrintDialog
from PySide6.QtWidgets import QLineEdit, QMenu

from fieldray.desktop.image_area import ImageArea, draw_picture, draw_picture_on_page
from fieldray.desktop.image_painting import MeasurementLine, Size, ViewState, matching_display_window
from fieldray.desktop.overlay import (
    BOTTOM_RIGHT,
    TOP_LEFT,
    corner_texts,
    draw_corner_texts,
    length_text,
    measurement_text,
    patient_text_lines,
    region_mean_deviation_and_area,
)
from fieldray.desktop.viewer import Viewer
from fieldray.domain.image import Image, ImageHeader, Window
from fieldray.plain_text import escape_invisible_characters
from fieldray.translation import Translator
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


def test_left_drag_changes_window_and_level(viewer: Viewer) -> None:
    start = viewer.pyramid.initial_display_window
    drag(viewer, Qt.MouseButton.LeftButton, (40, -20))
    # 400 points are one window width: 40 to the right: a tenth wider; 20 up: the level a twentieth lower (brighter).
    assert viewer.state.display_window.width == pytest.approx(start.width * 1.1)
    assert viewer.state.display_window.center == pytest.approx(start.center - start.width * 0.05)


def test_middle_drag_moves_and_right_drag_zooms(viewer: Viewer) -> None:
    viewer.zoom(4)
    before = viewer.state
    drag(viewer, Qt.MouseButton.MiddleButton, (30, 0))
    assert viewer.state.image_center[0] < 256  # the image went right, so its middle now lies to the left
    assert viewer.state.zoom == before.zoom
    drag(viewer, Qt.MouseButton.RightButton, (0, -50))
    assert viewer.state.zoom == pytest.approx(before.zoom * 1.01**50)


def test_right_click_without_a_drag_opens_the_menu(desk: Desk, viewer: Viewer) -> None:
    drag(viewer, Qt.MouseButton.RightButton, (0, 0))
    menu = next(menu for menu in desk.window.findChildren(QMenu) if menu.isVisible())
    assert "Invert black and white\tI" in [action.text() for action in menu.actions()]
    assert viewer.state == ViewState()
    menu.close()


def test_the_wheel_steps_through_images_and_zooms_with_control(desk: Desk, viewer: Viewer) -> None:
    turn_wheel(viewer, 1, control=True)
    assert viewer.state.zoom == pytest.approx(1.25)
    turn_wheel(viewer, -1)
    assert desk.bench.image.row.row_id == 4
    turn_wheel(viewer, 1)
    assert desk.bench.image.row.row_id == 1


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (Qt.Key.Key_I, ViewState(is_inverted=True)),
        (Qt.Key.Key_R, ViewState(quarter_turns=1)),
        (Qt.Key.Key_L, ViewState(quarter_turns=3)),
        (Qt.Key.Key_F, ViewState(is_mirrored=True)),
        (Qt.Key.Key_V, ViewState(is_mirrored=True, quarter_turns=2)),
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


def test_the_tool_keys_choose_what_the_left_drag_does(desk: Desk, viewer: Viewer) -> None:
    desk.qtbot.keyClick(viewer, Qt.Key.Key_Z)
    drag(viewer, Qt.MouseButton.LeftButton, (0, -10))
    assert viewer.state.zoom == pytest.approx(1.01**10)
    assert desk.window.tools.buttons["tool_zoom"].isChecked()


def test_one_key_hides_the_heat_map(desk: Desk, viewer: Viewer) -> None:
    warm = _colourful(viewer)
    desk.qtbot.keyClick(viewer, Qt.Key.Key_H)
    assert not desk.window.result_panel.heat_map_box.isChecked()
    assert _colourful(viewer) == 0 < warm


def test_the_heat_map_lies_where_the_evidence_is(viewer: Viewer) -> None:
    """The made-up evidence peaks at row 8, column 4 of 14 x 14: (4.5 / 14, 8.5 / 14) of the image."""
    viewer._switches.set(heat_map_opacity=100)
    shot = viewer.grab().toImage()
    scale = viewer.state.points_per_pixel(viewer.image_size, viewer.view_size)
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


def test_the_model_input_is_shown_on_request(desk: Desk, viewer: Viewer) -> None:
    desk.qtbot.keyClick(viewer, Qt.Key.Key_N)
    assert (viewer.pyramid.rows, viewer.pyramid.columns) == (224, 224)
    desk.qtbot.keyClick(viewer, Qt.Key.Key_N)
    assert (viewer.pyramid.rows, viewer.pyramid.columns) == (600, 512)


@pytest.mark.parametrize(
    ("file", "lines"),
    [("a.jpg", ("a.jpg",)), (f"{'1' * 30}{'2' * 20}.jpg", ("1" * 30, f"{'2' * 20}.jpg"))],
)
def test_an_image_without_a_patient_name_shows_its_file_name(viewer: Viewer, file: str, lines: tuple[str, ...]) -> None:
    ref = replace(image_ref(1), path=Path("/images", file), header=ImageHeader(patient_id="PX-1"))
    say = partial(corner_texts, pyramid=viewer.pyramid, state=viewer.state, percent=100)
    assert say(Translator(), ref)[TOP_LEFT] == (*lines, "PX-1")
    assert say(Translator("en", lambda: True), ref)[TOP_LEFT] == ()
    assert say(Translator(), image_ref(1))[TOP_LEFT][0] == "DOE PERSON 001"


def test_the_last_opened_image_is_shown_under_its_own_name(desk: Desk) -> None:
    desk.rooms.outcomes[:] = [screened(number, 1 - number / 100) for number in range(1, 9)]
    desk.screen()
    session, image = desk.rooms.session, desk.bench.image
    session.may_read.clear()
    for row_id in range(1, 9):
        desk.window.work_list.select_image(row_id)
        assert image.pyramid is None
    session.may_read.set()
    desk.until(lambda: not image.is_loading)
    assert image.row.row_id == 8
    assert session.read[-1] == image.row.outcome.ref
    assert len(session.read) <= 3  # the skipped image is not read at all


def test_an_image_read_while_the_program_closes_is_ignored(desk: Desk, viewer: Viewer) -> None:
    """The readers end with the session; their late error must not be shown, because nobody can act on it."""
    session, image = desk.rooms.session, desk.bench.image
    session.may_read.clear()
    desk.window.work_list.select_image(2)
    desk.until(lambda: len(session.begun) == 2)
    desk.bench.close()
    session.may_read.set()
    desk.until(lambda: len(session.read) == 2)
    desk.until(lambda: session.is_closed)
    assert (image.pyramid, image.problem) == (None, None)


def test_an_image_is_shown_only_while_it_is_open(desk: Desk, viewer: Viewer) -> None:
    desk.bench.rows.show_run(None)
    assert desk.bench.image.row is None
    assert viewer.pyramid is None


def _colourful(viewer: Viewer) -> int:
    """How many points of a grid over the upper three quarters are not grey."""
    shot = viewer.grab().toImage()
    points = ((x, y) for x in range(20, viewer.width() - 20, 8) for y in range(20, viewer.height() * 3 // 4, 8))
    colours = (QColor(shot.pixel(x, y)) for x, y in points)
    return sum(max(c.red(), c.green(), c.blue()) - min(c.red(), c.green(), c.blue()) > 12 for c in colours)


@pytest.mark.parametrize("text", [FORGED_LINE, STEERS, REORDERS, BREAKS])
def test_a_line_break_in_a_header_starts_no_corner_line(qapp: object, text: str) -> None:
    def painted(said: str) -> QImage:
        sheet = QImage(1400, 300, QImage.Format.Format_RGB32)
        sheet.fill(0)
        painter = QPainter(sheet)
        draw_corner_texts(painter, sheet.rect(), {TOP_LEFT: (said, "PX-1"), BOTTOM_RIGHT: ("DX", said)}, QFont())
        painter.end()
        return sheet

    assert painted(text) == painted(escape_invisible_characters(text))


@pytest.mark.parametrize(("age_years", "text"), [(17.6, "17 y"), (76.99, "76 y"), (5.5, "5 y"), (3.0, "3 y")])
def test_the_age_on_the_image_is_in_completed_years(age_years: float, text: str) -> None:
    assert patient_text_lines(Translator(), ImageHeader(patient_age_years=age_years)) == (text,)


# ---- Measuring on an image, and the magnifier.


SHIFT = Qt.KeyboardModifier.ShiftModifier
# 30 columns and 40 rows: 50 pixels. With 0.2 mm a row and 0.1 mm a column, 3 and 8 mm: 8.54 mm.
LINE = MeasurementLine((10, 20), (40, 60))


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
    assert length_text(Translator("en"), LINE, image) == english
    assert length_text(Translator("uk"), LINE, image) == ukrainian


def test_a_drag_measures_and_can_be_undone(desk: Desk, viewer: Viewer) -> None:
    desk.qtbot.keyClick(viewer, Qt.Key.Key_M)
    viewer.zoom(4)  # the image lies under the whole view
    before = viewer.grab().toImage()
    drag(viewer, Qt.MouseButton.LeftButton, (60, 80))
    (line,) = viewer.state.measurement_lines
    scale = viewer.state.points_per_pixel(viewer.image_size, viewer.view_size)
    assert line.end[0] - line.start[0] == pytest.approx(60 / scale)
    assert line.end[1] - line.start[1] == pytest.approx(80 / scale)
    assert viewer.grab().toImage() != before
    desk.qtbot.keyClick(viewer, Qt.Key.Key_Z, Qt.KeyboardModifier.ControlModifier)
    assert viewer.state.measurement_lines == ()


def test_a_click_measures_nothing_nor_does_enter_without_the_tool(desk: Desk, viewer: Viewer) -> None:
    for _ in range(2):
        desk.qtbot.keyClick(viewer, Qt.Key.Key_Return)
    assert viewer.state == ViewState()
    desk.qtbot.keyClick(viewer, Qt.Key.Key_M)
    drag(viewer, Qt.MouseButton.LeftButton, (1, 1))
    assert viewer.state.measurement_lines == ()


def test_keys_measure_from_the_middle_of_the_view_to_where_it_was_moved(desk: Desk, viewer: Viewer) -> None:
    desk.qtbot.keyClick(viewer, Qt.Key.Key_M)
    desk.qtbot.keyClick(viewer, Qt.Key.Key_Return)
    for _ in range(2):
        desk.qtbot.keyClick(viewer, Qt.Key.Key_Right, SHIFT)
    desk.qtbot.keyClick(viewer, Qt.Key.Key_Return)
    step = (
        0.1 * min(viewer.width(), viewer.height()) / viewer.state.points_per_pixel(viewer.image_size, viewer.view_size)
    )
    (line,) = viewer.state.measurement_lines
    assert line.start == pytest.approx((256, 300))
    assert line.end == pytest.approx((256 + 2 * step, 300))
    assert viewer.accessibleDescription().endswith(" mm (plane not stated)")


def test_an_unfinished_line_is_discarded_by_escape_and_by_another_image(desk: Desk, viewer: Viewer) -> None:
    desk.qtbot.keyClick(viewer, Qt.Key.Key_M)
    for give_up in (lambda: desk.qtbot.keyClick(viewer, Qt.Key.Key_Escape), lambda: desk.open_row(2)):
        desk.qtbot.keyClick(viewer, Qt.Key.Key_Return)
        give_up()
        viewer.setFocus()
        desk.qtbot.keyClick(viewer, Qt.Key.Key_Return)
        assert viewer.state.measurement_lines == ()
        desk.qtbot.keyClick(viewer, Qt.Key.Key_Escape)
        viewer.setFocus()


def measured(image: Image, *lines: MeasurementLine) -> list[str]:
    """The texts of these measurements."""
    state = ViewState(measurement_lines=lines)
    return [measurement_text(Translator("en"), state, place, image) for place in range(len(lines))]


def test_an_angle_is_measured_between_two_lines_in_the_millimetres_of_the_image() -> None:
    level, steep = MeasurementLine((0, 0), (10, 0), "angle"), MeasurementLine((0, 0), (10, 10), "angle")
    back = MeasurementLine((10, 10), (0, 0), "angle")
    square = Image(pixels=np.zeros((100, 100), np.uint8))
    assert measured(square, level) == ["Draw the second measuring line"]
    assert measured(square, level, steep) == measured(square, level, back) == ["", "45.0° (135.0°)"]
    # A row is twice as high as a column is wide: atan(2) is 63.4 degrees.
    tall = Image(pixels=np.zeros((100, 100), np.uint8), spacing_mm=(0.2, 0.1), spacing_plane="detector")
    assert measured(tall, level, steep)[1] == "63.4° (116.6°)"
    assert measured(square, level, LINE, steep, level) == [
        "",
        "50.0 px",
        "45.0° (135.0°)",
        "Draw the second measuring line",
    ]


def test_the_cardiothoracic_ratio_is_the_shorter_line_by_the_longer_one() -> None:
    heart, chest = MeasurementLine((20, 60), (60, 60), "ratio"), MeasurementLine((5, 80), (85, 80), "ratio")
    for lines in ((heart, chest), (chest, heart)):
        assert measured(Image(pixels=np.zeros((100, 100), np.uint8)), *lines) == ["", "Cardiothoracic ratio 0.50"]


def test_a_region_has_mean_deviation_and_area_of_its_modality_values() -> None:
    pixels = np.zeros((100, 100), np.uint16)
    pixels[10:20, 30:40] = 100
    pixels[10:20, 40:50] = 300
    image = Image(pixels=pixels, value_scale=-0.5, value_offset=10.0, spacing_mm=(0.5, 0.2), spacing_plane="calibrated")
    # 200 pixels, half of them 100 and half 300: 200 and 100; -0.5 * 200 + 10 is -90. 200 * 0.1 mm² are 20.
    region = MeasurementLine((50, 20), (30, 10), "region")
    assert measured(image, region) == ["Mean -90.0, SD 50.0, 20.0 mm² (calibrated)"]
    assert measured(Image(pixels=pixels), region) == ["Mean 200.0, SD 100.0, 200.0 px²"]
    assert measured(Image(pixels=pixels, has_approximate_pixels=True), region) == [
        "200.0 px²"
    ]  # previews have no values
    assert measured(image, MeasurementLine((5, 5), (5.2, 9), "region")) == [""]
    full = Image(pixels=np.full((600, 600), 65535, np.uint16))
    assert region_mean_deviation_and_area(MeasurementLine((0, 0), (600, 600), "region"), full) == (
        65535.0,
        pytest.approx(0, abs=0.01),
        360_000,
    )


@pytest.mark.parametrize(("key", "said"), [(Qt.Key.Key_J, "45.0° (135.0°)"), (Qt.Key.Key_T, "ratio 1.00")])
def test_two_drags_measure_together_and_escape_gives_up_the_first_alone(
    desk: Desk, viewer: Viewer, key: Qt.Key, said: str
) -> None:
    desk.qtbot.keyClick(viewer, key)
    viewer.zoom(4)
    drag(viewer, Qt.MouseButton.LeftButton, (40, 0))
    assert len(viewer.state.measurement_lines) == 1
    desk.qtbot.keyClick(viewer, Qt.Key.Key_Escape)
    assert viewer.state.measurement_lines == ()
    drag(viewer, Qt.MouseButton.LeftButton, (50, 0))
    drag(viewer, Qt.MouseButton.LeftButton, (30, 40) if said == "ratio 1.00" else (30, 30))
    assert viewer.accessibleDescription().endswith(said)
    desk.qtbot.keyClick(viewer, Qt.Key.Key_Escape)
    assert len(viewer.state.measurement_lines) == 2
    viewer.setFocus()
    desk.qtbot.keyClick(viewer, Qt.Key.Key_Z, Qt.KeyboardModifier.ControlModifier)
    assert len(viewer.state.measurement_lines) == 1


def test_the_button_of_the_active_tool_stays_visible_in_a_narrow_window(desk: Desk, viewer: Viewer) -> None:
    buttons = desk.window.tools.buttons
    desk.window.resize(1024, 700)
    desk.until(lambda: not buttons["tool_region"].isVisible())
    before = sum(button.isVisible() for button in buttons.values())
    desk.qtbot.keyClick(viewer, Qt.Key.Key_Q)
    assert buttons["tool_region"].isVisible() and buttons["tool_region"].isChecked()
    assert sum(button.isVisible() for button in buttons.values()) == before
    desk.qtbot.keyClick(viewer, Qt.Key.Key_W)
    assert not buttons["tool_region"].isVisible()


def test_a_measured_region_is_drawn(desk: Desk, viewer: Viewer) -> None:
    desk.qtbot.keyClick(viewer, Qt.Key.Key_Q)
    viewer.zoom(4)
    before = viewer.grab().toImage()
    drag(viewer, Qt.MouseButton.LeftButton, (60, 80))
    assert viewer.accessibleDescription().startswith("Mean ")
    assert viewer.grab().toImage() != before


# ---- A picture to copy and to print.


def test_the_picture_has_the_visible_marks_and_the_research_notice(desk: Desk, viewer: Viewer) -> None:
    words = Translator("en")
    plain = draw_picture(viewer, words)
    assert plain is not None
    assert (plain.width(), plain.height() > 2 * viewer.height()) == (2 * viewer.width(), True)
    strip = plain.copy(0, 2 * viewer.height(), plain.width(), plain.height() - 2 * viewer.height())
    assert len(colours_of(strip)) > 2  # text on the background
    desk.bench.switches.set(heat_map=False)
    bare = draw_picture(viewer, words)
    viewer.apply_view_state(viewer.state.with_measurement((100, 100), (400, 300), viewer.image_size))
    marked = draw_picture(viewer, words)
    desk.bench.switches.set(hide_patient=True)
    assert desk.application.settings["hide_patient"] is True
    hidden = draw_picture(viewer, words)
    pictures = [plain, bare, marked, hidden]
    assert all(one != other for one, other in itertools.combinations(pictures, 2))
    desk.bench.switches.set(magnifier=True)
    assert draw_picture(viewer, words) == hidden  # the magnifier is no mark


def test_a_picture_is_copied_and_laid_on_a_page(desk: Desk, viewer: Viewer) -> None:
    picture = draw_picture(viewer, Translator("en"))
    desk.qtbot.keyClick(viewer, Qt.Key.Key_C, Qt.KeyboardModifier.ControlModifier)
    desk.until_shown("The image was copied to the clipboard as shown.")
    assert QGuiApplication.clipboard().image() == picture
    desk.window.actions_by_name["packs"].trigger()
    assert "is copied" not in desk.notices
    page = QImage(600, 900, QImage.Format.Format_RGB32)
    page.fill(Qt.GlobalColor.white)
    draw_picture_on_page(page, picture)
    height = round(600 * picture.height() / picture.width())
    assert page.pixelColor(300, height // 2) != Qt.GlobalColor.white
    assert page.pixelColor(300, height + 3) == Qt.GlobalColor.white


def test_printing_opens_the_print_dialog_and_writes_one_page(desk: Desk, viewer: Viewer, tmp_path: Path) -> None:
    desk.window.actions_by_name["print"].trigger()
    asked = desk.dialog(QPrintDialog)
    asked.findChild(QLineEdit, "filename").setText(str(tmp_path / "page.pdf"))
    asked.accept()
    written = (tmp_path / "page.pdf").read_bytes()
    assert written.startswith(b"%PDF") and written.count(b"/Type /Page\n") == 1
    assert b"DOE" not in written.partition(b"stream")[0]


def colours_of(image: QImage) -> set[int]:
    return {image.pixel(x, y) for x in range(image.width()) for y in range(image.height())}


def test_nothing_is_measured_outside_the_image() -> None:
    state = ViewState().with_measurement((-5, 10), (200, 90), Size(100, 80))
    assert (
        state.zoomed(2, Size(100, 80), Size(100, 100)).measurement_lines
        == state.measurement_lines
        == (MeasurementLine((0, 10), (100, 80)),)
    )


def test_window_and_level_by_keys(desk: Desk, viewer: Viewer) -> None:
    control, start = Qt.KeyboardModifier.ControlModifier, viewer.pyramid.initial_display_window
    desk.qtbot.keyClick(viewer, Qt.Key.Key_Right, control)
    # 400 points of a drag are one window width: a key is 20 of them.
    assert viewer.state.display_window.width == pytest.approx(start.width * 1.05)
    desk.qtbot.keyClick(viewer, Qt.Key.Key_Left, control)
    assert viewer.state.display_window.width == pytest.approx(start.width)
    desk.qtbot.keyClick(viewer, Qt.Key.Key_Up, control)
    assert viewer.state.display_window.center == pytest.approx(start.center - start.width * 0.05)
    desk.qtbot.keyClick(viewer, Qt.Key.Key_Down, control)
    assert viewer.state.display_window.center == pytest.approx(start.center)


def test_the_magnifier_enlarges_the_middle_only(desk: Desk, viewer: Viewer) -> None:
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


# ---- Two images side by side: any two of the list, with linked window and zoom.


CONTROL = Qt.KeyboardModifier.ControlModifier


@pytest.fixture
def area(desk: Desk) -> ImageArea:
    """The image area with the first image kept and the second one open."""
    desk.screen()
    desk.open_row(1)
    desk.window.viewer.setFocus()
    desk.qtbot.keyClick(desk.window.viewer, Qt.Key.Key_C)
    desk.open_row(2)
    desk.until(lambda: not desk.bench.second_image.is_loading)
    return desk.window.area


def test_the_kept_image_stays_while_other_images_are_opened(desk: Desk, area: ImageArea) -> None:
    bench = desk.bench
    assert (bench.second_image.row.row_id, bench.image.row.row_id) == (1, 2)
    assert area.second_viewer.isVisible()
    assert area.second_viewer.pyramid is bench.second_image.pyramid is not bench.image.pyramid
    desk.open_row(3)
    assert bench.second_image.row.row_id == 1
    names = [head.name.text() for head in area._heads]
    assert names == ["Current image: DOE PERSON 003, 2026-03-04", "Pinned image: DOE PERSON 001, 2026-03-02"]
    desk.bench.switches.set(hide_patient=True)
    assert [head.name.text() for head in area._heads] == [
        "Current image: Image 3, 2026-03-04",
        "Pinned image: Image 1, 2026-03-02",
    ]


def test_zoom_position_and_preset_are_linked_but_turns_and_lines_are_not(desk: Desk, area: ImageArea) -> None:
    area.viewer.setFocus()
    for key in (Qt.Key.Key_Plus, Qt.Key.Key_Plus, Qt.Key.Key_3, Qt.Key.Key_I, Qt.Key.Key_R):
        desk.qtbot.keyClick(area.viewer, key)
    desk.qtbot.keyClick(area.viewer, Qt.Key.Key_Right, Qt.KeyboardModifier.ShiftModifier)
    open_state, kept_state = area.viewer.state, area.second_viewer.state
    assert kept_state.zoom == open_state.zoom == pytest.approx(1.25**2)
    assert kept_state.image_center == pytest.approx(open_state.image_center)  # both images have 600 x 512 pixels
    assert kept_state.display_window == area.second_viewer.pyramid.display_window_presets[2]
    assert (kept_state.is_inverted, kept_state.quarter_turns) == (True, 0)


def test_the_open_image_follows_the_kept_one_and_undo_works_there(desk: Desk, area: ImageArea) -> None:
    area.second_viewer.setFocus()
    desk.qtbot.keyClick(area.second_viewer, Qt.Key.Key_Plus)
    assert area.viewer.state.zoom == pytest.approx(1.25)
    desk.qtbot.keyClick(area.second_viewer, Qt.Key.Key_Z, CONTROL)
    assert area.viewer.state.zoom == area.second_viewer.state.zoom == 1.0


def test_the_next_image_is_shown_at_the_same_zoom_and_position(desk: Desk, area: ImageArea) -> None:
    area.second_viewer.setFocus()
    desk.qtbot.keyClick(area.second_viewer, Qt.Key.Key_Plus)
    desk.open_row(3)
    assert area.viewer.state.zoom == pytest.approx(1.25)


def test_unlinked_images_are_moved_separately(desk: Desk, area: ImageArea) -> None:
    area.viewer.setFocus()
    desk.qtbot.keyClick(area.viewer, Qt.Key.Key_K)
    desk.qtbot.keyClick(area.viewer, Qt.Key.Key_Plus)
    assert (area.viewer.state.zoom, area.second_viewer.state.zoom) == (1.25, 1.0)
    assert not desk.window.tools.buttons["link"].isChecked()
    desk.qtbot.keyClick(area.viewer, Qt.Key.Key_K)
    assert area.second_viewer.state.zoom == 1.25


def test_heat_map_and_outline_are_switched_in_both(desk: Desk, area: ImageArea) -> None:
    desk.qtbot.keyClick(area.viewer, Qt.Key.Key_H)
    desk.qtbot.keyClick(area.viewer, Qt.Key.Key_O)
    assert (area.switches.heat_map, area.switches.lung_outline) == (False, True)


def test_the_kept_image_is_closed_by_its_key_and_by_another_run(desk: Desk, area: ImageArea) -> None:
    desk.qtbot.keyClick(area.viewer, Qt.Key.Key_C)
    assert desk.bench.second_image.row is None
    assert not area.second_viewer.isVisible()
    desk.qtbot.keyClick(area.viewer, Qt.Key.Key_C)
    assert area.second_viewer.isVisible()
    desk.finish()
    desk.screen(str(Path("/other")))
    desk.until(lambda: desk.bench.second_image.row is None)
    assert not area.second_viewer.isVisible()


def test_a_linked_window_keeps_its_distance_from_each_images_own_window(area: ImageArea) -> None:
    shown, other = area.viewer.pyramid, area.second_viewer.pyramid
    assert matching_display_window(None, shown, other) is None
    for own, its in zip(shown.display_window_presets, other.display_window_presets, strict=True):
        assert matching_display_window(own, shown, other) == its
    start = shown.initial_display_window
    wide = Window(start.center + start.width / 2, start.width * 2, "LINEAR_EXACT")
    like = matching_display_window(wide, shown, other)
    assert like.width == pytest.approx(other.initial_display_window.width * 2)
    assert like.center == pytest.approx(other.initial_display_window.center + other.initial_display_window.width / 2)
    assert matching_display_window(like, other, shown).center == pytest.approx(wide.center)


def test_a_linked_position_is_a_fraction_of_the_image() -> None:
    leader = ViewState(zoom=2.0, image_center=(50.0, 25.0), quarter_turns=1, is_inverted=True)
    state = ViewState(quarter_turns=3).with_zoom_and_position_of(
        leader, None, image=Size(1000, 400), other_image=Size(100, 100)
    )
    assert state == ViewState(zoom=2.0, image_center=(500.0, 100.0), quarter_turns=3, is_inverted=True)
