"""Cases: the clock of the computer jumps while the program runs."""

from __future__ import annotations

import json
import re
import signal
import time
from itertools import cycle
from typing import Final

from harness.case import Group
from harness.record import Record
from harness.world import OtherClock, World

CASES = Group("clock")
_COUNT: Final = 120
_YEAR_S: Final = 365 * 24 * 3600
_NEGATIVE: Final = re.compile(r"(in|left|about) -\d|-\d+(\.\d+)?/s|-\d+:\d\d")


def require_sensible(done: Record) -> Record:
    """No time that passed, and none that is left, is negative."""
    found = _NEGATIVE.search(done.err + done.out)
    assert not found, f"a negative time: {found}"
    return done


def _times() -> tuple[float, ...]:
    """Years ahead, back to the beginning of 1970, a little before now, far ahead, and right again."""
    now = time.time()
    return now + 12 * _YEAR_S, 5.0, now - 3600, now + 200 * _YEAR_S, now


@CASES.case(
    "in-mid-run", "years forward, back to 1970 and right again, each after ten images", limit_s=90, is_quick=True
)
def in_mid_run(world: World) -> None:
    expected, clock = world.good_images(_COUNT // 2), OtherClock(world)
    out = world.folder / "out"
    running = world.start_screen("--out", out, held=True, environment=clock.environment)
    for moment in (*_times(), *_times()):
        running.read_lines(5)
        clock.set_to(moment)
    require_sensible(running.finish().ends_with(0)).has(expected)
    (path,) = out.glob("*.json")
    assert len(json.loads(path.read_text())["results"]) == len(expected)


@CASES.case("resumed", "a run begun in 2038 and resumed in 1970, again and again", limit_s=90)
def resumed(world: World) -> None:
    expected, clock = world.good_images(_COUNT), OtherClock(world)
    moments = cycle(_times())
    for _ in range(3):
        clock.set_to(next(moments))
        running = world.start_screen(held=True, environment=clock.environment)
        running.read_lines(12)
        clock.set_to(next(moments))
        running.signal(signal.SIGINT)
        require_sensible(running.finish().ends_with(130))
    require_sensible(world.run_screen(environment=clock.environment).ends_with(0)).has(expected)
    assert world.query("SELECT COUNT(*), MIN(state) FROM runs") == [(1, "finished")]


@CASES.case("history", "runs of other centuries: the list has them in the order in which they were begun")
def history(world: World) -> None:
    expected, clock = world.good_images(2), OtherClock(world)
    for moment in _times():
        clock.set_to(moment)
        world.screen(expected, "--fresh", codes=(0,), environment=clock.environment)
    listed = require_sensible(world.run("history", "list", environment=clock.environment).ends_with(0)).out
    numbers = [int(found) for found in re.findall(r"^\s*(\d+)\s", listed, re.MULTILINE)]
    assert numbers == sorted(numbers, reverse=True), listed
    assert len(numbers) == len(_times())
    for number in numbers:
        world.run("history", "show", number, environment=clock.environment).ends_with(0)
