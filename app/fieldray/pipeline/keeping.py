"""What a run asks of its store: that it can be read, takes what came out, and holds what was saved."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from fieldray.domain.events import Event, OutcomeReady, Publish, ResultsTakenOver, RunState, StoreRepaired
from fieldray.domain.finding import ASKED_FOR, Outcome, ResultKind, notes_of, without_preview
from fieldray.domain.run import RunSpec
from fieldray.domain.study import ImageHeader
from fieldray.errors import StorageProblem
from fieldray.reasons import Reason, reason
from fieldray.store.database import is_damage
from fieldray.store.maintenance import renew_pictures, repair
from fieldray.store.results import ResultQuery, ResultStore


def open_store(database: Path, publish: Publish) -> ResultStore:
    """The store; a damaged one is set aside first, and a person is told. Raises StorageProblem."""
    with contextlib.suppress(StorageProblem):  # without pictures there is a run all the same
        if renewed := renew_pictures(database):
            publish(StoreRepaired(reason=renewed))
    try:
        return ResultStore(database)
    except StorageProblem as problem:
        if not is_damage(problem):
            raise
        if repaired := repair(database):  # or another program has done it
            publish(StoreRepaired(reason=repaired))
        return ResultStore(database)


def require_kept(store: ResultQuery, run_id: int, *, saved: int) -> None:
    """Require that all results of a run are in the store. Raises StorageProblem (results_lost).

    saved  the number of rows that the run was given
    """
    try:
        store.run(run_id)
        found = sum(store.counts(run_id).values())
    except KeyError:
        found = -1
    if found < saved:
        raise StorageProblem(reason("results_lost", path=store.path, found=max(found, 0), saved=saved))


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class PackWork:
    """What is told of one of the packs that go over the images.

    check_header  why an image with this header is refused, None if it is not
    doubts        what the results of a run with this number, all of them stored, say against the pack
    """

    spec: RunSpec
    check_header: Callable[[ImageHeader], Reason | None]
    doubts: Callable[[int], Sequence[Reason]] = lambda _run_id: ()


_UNLIKE: Final = "unlike_measured"


class KeptRun:
    """The run of one of these packs in the store, and what is counted of it.

    number   of the pack
    watches  whether the run goes on with what comes: an image may be moved meanwhile
    """

    def __init__(
        self, pack: PackWork, run_id: int, *, number: int, last_row: int, keeps_previews: bool, watches: bool
    ) -> None:
        self.pack, self.run_id, self.number = pack, run_id, number
        self._before = self._last_row = last_row
        self._keeps_previews, self._watches = keeps_previews, watches
        self._saved = self._unlike = self._asked_for = self._by_sample = self._by_content = 0

    def save(self, store: ResultStore, outcome: Outcome, *, is_resumed: bool) -> Event:
        """Keep an outcome; what is to be told of it."""
        row_id = store.save(
            self.run_id,
            outcome,
            spec=self.pack.spec,
            is_resumed=is_resumed,
            keeps_preview=self._keeps_previews,
        )
        if self._watches and is_resumed:
            moved = store.leave_moved(self.run_id, row_id)
            self._saved -= sum(row > self._before for row in moved)  # those of before were not counted
        outcome = without_preview(outcome)
        codes = tuple(note.code for note in notes_of(outcome))
        self._note([row_id], [ResultKind(category=outcome.category, codes=codes, number=1)])
        self._by_content += is_resumed
        return OutcomeReady(run_id=self.run_id, row_id=row_id, outcome=outcome, is_resumed=is_resumed, pack=self.number)

    def take_over(self, store: ResultStore, own: Sequence[int], others: Sequence[int]) -> ResultsTakenOver:
        """Take over earlier results: rows of the run itself, and of other runs; what is to be told of them."""
        rows = store.take_over(self.run_id, own=own, others=others)
        kinds = store.kinds(rows)
        self._note(rows, kinds)
        self._by_sample += len(rows)
        return ResultsTakenOver(run_id=self.run_id, row_ids=rows, kinds=kinds, pack=self.number)

    def end(self, store: ResultStore, state: RunState, why: Reason | None) -> tuple[Reason, ...]:
        """Note that it is over; what a person should know of it."""
        if state != "finished":
            store.set_state(self.run_id, state, reason=why)
            return ()
        missing, taken_over = store.finish(self.run_id), self._by_sample + self._by_content
        taken = {"count": taken_over, "sampled": self._by_sample, "whole": self._by_content}
        return (
            *([reason("not_present", count=missing)] if missing else []),
            *([reason("taken_over", **taken)] if taken_over else []),
            *([reason("unlike_images", count=self._unlike)] if self._unlike else []),
            *([reason("asked_for_images", count=self._asked_for)] if self._asked_for else []),
        )

    def require_kept(self, store: ResultStore) -> None:
        """Require that all of it is in the store. Raises StorageProblem (results_lost)."""
        require_kept(store, self.run_id, saved=self._saved)

    def _note(self, rows: Sequence[int], kinds: Iterable[ResultKind]) -> None:
        new = [row for row in rows if row > self._last_row]  # one that was there before keeps its number
        self._last_row, self._saved = max(new, default=self._last_row), self._saved + len(new)
        for kind in kinds:
            self._unlike += kind.number * (_UNLIKE in kind.codes)
            self._asked_for += kind.number * (not ASKED_FOR.isdisjoint(kind.codes))


def told_of_each(store: ResultStore, taken: ResultsTakenOver) -> Iterable[Event]:
    """The same, told of each result."""
    for found in store.results(taken.row_ids, looks_inside=False):
        ready = OutcomeReady(run_id=taken.run_id, row_id=found.row_id, outcome=found.outcome, pack=taken.pack)
        yield replace(ready, is_resumed=True, is_sampled=True)
