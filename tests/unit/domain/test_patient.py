"""The images of a run that count as today's: those of each patient's newest day, and those without a date."""

from __future__ import annotations

import numpy as np
import pytest

from fieldray.domain.patient import day_number, earlier_image_mask, positions_with_earlier_last

TODAY, SUMMER, SPRING = map(day_number, ("20261129", "20260615", "20260401"))


def earlier(*images: tuple[int, int]) -> list[bool]:
    people, days = zip(*images, strict=True) if images else ((), ())
    return earlier_image_mask(np.array(people, np.int64), np.array(days, np.int64)).tolist()


def test_day_numbers_grow_by_one_a_day_in_every_date_format() -> None:
    assert day_number("20261201") - TODAY == 2
    assert day_number("2026.11.29") == day_number(" 2026-11-29") == TODAY


@pytest.mark.parametrize("text", ["", "20261399", "20260230", "00000000", "today", "16660101"])
def test_an_impossible_day_is_no_date(text: str) -> None:
    assert day_number(text) == 0


def test_only_a_patients_newest_day_counts_as_today() -> None:
    images = (7, SUMMER), (7, TODAY), (-3, SUMMER), (7, TODAY), (7, SPRING)
    assert earlier(*images) == [True, False, False, False, True]


def test_images_without_a_date_all_count() -> None:
    assert earlier((7, 0), (7, 0)) == [False, False]
    assert earlier((7, 0), (7, SUMMER), (7, TODAY)) == [False, True, False]
    assert earlier((7, 0), (7, SUMMER)) == [False, False]
    assert earlier() == []


def test_images_of_earlier_days_come_last_in_their_old_order() -> None:
    assert positions_with_earlier_last(np.array([True, False, True, False])).tolist() == [1, 3, 0, 2]
