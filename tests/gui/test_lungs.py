"""Lung fields in the window: outline, areas, evidence inside the lungs, and notes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from desk import Desk, texts
from fake_rooms import model, refused, screened
from PySide6.QtCore import Qt
from PySide6.QtGui import QColor

from fieldray.domain.finding import ScreenedOutcome
from fieldray.domain.image import CoordinateMap
from fieldray.domain.lungs import LungFields
from fieldray.domain.model import InputSpec, PackRequirement
from fieldray.reasons import reason
from lungs import lungs

# The made-up images have 600 x 512 pixels; the drawn mask has 40 x 40 cells.
WHOLE = CoordinateMap(600 / 40, 0.0, 512 / 40, 0.0)


def found(**changes: Any) -> LungFields:
    """Lung fields over rows 150 to 450, columns 64 to 192 and 320 to 422."""
    return lungs(cells_to_image=WHOLE, image_rows=600, image_columns=512, **changes)


def with_lungs(
    number: int, score: float, fields: LungFields, *notes: str, inside: float | None = 0.62
) -> ScreenedOutcome:
    said = tuple(reason(code, percent=31) if code == "evidence_outside" else reason(code) for code in notes)
    return replace(screened(number, score), lungs=replace(fields, evidence_inside=inside), notes=said)


@pytest.fixture
def lung_desk(desk: Desk) -> Desk:
    """Four images: lungs found; little evidence inside them; lungs cut off, with a note; no lungs searched for."""
    desk.rooms.outcomes[:] = [
        with_lungs(1, 0.9, found()),
        with_lungs(2, 0.8, found(), "evidence_outside", inside=0.31),
        with_lungs(3, 0.1, found(), "lungs_cut_off_bottom", "unlike_measured", inside=None),
        screened(4, 0.2),
    ]
    desk.screen()
    desk.open_row(1)
    return desk


def test_the_panel_says_how_large_the_lungs_are_and_what_lies_inside(lung_desk: Desk) -> None:
    card = lung_desk.window.result_panel.lungs
    assert card.isVisible()
    # 200 and 160 of 1600 cells
    assert "right lung 12.5 %, left lung 10.0 %" in texts(card)
    assert "Share of the heat map inside the lungs: 62 %" in texts(card)
    assert not card._warning.isVisible()


def test_little_evidence_inside_the_lungs_gives_one_warning(lung_desk: Desk) -> None:
    lung_desk.open_row(2)
    card = lung_desk.window.result_panel.lungs
    assert card._warning.isVisible()
    assert "Only 31 % of the heat map is inside the lungs." in texts(card)
    assert texts(lung_desk.window.result_panel).count("Only 31 %") == 1


def test_notes_stand_with_the_result_and_in_the_list(lung_desk: Desk) -> None:
    lung_desk.open_row(3)
    words = texts(lung_desk.window.result_panel)
    assert "The lungs are cut off at the bottom of the image." in words
    assert "unlike the images that this pack was measured on" in words
    assert not lung_desk.window.result_panel.lungs._evidence.isVisible()
    rows = lung_desk.bench.rows
    status = {rows.row_at(rows.index(at, 0)).row_id: rows.index(at, rows.columnCount() - 1).data() for at in range(4)}
    assert status[3].startswith("The lungs are cut off")
    assert status[1] == "Screened"


def test_without_a_lung_field_pack_there_is_no_card_and_no_outline(lung_desk: Desk) -> None:
    lung_desk.open_row(4)
    assert not lung_desk.window.result_panel.lungs.isVisible()
    lung_desk.qtbot.keyClick(lung_desk.window.viewer, Qt.Key.Key_O)
    assert _blue(lung_desk) == 0


def test_one_key_shows_and_hides_the_outline(lung_desk: Desk) -> None:
    viewer = lung_desk.window.viewer
    viewer.setFocus()
    lung_desk.bench.switches.set(heat_map=False)
    assert _blue(lung_desk) == 0
    lung_desk.qtbot.keyClick(viewer, Qt.Key.Key_O)
    assert lung_desk.window.result_panel.lungs.outline_box.isChecked()
    assert lung_desk.window.tools.buttons["lung_outline"].isChecked()
    assert _blue(lung_desk) > 100
    lung_desk.qtbot.keyClick(viewer, Qt.Key.Key_O)
    assert _blue(lung_desk) == 0
    lung_desk.window.result_panel.lungs.outline_box.click()
    assert lung_desk.bench.switches.lung_outline


def test_the_outline_lies_where_the_lungs_are(lung_desk: Desk) -> None:
    viewer = lung_desk.window.viewer
    lung_desk.bench.switches.set(heat_map=False)
    lung_desk.bench.switches.set(lung_outline=True)
    shot, scale = viewer.grab().toImage(), viewer.state.points_per_pixel(viewer.image_size, viewer.view_size)
    left, top = (viewer.width() - 512 * scale) / 2, (viewer.height() - 600 * scale) / 2

    def is_line(x: float, y: float) -> bool:
        around = ((left + x * scale + dx, top + y * scale + dy) for dx in range(-3, 4) for dy in range(-3, 4))
        return any(_is_blue(shot.pixelColor(int(at), int(down))) for at, down in around)

    assert is_line(64, 300) and is_line(192, 300) and is_line(422, 300) and is_line(128, 150)
    assert not is_line(256, 300) and not is_line(128, 300)
    viewer.apply_view_state(viewer.state.turned(1))
    assert viewer.grab().toImage() != shot
    assert _blue(lung_desk) > 100


def test_an_image_refused_for_its_lungs_says_what_to_do(desk: Desk) -> None:
    turned = found(rotated_180=0.9)
    assert turned.refusal is not None
    desk.rooms.outcomes[:] = [replace(refused(1, turned.refusal), lungs=turned)]
    desk.screen()
    desk.open_row(1)
    assert "The image is upside down." in texts(desk.window.result_panel)
    assert not desk.window.result_panel.lungs.isVisible()  # the mask of a refused image is not shown
    desk.bench.switches.set(lung_outline=True)
    assert _blue(desk) == 0


def test_the_shown_model_input_is_the_crop(desk: Desk) -> None:
    spec = InputSpec(height=224, width=224, crop="lungs", crop_margin=0.1)
    desk.rooms.library.models[desk.rooms.library.always[0].folder] = model(
        "builtin", input=spec, requires=(PackRequirement(kind="lung-fields"),)
    )
    desk.bench.packs.use_pack(desk.rooms.library.always[0])
    desk.until(lambda: desk.bench.packs.model.manifest.input == spec)
    desk.rooms.outcomes[:] = [with_lungs(1, 0.9, found()), refused(2)]
    desk.screen()
    desk.open_row(1)
    image = desk.bench.image
    assert image.network_image is not None
    assert (image.network_image.rows, image.network_image.columns) == (224, 224)
    desk.open_row(2)
    assert image.network_image is None  # a refused image was not given to the model


def _is_blue(colour: QColor) -> bool:
    return colour.blue() > 140 and colour.blue() - colour.red() > 60


def _blue(desk: Desk) -> int:
    """How many points of the shown image have the colour of the outline."""
    shot = desk.window.viewer.grab().toImage()
    return sum(
        _is_blue(shot.pixelColor(x, y)) for x in range(10, shot.width() - 10) for y in range(10, shot.height() - 90)
    )
