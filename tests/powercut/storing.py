"""Acts on the results database: a new or resumed run, verdicts during a run, and deleting runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, get_args

from fieldray.domain.run import Event, ImageDone, Publish, RunChanged, Verdict, VerdictChoice
from fieldray.errors import StorageProblem
from fieldray.store.deletion import delete_runs
from fieldray.store.results import ResultStore
from powercut.place import NAMES, Emit, Log, Place, emitter, outcome_of, require, require_complete, require_whole

_JUDGED: Final = NAMES[:4]
_ROUNDS: Final = 3
_BEFORE: Final = Verdict(choice="disagree", note="before")


def prepare_half(place: Place) -> None:
    """Make a run that was stopped after half of the images, with a verdict on the first."""
    place.clear()
    with ResultStore(place.store) as store:
        run_id = store.open_run(place.spec)
        for ref in place.refs()[: len(NAMES) // 2]:
            outcome = outcome_of(ref)
            row_id = store.save_image(run_id, outcome, spec=place.spec).row_id
            if ref.path.name == NAMES[0]:
                store.set_verdict(row_id, _BEFORE, judged=outcome)
        store.set_run_state(run_id, "cancelled")
    emitter(place.log_path)("verdict", NAMES[0])


def prepare_run(place: Place) -> None:
    """Make a finished run."""
    place.clear()
    place.screen()


def screen(place: Place, emit: Emit) -> None:
    """Screen all images."""
    batch = place.screen(_announcing(emit))
    if batch.reason:
        raise StorageProblem(batch.reason)


def give_verdicts(place: Place, emit: Emit) -> None:
    """Give three verdicts on each image of the existing run during another run. Some are withdrawn at last."""
    first = min(run.run_id for run in place.runs())  # the other program may have begun a run already
    rows = {name: result for name, result in place.results(first).items() if name in _JUDGED}
    batch = place.batch(_announcing(lambda *event: None), as_new_run=True)
    batch.start()
    try:
        for name, verdict in _verdicts():
            row = rows[name]
            emit("asked", name, *_words(verdict))
            try:
                with ResultStore(place.store) as store:
                    over = {None, *(asked for asked_on, asked in _verdicts() if asked_on == name)}
                    store.set_verdict(row.row_id, verdict, judged=row.outcome, replaceable=over)
            except StorageProblem as problem:
                emit("problem", problem.reason.code)
            else:
                emit("saved", name)
    finally:
        batch.join()
    if batch.reason:
        raise StorageProblem(batch.reason)


def check_run(place: Place, log: Log, end: str) -> None:
    """All results are correct. Except after a power cut, all reported results are there. A resumed run is complete."""
    require_whole(place)
    runs = place.runs()
    require(len(runs) <= 1, f"{len(runs)} runs")
    seen = {event[1] for event in log if event[0] == "seen"}
    found = place.results(runs[0].run_id) if runs else {}
    require(end == "power" or seen <= set(found), f"told, but not kept: {seen - set(found)}")
    has_half = any(event[0] == "verdict" for event in log)
    batch = place.screen()
    require(batch.state == "finished", f"the resumed run is {batch.state}")
    rows = place.results(batch.run_id)
    require_complete(rows)
    verdict = rows[NAMES[0]].verdict
    require(not has_half or verdict == _BEFORE, "the verdict of before")
    require(len(place.runs()) == 1 + (bool(runs) and runs[0].state == "finished"), "the run was not resumed")


def check_verdicts(place: Place, log: Log, end: str) -> None:
    """Every image has the last verdict that was reported as saved, or a later one."""
    require_whole(place)
    first = min(run.run_id for run in place.runs())
    rows = place.results(first)
    require_complete(rows)
    for name in _JUDGED:
        asked = [[name, "", ""], *(event[1:] for event in log if event[:2] == ["asked", name])]
        saved = _saved(log, name)
        found = [name, *_words(rows[name].verdict)]
        require(found in asked[saved:], f"the verdict on {name} is {found[1:]}, {saved} were saved of {asked[1:]}")
    batch = place.screen()
    require_complete(place.results(batch.run_id))


def _saved(log: Log, name: str) -> int:
    """Return the number of the image's last verdict that was reported as saved, 0 for none."""
    number, saved = 0, 0
    for event in log:
        if event[:2] == ["asked", name]:
            number += 1
        if event[:2] == ["saved", name]:
            saved = number
    return saved


def _verdicts() -> Iterator[tuple[str, Verdict | None]]:
    choices = get_args(VerdictChoice)
    for turn in range(_ROUNDS):
        for number, name in enumerate(_JUDGED):
            is_withdrawn = turn == _ROUNDS - 1 and number % 2
            choice = choices[(turn + number) % len(choices)]
            yield name, None if is_withdrawn else Verdict(choice=choice, note=f"{turn}, {name}")


def _words(verdict: Verdict | None) -> tuple[str, str]:
    return (verdict.choice, verdict.note) if verdict else ("", "")


def _announcing(emit: Emit) -> Publish:
    def publish(event: Event) -> None:
        if isinstance(event, ImageDone):
            emit("seen", event.image.ref.path.name, event.image.run_id)
        if isinstance(event, RunChanged) and event.state not in ("running", "paused"):
            emit("ended", event.state, event.reason.code if event.reason else "")

    return publish


# ---- deleting


def prepare_runs(place: Place) -> None:
    """Make three finished runs, with a verdict on the third."""
    place.clear()
    for _ in range(3):
        place.screen(as_new_run=True)
    row = place.results(3)[NAMES[0]]
    with ResultStore(place.store) as store:
        store.set_verdict(row.row_id, _BEFORE, judged=row.outcome)


def delete(place: Place, emit: Emit) -> None:
    """Delete the first two runs."""
    done = delete_runs(place.store, [1, 2])
    emit("deleted", *done.plan.run_ids)


def check_deleted(place: Place, log: Log, end: str, *, further: bool = False) -> None:
    """Both runs are deleted or none, and both once the deletion was reported. The third run is unchanged.

    further  another program may have begun more runs
    """
    require_whole(place)
    left = {run.run_id for run in place.runs() if run.run_id <= 3 or not further}
    require(left in ({1, 2, 3}, {3}), f"runs {sorted(left)} are left")
    require(left == {3} or all(event[0] != "deleted" for event in log), "told as deleted, but there again")
    for run_id in left:
        require_complete(place.results(run_id))
    require(place.results(3)[NAMES[0]].verdict == _BEFORE, "the verdict on the run that was kept")
    if left != {3}:
        delete_runs(place.store, [1, 2])
    require_complete(place.results(3))
