"""Image pyramid, windows and heat map as arrays; zoom, turns and flips as numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fake_rooms import manifest, screened
from numpy.typing import NDArray
from PySide6.QtCore import QPointF
from PySide6.QtGui import QTransform

from fieldray.desktop.image_painting import Point, Size, ViewState, dragged_display_window, make_image_pyramid
from fieldray.domain import heat_map
from fieldray.domain.image import CoordinateMap, Image, Window
from fieldray.domain.model import Calibration, Label, Manifest, OutputRoles


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_each_level_is_the_mean_of_two_by_two(dtype: type) -> None:
    pixels = np.arange(600 * 513).reshape(600, 513).astype(dtype)
    pyramid = make_image_pyramid(Image(pixels=pixels))
    assert [level.shape for level in pyramid.levels] == [(600, 513), (300, 256), (150, 128)]
    block = pixels[2:4, 4:6].astype(int)
    assert pyramid.levels[1][1, 2] == (block.sum() + 2) // 4
    assert all(level.dtype == dtype for level in pyramid.levels)


@pytest.mark.parametrize(("side", "level"), [(2.0, 0), (1.0, 0), (0.6, 0), (0.5, 1), (0.26, 1), (0.25, 2), (0.01, 2)])
def test_the_level_is_never_coarser_than_the_screen(side: float, level: int) -> None:
    pyramid = make_image_pyramid(Image(pixels=np.zeros((600, 600), np.uint16)))
    assert pyramid.level_for_screen_resolution(side) == level


def test_a_window_and_its_inverse() -> None:
    pyramid = make_image_pyramid(Image(pixels=np.array([[0, 100, 200]] * 3, np.uint16)))
    table = pyramid.grey_level_table(Window(100, 100, "LINEAR_EXACT"), inverted=False)
    assert (table.dtype, table.size) == (np.uint8, 2**16)  # one table look-up per pixel, no arithmetic
    # The window reaches from 50 to 150: below black, its middle grey, above white.
    assert [int(table[value]) for value in (0, 50, 100, 150, 200)] == [0, 0, 128, 255, 255]
    inverse = pyramid.grey_level_table(Window(100, 100, "LINEAR_EXACT"), inverted=True)
    assert np.array_equal(inverse, 255 - table)
    assert table.take(pyramid.levels[0][:2, 1:]).tolist() == [[128, 255]] * 2


def test_the_presets_are_the_files_window_and_four_more() -> None:
    pixels = np.linspace(0, 4000, 400 * 400).reshape(400, 400).astype(np.uint16)
    presets = make_image_pyramid(Image(pixels=pixels, window=Window(2000, 1000))).display_window_presets
    assert presets[0] is None
    assert presets[1] == Window(2000, 4000, "LINEAR_EXACT") or presets[1].width == pytest.approx(4000, rel=0.01)
    assert presets[2].center < presets[1].center < presets[3].center


def _shown(maps: NDArray[np.float32], of: Manifest) -> heat_map.ShownHeatMap:
    found = heat_map.shown_heat_map(replace(screened(1, 0.9), class_maps=maps), of)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("measured", "span"),
    [
        ({}, 6.0),
        ({"labels": {"opacity": {"heat_map": {"span": 12.0}}}}, 12.0),
        ({"labels": {"opacity": {"heat_map": {"span": 0}}}}, 6.0),
        ({"labels": {"opacity": {"heat_map": {"span": float("nan")}}}}, 6.0),
        ({"labels": {"opacity": {"heat_map": {"span": 10**400}}}}, 6.0),
        ({"labels": {"opacity": {"heat_map": {"span": 1e-300}}}}, 6.0),
        ({"labels": {"opacity": {"heat_map": {"span": "12"}}}}, 6.0),
        ({"labels": {"opacity": {"heat_map": {"span": True}}}}, 6.0),
        ({"labels": {"opacity": [12.0]}}, 6.0),
        ({"labels": {"mass": {"heat_map": {"span": 12.0}}}}, 6.0),
    ],
)
def test_heat_begins_at_zero_evidence_and_is_full_one_span_above(measured: dict[str, Any], span: float) -> None:
    shown = _shown(np.array([[[-9.0, 0.0, 3.0, 6.0, 99.0]]], np.float32), manifest(metrics=measured))
    assert shown.evidence_threshold == 0.0  # the point lies at -0.364
    assert shown.colour_span == span
    assert shown.colour_strength.tolist() == [[0.0, 0.0, 3.0 / span, 6.0 / span, 1.0]]


def test_zero_evidence_is_the_calibrated_operating_point_and_at_least_even_odds() -> None:
    # logit(0.5) = 0 = 2 x - 1 gives x = 0.5.
    assert heat_map.evidence_threshold_logit(0.5, Calibration(slope=2.0, intercept=-1.0)) == pytest.approx(0.5)
    assert heat_map.evidence_threshold_logit(0.5, Calibration(slope=2.0, intercept=1.0)) == 0.0
    assert heat_map.evidence_threshold_logit(None, Calibration(slope=2.0, intercept=-1.0)) == 0.0
    assert heat_map.evidence_threshold_logit(0.9, None) == pytest.approx(2.197, abs=1e-3)
    assert heat_map.evidence_threshold_logit(0.1, None) == 0.0


def test_softmax_evidence_is_against_all_other_labels() -> None:
    labels = tuple(Label(code=code, scheme="fieldray", meaning={"en": code}) for code in ("a", "b"))
    two = manifest(labels=labels, operating_points=(), outputs=OutputRoles(class_maps=0, activation="softmax"))
    maps = np.stack([np.full((2, 2), 3.0), np.full((2, 2), 1.0)]).astype(np.float32)
    assert heat_map.label_logits(maps, "a", two).tolist() == [[2.0, 2.0]] * 2
    one = replace(two, outputs=OutputRoles(class_maps=0))
    assert heat_map.label_logits(maps, "a", one).tolist() == [[3.0, 3.0]] * 2


def test_smoothing_keeps_an_even_map_and_the_place_of_a_peak() -> None:
    assert np.allclose(heat_map.enlarge_smoothly(np.full((4, 5), 0.3, np.float32)), 0.3, atol=1e-6)
    cells = np.zeros((7, 7), np.float32)
    cells[2, 5] = 1
    fine = heat_map.enlarge_smoothly(cells)
    assert fine.shape == (112, 112)
    row, column = np.unravel_index(fine.argmax(), fine.shape)
    assert (row // 16, column // 16) == (2, 5)
    assert fine.min() >= 0 and fine.max() <= 1


def test_the_map_covers_what_the_tensor_covered() -> None:
    # A tensor of 224 x 224 whose rows are 3 and columns 2 image pixels, cut 5 and 1 from the edges; 14 x 14 cells.
    seen = screened(1, 0.9)
    seen = replace(seen, facts=replace(seen.facts, input_to_image=CoordinateMap(3.0, 5.0, 2.0, 1.0)))
    shown = heat_map.shown_heat_map(seen, manifest())
    assert shown is not None
    assert shown.network_field_of_view == (1.0, 5.0, 448.0, 672.0)
    assert (shown.cells_to_image.row_scale, shown.cells_to_image.column_scale) == (48.0, 32.0)


def test_no_evidence_is_clear_and_more_is_more_opaque() -> None:
    shades = heat_map.colours(np.linspace(0, 1, 11, dtype=np.float32)[None, :])
    opacity = shades[0, :, 3].astype(int)
    assert opacity[0] == 0 and opacity[-1] == 255
    assert (np.diff(opacity) >= 0).all()
    weak = heat_map.colours(np.array([[1.0 / heat_map.DEFAULT_COLOUR_SPAN]], np.float32))[0, 0, 3]
    assert weak < 0.2 * 255, "a veil over all that the network saw"


IMAGE, VIEW = Size(200, 100), Size(400, 400)


def on_screen(state: ViewState, point: Point) -> Point:
    return state.transform(IMAGE, VIEW).map(QPointF(*point)).toTuple()


def test_the_image_is_fitted_and_centred() -> None:
    # 200 x 100 into 400 x 400: twice as large, 100 points free above and below.
    assert ViewState().transform(IMAGE, VIEW) == QTransform(2, 0, 0, 2, 0, 100)


@pytest.mark.parametrize(
    ("state", "corner"),
    [
        (ViewState(), (0, 100)),
        # Turned right, the upper left corner goes to the upper right; the image is then 100 x 200, scale 2.
        (ViewState().turned(1), (300, 0)),
        (ViewState().turned(2), (400, 300)),
        (ViewState().turned(-1), (100, 400)),
        (ViewState().flipped_left_right(), (400, 100)),
        (ViewState().flipped_top_bottom(), (0, 300)),
        (ViewState().turned(1).flipped_left_right(), (100, 0)),
        (ViewState().turned(1).flipped_top_bottom(), (300, 400)),
    ],
)
def test_where_the_upper_left_corner_goes(state: ViewState, corner: Point) -> None:
    assert on_screen(state, (0, 0)) == pytest.approx(corner)


@pytest.mark.parametrize("turns", range(4))
@pytest.mark.parametrize("mirrored", [False, True])
def test_image_point_reverses_the_screen_position(turns: int, mirrored: bool) -> None:
    state = ViewState(quarter_turns=turns, is_mirrored=mirrored, zoom=1.7, image_center=(70, 30))
    assert state.image_point(on_screen(state, (12, 34)), IMAGE, VIEW) == pytest.approx((12, 34))


def test_zooming_keeps_the_point_under_the_pointer() -> None:
    closer = ViewState().zoomed(3, IMAGE, VIEW, about=(100, 180))
    assert closer.zoom == 3
    assert closer.image_point((100, 180), IMAGE, VIEW) == pytest.approx(
        ViewState().image_point((100, 180), IMAGE, VIEW)
    )


def test_two_flips_and_four_turns_change_nothing() -> None:
    state = ViewState(quarter_turns=1)
    assert state.flipped_left_right().flipped_left_right() == state
    assert state.flipped_top_bottom().flipped_top_bottom() == state
    assert state.turned(2).turned(2) == state


def test_the_image_cannot_be_moved_out_of_view() -> None:
    away = ViewState(zoom=2).panned((1e6, -1e6), IMAGE, VIEW)
    assert away.image_center == (0.0, 100.0)
    assert ViewState().zoomed(1e9, IMAGE, VIEW).zoom == 64.0


def test_a_window_never_becomes_narrower_than_its_minimum() -> None:
    assert dragged_display_window(Window(100, 50), (-1000, 0), gain=0.5).width == 0.5
