"""Acts: a run from the beginning, a run that is resumed, and verdicts that are given during a run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, get_args

from fieldray.domain.run import Event, OutcomeReady, Publish, RunChanged, Verdict, VerdictChoice
from fieldray.errors import StorageProblem
from fieldray.store.results import ResultStore
from powercut.place import NAMES, Emit, Log, Place, emitter, outcome_of, require, require_complete, require_whole

_JUDGED: Final = NAMES[:4]
_ROUNDS: Final = 3


def prepare_nothing(place: Place) -> None:
    """A new home."""
    place.clear()


def prepare_half(place: Place) -> None:
    """A run that was stopped after half of the images; a verdict was given on the first."""
    place.clear()
    with ResultStore(place.store) as store:
        run_id = store.open_run(place.spec)
        for ref in place.refs()[: len(NAMES) // 2]:
            outcome = outcome_of(ref)
            row_id = store.save(run_id, outcome, spec=place.spec)
            if ref.path.name == NAMES[0]:
                store.set_verdict(row_id, Verdict(choice="disagree", note="before"), judged=outcome)
        store.set_state(run_id, "cancelled")
    emitter(place.log_path)("verdict", NAMES[0])


def prepare_verdicts(place: Place) -> None:
    """A run that is finished."""
    place.clear()
    place.screen()


def screen(place: Place, emit: Emit) -> None:
    """All images."""
    batch = place.screen(_announcing(emit))
    if batch.reason:
        raise StorageProblem(batch.reason)


def give_verdicts(place: Place, emit: Emit) -> None:
    """On images of the run that is there, three times each, some withdrawn at last; during another run."""
    first = min(run.run_id for run in place.runs())  # a rival may have begun another one already
    rows = {name: result for name, result in place.results(first).items() if name in _JUDGED}
    batch = place.batch(_announcing(lambda *event: None), fresh=True)
    batch.start()
    try:
        for name, verdict in _verdicts():
            row = rows[name]
            emit("asked", name, *_words(verdict))
            try:
                with ResultStore(place.store) as store:
                    over = {None, *(asked for asked_on, asked in _verdicts() if asked_on == name)}
                    store.set_verdict(row.row_id, verdict, judged=row.outcome, over=over)
            except StorageProblem as problem:
                emit("problem", problem.reason.code)
            else:
                emit("saved", name)
    finally:
        batch.join()
    if batch.reason:
        raise StorageProblem(batch.reason)


def check_run(place: Place, log: Log, end: str) -> None:
    """What is there is right; what was told is there unless the power went; a resumed run is complete."""
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
    require(not has_half or verdict == Verdict(choice="disagree", note="before"), "the verdict of before")
    require(len(place.runs()) == 1 + (bool(runs) and runs[0].state == "finished"), "the run was not resumed")


def check_verdicts(place: Place, log: Log, end: str) -> None:
    """On every image lies the last verdict that was told as saved, or one that was asked for later."""
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
    """Which of the verdicts that were asked for on an image was the last one that was told as saved, 0 for none."""
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
        if isinstance(event, OutcomeReady):
            emit("seen", event.outcome.ref.path.name, event.run_id)
        if isinstance(event, RunChanged) and event.state not in ("running", "paused"):
            emit("ended", event.state, event.reason.code if event.reason else "")

    return publish
