"""The open image and a prior one: found, compared, shown in four modes; and what must not be shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from desk import Desk, texts
from fake_rooms import FakeRooms, image_ref, screened
from PySide6.QtCore import QPoint, QPointF, Qt
from PySide6.QtGui import QImage
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QMessageBox

from fieldray.desktop.comparison_controller import ComparisonController
from fieldray.desktop.comparison_view import ComparisonView
from fieldray.domain.finding import ScreenedOutcome
from fieldray.domain.prior_image import unscreened_outcome
from fieldray.errors import FieldrayError
from fieldray.reasons import reason
from pairs import pair_comparison
from stores import keep

NOTICE = f"Research use only. {reason('compare_notice').text}"
Key = Qt.Key


def of_patient(number: int, patient: str, day: str, score: float = 0.5, **changes: object) -> ScreenedOutcome:
    """A made-up image of a patient and a day."""
    made = screened(number, score)
    header = replace(
        made.ref.header,
        patient_id=patient,
        study_date=day,
        study_instance_uid=f"9.{number}",
        patient_sex="F",
        **changes,
    )
    return replace(made, ref=replace(made.ref, header=header))


@pytest.fixture
def rooms() -> FakeRooms:
    """Rows 1 to 3 are of one patient, in 2024, 2021 and 2019; row 4 is of another patient, row 5 of an unknown one."""
    made = FakeRooms()
    made.outcomes = [
        of_patient(1, "A", "20240405", 0.9),
        of_patient(2, "A", "20210205", 0.1),
        of_patient(3, "A", "20190101", 0.42),
        of_patient(4, "B", "20240405", 0.7),
        of_patient(5, "", "20240405", 0.6),
    ]
    return made


@pytest.fixture
def comparing(desk: Desk) -> ComparisonController:
    """A window whose first image is open."""
    desk.screen()
    desk.open_row(1)
    desk.window.viewer.setFocus()
    made = desk.bench.comparing
    desk.until(lambda: not made.is_searching)
    return made


@pytest.fixture
def view(desk: Desk, comparing: ComparisonController) -> ComparisonView:
    """The viewer while the first image is compared with its newest prior."""
    press(desk, Key.Key_E)
    desk.until(lambda: comparing.overlays is not None)
    return desk.window.area.prior_view


def press(desk: Desk, key: Qt.Key, modifier: Qt.KeyboardModifier = Qt.KeyboardModifier.NoModifier) -> None:
    QTest.keyClick(desk.window.viewer, key, modifier)


def compared(desk: Desk) -> None:
    """Wait until the comparison has a result or a problem."""
    found = desk.bench.comparing
    desk.until(lambda: found.overlays is not None or found.problem is not None)


def pixel(desk: Desk, x: float, y: float) -> tuple[int, int, int]:
    """The colour of the open image's view at `x`, `y`, given as fractions of its width and height."""
    image = desk.window.viewer.grab().toImage().convertToFormat(QImage.Format.Format_RGB32)
    seen = image.pixelColor(int(x * image.width()), int(y * image.height()))
    return seen.red(), seen.green(), seen.blue()


# ---- finding priors


def test_priors_of_the_patient_are_offered_the_newest_first(desk: Desk, comparing: ComparisonController) -> None:
    assert [prior.outcome.ref.header.study_date for prior in comparing.priors] == ["20210205", "20190101"]
    card = desk.window.prior_card
    assert "2 prior images can be compared." in texts(card)
    assert card.priors.itemText(0) == "2021-02-05 · 3 years 2 months earlier · PA · this run"
    assert not desk.window.prior_bar.isVisible()


def test_unknown_patients_and_other_patients_have_no_priors(desk: Desk, comparing: ComparisonController) -> None:
    for row, words in ((4, "No prior image of this patient was found"), (5, "this file has no patient ID")):
        desk.open_row(row)
        desk.until(lambda: not comparing.is_searching)
        assert comparing.priors == ()
        assert words in texts(desk.window.prior_card)
        assert not desk.window.prior_card.start.isEnabled()


