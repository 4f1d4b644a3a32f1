"""Runs of the past, for the command line and the window: listed, opened, compared, deleted."""

from __future__ import annotations

import datetime
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fieldray.domain.history import Comparison, Deletion, DeletionPlan, RunFilter, RunSummary, Tally, compare
from fieldray.domain.model import Model
from fieldray.domain.run import Run
from fieldray.errors import UsageProblem
from fieldray.paths import SCRATCH
from fieldray.persistence import clear_abandoned
from fieldray.pipeline.auditing import doubts_of
from fieldray.pipeline.export import manifest_of, pack_of, run_of
from fieldray.reasons import Reason, reason
from fieldray.store.deleting import RunDeleter
from fieldray.store.history import HistoryQuery


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class PastRun:
    """A run as it is opened again.

    model   the pack that made the results, None where it is not at hand: then there are no heat maps
    doubts  what speaks against the run as a whole
    """

    run: Run
    model: Model | None
    doubts: tuple[Reason, ...] = ()


class History:
    """All that is done with past runs. Thread-safe; methods wait for the disk and raise StorageProblem."""

    def __init__(self, database: Path) -> None:
        self._database = database

    def runs(self, wanted: RunFilter = RunFilter()) -> tuple[RunSummary, ...]:  # noqa: B008 - it is frozen
        """The runs that are wanted, the newest first."""
        with HistoryQuery(self._database) as query:
            return tuple(found for found in query.summaries() if wanted.has(found))

    def quality(self) -> dict[str, Counter[str]]:
        """How the images of the last month were taken: see `HistoryQuery.quality`."""
        with HistoryQuery(self._database) as query:
            return query.quality(since_s=time.time() - 31 * 86_400)

    def open(self, run_id: int, *, model: Model | None = None) -> PastRun:
        """A run as it can be listed (see `work_list`). Raises UsageProblem (history_no_run).

        model  of a pack that is loaded already, which may be the one of the run
        """
        with HistoryQuery(self._database) as query:
            run = run_of(query, run_id)
            found = pack_of(run.spec, model)
            return PastRun(run=run, model=found, doubts=doubts_of(query, run, found.manifest if found else None))

    def compare(self, first: int, second: int) -> Comparison:
        """Two runs, image by image. Raises UsageProblem (history_no_run, history_same_run)."""
        if first == second:
            raise UsageProblem(reason("history_same_run"))
        with HistoryQuery(self._database) as query, query.at_one_moment():
            before, after = run_of(query, first), run_of(query, second)
            found = compare(before, query.briefs(first), after, query.briefs(second))
            return replace(found, manifests=(manifest_of(before.spec), manifest_of(after.spec)))

    def month(self, first: datetime.date) -> tuple[Tally, ...]:
        """What was first seen in the month that begins on this day, by this computer's clock."""
        after = (first + datetime.timedelta(days=31)).replace(day=1)
        since, until = (datetime.datetime.combine(day, datetime.time()).timestamp() for day in (first, after))
        with HistoryQuery(self._database) as query:
            return query.tallies(since, until)

    def plan_deletion(self, run_ids: Sequence[int]) -> DeletionPlan:
        """What deleting would take away. Raises UsageProblem (history_no_run)."""
        return RunDeleter(self._database).plan(run_ids)

    def clear(self) -> None:
        """Remove what killed processes left of images, whatever runs there are."""
        clear_abandoned(self._database.parent / SCRATCH)

    def delete(self, plan: DeletionPlan) -> Deletion:
        """Delete runs for good, as planned. Raises UsageProblem (history_no_run, history_in_use, history_grown)."""
        self.clear()
        return RunDeleter(self._database).delete(plan.run_ids, agreed=plan)


def plan_sentences(plan: DeletionPlan) -> tuple[Reason, ...]:
    """What a person is told before they say yes."""
    said = [reason("history_deletes", results=plan.results)]
    if plan.verdicts:
        said.append(reason("history_verdicts", count=plan.verdicts))
    if plan.verdicts_kept:
        said.append(reason("history_verdicts_kept", count=plan.verdicts_kept))
    if not plan.verdicts:
        said.append(reason("history_no_verdicts"))
    return (*said, reason("history_files_stay"))


def deletion_sentences(done: Deletion) -> tuple[Reason, ...]:
    """What a person is told afterwards."""
    said = [reason("history_deleted", count=len(done.plan.run_ids))]
    if (freed_mb := f"{max(0, done.freed_bytes) / 1e6:.1f}") != "0.0":
        said.append(reason("history_freed", freed_mb=freed_mb))
    if done.copies_left:
        left = [Path(copy) for copy in done.copies_left]
        names = ", ".join(copy.name for copy in left)
        said.append(reason("history_copies_left", folder=left[0].parent, names=names))
    if not done.is_wiped:
        said.append(reason("history_not_wiped"))
    return tuple(said)
