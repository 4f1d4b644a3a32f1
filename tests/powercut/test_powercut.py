"""A few power cuts and disk failures for each act; `make powercut` tries thousands."""

from __future__ import annotations

import errno
import itertools
import random

import pytest

from powercut.acts import ACTS
from powercut.cuts import cut
from powercut.disk import Disk, Luck
from powercut.refusals import KINDS, Kind, refuse
from powercut.stage import Fault, Stage


@pytest.mark.parametrize(
    ("act", "disks"), {"verdicts": 8, "install": 40, "export": 8, "keep": 40, "program": 10}.items()
)
def test_nothing_is_lost_when_the_power_goes(stage: Stage, act: str, disks: int) -> None:
    figures = cut(stage, act, seed=7, lucks=2, most=disks)
    assert figures.lost == {}, figures.examples
    assert figures.counts["ordered"] + figures.counts["unordered"] > disks // 4  # equal disks are checked only once


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_disk_failures_are_reported_and_the_act_succeeds_later(stage: Stage, kind: Kind) -> None:
    figures = refuse(stage, "screen", kind, seed=7, most=3)
    assert figures.lost == {}, figures.examples
    assert figures.counts["tried"] == 3


def test_deleted_runs_stay_deleted_after_a_full_disk_and_a_power_cut(stage: Stage) -> None:
    """After the rows are deleted, the full disk prevents the rebuild of the database file without them."""
    act = ACTS["delete"]
    for first in itertools.count(1):
        act.prepare(stage.place)
        disk = Disk(stage.place.root, "ordered")
        done = stage.perform("delete", fault=Fault(first=first, how="from then on", error=errno.ENOSPC))
        if done.problem is None:
            break
    log = stage.place.log
    assert log == [["deleted", 1, 2]]
    for change in stage.changes:
        disk.apply(change)
    stage.place.write(disk.state(Luck(chance=random.Random(1), share=0)))
    act.check(stage.place, log, "power")


def test_a_database_begun_on_a_full_disk_does_not_count_as_damaged(stage: Stage) -> None:
    """A new database is complete before the file gets its name, even if its log cannot be merged into it."""
    act, codes = ACTS["screen"], set()
    for first in range(50, 75):
        act.prepare(stage.place)
        done = stage.perform("screen", fault=Fault(first=first, how="disk full", error=errno.ENOSPC, room=760))
        codes.add(done.problem and done.problem[0])
        assert stage.place.mended() == "", first
    assert codes == {"disk_full"}
