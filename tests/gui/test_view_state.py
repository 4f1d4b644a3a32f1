"""Zoom, turns and flips as numbers."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QPointF
from PySide6.QtGui import QTransform

from fieldray.desktop.view_state import Point, Size, ViewState, dragged_window
from fieldray.domain.image import Window

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
def test_image_point_is_the_way_back(turns: int, mirrored: bool) -> None:
    state = ViewState(turns=turns, mirrored=mirrored, zoom=1.7, center=(70, 30))
    assert state.image_point(on_screen(state, (12, 34)), IMAGE, VIEW) == pytest.approx((12, 34))


def test_zooming_keeps_the_point_under_the_pointer() -> None:
    closer = ViewState().zoomed(3, IMAGE, VIEW, about=(100, 180))
    assert closer.zoom == 3
    assert closer.image_point((100, 180), IMAGE, VIEW) == pytest.approx(
        ViewState().image_point((100, 180), IMAGE, VIEW)
    )


def test_two_flips_and_four_turns_change_nothing() -> None:
    state = ViewState(turns=1)
    assert state.flipped_left_right().flipped_left_right() == state
    assert state.flipped_top_bottom().flipped_top_bottom() == state
    assert state.turned(2).turned(2) == state


def test_the_image_cannot_be_lost() -> None:
    away = ViewState(zoom=2).panned((1e6, -1e6), IMAGE, VIEW)
    assert away.center == (0.0, 100.0)
    assert ViewState().zoomed(1e9, IMAGE, VIEW).zoom == 64.0


def test_a_window_never_closes() -> None:
    assert dragged_window(Window(100, 50), (-1000, 0), gain=0.5).width == 0.5
