"""What the machine is to blame for is taken off a stall, and nothing else."""

from __future__ import annotations

import time

import pytest

from faults.fault_run import stall_figures
from faults.stalls import Beats, Onlooker, Stall


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ((), 4.0),
        ((Stall(0.0, 10.0),), 4.0),  # over before it began
        ((Stall(12.0, 13.0),), 3.0),  # within
        ((Stall(9.0, 11.0), Stall(13.0, 20.0)), 2.0),  # one second at its beginning, one at its end
        ((Stall(0.0, 99.0),), 0.0),  # all of it
    ],
)
def test_only_what_overlaps_is_taken_off(others: tuple[Stall, ...], expected: float) -> None:
    assert Stall(10.0, 14.0).beyond(others) == pytest.approx(expected)


def test_the_longest_are_kept_in_order() -> None:
    beats = Beats()
    for _ in range(50):
        beats.beat()
    seconds = [stall.seconds for stall in beats.longest]
    assert len(seconds) == 20
    assert seconds == sorted(seconds, reverse=True)


def test_figures_say_when_and_how_much_was_the_windows_own() -> None:
    figures = stall_figures([Stall(101.0, 101.4), Stall(105.0, 105.2)], [Stall(101.1, 101.4)], began_s=100.0)
    assert figures["window_stalls_s"] == [0.4, 0.2]
    assert figures["window_stalls_beyond_machine_s"] == [0.2, 0.1]  # 0.2 is the second one's, 0.4 - 0.3 the first's
    assert figures["window_stalls_at_s"] == [1.0, 5.0]


def test_an_onlooker_sees_where_somebody_is_who_does_not_come_back() -> None:
    beats = Beats()
    beats.begin()
    onlooker = Onlooker(beats)
    time.sleep(0.5)
    beats.beat()
    onlooker.end()
    (stall, *_) = map(onlooker.completed, beats.longest)
    assert stall.where[0].startswith("test_stalls.py:")