def test_earlier_runs_are_looked_through_and_files_that_are_gone_are_counted(desk: Desk, tmp_path: Path) -> None:
    before = [of_patient(number, patient, "20200101") for number, patient in ((7, "B"), (8, "C"), (9, "C"))]
    here = replace(before[0], ref=replace(before[0].ref, path=tmp_path / "image-00007.dcm"))
    here.ref.path.touch()
    keep(desk.rooms.database, [here, *before[1:]])
    desk.rooms.outcomes.append(of_patient(6, "C", "20240405"))
    desk.screen()
    for number, words in ((4, "1 prior image can be compared"), (6, "2 prior images are known from earlier runs")):
        desk.window.work_list.select_image(3 + number)
        desk.until(lambda words=words: words in texts(desk.window.prior_card))
        assert desk.window.prior_card.priors.itemText(0).endswith("earlier run") is (number == 4)


def test_a_store_that_cannot_be_read_is_a_notice(desk: Desk) -> None:
    desk.rooms.priors.problem = FieldrayError(reason("not_writable", path="/x", detail="made up"))
    desk.screen()
    desk.open_row(1)
    desk.until(lambda: any(notice.key == "prior" for notice in desk.bench.notice_board.notices))
    assert desk.bench.comparing.priors == ()


# ---- viewing a pair


def test_dates_gap_scores_and_notice_are_in_sight_in_every_mode(desk: Desk, view: ComparisonView) -> None:
    for command in ("side_by_side", "swipe", "difference"):
        view.set_mode(command)
        bar = desk.window.prior_bar
        assert bar.isVisible()
        assert bar.dates.text() == "Current image: 2024-04-05. Prior image: 2021-02-05, 3 years 2 months earlier"
        assert bar.notice.text() == NOTICE and "0 of 12 were detected in X-rays of different days" in NOTICE
        assert bar.notice.visibleRegion().boundingRect().height() == bar.notice.height() > 0
    said = texts(desk.window.prior_card)
    assert "Current image: Flagged  0.90" in said and "Prior image: Not flagged  0.10" in said


def test_a_comparison_begins_side_by_side_with_linked_zoom(desk: Desk, view: ComparisonView) -> None:
    area = desk.window.area
    assert view.mode == "side_by_side"
    assert area.second_viewer.isVisible()
    press(desk, Key.Key_Plus)
    assert area.second_viewer.state.zoom == area.viewer.state.zoom == 1.25


