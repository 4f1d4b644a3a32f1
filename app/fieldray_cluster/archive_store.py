"""An archive in the store of this computer: one run, as `fieldray screen` would have made it over the same paths.

The window shows it, and a later `fieldray screen` takes its results over by content, model and settings.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fieldray.domain.events import Publish
from fieldray.domain.finding import Category, Outcome
from fieldray.domain.run import RunSpec
from fieldray.errors import FieldrayError, UsageProblem
from fieldray.imaging.discover import discover
from fieldray.pipeline.keeping import open_store, require_kept, room_kept_back
from fieldray.reasons import Reason, reason
from fieldray.reports.outputs import is_own_report
from fieldray.settings import Settings
from fieldray.store.results import ResultQuery, ResultStore
from fieldray.workers.pool import open_workers
from fieldray_cluster.archive_folder import ArchiveFolder


@dataclass(eq=False, slots=True)
class ArchiveRun:
    """The run of an archive while it is filled, by one thread.

    counts   how many images have each outcome
    missing  how many images of an earlier start are no longer on the list; known once it is finished
    """

    run_id: int
    _store: ResultStore
    _spec: RunSpec
    _keeps_previews: bool
    counts: Counter[Category] = field(default_factory=Counter)
    missing: int = 0

    def save(self, outcomes: Sequence[Outcome], is_resumed: bool) -> None:
        """Keep outcomes; an image that is there already keeps its row. Raises StorageProblem."""
        self._store.save_all(
            self.run_id, outcomes, spec=self._spec, is_resumed=is_resumed, keeps_preview=self._keeps_previews
        )
        self.counts.update(outcome.category for outcome in outcomes)

    def finish(self) -> None:
        """All images have an outcome. Raises StorageProblem (results_lost)."""
        require_kept(self._store, self.run_id, saved=sum(self.counts.values()))
        self.missing = self._store.finish(self.run_id)

    def cancel(self, why: Reason | None = None) -> None:
        """Note that it ended early, `why` if it was not a person's wish. Raises StorageProblem."""
        self._store.set_state(self.run_id, "failed" if why else "cancelled", reason=why)


@contextlib.contextmanager
def open_run(database: Path, spec: RunSpec, publish: Publish, *, keeps_previews: bool) -> Iterator[ArchiveRun]:
    """The run of this archive: begun, or that of an earlier start that is not finished. Raises StorageProblem."""
    with room_kept_back(database), open_store(database, publish) as store:
        run = ArchiveRun(store.open_run(spec), store, spec, keeps_previews)
        try:
            yield run
        except FieldrayError as problem:
            with contextlib.suppress(FieldrayError):
                run.cancel(problem.reason)
            raise
        except BaseException:
            with contextlib.suppress(FieldrayError):
                run.cancel()
            raise


def list_images(
    folder: ArchiveFolder, paths: Sequence[Path], settings: Settings, *, tell: Callable[[int], None]
) -> None:
    """Write the list of all images under absolute paths, unless it is there.

    Raises UsageProblem (archive_list_lost), StorageProblem.
    """
    if folder.is_listed:
        return
    if folder.has_results:
        raise UsageProblem(reason("archive_list_lost", folder=folder.path, name="list.parquet"))
    with contextlib.closing(open_workers(settings, 1)) as readers:
        found = discover(paths, members=readers.members, is_own_report=is_own_report)
        own = os.path.join(folder.path.absolute(), "")  # noqa: PTH118 - with a separator at its end
        folder.write_list((ref for ref in found if not str(ref.path).startswith(own)), tell=tell)


def failed_in(database: Path, run_id: int) -> int:
    """How many images of a run failed. Raises StorageProblem."""
    with ResultQuery(database) as query:
        return query.counts(run_id).get("failed", 0)


def is_merged(database: Path, run_id: int) -> bool:
    """Whether a run with all results of an archive is still in the store, finished. Raises StorageProblem."""
    if not database.exists():
        return False
    with ResultQuery(database) as query:
        try:
            return query.run(run_id).state == "finished"
        except KeyError:
            return False
