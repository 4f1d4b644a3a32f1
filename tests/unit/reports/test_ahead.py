"""What is made side by side keeps its order, and is never far ahead."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from fieldray.reports.exporter import side_by_side


def test_the_order_stays_and_no_more_is_taken_than_is_worked_on() -> None:
    taken: list[int] = []

    def given() -> Iterator[int]:
        for number in range(20):
            taken.append(number)
            yield number

    made = []
    with ThreadPoolExecutor(2) as threads:
        for found in side_by_side(lambda number: number * number, given(), threads, ahead=2):
            made.append(found)
            assert len(taken) <= len(made) + 2  # three wait at most, of which one was just handed out
    assert made == [number * number for number in range(20)]


def test_what_fails_is_raised_in_its_turn() -> None:
    with ThreadPoolExecutor(2) as threads:
        made = side_by_side(lambda number: 6 // number, [3, 2, 0, 1], threads, ahead=2)
        assert [next(made), next(made)] == [2, 3]
        with pytest.raises(ZeroDivisionError):
            next(made)