def test_swipe_has_the_prior_to_the_left_of_a_divider_that_keys_and_mouse_move(
    desk: Desk, view: ComparisonView
) -> None:
    press(desk, Key.Key_S)
    assert view.mode == "swipe"
    assert not desk.window.area.second_viewer.isVisible()
    before = view._divider
    press(desk, Key.Key_Left, Qt.KeyboardModifier.AltModifier)
    assert view._divider == pytest.approx(before - 0.05)
    press(desk, Key.Key_Right, Qt.KeyboardModifier.AltModifier)
    viewer = desk.window.viewer
    grip = QPoint(round(view._divider * viewer.width()), viewer.height() // 2)
    state = viewer.state
    QTest.mousePress(viewer, Qt.MouseButton.LeftButton, pos=grip)
    QTest.mouseMove(viewer, QPoint(viewer.width() // 4, viewer.height() // 2))
    QTest.mouseRelease(viewer, Qt.MouseButton.LeftButton, pos=QPoint(viewer.width() // 4, viewer.height() // 2))
    assert view._divider == pytest.approx(0.25, abs=0.01)
    assert viewer.state == state  # the tool of the mouse did nothing meanwhile
    for _ in range(30):
        press(desk, Key.Key_Left, Qt.KeyboardModifier.AltModifier)
    assert view._divider == 0.0


def test_blink_puts_the_prior_in_the_place_of_the_open_image_and_back(desk: Desk, view: ComparisonView) -> None:
    press(desk, Key.Key_B)
    assert (view.mode, view.shows_prior) == ("blink", True)
    prior = desk.window.viewer.grab().toImage()
    press(desk, Key.Key_B)
    assert (view.mode, view.shows_prior) == ("blink", False)
    own = desk.window.viewer.grab().toImage()
    assert prior != own
    press(desk, Key.Key_B)
    assert desk.window.viewer.grab().toImage() == prior


def test_the_difference_is_in_two_colours_inside_its_regions(desk: Desk, view: ComparisonView) -> None:
    view.switches.set(difference_opacity_percent=100)
    press(desk, Key.Key_D)
    viewer = desk.window.viewer
    # The middle of the first region, 140 and 200 of 512 in the frame, in pixels of the image and then of the view.
    scale = 600 / 512
    way = viewer.state.transform(viewer.image_size, viewer.view_size)
    for row, is_orange in ((130.0, True), (190.0, False)):
        at = way.map(QPointF(190.0 * scale - 44.0, row * scale))
        red, _, blue = pixel(desk, at.x() / viewer.width(), at.y() / viewer.height())
        assert (red > blue + 40) is is_orange
        assert (blue > red + 40) is not is_orange
    assert desk.window.prior_card.opacity.isVisible()
    said = texts(desk.window.prior_card)
    assert "In 2 regions, the images differ by more than the noise." in said
    assert "1. Denser in the current image: difference 5.0 times the noise, area 0.6 % of the image" in said
    assert "2. Less dense in the current image: difference 4.0 times the noise" in said


def test_a_difference_outside_regions_has_no_colour(desk: Desk, comparing: ComparisonController) -> None:
    answer = pair_comparison(regions=1)
    change = answer.aligned_pair.change.copy()
    change[300:302, 200:202] = 6.0
    desk.rooms.priors.answer = replace(answer, aligned_pair=replace(answer.aligned_pair, change=change))
    press(desk, Key.Key_E)
    compared(desk)
    colours = comparing.overlays.difference.image
    assert colours.pixelColor(200, 140).alpha() > 0
    assert colours.pixelColor(201, 301).alpha() == 0
    desk.rooms.priors.answer = pair_comparison(regions=0)
    desk.open_row(2)
    compared(desk)
    assert comparing.overlays.difference.is_blank


def test_the_mesh_is_drawn_on_request(desk: Desk, view: ComparisonView) -> None:
    press(desk, Key.Key_D)
    without = desk.window.viewer.grab().toImage()
    press(desk, Key.Key_X)
    assert view.switches.prior_mesh
    assert desk.window.viewer.grab().toImage() != without
    press(desk, Key.Key_X)
    assert desk.window.viewer.grab().toImage() == without


def test_the_next_older_prior_by_key_and_by_the_box(
    desk: Desk, comparing: ComparisonController, view: ComparisonView
) -> None:
    press(desk, Key.Key_E, Qt.KeyboardModifier.ShiftModifier)
    assert comparing.overlays is None  # the overlay of the first prior is gone at once
    compared(desk)
    assert comparing.prior is comparing.priors[1]
    assert "5 years 3 months earlier" in desk.window.prior_bar.dates.text()
    desk.window.prior_card.priors.activated.emit(0)
    assert comparing.prior is comparing.priors[0]


def test_the_mode_stays_from_image_to_image_and_stopping_ends_it(
    desk: Desk, comparing: ComparisonController, view: ComparisonView
) -> None:
    press(desk, Key.Key_D)
    desk.rooms.priors.may_compare.clear()
    desk.open_row(2)
    assert view.mode == "side_by_side"  # nothing of the previous pair is shown
    desk.rooms.priors.may_compare.set()
    compared(desk)
    assert view.mode == "difference"
    assert comparing.prior.header.study_date == "20190101"
    press(desk, Key.Key_E)
    assert (comparing.is_on, comparing.prior, comparing.overlays) == (False, None, None)
    assert not desk.window.prior_bar.isVisible()
    assert desk.bench.second_image.row is None


def test_closing_the_prior_or_keeping_another_image_ends_comparing(
    desk: Desk, comparing: ComparisonController, view: ComparisonView
) -> None:
    desk.window.area.pin_or_close_image()
    assert not comparing.is_on
    desk.window.area.pin_or_close_image()
    assert not comparing.is_on
    assert desk.bench.second_image.row is desk.bench.image.row


def test_a_pair_has_the_room_of_the_list_and_one_key_brings_the_list_back(
    desk: Desk, comparing: ComparisonController, view: ComparisonView
) -> None:
    window = desk.window
    wide = window._list_width
    assert window.work_list.isHidden() and window.result_panel.isVisible()
    desk.until(lambda: window.area.width() > 1366 * 0.7)
    assert "F8" in texts(window.prior_bar)
    desk.open_row(4)  # an image without a prior: the two images keep the room
    assert window.work_list.isHidden()
    press(desk, Key.Key_E)
    press(desk, Key.Key_E)  # begun from here, the list stays, and no key brings it back
    assert window.work_list.isVisible() and "F8" not in texts(window.prior_bar)
    desk.open_row(1)
    desk.until(lambda: comparing.overlays is not None)
    assert window.work_list.isHidden()
    press(desk, Key.Key_F8)
    assert window.work_list.isVisible() and "F8" not in texts(window.prior_bar) and comparing.is_on
    desk.open_row(1)
    desk.until(lambda: comparing.overlays is not None)
    assert window.work_list.isVisible()  # the mode that the person chose
    press(desk, Key.Key_E)
    press(desk, Key.Key_E)
    desk.until(window.work_list.isHidden)
    press(desk, Key.Key_E)
    assert not comparing.is_on and window.work_list.isVisible()
    assert abs(window.work_list.width() - wide) < 10


def test_a_rebuilt_window_shows_the_same_comparison(
    desk: Desk, comparing: ComparisonController, view: ComparisonView
) -> None:
    desk.application.change_settings({"theme": "dark", "language": "uk"})
    bar = desk.window.prior_bar
    assert bar.isVisible()
    assert "2021" in bar.dates.text()
    desk.window.area.prior_view.set_mode("swipe")
    assert desk.window.area.prior_view.mode == "swipe"


def test_the_prior_view_follows_to_the_aligned_position(desk: Desk, comparing: ComparisonController) -> None:
    desk.rooms.priors.answer = pair_comparison(shift=(32.0, 0.0))
    area = desk.window.area
    press(desk, Key.Key_E)
    desk.until(lambda: comparing.overlays is not None)
    centers = area.viewer.state.image_center, area.second_viewer.state.image_center
    assert centers == (None, None)  # two whole images side by side
    press(desk, Key.Key_Plus)
    down_px = 32 * 600 / 512
    assert area.second_viewer.state.image_center == pytest.approx((256.0, 300.0 + down_px))
    area.second_viewer.setFocus()
    QTest.keyClick(area.second_viewer, Key.Key_Up, Qt.KeyboardModifier.ShiftModifier)
    (x, y), (prior_x, prior_y) = area.viewer.state.image_center, area.second_viewer.state.image_center
    assert (x, y) == pytest.approx((prior_x, prior_y - down_px))
    press(desk, Key.Key_E)  # the prior is closed, so no position is transferred
    assert comparing.point_mapping(to_prior=True) is None


# ---- what must not be shown


def test_a_pair_that_is_not_comparable_has_no_overlay_and_a_reason(desk: Desk, comparing: ComparisonController) -> None:
    desk.rooms.priors.answer = pair_comparison(why=reason("compare_unlike"))
    press(desk, Key.Key_D)
    compared(desk)
    view, bar = desk.window.area.prior_view, desk.window.prior_bar
    assert view.mode == "side_by_side"
    assert desk.window.area.second_viewer.isVisible()
    assert desk.window.viewer._layer is None
    assert "The images are not comparable. The two images differ too much" in bar.state.text()
    assert not bar.buttons["prior_difference"].isEnabled()
    for key in (Key.Key_S, Key.Key_B, Key.Key_X):
        press(desk, key)
        assert desk.window.viewer._layer is None


@pytest.mark.parametrize(
    ("is_replaced", "words"),
    [
        (False, "lung-field pack of this program is missing"),
        (True, "The images are not comparable. The prior image: The file has changed"),
    ],
)
def test_a_failed_comparison_is_reported_and_both_images_stay(
    desk: Desk, comparing: ComparisonController, is_replaced: bool, words: str
) -> None:
    desk.rooms.priors.answer = FieldrayError(reason("compare_no_lungs_pack"))
    if is_replaced:  # replaced since it was screened: no comparison is tried
        desk.rooms.session.replaced.add(desk.rooms.outcomes[1].facts.content_sha256)
    press(desk, Key.Key_E)
    compared(desk)
    assert words in desk.window.prior_bar.state.text()
    assert desk.window.area.second_viewer.isVisible()
    assert len(desk.rooms.priors.compared) == (not is_replaced)


def test_a_file_of_another_patient_needs_a_consent(desk: Desk, comparing: ComparisonController) -> None:
    other = unscreened_outcome(replace(image_ref(8), path=Path("/images/other-8.dcm")))
    desk.rooms.priors.files[Path("/images/other-8.dcm")] = other
    comparing.compare_with_file(Path("/images/other-8.dcm"))
    box = desk.dialog(QMessageBox)
    assert "The two images show different patients" in box.text()
    assert comparing.prior is None
    box.defaultButton().click()  # Cancel
    assert comparing.prior is None
    comparing.compare_with_file(Path("/images/other-8.dcm"))
    box = desk.dialog(QMessageBox)
    next(button for button in box.buttons() if button is not box.defaultButton()).click()
    assert comparing.prior.outcome is other
    assert "The two images show different patients" in desk.window.prior_bar.warnings.text()
    assert "not screened yet" in texts(desk.window.prior_card)
    desk.open_row(4)
    desk.until(lambda: not comparing.is_searching)
    assert comparing.prior is None  # the consent for one image does not hold for the next


def test_a_file_of_an_unknown_patient_is_compared_with_a_notice(desk: Desk, comparing: ComparisonController) -> None:
    ref = replace(image_ref(8), path=Path("/images/plain-8.png"), kind="png")
    plain = unscreened_outcome(replace(ref, header=replace(ref.header, patient_id="", study_date="")))
    desk.rooms.priors.files[plain.ref.path] = plain
    comparing.compare_with_file(plain.ref.path)
    compared(desk)
    bar = desk.window.prior_bar
    assert bar.dates.text() == (
        "Current image: 2024-04-05. Prior image: date not known, time between the images not known"
    )
    assert "The program cannot tell whether both images show the same patient" in bar.warnings.text()
    assert "The order of the two images is unknown" in bar.warnings.text()


def test_the_same_or_a_later_image_as_prior_gets_a_notice(desk: Desk, comparing: ComparisonController) -> None:
    for path, words in (
        (desk.rooms.outcomes[0].ref.path, "The current image and the prior image are identical."),
        (desk.rooms.outcomes[1].ref.path, ""),
    ):
        desk.rooms.priors.files[path] = unscreened_outcome(image_ref(1))
        comparing.compare_with_file(path)
        desk.until(lambda: comparing.prior is not None)
        assert words in desk.window.prior_bar.warnings.text()
    desk.open_row(3)
    desk.rooms.priors.files[desk.rooms.outcomes[0].ref.path] = desk.rooms.outcomes[0]
    comparing.compare_with_file(desk.rooms.outcomes[0].ref.path)
    desk.until(lambda: comparing.prior is not None)
    assert "is later than the current image" in desk.window.prior_bar.warnings.text()
    assert "5 years 3 months later" in desk.window.prior_bar.dates.text()


def test_a_file_that_is_no_image_is_a_notice(desk: Desk, comparing: ComparisonController) -> None:
    comparing.compare_with_file(Path("/images/notes.txt"))
    board = desk.bench.notice_board
    desk.until(lambda: any(notice.key == "prior" for notice in board.notices))
    assert comparing.prior is None


def test_opening_another_image_cancels_a_running_comparison(desk: Desk, comparing: ComparisonController) -> None:
    desk.rooms.priors.may_compare.clear()
    press(desk, Key.Key_E)
    desk.until(lambda: len(desk.rooms.priors.compared) == 1)
    assert "Comparing…" in desk.window.prior_bar.state.text()
    for row in (2, 1, 4, 2, 1, 2):
        desk.window.work_list.select_image(row)
    desk.until(lambda: comparing.overlays is not None)
    assert desk.rooms.priors.cancelled >= 1
    assert comparing.prior.outcome.ref == desk.rooms.outcomes[2].ref
    assert [record.current_sha256 for record in comparing.comparison_records()] == [
        desk.rooms.outcomes[1].facts.content_sha256
    ]


def test_the_window_is_closed_while_a_comparison_runs(desk: Desk, comparing: ComparisonController) -> None:
    desk.rooms.priors.may_compare.clear()
    press(desk, Key.Key_E)
    desk.until(lambda: len(desk.rooms.priors.compared) == 1)
    desk.bench.close()
    desk.until(lambda: desk.rooms.priors.is_closed)


@pytest.mark.parametrize(
    "name", ["<b>bold</b><img src=/etc/passwd>", "\u202eevil^\u2066name", "&File\tX", "%1 {count} {day}", "A" * 5000]
)
def test_hostile_names_and_dates_are_shown_literally(desk: Desk, name: str) -> None:
    desk.rooms.outcomes[:] = [
        of_patient(1, name, "20240405", patient_name=name),
        of_patient(2, name, name, patient_name=name, view_position=name),
    ]
    desk.screen()
    desk.open_row(1)
    press(desk, Key.Key_E)
    compared(desk)
    window = desk.window
    seen = texts(window.prior_bar) + texts(window.prior_card) + "".join(head.name.text() for head in window.area._heads)
    assert "\u202e" not in seen
    for command in ("swipe", "blink", "difference"):
        window.area.prior_view.set_mode(command)
        window.viewer.grab()
    assert window.width() <= 1366


# ---- reports


def test_reports_get_the_compared_priors(desk: Desk, comparing: ComparisonController) -> None:
    press(desk, Key.Key_E)
    compared(desk)
    (record,) = comparing.comparison_records()
    assert record.current_sha256 == desk.rooms.outcomes[0].facts.content_sha256
    assert record.prior_header.study_date == "20210205"
    assert record.prior_header.patient_name == ""
    assert (record.similarity, len(record.regions), record.not_comparable_reason) == (0.83, 2, None)
    desk.bench.start_export(Path("/out"))
    desk.until(lambda: bool(desk.rooms.exported))
    assert desk.rooms.exported[0][3].prior_comparisons == (record,)
    comparing.forget_comparisons()
    assert comparing.comparison_records() == ()


def test_the_prior_is_bent_by_the_displacement(desk: Desk, comparing: ComparisonController) -> None:
    """A prior that lies 20 frame pixels lower is drawn 20 * 600 / 512 image pixels higher."""
    desk.rooms.priors.answer = pair_comparison(shift=(20.0, 0.0))
    press(desk, Key.Key_E)
    compared(desk)
    bent, prior = comparing.overlays.aligned_prior.image.pixels, desk.bench.second_image.pyramid.image.pixels
    assert bent.shape == (600, 512)
    moved = 20 * 600 / 512
    rows = np.arange(100, 500)
    expected = [np.interp(rows + moved, np.arange(600), prior[:, column].astype(float)) for column in (100, 256, 400)]
    for column, wanted in zip((100, 256, 400), expected, strict=True):
        assert np.abs(bent[rows, column].astype(float) - wanted).max() <= 1.0
