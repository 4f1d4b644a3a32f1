"""An act on the results' file itself: runs are deleted."""

from __future__ import annotations

from typing import Final

from fieldray.domain.run import Verdict
from fieldray.store.maintenance import delete_runs
from fieldray.store.results import ResultStore
from powercut.place import NAMES, Emit, Log, Place, require, require_complete, require_whole

_VERDICT: Final = Verdict(choice="agree", note="before")


def prepare_runs(place: Place) -> None:
    """Three finished runs, with a verdict on the third."""
    place.clear()
    for _ in range(3):
        place.screen(fresh=True)
    _judge(place, 3)


def delete(place: Place, emit: Emit) -> None:
    """The first two runs."""
    done = delete_runs(place.store, [1, 2])
    emit("deleted", *done.plan.run_ids)


def check_deleted(place: Place, log: Log, end: str, *, further: bool = False) -> None:
    """The two went together or not at all, and stay away once that was told; the third is as it was.

    further  another program may have begun runs
    """
    require_whole(place)
    left = {run.run_id for run in place.runs() if run.run_id <= 3 or not further}
    require(left in ({1, 2, 3}, {3}), f"runs {sorted(left)} are left")
    require(left == {3} or all(event[0] != "deleted" for event in log), "told as deleted, but there again")
    for run_id in left:
        require_complete(place.results(run_id))
    require(place.results(3)[NAMES[0]].verdict == _VERDICT, "the verdict on the run that was kept")
    if left != {3}:
        delete_runs(place.store, [1, 2])
    require_complete(place.results(3))


def _judge(place: Place, run_id: int, *names: str) -> None:
    for name, row in place.results(run_id).items():
        if name in (names or NAMES[:1]):
            with ResultStore(place.store) as store:
                store.set_verdict(row.row_id, _VERDICT, judged=row.outcome)
